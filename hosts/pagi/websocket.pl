# WebSockets (RFC 6455) for pagi.pl.
package Forebay::Pagi::WebSocket;

use strict;
use warnings;

use Digest::SHA qw(sha1);
use MIME::Base64 qw(encode_base64);

my $ACCEPT_KEY = '258EAFA5-E914-47DA-95CA-C5AB0DC85B11';
my ($CONTINUATION, $TEXT, $BINARY, $CLOSE, $PING, $PONG) = (0, 1, 2, 8, 9, 10);
my $CLOSE_SECONDS = 10;    # longest wait for the client's answer to a close frame
# Most messages that wait for the application. $HIGH_WATER limits their bytes.
my $MOST_MESSAGES = 64;
my ($NORMAL, $PROTOCOL, $NO_CODE, $ABNORMAL) = (1000, 1002, 1005, 1006);
my ($INVALID_TEXT, $TOO_LARGE, $INTERNAL, $RESTART) = (1007, 1009, 1011, 1012);
# States. CONNECTING: the application has not answered the handshake. DENIED: it answers with an HTTP
# reply. OPEN: messages pass. CLOSING: a close frame was sent. FAILED: the client broke the protocol, so
# its bytes are dropped. CLOSED: the connection is of no more use.
my ($CONNECTING, $DENIED, $OPEN, $CLOSING, $FAILED, $CLOSED) = 0 .. 5;
# Fields of the answer to a handshake that the application does not choose.
my %OURS = map { $_ => 1 } qw(connection keep-alive proxy-connection te transfer-encoding upgrade
    content-length sec-websocket-extensions sec-websocket-accept sec-websocket-protocol);

sub new {
    my ($class, $connection, $scope, $key) = @_;
    my @names = map { $_->[1] } grep { $_->[0] eq 'sec-websocket-protocol' } @{ $scope->{headers} };
    my @subprotocols = grep { $_ ne '' } map { s/\A\s+|\s+\z//gr } split /,/, join ',', @names;
    $scope->{type} = 'websocket';
    $scope->{subprotocols} = [@subprotocols];
    $scope->{scheme} = $scope->{scheme} eq 'https' ? 'wss' : 'ws';
    $scope->{extensions} = { 'websocket.http.response' => {}, fullflush => {} };
    return bless {
        connection => $connection, key => $key, subprotocols => \@subprotocols,
        state => $CONNECTING, events => [{ type => 'websocket.connect' }], size => 0, waiting => [],
        parts => undef, kind => 0, length => 0, dropped => 0,
    }, $class;
}

# ---- for the application ----

sub receive {
    my ($self) = @_;
    my $event = $self->next_event;
    return Future->done($event) if $event;
    push @{ $self->{waiting} }, my $future = $Forebay::Pagi::loop->new_future;
    return $future;
}

sub next_event {
    my ($self) = @_;
    my $event = shift @{ $self->{events} } or return $self->{end};
    my $data = defined $event->{text} ? $event->{text} : $event->{bytes};
    $self->{size} -= length $data if defined $data;
    if (!@{ $self->{events} } && $self->{state} >= $OPEN) {
        $self->parse;
        $self->{connection}->read(!$self->is_full);
    }
    return $event;
}

sub wake {
    my ($self) = @_;
    my $waiting = $self->{waiting};
    while (@$waiting) {
        if ($waiting->[0]->is_ready) { shift @$waiting }    # cancelled
        else {
            my $event = $self->next_event or return;
            (shift @$waiting)->done($event);
        }
    }
}

sub send {
    my ($self, $event) = @_;
    my $type = Forebay::Pagi::type_of($event);
    $type =~ /\Awebsocket\.(?:accept|send|close|keepalive|http\.response\.(?:start|body))\z/
        or $type eq 'http.fullflush'
        or die "'$type' is no event of a WebSocket\n";
    my ($connection, $state) = @$self{qw(connection state)};
    if ($self->{end} || $type eq 'http.fullflush') {
        return $connection->sent if ++$self->{dropped} % 100;
        return $Forebay::Pagi::loop->delay_future(after => 0.1);
    }
    if ($state == $CONNECTING) { $self->answer($type, $event) }
    elsif ($state == $DENIED) {
        die "'$type' was not expected in a denial\n" if $type ne 'websocket.http.response.body';
        $self->deny_body($event);
    }
    elsif ($type eq 'websocket.send') { $self->send_message($event) }
    elsif ($type eq 'websocket.close') { $self->close(code_of($event), $event->{reason}) }
    elsif ($type eq 'websocket.keepalive') { $self->keep_alive($event) }
    elsif ($type eq 'websocket.accept') { die "the WebSocket was accepted before\n" }
    return $connection->sent;
}

sub send_message {
    my ($self, $event) = @_;
    my ($text, $bytes) = @$event{qw(text bytes)};
    die "one of text and bytes must be given\n" if defined $text == defined $bytes;
    return $self->write($TEXT, Forebay::Pagi::utf8_bytes($text)) if defined $text;
    $self->write($BINARY, Forebay::Pagi::bytes($bytes, 'a message in bytes'));
}

sub code_of {
    my ($event) = @_;
    return defined $event->{code} ? $event->{code} : $NORMAL;
}

# Answers the handshake.
sub answer {
    my ($self, $type, $event) = @_;
    return $self->accept($event) if $type eq 'websocket.accept';
    my $reply = Forebay::Pagi::Reply->new($self->{connection}, 0);
    if ($type eq 'websocket.http.response.start') {
        $reply->start($event);
        @$self{qw(state denial)} = ($DENIED, $reply);
    }
    elsif ($type eq 'websocket.close') {
        $reply->start({ status => 403, headers => [] });
        @$self{qw(state denial)} = ($DENIED, $reply);
        $self->deny_body({});
    }
    else { die "'$type' was not expected before websocket.accept\n" }
}

sub deny_body {
    my ($self, $event) = @_;
    my $data = defined $event->{body} ? $event->{body} : '';
    $self->{denial}->part(Forebay::Pagi::bytes($data, 'the body'), !$event->{more});
    $self->finish if $self->{denial}{is_complete};
}

sub accept {
    my ($self, $event) = @_;
    my @lines = (
        'HTTP/1.1 101 Switching Protocols', 'Upgrade: websocket', 'Connection: upgrade',
        'Sec-WebSocket-Accept: ' . encode_base64(sha1($self->{key} . $ACCEPT_KEY), ''),
    );
    my $chosen = $event->{subprotocol};
    if (defined $chosen && $chosen ne '') {
        grep { $_ eq $chosen } @{ $self->{subprotocols} }
            or die "the client has not offered the subprotocol '$chosen'\n";
        push @lines, "Sec-WebSocket-Protocol: $chosen";
    }
    for my $field (@{ $event->{headers} || [] }) {
        my ($name, $line) = Forebay::Pagi::Reply::field($field);
        push @lines, $line if !$OURS{$name};
    }
    $self->{connection}->write(join '', map { "$_\r\n" } @lines, '');
    $self->{state} = $OPEN;
    $self->feed;
}

# The application has returned or failed.
sub ended {
    my ($self, $error, $is_cancelled) = @_;
    my $is_answered = $self->{state} != $CONNECTING
        && ($self->{state} != $DENIED || $self->{denial}{is_complete});
    $error = 'it returned before it answered the handshake'
        if !defined $error && !$is_cancelled && !$is_answered && !$self->{end};
    Forebay::Pagi::report("$self->{name}: the application failed", $error)
        if defined $error && !($self->{end} && $self->{state} == $CONNECTING);
    if ($is_answered) {
        return $self->close($is_cancelled ? $RESTART : defined $error ? $INTERNAL : $NORMAL);
    }
    return if $self->{end};
    $self->{denial} ||= Forebay::Pagi::Reply->new($self->{connection}, 0);
    $self->{denial}->give_up;
    $self->finish;
}

# ---- frames ----

sub write {
    my ($self, $opcode, $data) = @_;
    my $size = length $data;
    my $head = $size < 126 ? pack('CC', 0x80 | $opcode, $size)
        : $size < 65_536 ? pack('CCn', 0x80 | $opcode, 126, $size)
        : pack('CCQ>', 0x80 | $opcode, 127, $size);
    $self->{connection}->write($head . $data);
}

# Sends a close frame, and waits for the client's close frame: up to $CLOSE_SECONDS. `$told` is the
# reason for the application.
sub close {
    my ($self, $code, $reason, $told) = @_;
    return if $self->{state} != $OPEN;
    $code =~ /\A[0-9]+\z/ && ($code == $NO_CODE || may_close_with($code))
        or die "a WebSocket cannot be closed with code $code\n";
    $reason = '' if !defined $reason;
    my $text = Forebay::Pagi::utf8_bytes($reason);
    if (length $text > 123) {
        $text = substr $text, 0, 123;
        $text =~ s/[\xc0-\xff][\x80-\xbf]*\z// if !utf8::decode(my $copy = $text);
    }
    $self->{state} = $CLOSING;
    $self->write($CLOSE, $code == $NO_CODE ? '' : pack('n', $code) . $text);
    $self->disconnect($code, defined $told ? $told : $reason);
    $self->{connection}->read(1);
    $self->set_timer($CLOSE_SECONDS, sub { $self->finish });
}

# Closes the connection after all output was sent.
sub finish {
    my ($self) = @_;
    $self->{state} = $CLOSED;
    $self->set_timer;
    $self->disconnect($ABNORMAL, 'client_closed');
    delete $self->{connection}{request};
    $self->{connection}->finish;
}

# Ends the events for the application with websocket.disconnect.
sub disconnect {
    my ($self, $code, $reason) = @_;
    $self->{end} ||= { type => 'websocket.disconnect', code => $code + 0, reason => $reason };
    $self->wake;
}

sub set_timer {
    my ($self, $seconds, $code) = @_;
    $Forebay::Pagi::loop->unwatch_time($self->{timer}) if $self->{timer};
    $self->{timer} = $code && $Forebay::Pagi::loop->watch_time(after => $seconds, code => $code);
}

sub keep_alive {
    my ($self, $event) = @_;
    my ($interval, $timeout) = @$event{qw(interval timeout)};
    for (grep { defined } $interval, $timeout) {
        die "interval and timeout are numbers of seconds\n" if !/\A[0-9]*\.?[0-9]+\z/;
    }
    die "`interval` is missing\n" if !defined $interval;
    $self->set_timer;
    $self->ping($interval, $timeout) if $interval > 0;
}

# Sends a ping after `$interval`. Disconnects a client that sends nothing for `$timeout` afterwards.
sub ping {
    my ($self, $interval, $timeout) = @_;
    $self->set_timer($interval, sub {
        return if $self->{state} != $OPEN;
        $self->write($PING, '') if !$self->{connection}{is_high};
        return $self->ping($interval, $timeout) if !defined $timeout;
        $self->{was_heard} = 0;
        $self->set_timer($timeout, sub {
            return $self->ping($interval, $timeout)
                if $self->{was_heard} || !$self->{connection}{is_reading};
            $self->disconnect($ABNORMAL, 'keepalive_timeout');
            $self->finish;
        });
    });
}

# Called by the connection, whose buffer has received bytes.
sub feed {
    my ($self) = @_;
    $self->{was_heard} = 1;
    my $connection = $self->{connection};
    if ($self->{state} < $OPEN) {
        $connection->lost('protocol_error') if length $connection->{in} > $Forebay::Pagi::HIGH_WATER;
        return;
    }
    $self->parse;
    $connection->read(!$self->is_full) if $self->{state} == $OPEN;
}

sub is_full {
    my ($self) = @_;
    return $self->{size} > $Forebay::Pagi::HIGH_WATER || @{ $self->{events} } > $MOST_MESSAGES;
}

# Reads the frames of the buffer, until enough messages wait for the application.
sub parse {
    my ($self) = @_;
    return if $self->{is_parsing};
    local $self->{is_parsing} = 1;
    my $is_sound = eval { 1 while !$self->is_full && $self->take_frame; 1 };
    if (!$is_sound) {
        my $error = $@;
        my ($code, $reason) = ref $error ? @$error : ($INTERNAL, "$error");
        $self->close($code, $reason, 'protocol_error');
        # A reset connection would keep the client from reading the close frame. So this host reads the
        # client's bytes until the client closes, too.
        $self->{state} = $FAILED if $self->{state} < $FAILED;
        $self->{connection}->write_eof;
    }
    $self->{connection}{in} = '' if $self->{state} >= $FAILED;
    $self->wake;
}

# Reads one frame. Returns false if it is not whole yet.
sub take_frame {
    my ($self) = @_;
    my $buffer = \$self->{connection}{in};
    return 0 if length $$buffer < 2 || $self->{state} >= $FAILED;
    my ($first, $second) = unpack 'CC', $$buffer;
    my ($opcode, $size, $at) = ($first & 15, $second & 127, 2);
    die [$PROTOCOL, 'reserved bits are set, or the mask is missing'] if $first & 0x70 || !($second & 0x80);
    die [$PROTOCOL, 'a control frame that is too long or has parts']
        if $opcode >= $CLOSE && ($size > 125 || !($first & 0x80));
    if ($size > 125) {
        $at = $size == 126 ? 4 : 10;
        return 0 if length $$buffer < $at;
        $size = $size == 126 ? unpack 'x2 n', $$buffer : unpack 'x2 Q>', $$buffer;
    }
    my $is_data = $opcode < $CLOSE;
    die [$TOO_LARGE, 'the message is too large']
        if $is_data && $size + $self->{length} > $Forebay::Pagi::max_message;
    return 0 if length $$buffer < $at + 4 + $size;
    my $mask = substr $$buffer, $at, 4;
    my $data = substr $$buffer, $at + 4, $size;
    $data ^= substr $mask x ($size / 4 + 1), 0, $size if $size;
    substr $$buffer, 0, $at + 4 + $size, '';
    return $self->take_data($opcode, $data, $first & 0x80) if $self->{state} == $OPEN && $is_data;
    return $self->take_control($opcode, $data);
}

sub take_data {
    my ($self, $opcode, $data, $is_last) = @_;
    die [$PROTOCOL, 'a frame that was not expected']
        if $opcode > $BINARY || ($opcode == $CONTINUATION) != defined $self->{parts};
    if ($opcode != $CONTINUATION) {
        $self->{kind} = $opcode;
        $self->{parts} = '';
    }
    $self->{parts} .= $data;
    $self->{length} += length $data;
    return 1 if !$is_last;
    $data = $self->{parts};
    @$self{qw(parts length)} = (undef, 0);
    my $name = $self->{kind} == $TEXT ? 'text' : 'bytes';
    $data = text_of($data) if $name eq 'text';
    $self->{size} += length $data;
    push @{ $self->{events} }, { type => 'websocket.receive', $name => $data };
    return 1;
}

sub take_control {
    my ($self, $opcode, $data) = @_;
    if ($opcode == $CLOSE) {
        my ($code, $reason) = close_of($data);
        if ($self->{state} == $OPEN) {
            $self->write($CLOSE, $data);
            $self->{state} = $CLOSING;
            $self->disconnect($code, $reason);
        }
        $self->finish;
        return 0;
    }
    # A client that does not read gets no answers to pings, because they would fill the memory.
    $self->write($PONG, $data)
        if $opcode == $PING && $self->{state} == $OPEN && !$self->{connection}{is_high};
    die [$PROTOCOL, 'an unknown kind of frame'] if $opcode > $PONG;
    return 1;
}

sub text_of {
    my ($data) = @_;
    # Perl's own check accepts surrogates and what lies above Unicode.
    utf8::decode($data) && $data !~ /[\x{d800}-\x{dfff}]|[^\x{0}-\x{10ffff}]/
        or die [$INVALID_TEXT, 'the text is not UTF-8'];
    return $data;
}

# Returns true if a close frame may have this code (RFC 6455 section 7.4).
sub may_close_with {
    my ($code) = @_;
    return $code >= 1000 && $code <= 1003 || $code >= 1007 && $code <= 1014
        || $code >= 3000 && $code <= 4999;
}

# Returns code and reason of a close frame.
sub close_of {
    my ($data) = @_;
    return ($NO_CODE, '') if $data eq '';
    my $code = length $data < 2 ? 0 : unpack 'n', $data;
    die [$PROTOCOL, 'a close frame without a valid code'] if !may_close_with($code);
    return ($code, text_of(substr $data, 2));
}

sub feed_body { }    # a handshake has no body

sub lost {
    my ($self, $reason) = @_;
    $self->{state} = $CLOSED;
    $self->set_timer;
    $self->disconnect($ABNORMAL, $reason);
}

sub stop {
    my ($self) = @_;
    $self->close($RESTART, '', 'server_shutdown') if $self->{state} == $OPEN;
}

package Forebay::Pagi;

exit main(@ARGV);
