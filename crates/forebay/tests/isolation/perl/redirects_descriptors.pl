#!/usr/bin/perl
# Redirects its output in the middle of the reply.
use POSIX ();
$| = 1;
print "Content-Type: text/plain\n\nbegun <$ENV{QUERY_STRING}>\n";
open my $null, '>', '/dev/null';
POSIX::dup2(fileno $null, 1);
print "nowhere <$ENV{QUERY_STRING}>\n";
