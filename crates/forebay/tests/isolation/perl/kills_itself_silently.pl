#!/usr/bin/perl
# Kills itself while its output is still in the buffer.
print "Content-Type: text/plain\n\nbegun <$ENV{QUERY_STRING}>\n";
kill KILL => $$;
