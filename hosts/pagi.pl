# Forebay's host for PAGI applications (Perl's asynchronous gateway interface, version 0.3): a program
# that runs many requests at once on one event loop, that of IO::Async. It is no web server for clients:
# Forebay (crates/forebay-workers) starts it, checks what clients send, and connects to its Unix socket.
#
# Each running request has its own connection, so bytes of one request cannot enter the reply of another.
# A connection carries one request after another: a scope line, which PROTOCOL.md describes, and an
# HTTP/1.1 request, as for asgi.py. Forebay appends the files of pagi/ to this file.
package Forebay::Pagi;

use strict;
use warnings;

use Errno qw(EAGAIN EINTR);
use IO::Handle ();
use Scalar::Util qw(blessed);
use Socket qw(AF_UNIX SOCK_STREAM pack_sockaddr_un);

BEGIN {
    for my $module (qw(Future IO::Async::Loop)) {
        (my $file = "$module.pm") =~ s{::}{/}g;
        eval { require $file } or do {
            print STDERR "cannot load $module, which kind = \"pagi\" needs (in Debian: libio-async-perl "
                . "and libfuture-asyncawait-perl): $@";
            exit 1;
        };
    }
}

our ($loop, $app, $max_message, $is_stopping);
our (%connections, %running, %state);
my $none_runs;    # future: the last request has ended; set up by stop()

# If more bytes than $HIGH_WATER wait in one direction of a request, their sender has to wait until
# less than $LOW_WATER are left.
our ($HIGH_WATER, $LOW_WATER) = (65_536, 16_384);
our $LONGEST_HEAD = 1 << 20;
our $PAGI = '0.3';
my $BACKLOG = 1024;
my $log_inode = (stat STDERR)[1];

# Serves requests until Forebay sends SIGTERM. Returns the exit code of this process.
sub main {
    my ($path, $file, $most, $grace);
    ($path, $file, $most, $max_message, $grace) = @_;
    STDOUT->autoflush;
    $SIG{PIPE} = 'IGNORE';
    $loop = IO::Async::Loop->new;
    eval { require Future::IO::Impl::IOAsync };    # for applications that use Future::IO
    my $stop = $loop->new_future;
    $loop->watch_signal($_ => sub { $stop->done if !$stop->is_ready }) for qw(TERM INT);
    if (!eval { $app = load($file); 1 }) {
        print STDERR "cannot load the application $file:\n$@";
        return 1;
    }
    my $lifespan = Forebay::Pagi::Lifespan->new;
    return 1 if !$lifespan->start;
    my $listener = listen_at($path);
    $loop->watch_io(handle => $listener, on_read_ready => sub { accept_all($listener) });
    $loop->loop_once until $stop->is_ready;
    $loop->unwatch_io(handle => $listener, on_read_ready => 1);
    close $listener;
    stop($grace);
    return $lifespan->stop ? 0 : 1;
}

# Loads `$file` and returns the application, the value of its last expression.
sub load {
    my ($file) = @_;
    $0 = $file;
    local @ARGV;
    (my $package = $file) =~ s/([^A-Za-z0-9])/sprintf '_%02x', ord $1/ge;
    my ($loaded, $error);
    eval "package Forebay::App::$package; \$loaded = do \$file; \$error = \$@ || \$!; 1" or die $@;
    die $error =~ /\n\z/ ? $error : "$error\n" if !defined $loaded && $error;
    require overload;
    $loaded = $loaded->to_app if blessed $loaded && $loaded->can('to_app');
    return $loaded
        if ref $loaded eq 'CODE' || blessed $loaded && overload::Method($loaded, '&{}');
    die "its last expression is no PAGI application: it must be a code reference\n";
}

sub listen_at {
    my ($path) = @_;
    socket my $listener, AF_UNIX, SOCK_STREAM, 0 or die "cannot open a socket: $!\n";
    bind $listener, pack_sockaddr_un($path) or die "cannot listen at $path: $!\n";
    listen $listener, $BACKLOG or die "cannot listen at $path: $!\n";
    $listener->blocking(0);
    return $listener;
}

sub accept_all {
    my ($listener) = @_;
    while (accept my $handle, $listener) {
        $handle->blocking(0);
        Forebay::Pagi::Connection->new($handle);
    }
}

# Lets the running requests end, but cancels those that still run after `$grace` seconds.
sub stop {
    my ($grace) = @_;
    $is_stopping = 1;
    $_->stop for values %connections;
    return if !%running;
    $none_runs = $loop->new_future;
    my $late = $loop->delay_future(after => $grace);
    $loop->loop_once until $none_runs->is_ready || $late->is_ready;
    $late->cancel if !$late->is_ready;
    return if !%running;
    printf STDERR "%d requests were still running and are cancelled\n", scalar keys %running;
    $_->{future}->cancel for values %running;
}

# Calls the application. Returns its future.
sub call {
    my ($scope, $receive, $send) = @_;
    my $future = eval { $app->($scope, $receive, $send) };
    return Future->fail($@ || 'the application died') if !defined $future && $@;
    return $future if blessed $future && $future->isa('Future');
    return Future->fail("the application returned no Future: write it as `async sub`\n");
}

# Runs the application for a request.
sub run {
    my ($request, $scope) = @_;
    $running{$request} = $request;
    my $send = sub {
        my ($event) = @_;
        my $sent = eval { $request->send($event) };
        return defined $sent ? $sent : Future->fail($@ || "the event cannot be sent\n");
    };
    my $future = $request->{future} = call($scope, sub { $request->receive }, $send);
    $future->on_ready(sub {
        my ($ended) = @_;
        delete $running{$request};
        delete $request->{future};
        my $error = $ended->is_cancelled ? undef : $ended->failure;
        eval { $request->ended($error, $ended->is_cancelled); 1 }
            or report('the reply cannot be ended', $@);
        $none_runs->done if $none_runs && !%running && !$none_runs->is_ready;
    });
}

# Each line is a warning for Forebay, unlike what the application itself prints, unless it has sent
# STDERR elsewhere.
sub report {
    my ($what, $error) = @_;
    my $text = eval { "$error" };
    $text = 'unknown error' if !defined $text || $text eq '';
    $text = "$what: $text";
    $text =~ s/^/<4>/mg if defined $log_inode && ((stat STDERR)[1] || 0) == $log_inode;
    local ($\, $,);
    print STDERR $text =~ /\n\z/ ? $text : "$text\n";
}

# Returns the type of an event that the application sends.
sub type_of {
    my ($event) = @_;
    my $type = ref $event eq 'HASH' ? $event->{type} : undef;
    return $type if defined $type && $type ne '';
    die "what was sent is no event: an event is a hash with the key `type`\n";
}

# Returns text or bytes as bytes. Refuses characters that are none.
sub bytes {
    my ($data, $what) = @_;
    utf8::downgrade($data, 1) or die "$what has characters above 255: encode it\n";
    return $data;
}

sub utf8_bytes {
    my ($text) = @_;
    utf8::encode($text);
    return $text;
}

# Calls callbacks of the application. What they throw stops none of the others.
sub notify {
    my ($callbacks, @arguments) = @_;
    for my $callback (@$callbacks) {
        eval { $callback->(@arguments); 1 } or report('a callback of the application failed', $@);
    }
}

# The startup and shutdown of the application (the lifespan protocol).
package Forebay::Pagi::Lifespan;

sub new {
    my ($class) = @_;
    return bless { events => [], waiting => undef, answer => undef, future => undef }, $class;
}

# Returns false, after a message in the log, if the application refused to start. An application that
# does not know the protocol counts as started.
sub start {
    my ($self) = @_;
    $self->ask('lifespan.startup');
    my $scope = {
        type => 'lifespan', pagi => { version => $Forebay::Pagi::PAGI, spec_version => $Forebay::Pagi::PAGI },
        state => \%Forebay::Pagi::state,
    };
    $self->{future} = Forebay::Pagi::call($scope, sub { $self->receive }, sub {
        my ($event) = @_;
        my $sent = eval { $self->send($event) };
        return defined $sent ? $sent : Future->fail($@);
    });
    return $self->wait('startup');
}

sub stop {
    my ($self) = @_;
    return 1 if $self->{future}->is_ready;
    $self->ask('lifespan.shutdown');
    return $self->wait('shutdown');
}

sub ask {
    my ($self, $type) = @_;
    $self->{answer} = $Forebay::Pagi::loop->new_future;
    push @{ $self->{events} }, { type => $type };
    my $waiting = delete $self->{waiting};
    $waiting->done(shift @{ $self->{events} }) if $waiting && !$waiting->is_ready;
}

sub wait {
    my ($self, $event) = @_;
    my ($answer, $future) = @$self{qw(answer future)};
    $Forebay::Pagi::loop->loop_once until $answer->is_ready || $future->is_ready;
    if (!$answer->is_ready) {
        return 1 if $event eq 'shutdown' && !$future->failure;
        my $why = $future->failure;
        $why = 'it returned' if !defined $why;
        Forebay::Pagi::report("the application takes no part in its $event (lifespan)", $why);
        return $event eq 'startup';
    }
    my $given = $answer->get;
    return 1 if $given->{type} eq "lifespan.$event.complete";
    my $why = $given->{message};
    $why = 'it gave no reason' if !defined $why || $why eq '';
    Forebay::Pagi::report("the application refused its $event (lifespan)", $why);
    return 0;
}

sub receive {
    my ($self) = @_;
    my $event = shift @{ $self->{events} };
    return Future->done($event) if $event;
    return $self->{waiting} = $Forebay::Pagi::loop->new_future;
}

sub send {
    my ($self, $event) = @_;
    my $type = Forebay::Pagi::type_of($event);
    $type =~ /\Alifespan\.(?:startup|shutdown)\.(?:complete|failed)\z/
        or die "'$type' is no event of a lifespan\n";
    die "'$type' was not expected now\n" if $self->{answer}->is_ready;
    $self->{answer}->done($event);
    return Future->done;
}
