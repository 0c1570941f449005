#!/usr/bin/perl
print "X-Table: yes\nContent-Type: text/plain\n\n";
print "some output\n";
die "a late reason to die\n";
