#!/usr/bin/perl
print "X-Table: yes\nContent-Type: text/plain\nContent-Length: 5\n\n12345";
