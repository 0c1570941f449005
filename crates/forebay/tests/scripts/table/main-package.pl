#!/usr/bin/perl
print "X-Table: yes\nContent-Type: text/plain\n\n";
our $x = 'own';
print defined $main::x ? "main is $main::x\n" : "main is another package\n";
