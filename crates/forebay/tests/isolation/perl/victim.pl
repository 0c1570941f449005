#!/usr/bin/perl
# Prints what it was asked for, and nothing else.
print "Content-Type: text/plain\n\nvictim <$ENV{QUERY_STRING}>\n";
