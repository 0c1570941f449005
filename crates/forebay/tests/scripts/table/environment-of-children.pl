#!/usr/bin/perl
print "X-Table: yes\nContent-Type: text/plain\n\n";
print `echo \$QUERY_STRING.\$ADDED`;
$ENV{ADDED} = 'by the script';
print `echo \$QUERY_STRING.\$ADDED`;
