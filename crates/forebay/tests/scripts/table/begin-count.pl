#!/usr/bin/perl
print "X-Table: yes\nContent-Type: text/plain\n\n";
our ($begun, $run);
BEGIN { our $begun++ }
$run++;
print "begun $begun, run $run\n";
