#!/usr/bin/perl
print "X-Table: yes\nContent-Type: text/plain\n\n";
my ($directory) = $ENV{SCRIPT_FILENAME} =~ m{(.*)/};
require "$directory/library.pl";
print greeting('two'), "\n";
