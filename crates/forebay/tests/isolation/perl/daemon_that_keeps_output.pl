#!/usr/bin/perl
# A daemon in its own session that has not closed its output.
use POSIX ();
$| = 1;
print "Content-Type: text/plain\n\nbegun <$ENV{QUERY_STRING}>\n";
unless (fork) {
    POSIX::setsid();
    POSIX::_exit(0) if fork;
    select undef, undef, undef, 0.1;
    syswrite STDOUT, "late <$ENV{QUERY_STRING}>\n";
    POSIX::_exit(0);
}
wait;
