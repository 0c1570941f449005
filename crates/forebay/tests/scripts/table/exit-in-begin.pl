#!/usr/bin/perl
BEGIN { print "X-Table: yes\nContent-Type: text/plain\n\nbegun\n"; exit }
print "not reached\n";
