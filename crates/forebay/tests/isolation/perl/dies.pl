#!/usr/bin/perl
# Ends by an exception with text in its buffer.
print "Content-Type: text/plain\n\nbegun <$ENV{QUERY_STRING}>\n";
die "for a reason\n";
