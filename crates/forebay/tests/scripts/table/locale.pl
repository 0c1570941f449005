#!/usr/bin/perl
print "X-Table: yes\nContent-Type: text/plain\n\n";
use POSIX qw(setlocale LC_ALL LC_CTYPE);
print "locale ", setlocale(LC_CTYPE), "\n";
setlocale(LC_ALL, $ENV{QUERY_STRING} eq 'restore' ? 'C' : 'C.UTF-8');
print "set to ", setlocale(LC_CTYPE), "\n";
