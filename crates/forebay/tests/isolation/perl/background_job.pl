#!/usr/bin/perl
# The shell ends at once, and its job writes a header field and a line later.
$| = 1;
print "Content-Type: text/plain\n\nbegun <$ENV{QUERY_STRING}>\n";
system q{(sleep 0.1; printf 'Set-Cookie: s=<%s>\r\n\r\n' "$QUERY_STRING") &};
