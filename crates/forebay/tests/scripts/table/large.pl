#!/usr/bin/perl
print "X-Table: yes\nContent-Type: text/plain\n\n";
for my $n (1 .. 20_000) { print "line $n ", 'x' x 80, "\n" }
print 'y' x 300_000;
