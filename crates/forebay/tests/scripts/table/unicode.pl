#!/usr/bin/perl
print "X-Table: yes\nContent-Type: text/plain\n\n";
use utf8;
print ord('é'), "\n";
binmode STDOUT, ':encoding(UTF-8)';
print "äöü \x{263a}\n";
