# The part of the host for database handles (DBI) that outlive a request. It serves the modes that
# run scripts in this process. It follows perl-cgi.pl, whose variables it uses.

my %SOCKET = (    # driver => a function that returns the descriptor of a handle's connection
    Pg      => sub { $_[0]{pg_socket} },
    MariaDB => sub { $_[0]->mariadb_sockfd },
    mysql   => sub { $_[0]->mysql_fd },
);
my $watched = '';                              # descriptors of connections, for select

# Makes connections persistent if a script or module has loaded Apache::DBI. DBI itself does so only
# if Apache::DBI was loaded first, under mod_perl.
sub adopt_databases {
    no warnings 'once';
    $DBI::connect_via = 'Apache::DBI::connect' if $INC{'Apache/DBI.pm'};
}

# Ends the transactions that the script has left open, as the end of a CGI process would. Drops
# handles whose connection is lost. Returns false if anything other than a package variable keeps
# such a handle. Then this process has to end, because code that keeps the handle would not connect
# again.
sub settle_databases {
    my (@lost, @kept);
    adopt_databases();    # a script may load Apache::DBI when it runs
    for my $handle (open_handles()) {
        local ($@, $!);
        quietly($handle, 'rollback') if $handle->{Active} && !$handle->{AutoCommit};
        push @{ is_lost($handle) ? \@lost : \@kept }, $handle;
    }
    $watched = '';
    for (@kept) {
        my $number = descriptor_of($_);
        vec($watched, $number, 1) = 1 if defined $number && $number >= 0;
    }
    return !@lost || drop_handles(@lost, map { child_handles($_) } @lost);
}

# Returns all database handles of this process.
sub open_handles {
    my %drivers = DBI->installed_drivers;
    return map { child_handles($_) } values %drivers;
}

# Returns the database handles of a driver, or the statement handles of a database handle.
sub child_handles {
    my ($handle) = @_;
    return grep { defined } @{ $handle->{ChildHandles} || [] };
}

# Returns the descriptor of the handle's connection: negative if the connection is closed, undef if
# the descriptor is not known.
sub descriptor_of {
    my ($handle) = @_;
    my $socket = $SOCKET{ $handle->{Driver}{Name} } or return undef;
    return eval { $socket->($handle) };
}

# Returns true if the connection of a handle is lost, or was closed by the script. Asks the database
# only if there is a reason: its server has sent something unasked, or the last call has failed.
sub is_lost {
    my ($handle) = @_;
    return 1 if !$handle->{Active};
    my $number = descriptor_of($handle);
    return 1 if defined $number && $number < 0;
    return 0 if !$handle->err && !(defined $number && is_readable($number));
    return !quietly($handle, 'ping');
}

# Calls a method of a handle. Its errors reach neither the log nor the script's own handler. To
# change these settings takes 7 us, which requests without an open transaction need not pay.
sub quietly {
    my ($handle, $method) = @_;
    local @$handle{qw(RaiseError PrintError HandleError)} = (0, 0, undef);
    return eval { $handle->$method };
}

sub is_readable {
    my ($number) = @_;
    my $bits = '';
    vec($bits, $number, 1) = 1;
    return select($bits, undef, undef, 0) > 0;
}

# Returns true if one of the descriptors in `$ready`, from select, is that of a connection.
sub has_news {
    my ($ready) = @_;
    return $watched ne '' && ($ready & $watched) =~ /[^\0]/;
}

# Removes the handles `@_`, of databases and statements, from variables of packages: scalars, and
# elements of arrays and hashes. Returns false if anything else still holds one of them.
sub drop_handles {
    my %is_lost = map { (Scalar::Util::refaddr($_) => 1) } @_;
    my $is_lost = sub { ref $_[0] && $is_lost{ Scalar::Util::refaddr($_[0]) } };
    my %drivers = DBI->installed_drivers;
    for my $parent (values %drivers, grep { $_->isa('DBI::db') } @_) {
        my $cache = $parent->{CachedKids} or next;    # of connect_cached and prepare_cached
        delete @$cache{ grep { $is_lost->($cache->{$_}) } keys %$cache };
    }
    no warnings;
    for my $glob (map { globs_of($_) } packages()) {
        my ($scalar, $array, $hash) = map { *{$glob}{$_} } qw(SCALAR ARRAY HASH);
        undef $$scalar if $is_lost->($$scalar);
        if ($array && !tied @$array) { $is_lost->($_) and undef $_ for @$array }
        if ($hash && !tied %$hash) { delete @$hash{ grep { $is_lost->($hash->{$_}) } keys %$hash } }
    }
    # `@_` holds one reference to each handle. Apache::DBI holds another one, until the next connect
    # replaces the handle.
    return !grep { Internals::SvREFCNT(%$_) > (ref eq 'Apache::DBI::db' ? 2 : 1) } @_;
}

# Returns the names of the packages that may hold a handle: those of scripts, modules, and main.
sub packages {
    no strict 'refs';
    my @scripts = map { "Forebay::Script::$_" } map { /\A(.*)::\z/s } keys %{'Forebay::Script::'};
    my @modules = grep { !/\A(?:DBI|DBD::|Apache::DBI)/ } map { module_name($_) } keys %INC;
    return ('main', @scripts, @modules);
}

# Returns the package of a module with this name in %INC.
sub module_name {
    my ($name) = @_;
    $name =~ s{/}{::}g;
    return $name =~ s/\.pm\z// ? $name : ();
}

# Returns the variables of a package, but none of the packages within, and not `@_`, which holds the
# arguments of the current sub.
sub globs_of {
    my ($package) = @_;
    no strict 'refs';
    my $stash = \%{"${package}::"};
    return map { \$stash->{$_} } grep { !/(?:\A_|::)\z/ && ref \$stash->{$_} eq 'GLOB' } keys %$stash;
}

1;
