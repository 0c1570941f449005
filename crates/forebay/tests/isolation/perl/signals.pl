#!/usr/bin/perl
# A child sends the worker a signal that a handler is left for.
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
