#!/usr/bin/perl
print "no header at all\n";
