#!/usr/bin/perl
# Leaves a signal handler in the worker, and a child sends this signal.
use POSIX ();
$| = 1;
print "Content-Type: text/plain\n\nbegun <$ENV{QUERY_STRING}>\n";
my $worker = $$;
$SIG{USR1} = sub { print "signal <$ENV{QUERY_STRING}>\n" };
unless (fork) {
    kill USR1 => $worker;
    POSIX::_exit(0);
}
wait;
