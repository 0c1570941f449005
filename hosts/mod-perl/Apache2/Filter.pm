# Filters of replies and of bodies: Apache2::Filter, FilterRec, APR::Brigade and APR::Bucket. A filter
# gets what was written since its last call: at a flush, after each 64 KiB, and at the end.
package Apache2::Filter;

use strict;
use warnings;

$INC{$_} = __FILE__ for qw(Apache2/FilterRec.pm APR/Brigade.pm APR/Bucket.pm APR/BucketAlloc.pm
    APR/BucketType.pm);

my $TAINT = substr $^X, 0, 0;    # with -T: what is read from a brigade is tainted
my $NAME = 'modperl_request_output';    # of all filters in Perl
my $MOST_EMPTY = 10_000;    # times that filters of a body may add nothing
my %inits;    # function of a filter => function that FilterHasInitHandler names

sub MODIFY_CODE_ATTRIBUTES {
    my ($package, $code, @attributes) = @_;
    my @unknown;
    for (@attributes) {
        if (/\AFilterHasInitHandler\((.*)\)\z/s) {
            $inits{$code} = eval "package $package; $1" or die "FilterHasInitHandler($1): $@\n";
        }
        elsif (!/\AFilter(?:Request|Connection|Init)Handler\z/) { push @unknown, $_ }
    }
    return @unknown;
}

sub new {
    my ($class, $r, $handler) = @_;
    my $self = bless { r => $r, handler => $handler, out => '', printed => '', seen_eos => 0 }, $class;
    Scalar::Util::weaken($self->{r});
    Forebay::Phases::load($handler) if !$handler->{code};
    if (my $init = $inits{ $handler->{code} }) { $init->($self) }
    return $self;
}

sub r { $_[0]{r} }
sub c { $_[0]{r}->connection }
sub frec { bless { name => $NAME }, 'Apache2::FilterRec' }

# tie *STDOUT, $filter
sub TIEHANDLE { ref $_[0] ? $_[0] : $_[1] }
sub PRINT { my $self = shift; $self->print(@_) }
sub next { bless { before => $_[0] }, 'Forebay::NextFilter' }
sub remove { $_[0]{is_removed} = 1; return }
sub ctx { my $self = shift; $self->{ctx} = $_[0] if @_; return $self->{ctx} }
sub seen_eos { my $self = shift; $self->{seen_eos} = $_[0] if @_; return $self->{seen_eos} }
sub fflush { 0 }

sub print {
    my $self = shift;
    my $bytes = Apache2::RequestRec::bytes_of(@_);
    # What a filter prints follows the brigades that it passes on.
    $self->{printed} .= $bytes;
    return length $bytes;
}

{ no warnings 'once'; *puts = \&print }

# Reads up to `$length` bytes of what the filter was called for into the first argument.
sub read {
    my ($self, undef, $length) = @_;
    $length = 8192 if !defined $length;
    $self->{brigade} ||= Forebay::Filters::pulled($self);
    my $list = $self->{brigade}{list};
    my $got = '';
    while (@$list && length $got < $length) {
        if ($list->[0]{is_eos}) {
            $self->{seen_eos} = 1;
            last;
        }
        $list->[0]->setaside;
        $got .= substr $list->[0]{data}, 0, $length - length $got, '';
        shift @$list if $list->[0]{data} eq '';
    }
    $_[1] = $got;
    return length $got;
}

# Returns what the filters make of `$data`.
sub Forebay::Filters::run {
    my ($filters, $data, $is_end, $is_flush) = @_;
    for my $filter (@$filters) {
        next if $filter->{is_removed} || $data eq '' && !$is_end && !$is_flush;
        my $brigade = $filter->{brigade} = APR::Brigade->new;
        $filter->{is_last} = $filter == $filters->[-1];
        $brigade->insert_tail(APR::Bucket->new(undef, $data)) if $data ne '';
        $brigade->insert_tail(APR::Bucket::eos_create()) if $is_end;
        $brigade->insert_tail(APR::Bucket::flush_create()) if $is_flush;
        @$filter{qw(out printed)} = ('', '');
        my $status = $filter->{handler}{code}->($filter, $brigade, 0, 0, length $data);
        die "a filter has returned $status\n" if $status && $status != -1;
        $brigade->flatten(my $rest);
        $data = $filter->{out} . $filter->{printed} . ($status ? $rest : '');
    }
    return $data;
}

# Returns the filters of a request; none if there are none.
sub Forebay::Filters::of {
    my ($r, $phase) = @_;
    return $r->{$phase} ||= [map { Apache2::Filter->new($r, $_) } @{ Forebay::Phases::handlers_of($r, $phase) }];
}

# Filters of a body ask the next one for what they change: the first one in the list is asked first.
# Returns a brigade with what the body has next, after the filters from `$at` on.
sub Forebay::Filters::pull {
    my ($r, $filters, $at, @how) = @_;
    my $brigade = APR::Brigade->new;
    $at++ while $at < @$filters && $filters->[$at]{is_removed};
    my $filter = $filters->[$at];
    if (!$filter) {
        die delete $r->{input_error} if defined $r->{input_error};
        my $got = CORE::read($r->{env}{'psgi.input'}, my $part, $how[2] || 8192);
        $brigade->insert_tail($got ? APR::Bucket->new(undef, $part) : APR::Bucket::eos_create());
        return $brigade;
    }
    local @$filter{qw(below brigade printed seen_eos)} = ([$r, $filters, $at + 1, @how], undef, '', 0);
    my $status = $filter->{handler}{code}->($filter, $brigade, @how);
    if ($status && $status == -1) {
        die "a filter has read, and returned DECLINED\n" if $filter->{brigade};
        return Forebay::Filters::pulled($filter);
    }
    die "a filter has returned $status\n" if $status;
    $brigade->insert_tail(APR::Bucket->new(undef, $filter->{printed})) if $filter->{printed} ne '';
    $brigade->insert_tail(APR::Bucket::eos_create()) if $filter->{seen_eos};
    return $brigade;
}

# Returns what comes from below a filter of a body.
sub Forebay::Filters::pulled {
    my ($filter, @how) = @_;
    my ($r, $filters, $at, @before) = @{ $filter->{below} };
    return Forebay::Filters::pull($r, $filters, $at, map { $how[$_] // $before[$_] } 0 .. 2);
}

# Gives handlers the body as the filters change it.
sub Forebay::Filters::filter_body {
    my ($r, $filters) = @_;
    my ($filtered, $empty) = ('', 0);
    while ($empty < $MOST_EMPTY) {
        my $list = Forebay::Filters::pull($r, $filters, 0, 0, 0, 8192)->{list};
        my $data = join '', map { $_->bytes } @$list;
        $filtered .= $data;
        last if grep { $_->{is_eos} } @$list;
        $empty = $data eq '' ? $empty + 1 : 0;
    }
    open my $changed, '<', \$filtered or die "cannot keep the filtered body: $!\n";
    $r->{env}{'psgi.input'} = $changed;
    *STDIN = *{$changed}{IO};
}

package Apache2::FilterRec;

sub name { $_[0]{name} }

# What follows a filter: the client, or, for a filter of bodies, what the gateway has sent.
package Forebay::NextFilter;

sub pass_brigade {
    my ($self, $brigade) = @_;
    $brigade->flatten(my $data);
    if ($self->{before}) { $self->{before}{out} .= $data }
    else { $self->{r}->print($data) if $data ne '' }
    $self->{before}{seen_eos} = 1 if $self->{before} && grep { $_->{is_eos} } @{ $brigade->{list} };
    $brigade->cleanup;
    return 0;
}

# Adds what comes next of a filter's input, or, after all filters, of the request's body.
sub get_brigade {
    my ($self, $brigade, @how) = @_;
    my $filter = $self->{before};
    $brigade->concat($filter ? Forebay::Filters::pulled($filter, @how) : Forebay::Filters::pull($self->{r}, [], 0, @how));
    return 0;
}

sub fflush {
    my ($self, $brigade) = @_;
    $self->pass_brigade($brigade) if $brigade;
    $self->{r}->rflush if $self->{r};
    return 0;
}

sub next { bless { r => $_[0]{r} }, ref $_[0] }
sub frec { my $before = $_[0]{before}; bless { name => $before && !$before->{is_last} ? $NAME : 'core' }, 'Apache2::FilterRec' }
sub remove { }

package APR::Brigade;

sub new { bless { list => [] }, 'APR::Brigade' }
sub first { $_[0]{list}[0] }
sub last { $_[0]{list}[-1] }
sub is_empty { !@{ $_[0]{list} } }
sub cleanup { @{ $_[0]{list} } = (); return 0 }
sub destroy { $_[0]->cleanup }
sub pool { $Apache2::RequestRec::current && $Apache2::RequestRec::current->pool }
sub bucket_alloc { APR::BucketAlloc->new }
sub insert_tail { my ($self, $bucket) = @_; $bucket->remove; push @{ $self->{list} }, $bucket->in($self); return }
sub insert_head { my ($self, $bucket) = @_; $bucket->remove; unshift @{ $self->{list} }, $bucket->in($self); return }

sub position {
    my ($self, $bucket) = @_;
    my ($at) = grep { $self->{list}[$_] == $bucket } 0 .. $#{ $self->{list} };
    return $at;
}

sub next { my ($self, $bucket) = @_; my $at = $self->position($bucket); defined $at ? $self->{list}[$at + 1] : undef }
sub prev { my ($self, $bucket) = @_; my $at = $self->position($bucket); $at ? $self->{list}[$at - 1] : undef }

sub concat {
    my ($self, $other) = @_;
    push @{ $self->{list} }, map { $_->in($self) } splice @{ $other->{list} };
    return;
}

# Moves a bucket and those after it to a new brigade.
sub split {
    my ($self, $bucket) = @_;
    my $new = __PACKAGE__->new;
    my $at = $self->position($bucket);
    push @{ $new->{list} }, map { $_->in($new) } splice @{ $self->{list} }, $at if defined $at;
    return $new;
}

sub length { my $sum = 0; $sum += $_->length for @{ $_[0]{list} }; return $sum }

sub flatten {
    my ($self, undef, $length) = @_;
    if (@_ < 2 || !ref $self) {
        require Carp;
        Carp::croak('usage: $bb->flatten($buf, [$wanted])');
    }
    my $data = join '', map { $_->bytes } @{ $self->{list} };
    $_[1] = (defined $length ? substr $data, 0, $length : $data) . $TAINT;
    return CORE::length $_[1];
}

package APR::BucketAlloc;

sub new { bless {}, 'APR::BucketAlloc' }
sub destroy { }

package APR::Bucket;

sub new {
    my (undef, undef, undef, $offset, $length) = @_;
    my $self = bless { source => \$_[2], start => $offset || 0, length => $length }, 'APR::Bucket';
    my $all = CORE::length(Apache2::RequestRec::bytes_of($_[2])) - $self->{start};
    if (defined $length && $length > $all) {
        require Carp;
        Carp::croak("the length argument can't be bigger than the total buffer length minus offset");
    }
    return $self;
}

# A bucket is a view of the variable that it was made of, until it is set aside.
sub bytes {
    my ($self) = @_;
    return $self->{data} if !$self->{source};
    my $bytes = Apache2::RequestRec::bytes_of(${ $self->{source} });
    return defined $self->{length} ? substr $bytes, $self->{start}, $self->{length} : substr $bytes, $self->{start};
}

sub setaside {
    my ($self) = @_;
    $self->{data} = $self->bytes;
    delete $self->{source};
    return 0;
}

sub eos_create { bless { data => '', is_eos => 1 }, 'APR::Bucket' }
sub flush_create { bless { data => '', is_flush => 1 }, 'APR::Bucket' }
sub in { $_[0]{brigade} = $_[1]; Scalar::Util::weaken($_[0]{brigade}); $_[0] }
sub is_eos { $_[0]{is_eos} ? 1 : 0 }
sub is_flush { $_[0]{is_flush} ? 1 : 0 }
sub length { CORE::length $_[0]->bytes }
sub start { $_[0]{start} || 0 }
sub read { $_[1] = $_[0]->bytes . $TAINT; return CORE::length $_[1] }
sub type { bless { name => $_[0]{is_eos} ? 'EOS' : $_[0]{is_flush} ? 'FLUSH' : 'mod_perl SV bucket' }, 'APR::BucketType' }
sub destroy { }
sub delete { $_[0]->remove }

sub remove {
    my ($self) = @_;
    my $brigade = delete $self->{brigade} or return;
    @{ $brigade->{list} } = grep { $_ != $self } @{ $brigade->{list} };
    return;
}

sub insert_after { my ($self, $new) = @_; $self->beside($new, 1) }
sub insert_before { my ($self, $new) = @_; $self->beside($new, 0) }

sub beside {
    my ($self, $new, $offset) = @_;
    my $brigade = $self->{brigade} or return;
    $new->remove;
    splice @{ $brigade->{list} }, $brigade->position($self) + $offset, 0, $new->in($brigade);
    return;
}

package APR::BucketType;

sub name { $_[0]{name} }

package Apache2::RequestRec;

sub add_output_filter {
    my $r = &request_of;
    push @{ Forebay::Filters::of($r, 'PerlOutputFilterHandler') },
        Apache2::Filter->new($r, Forebay::Phases::resolved(function_of($_[0])));
    return;
}

sub add_input_filter {
    my $r = &request_of;
    my $new = Apache2::Filter->new($r, Forebay::Phases::resolved(function_of($_[0])));
    # The body is filtered before the response; what comes later is filtered at once.
    if ($Forebay::Phases::current eq 'PerlResponseHandler') { Forebay::Filters::filter_body($r, [$new]) }
    else { push @{ Forebay::Filters::of($r, 'PerlInputFilterHandler') }, $new }
    return;
}

# A name without a package is one of the caller's functions.
sub function_of {
    my ($what) = @_;
    return ref $what || $what =~ /::/ ? $what : caller(1)->can($what) || $what;
}

sub output_filters { bless { r => &request_of }, 'Forebay::NextFilter' }
sub input_filters { bless { r => &request_of }, 'Forebay::NextFilter' }
sub proto_output_filters { goto &output_filters }

package Apache2::Connection;

sub bucket_alloc { APR::BucketAlloc->new }

1;
