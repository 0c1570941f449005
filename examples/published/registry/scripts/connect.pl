#!/usr/bin/perl
# Prints the time, over a database handle that stays open as long as the interpreter.
use strict;
use warnings;
use DBI;

our $dbh;
$dbh ||= DBI->connect("dbi:Pg:dbname=postgres;host=$ENV{PGHOST}", 'postgres', '', { RaiseError => 1 });

print "Content-Type: text/plain\n\n";
print 'The time is ', scalar localtime, "\n";
