#!/usr/bin/perl
print "this is no header line\n\nbody\n";
