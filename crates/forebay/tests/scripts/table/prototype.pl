#!/usr/bin/perl
print "X-Table: yes\nContent-Type: text/plain\n\n";
use strict; use warnings;
use constant { ONE => 1, LIST => [1, 2, 3] };
sub apply(&@) { my $code = shift; map { $code->($_) } @_ }
print ONE, " @{+LIST} ", join(',', apply { $_[0] * 2 } 1, 2), "\n";
