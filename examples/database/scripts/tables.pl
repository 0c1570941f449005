#!/usr/bin/perl
# Prints the time of the database and its first tables. `?connections` prints the number of
# connections of the script to the database, over all processes.
#
# A package variable keeps the handle. As a CGI script, with a new variable each time, the script
# connects for each request; in a persistent interpreter once. It needs no module and no change.
use strict;
use warnings;
use DBI;
use DBD::Pg;    # otherwise the first connect loads it: in mode fork, in each process

our $dbh;

sub connected {
    DBI->connect("dbi:Pg:dbname=postgres;host=$ENV{PGHOST}", 'postgres', '',
        { RaiseError => 1, PrintError => 0, AutoInactiveDestroy => 1 });
}

# Runs a query, and again over a new connection if the kept one was lost.
sub rows {
    my ($query) = @_;
    if ($dbh) {
        my $rows = eval { $dbh->selectall_arrayref($query) };
        return $rows if $rows;
        die $@ if $dbh->ping;
    }
    $dbh = connected();
    return $dbh->selectall_arrayref($query);
}

if (($ENV{QUERY_STRING} // '') eq 'connections') {
    my $count = rows("select count(*) from pg_stat_activity where backend_type = 'client backend'");
    print "Content-Type: text/plain\n\n$count->[0][0]\n";
    exit;
}
my $time = rows('select now()')->[0][0];
my $tables = rows('select schemaname, tablename from pg_tables order by 2 limit 20');
print "Content-Type: text/html; charset=utf-8\n\n<!DOCTYPE html>\n<title>Tables</title>\n";
print "<p>It is $time.</p>\n<table>\n";
print "<tr><td>$_->[0]</td><td>$_->[1]</td></tr>\n" for @$tables;
print "</table>\n";
