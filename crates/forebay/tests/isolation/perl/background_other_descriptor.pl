#!/usr/bin/perl
# The job has the client only as descriptor 9.
$| = 1;
print "Content-Type: text/plain\n\nbegun <$ENV{QUERY_STRING}>\n";
system q{(sleep 0.05; printf 'late <%s>\n' "$QUERY_STRING" >&9) 9>&1 >/dev/null 2>&1 &};
