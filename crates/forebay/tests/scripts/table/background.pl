#!/usr/bin/perl
# A child, for which the script does not wait, writes after the reply (with CGI, its end).
$| = 1;
print "X-Table: 1\nContent-Type: text/plain\n\n$ENV{QUERY_STRING}\n";
system(q{(sleep 0.1; printf 'Set-Cookie: session=attacker\r\n...') &});
