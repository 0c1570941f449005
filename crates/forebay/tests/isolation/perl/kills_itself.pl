#!/usr/bin/perl
# Prints something, and then kills itself.
$| = 1;
print "Content-Type: text/plain\n\nbegun <$ENV{QUERY_STRING}>\n";
kill KILL => $$;
