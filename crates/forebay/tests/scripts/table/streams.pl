#!/usr/bin/perl
print "X-Table: yes\nContent-Type: text/plain\n\n";
$| = 1;
for my $n (1 .. 50) { print "$n\n" }
printf "%s-%03d\n", 'printf', 7;
syswrite STDOUT, "syswrite\n";
print STDOUT "handle\n";
print {*STDOUT} "glob\n";
STDOUT->print("method\n");
use feature 'say';
say 'said';
