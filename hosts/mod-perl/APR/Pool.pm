# Pools: here, the lists of what is done when a request, a connection or the process ends. Pools of the
# server end with what they belong to; those that handlers make end with their last reference.
package APR::Pool;

use strict;
use warnings;

use Scalar::Util ();

our $process = bless { cleanups => [], children => [], is_native => 1 }, __PACKAGE__;
our $connection = $process->new;
$connection->{is_native} = 1;

sub new {
    my ($parent) = @_;
    $parent = $process if !ref $parent || $parent->{is_destroyed};
    my $pool = bless { cleanups => [], children => [], parent => $parent }, __PACKAGE__;
    push @{ $parent->{children} }, $pool;
    Scalar::Util::weaken($parent->{children}[-1]);
    return $pool;
}

# The pool of a request.
sub of_request {
    my $pool = bless { cleanups => [], children => [], parent => $connection, is_native => 1 }, __PACKAGE__;
    return $pool;
}

sub valid {
    my ($self) = @_;
    return $self if !$self->{is_destroyed};
    require Carp;
    Carp::croak('invalid pool object (already destroyed?)');
}

sub cleanup_register {
    my ($self, $function, @argument) = @_;
    push @{ valid($self)->{cleanups} }, [$function, scalar caller, @argument];
    return;
}

sub tag { }

sub parent_get { valid($_[0])->{parent} }

sub is_ancestor {
    my ($self, $other) = @_;
    while ($other && $other != $self) { $other = $other->{parent} }
    return $other ? 1 : 0;
}

# Does what was registered, the last first, children before parents.
sub clear {
    my ($self) = @_;
    $_ && $_->destroy for reverse splice @{ $self->{children} };
    local $@;
    while (my $cleanup = pop @{ $self->{cleanups} }) {
        my ($function, $package, @argument) = @$cleanup;
        eval {
            $function = $function =~ /::/ ? \&{$function} : $package->can($function) if !ref $function;
            $function->(@argument);
            1;
        } or warn "APR::Pool: cleanup died: $@";
    }
    return;
}

sub destroy {
    my ($self) = @_;
    return if $self->{is_native} || $self->{is_destroyed};
    $self->clear;
    $self->{is_destroyed} = 1;
    return;
}

sub DESTROY {
    my ($self) = @_;
    $self->destroy;
    my $parent = $self->{parent} or return;
    @{ $parent->{children} } = grep { defined } @{ $parent->{children} };
    Scalar::Util::weaken($_) for @{ $parent->{children} };
}

1;
