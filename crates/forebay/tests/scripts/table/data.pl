#!/usr/bin/perl
print "X-Table: yes\nContent-Type: text/plain\n\n";
while (my $line = <DATA>) { print "line $.: $line" }
__DATA__
one
two
