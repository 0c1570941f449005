#!/usr/bin/perl
# A child that nobody waits for writes when the reply is over, or is the end of it (with CGI).
$| = 1;
print "X-Table: 1\nContent-Type: text/plain\n\n$ENV{QUERY_STRING}\n";
system(q{(sleep 0.1; printf 'Set-Cookie: session=attacker\r\n...') &});
