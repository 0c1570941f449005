#!/usr/bin/perl
# Prints its own number, and nothing else.
print "Content-Type: text/plain\n\nvictim <$ENV{QUERY_STRING}>\n";
