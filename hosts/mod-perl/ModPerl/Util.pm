# Functions of ModPerl::Util, and the exceptions of mod_perl.
package ModPerl::Util;

use strict;
use warnings;

# Ends the handler, as exit() does.
sub exit { Forebay::ModPerl::leave(@_) }

sub untaint {
    for (@_) { /\A(.*)\z/s and $_ = $1 if defined }
}

sub current_callback { $Forebay::Phases::current }

sub current_perl_id { sprintf '0x%x', $$ }

# Forgets the subs and variables of a package, so that its module can be loaded again.
sub unload_package {
    my ($package) = @_;
    no strict 'refs';
    my $stash = \%{"${package}::"};
    delete @$stash{ grep { !/::\z/ } keys %$stash };
    return;
}

sub unload_package_pp { goto &unload_package }

# An error with a number, which == compares and a string shows.
package APR::Error;

require overload;
overload->import(
    '""' => sub { $_[0]->as_string }, '0+' => sub { $_[0]{rc} }, bool => sub { 1 },
    '==' => sub { (ref $_[0] ? $_[0]{rc} : $_[0]) == (ref $_[1] ? $_[1]{rc} : $_[1]) },
    '!=' => sub { (ref $_[0] ? $_[0]{rc} : $_[0]) != (ref $_[1] ? $_[1]{rc} : $_[1]) },
    fallback => 1,
);

sub rc { $_[0]{rc} }
sub file { $_[0]{file} }
sub line { $_[0]{line} }
sub func { $_[0]{func} }

sub strerror {
    my ($number) = @_;
    return 'exit was called' if $number == 120000;
    local $! = $number;
    return "$!";
}

sub as_string {
    my ($self) = @_;
    return sprintf '%s: (%d) %s at %s line %d', @$self{qw(func rc)}, strerror($self->{rc}),
        @$self{qw(file line)};
}

# Dies with the number of an error, at the caller's line.
sub throw {
    my ($number, $function) = @_;
    my (undef, $file, $line) = caller 1;
    die bless { rc => $number, func => $function, file => $file, line => $line }, __PACKAGE__;
}

sub cluck { require Carp; Carp::cluck(@_) }
sub confess { require Carp; Carp::confess(@_) }
sub croak { die $_[0] }

1;
