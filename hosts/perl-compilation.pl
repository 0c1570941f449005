# What a script sees while it is compiled: no visitor. Its BEGIN blocks and modules run once, and
# what they do stays for all later visitors, so they must not know the request that happened to come
# first. A script that needs to know (it prints, reads standard input or looks at variables of a
# request) cannot be compiled once: then each request starts a new perl.
package Forebay::Compilation;

use strict;

# Variables that are the same in all requests for a script.
our @SAME = qw(GATEWAY_INTERFACE SCRIPT_FILENAME SERVER_SOFTWARE);
# Variables of a request, which this request may lack.
my $OF_REQUEST = qr/^(?:AUTH_|CONTENT_|DOCUMENT_|HTTP|PATH_(?:INFO|TRANSLATED)\z|QUERY_|REDIRECT_
    |REMOTE_|REQUEST_|SCRIPT_|SERVER_|SSL_|UNIQUE_ID\z)/x;
my ($before, $report, $drawn);

# Watches %ENV, which must hold only what is the same in all requests. Calls `$report` with the name
# of the first variable of a request that code looks for. `@names` are the variables of a request.
sub watch {
    ($report, my @names) = @_;
    my %of_request = map { ($_ => 1) } @names;
    delete @of_request{@SAME};
    $before = {%ENV};
    # The random numbers of a compilation would be those of all visitors.
    my $seed = int rand 2**31;
    CORE::srand($seed);
    $drawn = CORE::rand();
    CORE::srand($seed);
    tie %ENV, __PACKAGE__, \%of_request;
    return;
}

# Ends that. Returns the variables that the code has set, and the names of those that it has
# deleted.
sub changes {
    my $has_drawn = CORE::rand() != $drawn;
    CORE::srand();
    $report->('random numbers') if $has_drawn;
    no warnings 'untie';
    untie %ENV;
    my %set = map { ($_ => $ENV{$_}) }
        grep { !exists $before->{$_} || $before->{$_} ne $ENV{$_} } keys %ENV;
    return (\%set, [grep { !exists $ENV{$_} } keys %$before]);
}

sub look {
    my ($self, $name) = @_;
    return if exists $before->{$name} || grep { $_ eq $name } @SAME;
    $report->($name) if $self->{of_request}{$name} || $name =~ $OF_REQUEST;
}

# Returns the files that are being loaded by `require` or `use`.
sub modules_above {
    my ($depth, @files) = 0;
    while (my @frame = caller $depth++) {
        push @files, $frame[6] if $frame[7];
    }
    return @files;
}

# Changes the real %ENV, because programs that the code starts see only that.
sub change {
    my ($self, $change) = @_;
    no warnings 'untie';
    untie %ENV;
    $change->();
    tie %ENV, __PACKAGE__, $self->{of_request};
}

sub TIEHASH { bless { of_request => $_[1], now => {%ENV} }, $_[0] }

sub FETCH { $_[0]->look($_[1]); $_[0]{now}{ $_[1] } }

sub EXISTS { $_[0]->look($_[1]); exists $_[0]{now}{ $_[1] } }

sub STORE {
    my ($self, $name, $value) = @_;
    $self->look($name);
    $self->change(sub { $ENV{$name} = $value });
}

sub DELETE {
    my ($self, $name) = @_;
    $self->look($name);
    $self->change(sub { delete $ENV{$name} });
    return $self->{now}{$name};
}

sub CLEAR {
    $report->('all variables');
    $_[0]->change(sub { %ENV = () });
}

sub FIRSTKEY {
    # CGI::Fast only walks over the names, for a bug of libfcgi.
    $report->('all variables') if caller ne 'CGI::Fast';
    keys %{ $_[0]{now} };
    return each %{ $_[0]{now} };
}

sub NEXTKEY { each %{ $_[0]{now} } }

sub SCALAR { scalar %{ $_[0]{now} } }

1;
