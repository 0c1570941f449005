#!/usr/bin/perl
print "X-Table: yes\nContent-Type: text/plain\n\n";
{ package Guard; sub new { bless {}, shift } sub DESTROY { print "destroyed\n" } }
my $guard = Guard->new;
print "body\n";
