#!/usr/bin/perl
my $code = $ENV{QUERY_STRING};
print "Status: $code Of The Script\nX-Table: yes\nContent-Type: text/plain\n\n";
print "body of $code\n" if $code !~ /^(?:204|304)$/;
