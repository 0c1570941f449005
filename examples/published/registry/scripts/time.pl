#!/usr/bin/perl
# Prints the time: what is left to measure when a script does next to nothing.

use strict;
use warnings;

print "Content-Type: text/plain\n\n";
print 'The time is ', scalar localtime, "\n";
