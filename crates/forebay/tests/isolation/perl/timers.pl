#!/usr/bin/perl
# Leaves timers and signal handlers in the worker.
use Time::HiRes qw(setitimer ITIMER_REAL ITIMER_VIRTUAL ITIMER_PROF);
$SIG{ALRM} = $SIG{VTALRM} = $SIG{PROF} = sub { print "rung <$ENV{QUERY_STRING}>\n" };
print "Content-Type: text/plain\n\nbegun <$ENV{QUERY_STRING}>\n";
setitimer ITIMER_REAL, 0.02;
setitimer ITIMER_VIRTUAL, 0.005, 0.005;
setitimer ITIMER_PROF, 0.005, 0.005;
