#!/usr/bin/perl -T
print "X-Table: taint\nContent-Type: text/plain\n\n", ${^TAINT} ? "on\n" : "off\n";
$ENV{PATH} = '/usr/bin:/bin';
print eval { system "true $ENV{QUERY_STRING}"; 1 } ? "ran\n" : "refused\n";
