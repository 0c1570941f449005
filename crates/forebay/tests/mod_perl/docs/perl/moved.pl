#!/usr/bin/perl
print "Location: http://example.org/new\n\n";
