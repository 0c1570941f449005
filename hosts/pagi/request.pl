# Replies, and requests of the types "http" and "sse", for pagi.pl.
package Forebay::Pagi::Reply;

use strict;
use warnings;

# Fields about the connection between Forebay and the client, which Forebay sends itself.
my %HOP_BY_HOP = map { $_ => 1 }
    qw(connection keep-alive proxy-connection te transfer-encoding upgrade);
my $CHUNK = 65_536;    # bytes of a file that are read at once

sub new {
    my ($class, $connection, $is_head) = @_;
    return bless { connection => $connection, is_head => $is_head, sent => 0 }, $class;
}

# Takes the head. Forebay gets it together with the first part of the body.
sub start {
    my ($self, $event) = @_;
    die "the reply was started twice\n" if defined $self->{head};
    my $status = $event->{status};
    die "this is no status of a reply\n" if !defined $status || $status !~ /\A[2-9][0-9][0-9]\z/;
    $self->{is_bare} = $status == 204 || $status == 304;
    $self->{has_body} = !$self->{is_head} && !$self->{is_bare};
    $self->{has_trailers} = $event->{trailers} && $self->{has_body};
    my @lines = ("HTTP/1.1 $status ");
    for my $field (@{ $event->{headers} || [] }) {
        my ($name, $line) = field($field);
        next if $HOP_BY_HOP{$name};
        if ($name eq 'content-length') {
            next if $self->{has_trailers} || $status == 204;
            die "a Content-Length that is no number\n" if $field->[1] !~ /\A[0-9]{1,18}\z/;
            $self->{size} = $field->[1];
        }
        push @lines, $line;
    }
    $self->{head} = join "\r\n", @lines;
    $self->{state}{is_started} = 1 if $self->{state};
}

# Returns the name of a field in lower case, and its line.
sub field {
    my ($field) = @_;
    die "a header is no pair of name and value\n" if ref $field ne 'ARRAY' || @$field != 2;
    my ($name, $value) = map { Forebay::Pagi::bytes(defined $_ ? $_ : '', 'a header') } @$field;
    die "the name of a header has other characters than a token\n"
        if $name !~ /\A[!#\$%&'*+.^_`|~0-9A-Za-z-]+\z/;
    die "a line break or a zero byte in a header field\n" if $value =~ /[\r\n\0]/;
    return lc $name, "$name: $value";
}

# Takes a part of the body, or a file. Returns a future that is done when more may be sent.
sub body {
    my ($self, $event) = @_;
    die "a body was not expected now\n" if !defined $self->{head} || $self->{awaits_trailers};
    die "a body while a file was still being sent: await what `\$send` returns\n" if $self->{is_streaming};
    my @given = grep { defined $event->{$_} } qw(body file fh);
    die "only one of body, file and fh may be given\n" if @given > 1;
    return $self->stream($event) if @given && $given[0] ne 'body';
    my $data = defined $event->{body} ? $event->{body} : '';
    $self->part(Forebay::Pagi::bytes($data, 'the body'), !$event->{more});
    return $self->{connection}->sent;
}

# Sends bytes of the body, preceded by the head if it was not sent yet.
sub part {
    my ($self, $data, $is_last) = @_;
    if (defined $self->{size} && $self->{has_body}) {
        my $size = $self->{sent} + length $data;
        die "a body of $size bytes, but a Content-Length of $self->{size}\n"
            if $size > $self->{size} || $is_last && $size < $self->{size};
    }
    my $out = '';
    if (!$self->{is_begun}) {
        $out = $self->{head} . $self->framing(length $data, $is_last);
        $self->{is_begun} = 1;
    }
    if ($self->{has_body}) {
        $self->{sent} += length $data;
        $data = sprintf("%x\r\n", length $data) . "$data\r\n" if $self->{is_chunked} && $data ne '';
        $data .= "0\r\n\r\n" if $self->{is_chunked} && $is_last && !$self->{has_trailers};
        $out .= $data;
    }
    $self->{connection}->write($out) if $out ne '';
    return if !$is_last;
    return $self->{awaits_trailers} = 1 if $self->{has_trailers};
    $self->complete;
}

# Returns the end of the head. Chooses the framing of the body.
sub framing {
    my ($self, $size, $is_last) = @_;
    return "\r\n\r\n" if defined $self->{size} || $self->{is_bare};
    return "\r\nContent-Length: $size\r\n\r\n" if $is_last && !$self->{has_trailers};
    return "\r\n\r\n" if !$self->{has_body};
    $self->{is_chunked} = 1;
    return "\r\nTransfer-Encoding: chunked\r\n\r\n";
}

# Sends a file, or what can be read from a handle. The whole body is then complete.
sub stream {
    my ($self, $event) = @_;
    my ($offset, $left) = @$event{qw(offset length)};
    for (grep { defined } $offset, $left) {
        die "offset and length are whole numbers\n" if !/\A[0-9]{1,18}\z/;
    }
    my $handle = $event->{fh};
    if (defined $event->{file}) {
        open $handle, '<:raw', $event->{file} or die "cannot open $event->{file}: $!\n";
        die "$event->{file} is no file\n" if !-f $handle;
        my $rest = (-s _) - ($offset || 0);
        $rest = 0 if $rest < 0;
        $left = $rest if !defined $left || $left > $rest;
        $self->{head} .= "\r\nContent-Length: $left" if !$self->{is_begun} && !defined $self->{size};
        $self->{size} = $left if !$self->{is_begun};
    }
    defined fileno $handle or die "fh is closed\n";
    seek $handle, $offset, 0 or die "cannot seek: $!\n" if $offset;
    my $done = $Forebay::Pagi::loop->new_future;
    $self->{is_streaming} = 1;
    my $step;
    my $end = sub {
        undef $step;
        return if $done->is_ready;    # cancelled: a further body would hide that the file was cut
        $self->{is_streaming} = 0;
        $@ ? $done->fail($@) : $done->done;
    };
    $step = sub {
        eval {
            while (!$self->{connection}{is_closed} && !$done->is_ready) {
                my $wanted = defined $left && $left < $CHUNK ? $left : $CHUNK;
                my $got = $wanted ? read $handle, my $chunk, $wanted : 0;
                die "cannot read: $!\n" if !defined $got;
                $self->part($got ? $chunk : '', !$got);
                last if !$got;
                $left -= $got if defined $left;
                my $sent = $self->{connection}->sent;
                if (!$sent->is_ready) {
                    $sent->on_done($step);
                    return 1;
                }
            }
            $@ = '';
            $end->();
            1;
        } or $end->();
    };
    $step->();
    return $done;
}

sub end {
    my ($self, $event) = @_;
    die "trailers were not expected now\n" if !$self->{awaits_trailers};
    my @lines = map { (field($_))[1] . "\r\n" } @{ $event->{headers} || [] };
    $self->{connection}->write(join '', "0\r\n", @lines, "\r\n");
    $self->complete;
}

sub complete {
    my ($self) = @_;
    $self->{is_complete} = 1;
}

# Answers 500, or cuts the reply off so that no client takes a part for the whole.
sub give_up {
    my ($self) = @_;
    return if $self->{is_complete};
    if ($self->{is_begun}) {
        $self->{is_complete} = 1;
        delete $self->{connection}{request};
        return $self->{connection}->close;
    }
    delete @$self{qw(head size has_trailers awaits_trailers)};
    $self->start({ status => 500, headers => [['Content-Type', 'text/plain; charset=utf-8']] });
    $self->part("Internal Server Error\n", 1);
}

# A request of the type "http" or "sse", while its application runs.
package Forebay::Pagi::Request;

our @ISA = ('Forebay::Pagi::Reply');

# Number of events to a client that has left, after which `$send` waits. An endless stream then takes
# little time.
my $MOST_DROPPED = 100;
my $PAUSE = 0.1;

sub new {
    my ($class, $connection, $scope, $kind, $has_body) = @_;
    my $is_head = $scope->{method} eq 'HEAD';
    my $self = $class->SUPER::new($connection, $is_head);
    @$self{qw(kind body more waiting dropped)} = ($kind, '', $has_body, [], 0);
    $scope->{type} = $kind;
    $scope->{extensions} = { fullflush => {} };
    if ($kind eq 'http') {
        $self->{state} = $scope->{'pagi.connection'} = Forebay::Pagi::State->new;
    }
    return $self;
}

sub receive {
    my ($self) = @_;
    my $event = $self->next_event;
    return Future->done($event) if $event;
    push @{ $self->{waiting} }, my $future = $Forebay::Pagi::loop->new_future;
    return $future;
}

# Returns the next event for the application, if there is one.
sub next_event {
    my ($self) = @_;
    my $kind = $self->{kind};
    my $is_over = $self->{is_lost} || $self->{is_complete};
    if (!$self->{is_given} && !$is_over && (length $self->{body} || !$self->{more})) {
        my $body = $self->{body};
        $self->{body} = '';
        $self->{is_given} = !$self->{more};
        $self->{connection}->read(1);
        return { type => "$kind.request", body => $body, more => $self->{more} ? 1 : 0 };
    }
    return undef if !$is_over;
    return { type => 'http.disconnect' } if $kind eq 'http';
    my $reason = defined $self->{reason} ? $self->{reason} : 'server_shutdown';
    return { type => 'sse.disconnect', reason => $reason };
}

# Gives events to calls of `$receive` that wait.
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

my %SENDERS = (
    'http.response.start' => sub { $_[0]->start($_[1]); Future->done },
    'http.response.body' => sub { $_[0]->body($_[1]) },
    'http.response.trailers' => sub { $_[0]->end($_[1]); Future->done },
    'http.fullflush' => sub { Future->done },
    'sse.fullflush' => sub { Future->done },
    'sse.http.response.start' => sub {
        die "the event stream has begun\n" if $_[0]{is_stream};
        $_[0]->start($_[1]);
        Future->done;
    },
    'sse.http.response.body' => sub {
        die "the event stream has begun\n" if $_[0]{is_stream};
        $_[0]->body($_[1]);
    },
    'sse.start' => \&start_stream,
    'sse.send' => sub { $_[0]->emit(dispatch($_[1])) },
    'sse.comment' => sub { $_[0]->emit(comment($_[1]{comment})) },
    'sse.keepalive' => \&keep_alive,
    'sse.close' => sub { $_[0]->end_stream; Future->done },
);

sub send {
    my ($self, $event) = @_;
    my $type = Forebay::Pagi::type_of($event);
    my $sender = $SENDERS{$type};
    die "'$type' is no event that can be sent here\n"
        if !$sender || $type !~ /\A\Q$self->{kind}\E\./ && $type ne 'http.fullflush';
    if ($self->{is_lost}) {
        return $self->{connection}->sent if ++$self->{dropped} <= $MOST_DROPPED;
        return $Forebay::Pagi::loop->delay_future(after => $PAUSE);
    }
    if ($self->{is_complete}) {
        return Future->done if $type eq 'sse.close';
        die "'$type' was sent after the reply was complete\n";
    }
    return $sender->($self, $event);
}

sub start_stream {
    my ($self, $event) = @_;
    my @headers = @{ $event->{headers} || [] };
    my %has = map { lc $_->[0] => 1 } grep { ref eq 'ARRAY' && defined $_->[0] } @headers;
    push @headers, ['content-type', 'text/event-stream'] if !$has{'content-type'};
    push @headers, ['cache-control', 'no-cache'] if !$has{'cache-control'};
    my $status = defined $event->{status} ? $event->{status} : 200;
    $self->start({ status => $status, headers => \@headers });
    $self->{is_stream} = 1;
    $self->part('', 0);    # the client sees that the stream is open
    return $self->{connection}->sent;
}

sub emit {
    my ($self, $text) = @_;
    die "an event before sse.start\n" if !$self->{is_stream};
    $self->part($text, 0);
    return $self->{connection}->sent;
}

sub dispatch {
    my ($event) = @_;
    my $text = '';
    for my $name (qw(event id)) {
        next if !defined $event->{$name};
        die "a line break in `$name`\n" if $event->{$name} =~ /[\r\n]/;
        $text .= "$name: $event->{$name}\n";
    }
    if (defined $event->{retry}) {
        die "`retry` is no whole number\n" if $event->{retry} !~ /\A[0-9]{1,15}\z/;
        $text .= "retry: $event->{retry}\n";
    }
    die "an event without `data`\n" if !defined $event->{data};
    $text .= "data: $_\n" for split /\r\n|\r|\n/, $event->{data}, -1;
    return Forebay::Pagi::utf8_bytes("$text\n");
}

sub comment {
    my ($text) = @_;
    $text = '' if !defined $text;
    $text =~ s/\A:?/:/;
    $text =~ s/\r\n?|\n/\n:/g;
    return Forebay::Pagi::utf8_bytes("$text\n\n");
}

# Sends a comment from time to time.
sub keep_alive {
    my ($self, $event) = @_;
    my ($seconds, $text) = ($event->{interval}, comment($event->{comment}));
    die "`interval` is no number of seconds\n" if !defined $seconds || $seconds !~ /\A[0-9.]+\z/;
    die "an event before sse.start\n" if !$self->{is_stream};
    $self->stop_timer;
    $self->set_timer($seconds, $text) if $seconds > 0;
    return Future->done;
}

sub set_timer {
    my ($self, $seconds, $text) = @_;
    $self->{timer} = $Forebay::Pagi::loop->watch_time(after => $seconds, code => sub {
        $self->set_timer($seconds, $text);
        eval { $self->part($text, 0) } if !$self->{connection}{is_high};
    });
}

sub stop_timer {
    my ($self) = @_;
    my $timer = delete $self->{timer};
    $Forebay::Pagi::loop->unwatch_time($timer) if $timer;
}

sub end_stream {
    my ($self) = @_;
    die "sse.close before sse.start\n" if !$self->{is_stream};
    $self->part('', 1);
}

sub complete {
    my ($self) = @_;
    $self->{is_complete} = 1;
    $self->stop_timer;
    $self->{connection}->ended;
    $self->{state}->complete if $self->{state} && !$self->{is_failing};
    $self->wake;
}

# The application has returned or failed.
sub ended {
    my ($self, $error, $is_cancelled) = @_;
    return if $self->{is_lost};
    if (!$is_cancelled && !$self->{is_complete} && !defined $error) {
        return $self->end_stream if $self->{is_stream};
        $error = 'it returned before its reply was complete';
    }
    Forebay::Pagi::report("$self->{name}: the application failed", $error) if defined $error;
    return if $self->{is_complete};
    $self->{is_failing} = 1;
    $self->give_up;
    $self->{state}->disconnect('server_error') if $self->{state};
}

# Called by the connection.

sub feed_body {
    my ($self, $part, $is_last) = @_;
    $self->{body} .= $part;
    $self->{more} = 0 if $is_last;
    $self->{connection}->read(0)
        if !$is_last && length $self->{body} > $Forebay::Pagi::HIGH_WATER;
    $self->wake;
}

sub feed {
    my ($self) = @_;
    $self->{connection}->lost('protocol_error');    # nothing may follow before the reply is complete
}

sub lost {
    my ($self, $reason) = @_;
    @$self{qw(is_lost reason body)} = (1, $reason, '');
    $self->stop_timer;
    $self->{state}->disconnect($reason) if $self->{state};
    $self->wake;
}

sub stop { }    # the connection closes after the reply
