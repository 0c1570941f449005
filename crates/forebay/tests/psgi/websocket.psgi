# WebSockets in PSGI: Protocol::WebSocket over psgix.io, as in the example of that module, without an event loop.
use strict;
use warnings;
use Protocol::WebSocket::Frame;
use Protocol::WebSocket::Handshake::Server;

my $status = sub { [$_[0], ['Content-Type', 'text/plain'], [$_[1]]] };

sub {
    my ($env) = @_;
    return $status->(200, "$$") if $env->{PATH_INFO} eq '/pid';
    my $io = $env->{'psgix.io'} or return $status->(426, 'only for WebSockets');
    # The module also accepts drafts of the protocol, which have neither version nor key.
    my ($version, $key) = map { $env->{"HTTP_SEC_WEBSOCKET_$_"} // '' } qw(VERSION KEY);
    return $status->(400, 'no WebSocket of RFC 6455') if $version ne '13' || $key !~ m{\A[A-Za-z0-9+/]{22}==\z};
    my $handshake = Protocol::WebSocket::Handshake::Server->new_from_psgi($env);
    $handshake->parse($io) or return $status->(400, $handshake->error);
    return sub {
        syswrite $io, $handshake->to_string;
        my $frame = Protocol::WebSocket::Frame->new(max_payload_size => 100_000);
        while (sysread $io, my $bytes, 65_536) {
            $frame->append($bytes);
            while (defined(my $message = eval { $frame->next_bytes })) {
                my $answer = Protocol::WebSocket::Frame->new(
                    buffer => $frame->is_text ? "$$ $message" : $message,
                    type => $frame->is_text ? 'text' : $frame->is_ping ? 'pong' : $frame->is_close ? 'close' : 'binary',
                    max_payload_size => 200_000);
                syswrite $io, $answer->to_bytes;
                return if $frame->is_close;
            }
            return warn "a wrong frame: $@" if $@;
        }
        warn "the client left\n";
    };
};
