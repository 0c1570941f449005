#!/usr/bin/perl
# Every millisecond, a new process takes over the client, so that a search may miss it.
use POSIX ();
use Time::HiRes qw(time sleep);
$| = 1;
print "Content-Type: text/plain\n\nbegun <$ENV{QUERY_STRING}>\n";
if (my $child = fork) { waitpid $child, 0 }
else {
    my $end = time + 0.06;
    while (time < $end) {
        POSIX::_exit(0) if fork;
        sleep 0.001;
    }
    syswrite STDOUT, "late <$ENV{QUERY_STRING}>\n";
    POSIX::_exit(0);
}
