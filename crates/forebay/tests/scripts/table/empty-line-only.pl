#!/usr/bin/perl
print "\nbody without a header\n";
