#!/usr/bin/perl
print "X-Table: yes\nContent-Type: text/plain\n\n";
use Time::HiRes qw(alarm);
print "left of the last alarm: ", alarm(0) ? 'yes' : 'no', "\n";
local $SIG{ALRM} = sub { die "timeout\n" };
eval { alarm 0.05; select undef, undef, undef, 5; alarm 0 };
print "caught $@";
alarm 1000 if $ENV{QUERY_STRING} eq 'leave';
