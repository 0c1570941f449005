#!/usr/bin/perl
# The text stays in the buffer of a handle that is kept.
our $kept;
open $kept, '>&', \*STDOUT unless $kept;
print "Content-Type: text/plain\n\nbegun <$ENV{QUERY_STRING}>\n";
print $kept "kept <$ENV{QUERY_STRING}>\n";
