#!/usr/bin/perl
print "X-Table: yes\nContent-Type: text/plain\n\n";
eval { die "caught\n" };
print "error: $@";
eval { die { code => 42 } };
print "object: $@->{code}\n";
local $@ = 'kept';
eval { 1 };
print "empty: '$@'\n";
