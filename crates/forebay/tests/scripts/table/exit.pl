#!/usr/bin/perl
print "X-Table: yes\nContent-Type: text/plain\n\n";
sub leave { print "leaving\n"; exit shift }
print "before\n";
leave($ENV{QUERY_STRING} || 0);
print "after\n";
