#!/usr/bin/perl
print "X-Table: yes\nContent-Type: text/plain\n\n";
$| = 1;
my $child = fork;
if (defined $child && !$child) { print "child\n"; CORE::exit(3) }
waitpid $child, 0;
print "parent, child ended with ", $? >> 8, "\n";
