#!/usr/bin/perl
# A second handle of descriptor 1, kept where no cleaning up comes: in another package.
print "Content-Type: text/plain\n\nbegun <$ENV{QUERY_STRING}>\n";
open $Kept::by_number, '>&=', 1 unless $Kept::by_number;
print $Kept::by_number "kept <$ENV{QUERY_STRING}>\n";
