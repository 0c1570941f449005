#!/usr/bin/perl
print "Location: /s/environment.pl?from=redirect\n\n";
