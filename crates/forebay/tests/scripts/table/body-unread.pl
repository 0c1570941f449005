#!/usr/bin/perl
print "X-Table: yes\nContent-Type: text/plain\n\n";
print "unread\n";
