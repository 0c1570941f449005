#!/usr/bin/perl
# A handle that only a sub knows, which another package keeps.
print "Content-Type: text/plain\n\nbegun <$ENV{QUERY_STRING}>\n";
$Kept::closure ||= do { open my $handle, '>&', 1; sub { print $handle @_ } };
$Kept::closure->("kept <$ENV{QUERY_STRING}>\n");
