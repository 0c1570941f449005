#!/usr/bin/perl
print "X-Table: yes\nContent-Type: text/plain\n\n";
my $count = 0;
sub increment { $count++ }
increment();
increment();
print "count $count\n";
