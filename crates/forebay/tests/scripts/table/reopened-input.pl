#!/usr/bin/perl
print "X-Table: yes\nContent-Type: text/plain\n\n";
open STDIN, '<', $0 or die $!;
my $line = <STDIN>;
print "first line: $line";
