# Defines constants in groups, and exports them as `use Apache2::Const -compile => ...` asks.
package Forebay::Constants;

use strict;
use warnings;

my %members;    # class => group => names

sub define {
    my ($class, $groups, $texts) = @_;
    no strict 'refs';
    my %values;
    for my $group (keys %$groups) {
        for (split ' ', $groups->{$group}) {
            my ($name, $value) = split /=/;
            $values{$name} = $value + 0;
            push @{ $members{$class}{$group} }, $name;
        }
    }
    for my $group (keys %$texts) {
        push @{ $members{$class}{$group} }, keys %{ $texts->{$group} };
        $values{$_} = $texts->{$group}{$_} for keys %{ $texts->{$group} };
    }
    for my $name (keys %values) {
        my $value = $values{$name};
        *{"${class}::$name"} = sub () { $value };
    }
    *{"${class}::import"} = \&import;
    *{"${class}::compile"} = sub { import($_[0], -compile => @_[1 .. $#_]) };
}

sub import {
    my ($class, @wanted) = @_;
    my $only_compiles = @wanted && $wanted[0] eq '-compile' && shift @wanted;
    my $caller = caller;
    for my $name (map { ref ? @$_ : $_ } @wanted) {
        my @names = $name =~ /\A:(.*)/s ? @{ $members{$class}{$1} || unknown($class, $name) } : $name;
        for (@names) {
            my $code = $class->can($_);
            unknown($class, $_) if !$code;
            no strict 'refs';
            *{"${caller}::$_"} = $code if !$only_compiles;
        }
    }
}

sub unknown {
    my ($class, $name) = @_;
    require Carp;
    Carp::croak("$class has no constant $name");
}

package ModPerl::Const;

Forebay::Constants::define(__PACKAGE__, { common => 'EXIT=120000 ABORT=120001' }, {});
*ModPerl::EXIT = \&EXIT;
*ModPerl::ABORT = \&ABORT;

1;
