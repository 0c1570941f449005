#!/usr/bin/perl
# Keeps a second handle of descriptor 1 in another package, which the host does not clean up.
print "Content-Type: text/plain\n\nbegun <$ENV{QUERY_STRING}>\n";
open $Kept::by_number, '>&=', 1 unless $Kept::by_number;
print $Kept::by_number "kept <$ENV{QUERY_STRING}>\n";
