#!/usr/bin/perl
print "X-Table: yes\nContent-Type: text/plain\n\n";
$| = 1;
print "1\n";
system 'echo 2';
print `echo 3`;
open my $pipe, '|-', 'cat' or die $!;
print $pipe "4\n";
close $pipe;
print "5\n";
