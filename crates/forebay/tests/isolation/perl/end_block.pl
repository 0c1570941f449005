#!/usr/bin/perl
# END and DESTROY print, too.
print "Content-Type: text/plain\n\nbegun <$ENV{QUERY_STRING}>\n";
my $last = bless [$ENV{QUERY_STRING}], 'Last';
sub Last::DESTROY { print "destroyed <$_[0][0]>\n" }
END { print "end <$ENV{QUERY_STRING}>\n" }
