#!/usr/bin/perl
print "X-Table: yes\nContent-Type: text/plain\n\n";
sub where { my @frame = caller; $frame[2] }
print "line ", where(), "\n";
eval "die 'here'"; print $@ =~ /\(eval \d+\) line 1/ ? "eval\n" : $@;
