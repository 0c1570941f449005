# APR's table: names without regard to case, in order, with several values of one name. As with
# mod_perl, a table is an object and also a tied hash.
package APR::Table;

use strict;
use warnings;

use Scalar::Util ();

sub new { tie my %table, 'Forebay::Entries'; bless \%table, $_[0] }

sub make { __PACKAGE__->new }

sub entries { tied %{ $_[0] } }

sub get {
    my ($self, $name) = @_;
    my $key = lc $name;
    if (wantarray) {
        return map { $_->[2] } grep { $_->[0] eq $key } @{ tied(%$self)->{list} };
    }
    return tied(%$self)->FETCH($name);
}

sub set { tied(%{ $_[0] })->STORE(@_[1, 2]); return }

sub unset { tied(%{ $_[0] })->DELETE($_[1]); return }

sub clear { tied(%{ $_[0] })->CLEAR; return }

sub add {
    my ($self, $name, $value) = @_;
    push @{ tied(%$self)->{list} }, [lc $name, "$name", defined $value ? "$value" : ''];
    return;
}

sub merge {
    my ($self, $name, $value) = @_;
    my ($entry) = grep { $_->[0] eq lc $name } @{ tied(%$self)->{list} };
    return $self->add($name, $value) if !$entry;
    $entry->[2] .= ", $value";
    return;
}

# Calls the function with each name and value, until it returns false. `@names` limits the names.
sub do {
    my ($self, $function, @names) = @_;
    my %wanted = map { ($_ => 1) } @names;
    $function = \&{ caller->can($function) || main->can($function) || $function } if !ref $function;
    for my $entry (@{ [@{ tied(%$self)->{list} }] }) {
        next if @names && !$wanted{ $entry->[1] };
        last if !$function->(@$entry[1, 2]);
    }
    return 1;
}

sub copy {
    my ($self) = @_;
    my $copy = (ref $self)->new;
    tied(%$copy)->{list} = [map { [@$_] } @{ tied(%$self)->{list} }];
    return $copy;
}

# A new table: the entries of both, those of `$over` first.
sub overlay {
    my ($self, $over) = @_;
    my $both = $over->copy;
    push @{ tied(%$both)->{list} }, @{ tied(%{ $self->copy })->{list} };
    return $both;
}

sub overlap {
    my ($self, $other, $merges) = @_;
    push @{ tied(%$self)->{list} }, @{ tied(%{ $other->copy })->{list} };
    $self->compress($merges);
    return;
}

# Leaves one entry of each name: all its values joined, or the last one.
sub compress {
    my ($self, $merges) = @_;
    my (%known, @list);
    for my $entry (@{ tied(%$self)->{list} }) {
        my $first = $known{ $entry->[0] };
        if (!$first) { push @list, $known{ $entry->[0] } = $entry }
        else { $first->[2] = $merges ? "$first->[2], $entry->[2]" : $entry->[2] }
    }
    tied(%$self)->{list} = \@list;
    return;
}

package Forebay::Entries;

sub TIEHASH { bless { list => [], at => -1 }, $_[0] }

sub FETCH {
    my ($self, $name) = @_;
    my $key = lc $name;
    # A name that `each`, `keys` or `values` has found is also the number of its entry.
    if ($self->{is_walked} && Scalar::Util::isdual($name)) {
        my $entry = $self->{list}[$name];
        return $entry->[2] if $entry && $entry->[0] eq $key;
    }
    for (@{ $self->{list} }) {
        return $_->[2] if $_->[0] eq $key;
    }
    return undef;
}

sub STORE {
    my ($self, $name, $value) = @_;
    my $key = lc $name;
    $value = '' if !defined $value;
    my $found;
    for (@{ $self->{list} }) {
        next if $_->[0] ne $key;
        if ($found++) { $_ = undef }
        else { @$_[1, 2] = ("$name", "$value") }
    }
    if (!$found) { push @{ $self->{list} }, [$key, "$name", "$value"] }
    elsif ($found > 1) { $self->{list} = [grep { defined } @{ $self->{list} }] }
}

sub DELETE {
    my ($self, $name) = @_;
    my $key = lc $name;
    my $value = $self->FETCH($name);
    $self->{list} = [grep { $_->[0] ne $key } @{ $self->{list} }];
    return $value;
}

sub CLEAR { $_[0]{list} = [] }

sub EXISTS {
    my ($self, $name) = @_;
    my $key = lc $name;
    for (@{ $self->{list} }) {
        return 1 if $_->[0] eq $key;
    }
    return '';
}

sub FIRSTKEY { @{ $_[0] }{qw(at is_walked)} = (-1, 1); $_[0]->NEXTKEY }

sub NEXTKEY {
    my ($self) = @_;
    my $entry = $self->{list}[++$self->{at}];
    return $entry && Scalar::Util::dualvar($self->{at}, $entry->[1]);
}

sub SCALAR { scalar @{ $_[0]{list} } }

1;
