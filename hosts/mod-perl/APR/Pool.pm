# Pools: here, the lists of what is done when a request, a connection or the process ends.
package APR::Pool;

use strict;
use warnings;

sub new {
    my ($parent) = @_;
    my $pool = bless { cleanups => [], children => [] }, 'APR::Pool';
    if (ref $parent) {
        push @{ $parent->{children} }, $pool;
        Scalar::Util::weaken($parent->{children}[-1]);
        $pool->{parent} = $parent;
    }
    return $pool;
}

sub cleanup_register {
    my ($self, $function, @argument) = @_;
    push @{ $self->{cleanups} }, [$function, scalar caller, @argument];
    return;
}

sub tag { }

sub parent_get { $_[0]{parent} }

sub is_ancestor {
    my ($self, $other) = @_;
    while ($other && $other != $self) { $other = $other->{parent} }
    return $other ? 1 : 0;
}

# Does what was registered, the last first, children before parents.
sub clear {
    my ($self) = @_;
    $_ && $_->clear for reverse splice @{ $self->{children} };
    while (my $cleanup = pop @{ $self->{cleanups} }) {
        my ($function, $package, @argument) = @$cleanup;
        eval {
            $function = $function =~ /::/ ? \&{$function} : $package->can($function) if !ref $function;
            $function->(@argument);
            1;
        } or Forebay::ModPerl::log_failure($@);
    }
    return;
}

sub destroy { $_[0]->clear }

sub DESTROY { $_[0]->clear if @{ $_[0]{cleanups} } && !$_[0]{parent} }

1;
