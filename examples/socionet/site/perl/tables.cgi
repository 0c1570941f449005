#!/usr/bin/perl
# The tables of the database. The handle outlives the request.
use strict;
use warnings;

use DBI ();
use Socionet::Database ();

our $dbh;
$dbh ||= DBI->connect($Socionet::Database::dsn, 'postgres', '', { RaiseError => 1 });
my $tables = $dbh->selectcol_arrayref(
    'SELECT tablename FROM pg_tables WHERE schemaname = current_schema() ORDER BY tablename');
print "Content-Type: text/html; charset=utf-8\n\n<table>\n", (map { "<tr><td>$_</td></tr>\n" } @$tables), "</table>\n";
