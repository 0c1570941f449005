#!/usr/bin/perl
print "X-Table: yes\nContent-Type: text/plain\n\n";
my $line = <STDIN>;
print defined $line ? "line $line" : "end\n";
read STDIN, my $rest, 1000;
print "rest '$rest' ", eof(STDIN) ? 'end' : 'more', "\n";
