#!/usr/bin/perl
print "X-Table: yes\nContent-Type: text/plain\n\n";
{ package Guard2; sub new { bless {}, shift } sub DESTROY { print STDERR "destroyed\n" } }
our $guard ||= Guard2->new;
our $count;
print ++$count, "\n";
