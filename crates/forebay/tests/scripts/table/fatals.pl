#!/usr/bin/perl
use CGI::Carp qw(fatalsToBrowser);
delete $ENV{SERVER_ADMIN};
print "X-Table: fatals\nContent-Type: text/plain\n\n" if $ENV{QUERY_STRING} ne 'early';
die "told to the client\n";
