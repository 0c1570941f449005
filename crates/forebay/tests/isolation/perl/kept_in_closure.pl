#!/usr/bin/perl
# Another package keeps a sub, and only this sub has the handle.
print "Content-Type: text/plain\n\nbegun <$ENV{QUERY_STRING}>\n";
$Kept::closure ||= do { open my $handle, '>&', 1; sub { print $handle @_ } };
$Kept::closure->("kept <$ENV{QUERY_STRING}>\n");
