#!/usr/bin/perl
print "HTTP/1.1 203 Of The Script\r\nX-Table: yes\r\nContent-Type: text/plain\r\n\r\nown status line\n";
