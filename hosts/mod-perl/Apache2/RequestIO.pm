# Input and output of a request: Apache2::RequestIO, and the tied STDOUT of a handler.
package Apache2::RequestRec;

use strict;
use warnings;

# Returns the arguments as bytes: text with wide characters becomes UTF-8.
sub bytes_of {
    return $_[0] if @_ == 1 && defined $_[0] && !ref $_[0] && !utf8::is_utf8($_[0]);
    my $bytes = '';
    for (@_) {
        my $part = defined $_ ? "$_" : '';
        utf8::encode($part) if utf8::is_utf8($part);
        $bytes .= $part;
    }
    return $bytes;
}

# Before the response there is no body to print to.
sub check_phase {
    my ($method) = @_;
    return if !$Forebay::Phases::IS_EARLY{$Forebay::Phases::current};
    require Carp;
    Carp::croak("\$r->$method can't be called before the response phase");
}

sub print {
    my $r = &request_of;
    check_phase('print') if $Forebay::Phases::current ne 'PerlResponseHandler';
    my $bytes = bytes_of(@_);
    $r->{output}->write($r, $bytes);
    $r->{output}->flush($r) if $|;
    return length $bytes || '0E0';
}

sub puts {
    my $r = &request_of;
    my $bytes = bytes_of(@_);
    $r->{output}->write($r, $bytes);
    return length $bytes;
}

sub printf {
    my $r = &request_of;
    my $format = shift;
    check_phase('printf') if $Forebay::Phases::current ne 'PerlResponseHandler';
    return $r->print(sprintf $format, @_);
}

sub say { my $r = &request_of; $r->print(@_, "\n") }

sub write {
    my $r = &request_of;
    my ($text, $length, $offset) = @_;
    my $bytes = bytes_of($text);
    $bytes = substr $bytes, $offset if $offset;
    $bytes = substr $bytes, 0, $length if defined $length && $length >= 0;
    $r->{output}->write($r, $bytes);
    return length $bytes;
}

sub rflush {
    my $r = &request_of;
    $r->{output}->flush($r, 1);
    return;
}

# Sends a file, or `$length` bytes of it from `$offset`. Returns 0, or dies if that is impossible
# and the caller does not look at the result.
sub sendfile {
    my $r = &request_of;
    my ($path, $offset, $length) = @_;
    my $file;
    if (!CORE::open $file, '<:raw', $path) {
        my $number = $! + 0;
        return $number if defined wantarray;
        APR::Error::throw($number, "Apache2::RequestIO::sendfile('$path')");
    }
    CORE::seek $file, $offset, 0 if $offset;
    while (!defined $length || $length > 0) {
        my $want = defined $length && $length < 65_536 ? $length : 65_536;
        my $got = CORE::read($file, my $part, $want) or last;
        $length -= $got if defined $length;
        $r->{output}->write($r, $part);
    }
    return 0;
}

# Reads up to `$length` bytes of the body into the first argument, at `$offset`.
sub read {
    my $r = &request_of;
    my (undef, $length, $offset) = @_;
    require Carp;
    Carp::croak('The LENGTH argument can\'t be negative') if $length < 0;
    $offset ||= 0;
    $_[0] = defined $_[0] ? "$_[0]" : '' if !defined $_[0] || ref $_[0];
    my $have = length $_[0];
    if ($offset < 0) {
        $offset += $have;
        Carp::croak('Offset outside string') if $offset < 0;
    }
    $_[0] .= "\0" x ($offset - $have) if $offset > $have;
    my $part;
    my $got = from_input($r, sub { CORE::read($_[0], $part, $length) }) || 0;
    $part = '' if !defined $part;
    # An assignment keeps the taint of -T, as a replacement of a part does not.
    $_[0] = $offset ? substr($_[0], 0, $offset) . $part : $part;
    return $got;
}

# Calls a function with a handle of the body. STDIN is the same handle; if a handler has tied it, a
# copy is read, since the function must not come back here.
sub from_input {
    my ($r, $read) = @_;
    die delete $r->{input_error} if defined $r->{input_error};
    my $input = $r->{untied_input} || $r->{env}{'psgi.input'};
    if (tied *$input) {
        open my $copy, '<&', $input or die "cannot copy the body's handle: $!\n";
        $input = $r->{untied_input} = $copy;
    }
    return $read->($input);
}

sub setup_client_block { 0 }

sub should_client_block { (&request_of)->{env}{CONTENT_LENGTH} ? 1 : 0 }

sub get_client_block { goto &read }

sub discard_request_body {
    my $r = &request_of;
    my $input = $r->{env}{'psgi.input'};
    1 while CORE::read($input, my $part, 65_536);
    return 0;
}

sub OPEN { die "STDOUT of a request cannot be opened again\n" }

sub CLOSE { 1 }
sub BINMODE { 1 }
sub FILENO { CORE::fileno((&request_of)->{env}{'psgi.input'}) }
sub UNTIE { }
sub TIEHANDLE { ref $_[0] ? $_[0] : $_[1] }    # tie *STDOUT, $r

{
    no warnings 'once';
    *PRINT = \&print;
    *PRINTF = \&printf;
    *WRITE = \&write;
    *READ = \&read;
    *GETC = sub { my $r = &request_of; from_input($r, sub { CORE::getc($_[0]) }) };
    *READLINE = sub {
        my $r = &request_of;
        return from_input($r, sub { scalar CORE::readline($_[0]) }) if !wantarray;
        return @{ from_input($r, sub { [CORE::readline($_[0])] }) };
    };
    *EOF = sub { my $r = &request_of; from_input($r, sub { CORE::eof($_[0]) }) };
}

# Standard output while a handler runs: it belongs to the current request.
package Forebay::Stdout;

sub TIEHANDLE { bless [], $_[0] }

sub PRINT {
    my ($self, @parts) = @_;
    my $r = $Apache2::RequestRec::current or return print STDERR @parts;
    # As for a file, text becomes Latin-1 if it can.
    for (@parts) { utf8::downgrade($_, 1) if defined }
    $r->print(join($, // '', map { Apache2::RequestRec::bytes_of($_) } @parts), $\ // ());
    return 1;
}

sub PRINTF { my ($self, $format, @values) = @_; local $\; $self->PRINT(sprintf $format, @values) }

sub WRITE {
    my $self = shift;
    my $r = $Apache2::RequestRec::current or return syswrite STDERR, $_[0];
    return $r->write(@_);
}

# A handler that opens STDOUT on something else gets the real handle, until the request ends.
sub OPEN {
    my ($self, $mode, @what) = @_;
    # A name in the mode is one of the caller's handles.
    if (!@what && $mode =~ /\A\s*\+?>>?&\s*([A-Za-z_]\w*)\s*\z/) {
        no strict 'refs';
        ($mode, @what) = ('>&', \*{ caller() . "::$1" });
    }
    no warnings 'untie';
    untie *STDOUT;
    return @what ? open(STDOUT, $mode, @what) : open(STDOUT, $mode);
}

sub BINMODE { 1 }
sub CLOSE { 1 }
sub FILENO { 1 }
sub TELL { my $r = $Apache2::RequestRec::current; $r ? $r->{output}{sent} : -1 }

1;
