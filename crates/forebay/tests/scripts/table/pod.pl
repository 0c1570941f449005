#!/usr/bin/perl
print "X-Table: yes\nContent-Type: text/plain\n\n";
print "one\n";

=head1 NAME

no code

=cut

print "two\n";
