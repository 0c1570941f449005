#!/usr/bin/perl
print "X-Table: yes\nContent-Type: text/plain\n\n";
print join('', map { chr } 0 .. 255), "\n";
print "\x{e9}\n";
