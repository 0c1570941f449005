#!/usr/bin/perl
# Closes its standard handles, and the descriptors with POSIX::close.
use POSIX ();
$| = 1;
print "Content-Type: text/plain\n\nbegun <$ENV{QUERY_STRING}>\n";
close STDOUT;
POSIX::close(1);
POSIX::close(0);
