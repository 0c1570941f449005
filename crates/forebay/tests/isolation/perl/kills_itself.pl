#!/usr/bin/perl
# Has printed something when it is killed.
$| = 1;
print "Content-Type: text/plain\n\nbegun <$ENV{QUERY_STRING}>\n";
kill KILL => $$;
