# The connections of pagi.pl, and what applications see of them.
package Forebay::Pagi::Connection;

use strict;
use warnings;

use Errno qw(EAGAIN EINTR);

my $READ = 65_536;
# After this many events of a connection, `$send` lets other requests run. Otherwise, an endless reply
# that the gateway reads fast would never wait, and no other request of this process would run.
my $MOST_AT_ONCE = 64;
my $CHUNKED = -1;

sub new {
    my ($class, $handle) = @_;
    my $self = bless {
        handle => $handle, in => '', out => '', left => 0, is_chunked => 0, is_reading => 0,
        is_writing => 0, is_closing => 0, is_closed => 0, is_high => 0, messages => 0,
        on_high_water => [], on_drain => [],
    }, $class;
    $Forebay::Pagi::connections{$self} = $self;
    $self->read(1);
    return $self;
}

# Resumes or pauses reading, so that few received bytes wait.
sub read {
    my ($self, $is_wanted) = @_;
    return if $self->{is_closed} || !$is_wanted == !$self->{is_reading};
    $self->{is_reading} = $is_wanted;
    my $handle = $self->{handle};
    return $Forebay::Pagi::loop->unwatch_io(handle => $handle, on_read_ready => 1) if !$is_wanted;
    $Forebay::Pagi::loop->watch_io(handle => $handle, on_read_ready => sub { $self->readable });
}

sub readable {
    my ($self) = @_;
    my $got = sysread $self->{handle}, $self->{in}, $READ, length $self->{in};
    return if !defined $got && ($! == EAGAIN || $! == EINTR);
    return $self->lost('client_closed') if !$got;
    $self->feed;
}

# Uses the received bytes. What follows a request waits until its reply is complete.
sub feed {
    my ($self) = @_;
    my $before = -1;
    while (length $self->{in} && !$self->{is_closed} && $before != length $self->{in}) {
        $before = length $self->{in};
        if ($self->{is_chunked}) { $self->take_chunks }
        elsif ($self->{left}) { $self->take_body }
        elsif ($self->{request}) { return $self->{request}->feed }
        else { $self->begin }
    }
}

sub take_body {
    my ($self) = @_;
    my $part = substr $self->{in}, 0, $self->{left}, '';
    $self->{left} -= length $part;
    $self->{request}->feed_body($part, !$self->{left}) if $self->{request};
}

sub take_chunks {
    my ($self) = @_;
    my $body = '';
    while (1) {
        if ($self->{left}) {    # bytes of a chunk, with the line break after it
            my $part = substr $self->{in}, 0, $self->{left}, '';
            my $break = length($part) - $self->{left} + 2;
            $self->{left} -= length $part;
            $body .= $break > 0 ? substr $part, 0, $break > length $part ? 0 : -$break : $part;
            last if $self->{left};
        }
        my $end = index $self->{in}, "\r\n";
        last if $end < 0;
        my $size = hex((split /;/, substr $self->{in}, 0, $end)[0]);
        if ($size) {
            substr $self->{in}, 0, $end + 2, '';
            $self->{left} = $size + 2;
            next;
        }
        # PAGI has no trailers of requests, so they are skipped.
        my $last = index $self->{in}, "\r\n\r\n", $end;
        last if $last < 0;
        substr $self->{in}, 0, $last + 4, '';
        $self->{is_chunked} = 0;
        last;
    }
    $self->{request}->feed_body($body, !$self->{is_chunked}) if $self->{request};
}

# Begins a request, if its head is whole.
sub begin {
    my ($self) = @_;
    my $end = index $self->{in}, "\r\n\r\n";
    return $end < 0 && length $self->{in} > $Forebay::Pagi::LONGEST_HEAD ? $self->close : ()
        if $end < 0;
    my ($line, $first, @lines) = split /\r\n/, substr $self->{in}, 0, $end;
    substr $self->{in}, 0, $end + 4, '';
    my ($method, $target) = split / /, $first;
    my ($raw_path, $query) = split /\?/, $target, 2;
    my ($length, $upgrade, $version, $key, $accept, @cookies, @headers) = (0, '', '', '', '');
    for (@lines) {
        my ($name, $value) = /\A([^:]*):[ \t]*(.*?)[ \t]*\z/s or next;
        $name = lc $name;
        next if $name eq 'connection' && lc $value eq 'te';    # Forebay's own, for trailers
        if ($name eq 'cookie') {
            push @cookies, $value;
            push @headers, [cookie => ''] if @cookies == 1;
            next;
        }
        push @headers, [$name, $value];
        if ($name eq 'content-length') { $length = $value }
        elsif ($name eq 'transfer-encoding') { $length = $CHUNKED }
        elsif ($name eq 'upgrade') { $upgrade = lc $value }
        elsif ($name eq 'sec-websocket-version') { $version = $value }
        elsif ($name eq 'sec-websocket-key') { $key = $value }
        elsif ($name eq 'accept') { $accept .= ",$value" }
    }
    $_->[0] eq 'cookie' and $_->[1] = join '; ', @cookies for @headers;
    my ($scheme, $http, $client, $port, $address, $server_port, $mount) = split / /, $line;
    my $scope = {
        type => 'http', pagi => { version => $Forebay::Pagi::PAGI, spec_version => $Forebay::Pagi::PAGI },
        http_version => $http, method => $method, scheme => $scheme, path => decoded($raw_path),
        raw_path => $raw_path, query_string => defined $query ? $query : '',
        root_path => decoded(defined $mount ? $mount : ''), headers => \@headers,
        $client eq '-' ? () : (client => [$client, $port + 0]), server => [$address, $server_port + 0],
        state => {%Forebay::Pagi::state},
        'pagi.transport' => Forebay::Pagi::Transport->new($self),
    };
    $self->{left} = $length > 0 ? $length : 0;
    $self->{is_chunked} = $length == $CHUNKED;
    @$self{qw(on_high_water on_drain)} = ([], []);
    my $request;
    if ($upgrade eq 'websocket' && $method eq 'GET') {
        return $self->refuse_version if $version ne '13' || $key eq '';
        delete $scope->{method};
        $request = Forebay::Pagi::WebSocket->new($self, $scope, $key);
    }
    else {
        my $is_stream = grep { /\A\s*text\/event-stream\s*(?:;|\z)/i } split /,/, $accept;
        my $kind = $is_stream ? 'sse' : 'http';
        $request = Forebay::Pagi::Request->new($self, $scope, $kind, $length != 0);
    }
    $request->{name} = "$method $raw_path";
    $self->{request} = $request;
    Forebay::Pagi::run($request, $scope);
}

# Decodes %XX, and then UTF-8 unless the bytes are none.
sub decoded {
    my ($text) = @_;
    $text =~ s/%([0-9A-Fa-f]{2})/chr hex $1/ge;
    my $decoded = $text;
    return utf8::decode($decoded) ? $decoded : $text;
}

# Refuses a WebSocket of another version (RFC 6455 section 4.4).
sub refuse_version {
    my ($self) = @_;
    my $reply = Forebay::Pagi::Reply->new($self, 0);
    $reply->start({ status => 426, headers => [['sec-websocket-version', '13']] });
    $reply->part("This server speaks version 13 of WebSocket\n", 1);
    $self->finish;
}

# Sends bytes, or keeps them until the gateway takes them.
sub write {
    my ($self, $data) = @_;
    return if $self->{is_closed};
    if ($self->{out} eq '') {
        my $sent = syswrite $self->{handle}, $data;
        if (defined $sent) { substr $data, 0, $sent, '' }
        elsif ($! != EAGAIN && $! != EINTR) { return $self->lost('write_error') }
    }
    return if $data eq '';
    $self->{out} .= $data;
    if (!$self->{is_writing}) {
        $self->{is_writing} = 1;
        $Forebay::Pagi::loop->watch_io(
            handle => $self->{handle}, on_write_ready => sub { $self->writable });
    }
    if (!$self->{is_high} && length $self->{out} >= $Forebay::Pagi::HIGH_WATER) {
        $self->{is_high} = 1;
        Forebay::Pagi::notify($self->{on_high_water});
    }
}

sub writable {
    my ($self) = @_;
    my $sent = syswrite $self->{handle}, $self->{out}, $READ;
    return if !defined $sent && ($! == EAGAIN || $! == EINTR);
    return $self->lost('write_error') if !defined $sent;
    substr $self->{out}, 0, $sent, '';
    if ($self->{out} eq '') {
        $self->{is_writing} = 0;
        $Forebay::Pagi::loop->unwatch_io(handle => $self->{handle}, on_write_ready => 1);
        return $self->close if $self->{is_closing};
        shutdown $self->{handle}, 1 if $self->{has_eof};
    }
    $self->drained if $self->{is_high} && length $self->{out} < $Forebay::Pagi::LOW_WATER;
}

sub drained {
    my ($self) = @_;
    $self->{is_high} = 0;
    my $waiting = delete $self->{waiting};
    $waiting->done if $waiting && !$waiting->is_ready;
    Forebay::Pagi::notify($self->{on_drain});
}

# Returns a future that is done when the application may send its next event.
sub sent {
    my ($self) = @_;
    if ($self->{is_high} && !$self->{is_closed}) {
        $self->{waiting} ||= $Forebay::Pagi::loop->new_future;
        return $self->{waiting}->without_cancel;
    }
    return Future->done if ++$self->{messages} % $MOST_AT_ONCE;
    my $later = $Forebay::Pagi::loop->new_future;
    $Forebay::Pagi::loop->later(sub { $later->done if !$later->is_ready });
    return $later;
}

# Lets the next request begin after a complete reply. The rest of the request's body is dropped.
sub ended {
    my ($self) = @_;
    delete $self->{request};
    return $self->finish if $Forebay::Pagi::is_stopping;
    $self->read(1);
}

# Closes the connection after its request.
sub stop {
    my ($self) = @_;
    return $self->{request}->stop if $self->{request};
    $self->finish;
}

# Closes the connection after all output was sent.
sub finish {
    my ($self) = @_;
    return $self->close if $self->{out} eq '';
    $self->{is_closing} = 1;
}

# Sends no more after the output so far, but goes on to read.
sub write_eof {
    my ($self) = @_;
    $self->{has_eof} = 1;
    shutdown $self->{handle}, 1 if $self->{out} eq '';
}

sub lost {
    my ($self, $reason) = @_;
    my $request = delete $self->{request};
    $self->close;
    $request->lost($reason) if $request;
}

sub close {
    my ($self) = @_;
    return if $self->{is_closed};
    $self->read(0);
    $Forebay::Pagi::loop->unwatch_io(handle => $self->{handle}, on_write_ready => 1)
        if $self->{is_writing};
    @$self{qw(is_closed out)} = (1, '');
    delete $Forebay::Pagi::connections{$self};
    CORE::close $self->{handle};
    $self->drained if $self->{is_high};
}

# The handle `pagi.transport`: what waits for the client.
package Forebay::Pagi::Transport;

use Scalar::Util qw(weaken);

sub new {
    my ($class, $connection) = @_;
    my $self = bless { connection => $connection }, $class;
    weaken $self->{connection};
    return $self;
}

sub buffered_amount {
    my ($self) = @_;
    return $self->{connection} ? length $self->{connection}{out} : 0;
}

sub high_water_mark { return $Forebay::Pagi::HIGH_WATER }
sub low_water_mark { return $Forebay::Pagi::LOW_WATER }

sub on_high_water {
    my ($self, $callback) = @_;
    my $connection = $self->{connection} or return;
    push @{ $connection->{on_high_water} }, $callback;
    Forebay::Pagi::notify([$callback]) if $connection->{is_high};
}

sub on_drain {
    my ($self, $callback) = @_;
    push @{ $self->{connection}{on_drain} }, $callback if $self->{connection};
}

# The object `pagi.connection`: how a request ends.
package Forebay::Pagi::State;

sub new {
    my ($class) = @_;
    return bless { on_disconnect => [], on_complete => [], is_connected => 1 }, $class;
}

sub is_connected { return $_[0]{is_connected} }
sub disconnect_reason { return $_[0]{reason} }
sub response_started { return $_[0]{is_started} ? 1 : 0 }
sub response_complete { return $_[0]{is_complete} ? 1 : 0 }

sub on_disconnect {
    my ($self, $callback) = @_;
    return Forebay::Pagi::notify([$callback], $self->{reason}) if defined $self->{reason};
    push @{ $self->{on_disconnect} }, $callback;
}

sub on_complete {
    my ($self, $callback) = @_;
    return Forebay::Pagi::notify([$callback]) if $self->{is_complete} && !defined $self->{reason};
    push @{ $self->{on_complete} }, $callback;
}

sub disconnect_future {
    my ($self) = @_;
    return Future->done($self->{reason}) if defined $self->{reason};
    $self->{future} ||= $Forebay::Pagi::loop->new_future;
    return $self->{future}->without_cancel;
}

# The request has ended abnormally, unless its reply was complete before.
sub disconnect {
    my ($self, $reason) = @_;
    return if !$self->{is_connected};
    $self->{is_connected} = 0;
    return if $self->{is_complete};
    $self->{reason} = $reason;
    $self->{future}->done($reason) if $self->{future} && !$self->{future}->is_ready;
    Forebay::Pagi::notify(delete $self->{on_disconnect}, $reason);
    $self->{on_disconnect} = [];
}

sub complete {
    my ($self) = @_;
    return if $self->{is_complete};
    $self->{is_complete} = 1;
    Forebay::Pagi::notify(delete $self->{on_complete}) if !defined $self->{reason};
    $self->{on_complete} = [];
}
