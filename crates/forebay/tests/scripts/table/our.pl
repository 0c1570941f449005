#!/usr/bin/perl
print "X-Table: yes\nContent-Type: text/plain\n\n";
our ($dbh, %cache, @list);
$dbh ||= 'handle ' . ++$cache{made};
push @list, $cache{made};
print "$dbh, list @list\n";
