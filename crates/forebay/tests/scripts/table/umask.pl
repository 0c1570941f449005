#!/usr/bin/perl
print "X-Table: yes\nContent-Type: text/plain\n\n";
printf "%03o\n", umask;
umask $ENV{QUERY_STRING} eq 'restore' ? 022 : 077;
