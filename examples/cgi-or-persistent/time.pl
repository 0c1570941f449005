#!/usr/bin/perl
# Prints the time: a script with almost no work, so the cost of the server remains.

use strict;
use warnings;

print "Content-Type: text/plain\n\n";
print 'The time is ', scalar localtime, "\n";
