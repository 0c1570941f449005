#!/usr/bin/perl
# The grandchild becomes an orphan, and writes later.
use POSIX ();
$| = 1;
print "Content-Type: text/plain\n\nbegun <$ENV{QUERY_STRING}>\n";
if (my $child = fork) { waitpid $child, 0 }
else {
    POSIX::_exit(0) if fork;
    select undef, undef, undef, 0.05;
    syswrite STDOUT, "late <$ENV{QUERY_STRING}>\n";
    POSIX::_exit(0);
}
