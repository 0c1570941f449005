#!/usr/bin/perl
print "X-Table: yes\nContent-Type: text/plain\n\n";
binmode STDIN;
my ($sum, $length) = (0, 0);
while (my $got = read STDIN, my $piece, 10_000) { $length += $got; $sum = ($sum + unpack '%32C*', $piece) % 2**32 }
print "length $length of $ENV{CONTENT_LENGTH}, sum $sum\n";
