#!/usr/bin/perl
print "X-Table: yes\nContent-Type: text/plain\n\n";
use No::Such::Module;
print "not reached\n";
