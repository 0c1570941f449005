#!/usr/bin/perl
# Has printed nothing when it is killed, but for what is in the buffer.
print "Content-Type: text/plain\n\nbegun <$ENV{QUERY_STRING}>\n";
kill KILL => $$;
