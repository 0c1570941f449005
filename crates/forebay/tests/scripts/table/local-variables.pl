#!/usr/bin/perl
print "X-Table: yes\nContent-Type: text/plain\n\n";
{ local ($,, $\, $|) = ('-', "\n", 1); print 'a', 'b' }
print 'a', 'b', "\n";
