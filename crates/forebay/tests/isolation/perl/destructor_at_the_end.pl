#!/usr/bin/perl
# A signal handler and @ARGV keep objects, whose destructors print when the host resets both.
print "Content-Type: text/plain\n\nbegun <$ENV{QUERY_STRING}>\n";
my $last = bless [$ENV{QUERY_STRING}], 'LastOfAll';
sub LastOfAll::DESTROY { print "Set-Cookie: session=<$_[0][0]>\r\n" }
$SIG{ALRM} = sub { $last };
@ARGV = (bless [$ENV{QUERY_STRING}], 'LastOfAll');
