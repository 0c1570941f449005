#!/usr/bin/perl
print "X-Table: yes\nContent-Type: text/plain\n\n";
use FindBin;
print -e "$FindBin::Bin/findbin.pl" ? "found\n" : "elsewhere\n";
