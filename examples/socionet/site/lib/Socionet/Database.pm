# The database of papers. Its handle stays open between requests.
package Socionet::Database;

use strict;
use warnings;

use DBI ();

our $dsn = "dbi:Pg:host=$ENV{SOCIONET_DATABASE}";
our $dbh;

sub handle {
    $dbh = DBI->connect($dsn, 'postgres', '', { RaiseError => 1, pg_enable_utf8 => 1 })
        if !$dbh || !$dbh->ping;
    return $dbh;
}

# The papers whose titles contain a text, in the order of their handles.
sub search {
    my ($text, $limit) = @_;
    return handle()->selectall_arrayref(
        'SELECT handle, title, year FROM papers WHERE position(lower($1) in lower(title)) > 0 ORDER BY handle LIMIT $2',
        { Slice => {} }, $text, $limit);
}

sub paper {
    my ($handle) = @_;
    return handle()->selectrow_hashref('SELECT handle, title, year FROM papers WHERE handle = $1', undef, $handle);
}

1;
