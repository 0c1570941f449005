#!/usr/bin/perl
print "X-Table: yes\nContent-Type: text/plain\n\n";
print "one\n";

=head1 NAME

__END__ of nothing

=cut

print "two\n";
