#!/usr/bin/perl
print "X-Table: yes\r\nContent-Type: text/plain\r\n\r\nlines end in CR LF\r\n";
