# The application of serve_pagi.rs: each path is a function of %do, or of %stream and %socket.
use strict;
use warnings;
use utf8;

use Future;
use Future::AsyncAwait;
use IO::Async::Loop;

# A constant expression in a loop with `await` is empty after the first wait in version 0.63 of
# Future::AsyncAwait, so these are variables.
my ($thousand, $ten_thousand) = ('x' x 1000, 'x' x 10_000);
my (%do, %stream, %socket, %meetings, %seen, $slow, $much);
my $loop = IO::Async::Loop->new;

async sub lifespan {
    my ($scope, $receive, $send) = @_;
    await $receive->();
    my $how = $ENV{STARTUP} || '';
    die "raised in the startup\n" if $how eq 'raises';
    return if $how eq 'returns';
    if ($how eq 'fails') {
        await $send->({ type => 'lifespan.startup.failed', message => 'no database today' });
        return;
    }
    $scope->{state}{word} = 'from the startup';
    await $send->({ type => 'lifespan.startup.complete' });
    await $receive->();
    open my $file, '>', 'ended' or die $!;
    await $send->({ type => 'lifespan.shutdown.complete' });
}

sub head {
    my ($send, $status, @headers) = @_;
    return $send->({ type => 'http.response.start', status => $status, headers => \@headers });
}

sub body {
    my ($send, $body, $more) = @_;
    return $send->({ type => 'http.response.body', body => $body, more => $more || 0 });
}

async sub answer {
    my ($send, $text) = @_;
    utf8::encode($text);
    await head($send, 200, ['content-type', 'text/plain']);
    await body($send, $text);
}

async sub whole {
    my ($receive) = @_;
    my $body = '';
    while (1) {
        my $event = await $receive->();
        die "the client has left\n" if $event->{type} =~ /disconnect/;
        $body .= $event->{body};
        return $body if !$event->{more};
    }
}

sub scope_text {
    my ($scope) = @_;
    my @lines = map { "$_=" . (defined $scope->{$_} ? $scope->{$_} : '-') }
        qw(type http_version method scheme path raw_path query_string root_path);
    push @lines, "server=$scope->{server}[0] $scope->{server}[1]", "client=$scope->{client}[0]";
    push @lines, "pagi=$scope->{pagi}{version}", "word=$scope->{state}{word}";
    $scope->{state}{word} = 'changed';
    push @lines, 'extensions=' . join ' ', sort keys %{ $scope->{extensions} };
    push @lines, map { "$_->[0]: $_->[1]" } @{ $scope->{headers} };
    return join "\n", @lines;
}

%do = (
    scope => async sub {
        my ($scope, $receive, $send) = @_;
        await answer($send, scope_text($scope));
    },
    echo => async sub {
        my ($scope, $receive, $send) = @_;
        await head($send, 200);
        while (1) {
            my $event = await $receive->();
            await body($send, $event->{body}, $event->{more});
            return if !$event->{more};
        }
    },
    size => async sub {
        my ($scope, $receive, $send) = @_;
        await answer($send, length await whole($receive));
    },
    unread => async sub { await answer($_[2], 'not read') },
    one => async sub {
        my ($scope, $receive, $send) = @_;
        await head($send, 200, ['content-length', 9]);
        await body($send, 'one piece');
    },
    pieces => async sub {
        my ($scope, $receive, $send) = @_;
        await head($send, 201, ['set-cookie', 'a=1'], ['set-cookie', 'b=2'], ['transfer-encoding', 'x']);
        for my $piece (qw(a b c)) { await body($send, $piece, 1) }
        await body($send, '');
    },
    none => async sub { await head($_[2], 204); await body($_[2], '') },
    large => async sub { await head($_[2], 200); await body($_[2], 'x' x 3_000_000) },
    trailers => async sub {
        my ($scope, $receive, $send) = @_;
        await $send->({ type => 'http.response.start', status => 200, trailers => 1 });
        await body($send, 'body');
        await $send->({ type => 'http.response.trailers', headers => [['x-sum', '7']] });
    },
    file => async sub {
        my ($scope, $receive, $send) = @_;
        my %part = $scope->{query_string} =~ /(\w+)=(\d+)/g;
        await head($send, 200);
        await $send->({ type => 'http.response.body', file => 'file.bin', %part });
    },
    handle => async sub {
        my ($scope, $receive, $send) = @_;
        open my $file, '<:raw', 'file.bin' or die $!;
        await head($send, 200);
        await $send->({ type => 'http.response.body', fh => $file, offset => 1 });
        close $file;
    },
    overtaken => async sub {
        my ($scope, $receive, $send) = @_;
        await head($send, 200);
        my %given = (file => 'large.bin');
        if ($scope->{query_string} ne 'file') {
            open my $file, '<:raw', 'large.bin' or die $!;
            %given = (fh => $file);
        }
        my $sent = $send->({ type => 'http.response.body', %given });
        $sent->cancel if $scope->{query_string} eq 'cancelled';
        await body($send, 'too early');
    },
    list => async sub { await $_[2]->([1, 2]) },
    untyped => async sub { await $_[2]->({ status => 200 }) },
    flush => async sub {
        my ($scope, $receive, $send) = @_;
        await head($send, 200);
        await body($send, 'begun', 1);
        await $send->({ type => 'http.fullflush' });
        await $loop->delay_future(after => 0.01);
        await body($send, ' and ended');
    },
    die => async sub { die "before anything\n" },
    nothing => async sub { return },
    plain => sub { return 7 },
    half => async sub { await head($_[2], 200) },
    short => async sub { await head($_[2], 200, ['content-length', 10]); await body($_[2], 'short') },
    long => async sub { await head($_[2], 200, ['content-length', 4]); await body($_[2], 'longer') },
    wide => async sub { await head($_[2], 200); await body($_[2], "\x{263a}") },
    split => async sub { await head($_[2], 200, ['x-thing', "a\r\nb: c"]) },
    name => async sub { await head($_[2], 200, ["x thing", 'a']) },
    twice => async sub { await head($_[2], 200); await head($_[2], 200) },
    event => async sub { await $_[2]->({ type => 'http.nonsense' }) },
    both => async sub {
        await head($_[2], 200);
        await $_[2]->({ type => 'http.response.body', body => 'a', file => 'b' });
    },
    absent => async sub {
        await head($_[2], 200);
        await $_[2]->({ type => 'http.response.body', file => 'no-such-file' });
    },
    dielater => async sub {
        await head($_[2], 200);
        await body($_[2], 'begun', 1);
        die "in the middle\n";
    },
    pid => async sub { await answer($_[2], $$) },
    meet => async sub {
        my ($scope, $receive, $send) = @_;
        my ($most) = $scope->{query_string} =~ /(\d+)/;
        my $meeting = $meetings{$most} ||= { future => $loop->new_future, here => 0 };
        $meeting->{future}->done if ++$meeting->{here} == $most;
        await $meeting->{future}->without_cancel;
        await answer($send, "met $scope->{query_string}");
    },
    wait => async sub {
        my ($scope, $receive, $send) = @_;
        my ($name, $connection) = ($scope->{query_string}, $scope->{'pagi.connection'});
        $seen{$name} = 'waits';
        $connection->on_complete(sub { $seen{"$name-callback"} = 'complete' });
        $connection->on_disconnect(sub { $seen{"$name-callback"} = "on_disconnect $_[0]" });
        await whole($receive);
        my $reason = await $connection->disconnect_future;
        my $event = await $receive->();
        $seen{$name} .= ", $reason, $event->{type}, connected "
            . ($connection->is_connected ? 'yes' : 'no') . ', started ' . $connection->response_started;
        await body($send, 'to nobody');
    },
    state => async sub {
        my ($scope, $receive, $send) = @_;
        my $connection = $scope->{'pagi.connection'};
        my @before = ($connection->response_started, $connection->response_complete);
        $connection->on_complete(sub { $seen{complete} = join ' ', @before, 'complete' });
        await answer($send, 'state');
        $seen{complete} .= join ' ', '', $connection->response_started, $connection->response_complete,
            (await $receive->())->{type};
    },
    backstop => async sub {
        $_[0]{'pagi.connection'}->on_disconnect(sub { $seen{backstop} = $_[0] });
        return;
    },
    endless => async sub {
        my ($scope, $receive, $send) = @_;
        await head($send, 200);
        $seen{ $scope->{query_string} } = 'streams';
        my $connection = $scope->{'pagi.connection'};
        await body($send, $thousand, 1) while $connection->is_connected;
        $seen{ $scope->{query_string} } = 'ended';
    },
    much => async sub {
        my ($scope, $receive, $send) = @_;
        my $transport = $scope->{'pagi.transport'};
        $transport->on_high_water(sub { $seen{high}++ });
        $transport->on_drain(sub { $seen{drain}++ });
        await head($send, 200);
        while ($scope->{'pagi.connection'}->is_connected) {
            await body($send, $ten_thousand, 1);
            $much += 10_000;
            $seen{buffered} = $transport->buffered_amount if $transport->buffered_amount;
        }
    },
    howmuch => async sub { await answer($_[2], $much || 0) },
    water => async sub {
        await answer($_[2], join ' ', map { $seen{$_} || 0 } qw(high drain));
    },
    many => async sub {
        my ($scope, $receive, $send) = @_;
        my $ran = 0;
        $loop->later(sub { $ran = 1 });
        await head($send, 200);
        for my $number (1 .. 1000) { await body($send, '.', 1) }
        await body($send, $ran ? 'others ran' : 'alone');
    },
    seen => async sub { await answer($_[2], $seen{ $_[0]{query_string} } || 'nothing') },
    readslow => async sub { $slow->done; await answer($_[2], 'reads') },
);

%stream = (
    ticks => async sub {
        my ($scope, $receive, $send) = @_;
        my $body = await whole($receive);
        await $send->({ type => 'sse.start', headers => [['x-thing', '1']] });
        await $send->({ type => 'sse.send', event => 'tick', id => "\x{e9}", retry => 5, data => "a\nb" });
        await $send->({ type => 'sse.comment', comment => ':quiet' });
        await $send->({ type => 'sse.comment', comment => 'loud' });
        await $send->({ type => 'sse.send', data => "$scope->{method} $body" });
        return if $scope->{query_string} eq 'return';
        for my $number (1, 2) { await $send->({ type => 'sse.close', reason => 'done' }) }
        my $sent = eval { await $send->({ type => 'sse.send', data => 'late' }); 1 };
        $seen{closed} = $sent ? 'sent' : "refused: $@";
    },
    keepalive => async sub {
        my ($scope, $receive, $send) = @_;
        await $receive->();
        await $send->({ type => 'sse.start' });
        await $send->({ type => 'sse.keepalive', interval => 0.02, comment => 'still here' });
        my $event = await $receive->();
        $seen{keepalive} = "$event->{type} $event->{reason}";
    },
    decline => async sub {
        my ($scope, $receive, $send) = @_;
        await $send->({ type => 'sse.http.response.start', status => 401, headers => [['x-why', 'no']] });
        await $send->({ type => 'sse.http.response.body', body => 'not you' });
    },
    forge => async sub {
        await $_[2]->({ type => 'sse.start' });
        await $_[2]->({ type => 'sse.send', data => 'a', id => "1\ndata: forged" });
    },
    early => async sub { await $_[2]->({ type => 'sse.send', data => 'a' }) },
    die => async sub { die "before the stream\n" },
);

%socket = (
    echo => async sub {
        my ($scope, $receive, $send) = @_;
        my ($new) = grep { $_ eq 'new' } @{ $scope->{subprotocols} };
        await $send->({ type => 'websocket.accept', subprotocol => $new, headers => [['x-thing', '1']] });
        while (1) {
            my $event = await $receive->();
            if ($event->{type} eq 'websocket.disconnect') {
                $seen{ws} = "$event->{code} $event->{reason}";
                await $send->({ type => 'websocket.send', text => 'to nobody' });
                return;
            }
            await $send->({
                type => 'websocket.send',
                defined $event->{text} ? (text => $event->{text}) : (bytes => $event->{bytes}),
            });
        }
    },
    scope => async sub {
        my ($scope, $receive, $send) = @_;
        await $send->({ type => 'websocket.accept' });
        my $text = join ' ', @$scope{qw(type scheme path root_path query_string)},
            exists $scope->{method} ? 'method' : 'none', sort keys %{ $scope->{extensions} };
        await $send->({ type => 'websocket.send', text => "$text \x{263a}" });
        await $send->({ type => 'websocket.close', code => 4001 });
    },
    refuse => async sub { await $_[2]->({ type => 'websocket.close' }) },
    deny => async sub {
        await $_[2]->({ type => 'websocket.http.response.start', status => 401, headers => [] });
        await $_[2]->({ type => 'websocket.http.response.body', body => 'not ', more => 1 });
        await $_[2]->({ type => 'websocket.http.response.body', body => 'you' });
    },
    die => async sub {
        my ($scope, $receive, $send) = @_;
        if ($scope->{query_string}) {
            await $send->({ type => 'websocket.accept' });
            await $send->({ type => 'websocket.close', code => 1005 + 10 })
                if $scope->{query_string} eq 'code';
        }
        die "in a websocket\n";
    },
    return => async sub { await $_[2]->({ type => 'websocket.accept' }) },
    slow => async sub {
        my ($scope, $receive, $send) = @_;
        $slow = $loop->new_future;
        await $send->({ type => 'websocket.accept' });
        await $slow;
        my $count = 0;
        $count++ while (await $receive->())->{type} ne 'websocket.disconnect';
        $seen{slow} = $count;
    },
    keepalive => async sub {
        my ($scope, $receive, $send) = @_;
        await $send->({ type => 'websocket.accept' });
        await $send->({ type => 'websocket.keepalive', interval => 0.02, timeout => 0.02 });
        my $event = await $receive->();
        $seen{keepalive} = "$event->{code} $event->{reason}";
    },
);

async sub {
    my ($scope, $receive, $send) = @_;
    return await lifespan($scope, $receive, $send) if $scope->{type} eq 'lifespan';
    my ($name) = $scope->{path} =~ m{\A\Q$scope->{root_path}\E/(\w+)};
    my $all = { http => \%do, sse => \%stream, websocket => \%socket }->{ $scope->{type} };
    my $run = $all->{$name} or die "no $scope->{type} $name\n";
    if ($scope->{type} eq 'websocket') {
        my $event = await $receive->();
        die "not connected\n" if $event->{type} ne 'websocket.connect';
    }
    my $run_future = $run->($scope, $receive, $send);
    die "the application returned no Future\n" if !ref $run_future;
    await $run_future;
};
