#!/usr/bin/perl
print "X-Table: yes\nContent-Type: text/plain\n\n";
eval { print "in\n"; exit };
print "after the eval\n";
