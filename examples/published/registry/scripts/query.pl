#!/usr/bin/perl
# Prints the output of psql's \dt as a table, over a database handle that stays open as long as the interpreter.
use strict;
use warnings;
use DBI;

our $dbh;
$dbh ||= DBI->connect("dbi:Pg:dbname=postgres;host=$ENV{PGHOST}", 'postgres', '', { RaiseError => 1 });

my $tables = $dbh->selectall_arrayref(q{
    select n.nspname, c.relname, c.relkind, pg_get_userbyid(c.relowner)
    from pg_class c left join pg_namespace n on n.oid = c.relnamespace
    where c.relkind in ('r', 'p') and n.nspname in ('pg_catalog', 'information_schema', 'public')
    order by 1, 2 limit 40
});
print "Content-Type: text/html\n\n<!DOCTYPE html>\n<title>Tables</title>\n<table>\n";
print '<tr>', (map {"<td>$_</td>"} @$_), "</tr>\n" for @$tables;
print '</table><p>The time is ', scalar localtime, "</p>\n";
