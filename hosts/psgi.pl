# Forebay's host for PSGI applications (https://metacpan.org/pod/PSGI, version 1.1): a worker that
# loads an application once and calls it for one request after another. It needs core Perl only. It
# is no web server: Forebay (crates/forebay-workers) starts it, sends it requests and forwards its
# replies to the client.
#
# Descriptors at the start: 0 the control socket, 1 the output socket, 2 a pipe to the log, 3 the
# prefetch queue. The host moves the sockets to other numbers. So the output of print, and of child
# processes, goes to the log. PROTOCOL.md describes the protocol on the sockets.
#
# A reply is a head as in CGI (the last Status counts) and the body. Any number of heads with a 1xx
# status may precede it; they are interim replies.
package Forebay::Host;

use strict;
use warnings;

my ($control, $prefetch, $output, $pid);
my $log_inode = (stat STDERR)[1];
my ($input_bits, $control_number) = ('');  # for select
my $message = '';                         # receive buffer
my $mark;                                 # mark of the request; the end marker repeats it
my $was_prefetched;                            # flag if the request was prefetched, or 0
our $no_input;                             # the body of a request without one
my ($app, @names, @values);                # @names, @values: constant part of the environment
my $last_block = '';                      # the argument of the last environment()
my (@fields, $guess);                     # of an environment; index of a value likely to differ
my ($before_guess, $behind_guess);        # the text around this value in the block
my ($guess_at, $length_around) = (0, 0);  # its position in a message; length of both texts
my ($is_called, $is_aborted, $open_body);  # of the application's call; its body to close
my ($begun, $closed);                     # of the reply: head written; end marker written
my $has_emitted;                          # part of the reply has been sent
my ($is_running, $told);                  # application still runs; flags of the end marker
my $serial = 0;                           # counts requests, to recognize old writers
my ($to_http10, $undo_chunks);            # of this request
my $starved;                              # no free descriptor for the body
my ($taken_over, $children);              # psgix.io of this request; child processes before it
our %status_lines;
our $loader;                               # another host's function in place of load()

my %PRCTL = (x86_64 => 157, aarch64 => 167, riscv64 => 167, i386 => 172, i486 => 172, i586 => 172,
    i686 => 172, arm => 172, s390x => 172, powerpc64le => 171);
my ($ENDS, $CLEANS_UP, $LAY_THERE) = (1, 2, 4);    # flags
my ($MARK, $HEAD, $CHUNK) = (12, 28, 65_536);    # offsets in a message; size of a read
my $NO_BODY = "\0" x 8;
my $LARGEST_IN_MEMORY = 1_048_576;        # of a request body
my $MUCH = 65_536;                        # output bytes; twice this may block until Forebay reads
my $QUIETLY = 0x4040;                     # MSG_NOSIGNAL, MSG_DONTWAIT
my $unsaid = 0;                           # bytes written since the last W message
my $EINTR = 4;

# Loads `$file` and serves requests until Forebay closes the control socket.
sub serve {
    my ($file, $parent) = @_;
    end_with($parent);
    adopt_descriptors();
    $pid = $$;
    $SIG{PIPE} = 'IGNORE';
    $SIG{TERM} = \&abort;
    no warnings 'once';
    *CORE::GLOBAL::fork = \&fork_application;
    $ENV{PLACK_ENV} //= 'deployment';
    $app = ($loader || \&load)->($file);
    prepare_base();
    syswrite $control, "R\0\0\0";
    while (my $env = receive()) {
        last if defined &answer_proving ? answer_proving($env) : answer($env);
    }
    # Waits until Forebay closes the control socket. If this process ended before Forebay has read
    # the end marker, its end would count as a crash.
    1 while !$taken_over && sysread($control, my $rest, $CHUNK);
    exit 0;
}

# Handles SIGTERM, which Forebay sends to the worker of a client that has left (on_abort = "stop"):
# ends the request, so that the close method of its body is called, and then the process.
sub abort {
    if ($is_called && $$ == $pid) {
        $is_called = 0;
        $is_aborted = 1;
        die "the client has left\n";
    }
    end_by_signal();
}

sub end_by_signal {
    $SIG{TERM} = 'DEFAULT';
    kill 'TERM', $$;
}

# Asks the kernel to end this process when Forebay ends, for whatever reason.
sub end_with {
    my ($parent) = @_;
    require Config;
    my ($machine) = $Config::Config{archname} =~ /^([a-z0-9_]+)/;
    syscall($PRCTL{$machine}, 1, 9, 0, 0, 0) if $PRCTL{$machine};    # PR_SET_PDEATHSIG, SIGKILL
    exit 0 if getppid() != $parent;
}

sub adopt_descriptors {
    open $control, '+<&', \*STDIN or die "cannot keep the control socket: $!\n";
    open $output, '+<&', \*STDOUT or die "cannot keep the output socket: $!\n";
    open my $third, '+<&=', 3 or die "no prefetch queue: $!\n";
    open $prefetch, '+<&', $third or die "cannot keep the prefetch queue: $!\n";
    close $third;
    $control_number = fileno $control;
    vec($input_bits, $_, 1) = 1 for $control_number, fileno $prefetch;
    open STDIN, '<', '/dev/null' or die "cannot open /dev/null: $!\n";
    open STDOUT, '>&', \*STDERR or die "cannot send descriptor 1 to the log: $!\n";
}

# Forks for the application. The child gets no copy of the host's own sockets, so that it can
# neither take requests nor write into replies.
sub fork_application () {
    my $child = CORE::fork();
    if (defined $child && !$child) {
        local $!;
        close $_ for $control, $prefetch, $output;
    }
    return $child;
}

# Loads `$file` and returns the application, the value of its last expression. As Plack's loader
# does, this uses a separate package, and sets $0 and @ARGV, which FindBin and frameworks read.
sub load {
    my ($file) = @_;
    $0 = $file;
    local @ARGV;
    (my $package = $file) =~ s/([^A-Za-z0-9])/sprintf '_%02x', ord $1/ge;
    my ($loaded, $error);
    eval "package Forebay::App::$package; \$loaded = do \$file; \$error = \$@ || \$!; 1" or die $@;
    die $error =~ /\n\z/ ? $error : "$file: $error\n" if !defined $loaded && $error;
    require overload;
    $loaded = $loaded->to_app if is_object($loaded) && $loaded->can('to_app');
    return $loaded if ref $loaded eq 'CODE' || is_object($loaded) && overload::Method($loaded, '&{}');
    die "$file: its last expression is no PSGI application: it must be a code reference\n";
}

sub is_object {
    my ($value) = @_;
    return ref $value && eval { $value->can('can') };
}

# Prepares the part of the environment that is the same in every request.
sub prepare_base {
    open $no_input, '<', \'' or die "cannot open an empty string: $!\n";
    return if $loader;    # no application of PSGI
    my %same = (
        'psgi.version' => [1, 1], 'psgi.errors' => \*STDERR,
        'psgi.multithread' => !!0, 'psgi.multiprocess' => !!1, 'psgi.run_once' => !!0,
        'psgi.nonblocking' => !!0, 'psgi.streaming' => !!1,
        'psgix.input.buffered' => !!1, 'psgix.harakiri' => !!1, 'psgix.cleanup' => !!1,
    );
    @names = keys %same;
    @values = @same{@names};
}

# ---- receiving a request ----

# Returns the environment of the next request; undef after Forebay has closed the socket.
sub receive {
    # Under load a request is already in the queue.
    my $got = sysread $prefetch, $message, $CHUNK;
    $was_prefetched = $got ? $LAY_THERE : 0;
    say_waiting() if !$got && $serial;
    while (!$got) {
        my $count = select my $ready = $input_bits, undef, undef, undef;
        return undef if $count < 0 && $! != $EINTR;    # the application has closed both sockets
        next if $count < 1;
        if (vec $ready, $control_number, 1) {
            $message = '';
            receive_up_to($HEAD) && receive_up_to($HEAD + unpack 'N', $message) or return undef;
            last;
        }
        $got = sysread $prefetch, $message, $CHUNK;
    }
    $mark = substr $message, $MARK, 16;
    my $has_body = substr($message, 4, 8) ne $NO_BODY;
    my $size = $has_body ? unpack 'N', $message : length($message) - $HEAD;
    my $env;
    # Most often the same value differs as last time, for example the client's port.
    my $length = $size - $length_around;
    if ($guess && $length >= 0
        && substr($message, $HEAD, $size)
            eq $before_guess . substr($message, $guess_at, $length) . $behind_guess
        && index($message, "\0", $guess_at) == $guess_at + $length)
    {
        $fields[$guess] = substr $message, $guess_at, $length;
        $env = {@fields};
    }
    else {
        $env = environment(substr $message, $HEAD, $size);
    }
    my $request = $serial + 1;
    $env->{'psgix.cleanup.handlers'} = [];
    if (!$loader) {
        $env->{'psgix.informational'} = sub { inform($request, @_) };
        $env->{'psgi.url_scheme'} = $env->{REQUEST_SCHEME};
    }
    $env->{PATH_INFO} //= '';
    undef $taken_over;
    $env->{'psgix.io'} = $taken_over = own_end() if delete $env->{FOREBAY_TAKEOVER};
    $to_http10 = $env->{SERVER_PROTOCOL} eq 'HTTP/1.0';
    if (!$has_body) {
        prepare_base() if !defined fileno $no_input;
        $env->{'psgi.input'} = $no_input;
        return $env;
    }
    my ($high, $low) = unpack 'x4 NN', $message;
    $env->{'psgi.input'} = receive_body($HEAD + $size, $high * 2**32 + $low) or return undef;
    return $env;
}

# Returns the environment in `$block`. If only one value differs from the last environment, the next
# environment is expected to differ in the same value. Then receive() builds that environment from
# @fields, whose names already have their hash values. This takes 22,000 instructions instead of
# 36,000.
sub environment {
    my ($block) = @_;
    # The last NUL would add an empty name.
    my %env = split /\0/, substr($block, 0, -1), -1;
    @env{@names} = @values;
    my $at = ($block ^ $last_block) =~ /[^\0]/ ? $-[0] : length($block) - 1;
    my $start = 1 + rindex substr($block, 0, $at), "\0";
    my $before = substr $block, 0, $start;
    my $behind = substr $block, index $block, "\0", $start;
    if ($before =~ tr/\0// % 2    # a value
        && substr($last_block, index $last_block, "\0", $start) eq $behind
        && keys %env == @names + ($block =~ tr/\0//) / 2)
    {
        my ($name) = $before =~ /([^\0]*)\0\z/;
        @fields = %env;
        ($guess) = map { $_ + 1 } grep { $_ % 2 == 0 && $fields[$_] eq $name } 0 .. $#fields;
        ($before_guess, $behind_guess) = ($before, $behind);
        ($guess_at, $length_around) = ($HEAD + $start, $start + length $behind);
    }
    $last_block = $block;
    return \%env;
}

# Returns a handle of the output socket, for an application that sends its own 101 reply. Over this
# handle the application then exchanges bytes with the client. Forebay ends this process after such
# a request.
sub own_end {
    require IO::Socket::UNIX;
    $children = children();
    return IO::Socket::UNIX->new_from_fd($output, '+<') // die "cannot copy a socket: $!\n";
}

# Closes an unused psgix.io handle, also for code that has kept a reference. Returns false if a new
# child process may have a copy of it.
sub give_back {
    close $taken_over;
    return $children ne 'unknown' && children() eq $children;
}

sub children {
    local $/;
    open my $list, '<', "/proc/$$/task/$$/children" or return 'unknown';
    return scalar(<$list>) // '';
}

# Receives until the message has at least `$want` bytes. Returns false after Forebay has closed the
# socket.
sub receive_up_to {
    my ($want) = @_;
    while (length $message < $want) {
        my $got = sysread $control, $message, $CHUNK, length $message;
        return 0 if !$got && (defined $got || $! != $EINTR);
    }
    return 1;
}

# Returns a handle of the body, which starts at `$start` of the received message. The handle reads
# from memory, or from an unnamed file if the body is large. Returns a reference to an error message
# if the body cannot be stored.
sub receive_body {
    my ($start, $length) = @_;
    if ($length <= $LARGEST_IN_MEMORY) {
        receive_up_to($start + $length) or return undef;
        my $body = substr $message, $start, $length;
        open my $input, '<', \$body or return \"cannot open the request body: $!";
        return $input;
    }
    my $fault;
    open my $file, '+>', undef or $fault = "$!";
    # Perl reports EINVAL instead of ENFILE and EMFILE.
    $starved = !open my $probe, '<', '/dev/null' if defined $fault;
    substr $message, 0, $start, '';
    while (1) {
        $fault ||= "$!" if $file && (syswrite($file, $message) || 0) != length $message;
        $length -= length $message;
        last if !$length;
        $message = '';
        receive_up_to(1) or return undef;
    }
    return \"cannot store the request body: $fault" if $fault;
    sysseek $file, 0, 0;
    return $file;
}

# ---- the application's reply ----

# Runs the application for one request. Returns true if this worker has to end.
sub answer {
    my ($env) = @_;
    $serial++;
    $begun = $closed = $is_running = $has_emitted = 0;
    undef $undo_chunks;
    undef $open_body;
    my $is_whole = eval { $is_called = 1; call($env); 1 };
    $is_called = 0;
    if (!$is_whole) {
        my ($error, $body) = ($@, $open_body);
        undef $open_body;
        !$body || eval { $body->close; 1 } or log_error($@);
        end_by_signal() if $is_aborted;
        $@ = $error;
        log_error($@);
        $is_running = 0;
        conclude($begun ? 'A' : 'S', $begun ? 0 : $starved ? 503 : 500, $env) if !$closed;
    }
    conclude('E', 0, $env) if !$closed;
    return $told & $ENDS if !($told & $CLEANS_UP);
    my $handlers = $env->{'psgix.cleanup.handlers'};
    for my $handler (ref $handlers eq 'ARRAY' ? @$handlers : ()) {
        eval { $handler->($env); 1 } or log_error($@);
    }
    my $ends = $env->{'psgix.harakiri.commit'} || $taken_over && !give_back();
    say($control, $ends ? "E\1\0\0" : "R\0\0\0");
    return $ends;
}

sub call {
    my ($env) = @_;
    die ${ $env->{'psgi.input'} } . "\n" if ref $env->{'psgi.input'} eq 'SCALAR';
    my $response = $app->($env);
    return respond($response, $env) if ref $response eq 'ARRAY';
    if (ref $response ne 'CODE') {
        die 'no PSGI response but ', defined $response ? $response : 'undef', "\n";
    }
    $is_running = 1;
    my $request = $serial;
    $response->(sub {
        die "this request has its response already\n" if $request != $serial;
        respond($_[0], $env);
    });
    $is_running = 0;
    return if $begun || $closed;
    # The application has taken over the connection, or has forgotten to answer. It may still write
    # to the output socket, so the end goes over the control socket.
    if ($env->{'psgix.io'}) {
        ($closed, $told) = (1, $ENDS);
        return say($control, "S\1\1\xf4");    # 500
    }
    die "the application did not call the responder\n";
}

# Sends a whole response, or its head, and then returns the writer for its body.
sub respond {
    my ($response, $env) = @_;
    die "a second response\n" if $begun || $closed;
    my ($status, $headers, $body) = @$response;
    if (ref $body eq 'ARRAY') {
        return send_whole($status, $headers, @$body == 1 ? $body->[0] : join('', @$body), $env);
    }
    if (defined $body) {
        return send_handle($status, $headers, $body, $env);
    }
    emit(head($status, $headers));
    $begun = 1;
    return bless [$serial, $env], 'Forebay::Writer';
}

# Sends a reply whose body is in memory.
sub send_whole {
    my ($status, $headers, $body, $env) = @_;
    no warnings 'uninitialized';
    my $head = head($status, $headers, length $body);
    $body = $undo_chunks->($body) if $undo_chunks;
    my $reply = $head . $body;
    if (!utf8::downgrade($reply, 1)) {
        die "wide character in the response: encode text before it is sent\n";
    }
    $begun = 1;
    conclude('E', 0, $env, $reply);
}

# Sends a reply whose body is read from a handle.
sub send_handle {
    my ($status, $headers, $body, $env) = @_;
    my $left = bytes_in_file($body);
    if (!defined $left || $undo_chunks) {
        my $start = head($status, $headers);
        $open_body = $body;
        local $/ = \$CHUNK;
        while (defined(my $part = $body->getline)) {
            emit($start, $part);
            ($start, $begun) = ('', 1);
        }
        emit($start);
        $begun = 1;
        undef $open_body;
        return $body->close;
    }
    my $part = '';
    my $most = $CHUNK - 4096;
    sysread $body, $part, $left < $most ? $left : $most;
    if (length $part == $left) {
        send_whole($status, $headers, $part, $env);
        return close $body;
    }
    emit(head($status, $headers, $left) . $part);
    $begun = 1;
    # If the file grows, sends no more than the Content-Length. If the file shrinks, the gateway
    # notices.
    while ($left -= length $part) {
        sysread $body, $part, $left < 2 * $CHUNK ? $left : 2 * $CHUNK or last;
        say($output, $part);
    }
    return close $body;
}

# Returns the number of bytes that sysread can read from a handle, and moves the file to the
# handle's position, because bytes in the buffer were already read from the file. Returns undef
# unless the handle reads a plain file, and sysread would return the same bytes as getline.
sub bytes_in_file {
    my ($handle) = @_;
    return undef if !UNIVERSAL::isa($handle, 'GLOB') || tied *$handle;
    return undef if ref $handle ne 'GLOB' && $handle->can('getline') != IO::Handle->can('getline');
    my $number = fileno $handle;
    return undef if !defined $number || $number < 0 || !-f $handle;
    my $size = -s _;
    return undef if join(' ', PerlIO::get_layers($handle)) ne 'unix perlio';
    my $at = tell $handle;
    return undef if $at < 0 || $at > $size;
    sysseek $handle, $at, 0;
    return $size - $at;
}

# Returns the head of a reply. Adds the `$length` of a large body if the application sets no
# Content-Length. The gateway may forward the start of such a body before it has received the end.
sub head {
    my ($status, $headers, $length) = @_;
    no warnings;    # undefined or missing values are empty
    my $head = sprintf "%s: %s\r\n" x ((@$headers + 1) / 2), @$headers;
    if (($head =~ tr/\r\n//) != @$headers + @$headers % 2) {
        die "a line break in a header field of the response\n";
    }
    my $is_chunked = $head =~ /^transfer-encoding: .*\bchunked\s*\r$/im;
    $undo_chunks = undo_chunks() if $is_chunked;
    # The last Status counts.
    my $end = $status_lines{$status} //= status_line($status);
    if ($length > 16_384 && !$is_chunked && $status >= 200 && $status != 204 && $status != 304
        && $head !~ /^content-length:/im) {
        $head .= "Content-Length: $length\r\n";
    }
    return $head . $end;
}

sub status_line {
    my ($status) = @_;
    die "the response has the status '$status', which is none\n" if $status !~ /\A[1-9][0-9][0-9]\z/;
    return "Status: $status\r\n\r\n";
}

# Returns a function that decodes the chunked framing of a body, one piece per call. Middleware may
# add this framing, but framing is the gateway's task.
sub undo_chunks {
    my ($buffer, $left, $ended) = ('', 0, 0);
    return sub {
        $buffer .= $_[0];
        my $bytes = '';
        while (!$ended) {
            if ($left > 2) {
                $bytes .= my $part = substr $buffer, 0, $left - 2, '';
                $left -= length $part;
            }
            last if $left > 2 || length $buffer < $left;
            substr $buffer, 0, $left, '';    # the line break after a chunk
            $left = 0;
            $buffer =~ s/\A([0-9a-fA-F]{1,15})[^\n]*\n// or last;
            $left = hex $1;
            $ended = !$left;
            $left += 2;
        }
        return $bytes;
    };
}

# Sends bytes of the reply at once; `$body` holds bytes of the body without framing.
sub emit {
    my ($head, $body) = @_;
    if (defined $body) {
        $body = $undo_chunks->($body) if $undo_chunks;
        $head .= $body;
    }
    if (!utf8::downgrade($head, 1)) {
        die "wide character in the response: encode text before it is sent\n";
    }
    return if $head eq '';
    say($output, $head);
    say_waiting() if !$has_emitted++;    # Forebay then watches the socket
}

# Writes all bytes.
sub say {
    my ($socket, $bytes) = @_;
    exit 0 if $$ != $pid;    # a child that the application has forked and not ended
    my $at = 0;
    while ($at < length $bytes) {
        my $written = syswrite $socket, $bytes, length($bytes) - $at, $at;
        if (defined $written) {
            $at += $written;
        }
        elsif ($! != $EINTR) {
            exit 0;    # Forebay has ended, so this process ends, too
        }
    }
}

# Implements psgix.informational: sends an interim reply (103 Early Hints).
sub inform {
    my ($request, $status, $headers) = @_;
    return if $request != $serial || $to_http10 || $begun || $closed;
    die "no interim response has the status $status\n" if $status !~ /\A1[0-9][0-9]\z/ || $status == 101;
    emit(head($status, $headers));
}

# Sends the rest of the reply, and then the end marker. PROTOCOL.md describes `$kind` and `$number`.
sub conclude {
    my ($kind, $number, $env, $rest) = @_;
    my $handlers = $env->{'psgix.cleanup.handlers'};
    $closed = 1;
    $told = $is_running || ref $handlers eq 'ARRAY' && @$handlers ? $CLEANS_UP
        : $starved || $env->{'psgix.harakiri.commit'} || $taken_over && !give_back() ? $ENDS : 0;
    my $end_marker = $mark . pack 'a C n', $kind, $told | $was_prefetched, $number;
    my $bytes = defined $rest ? $rest . $end_marker : $end_marker;
    if (($unsaid += length $bytes) > $MUCH) {
        say($output, substr $bytes, 0, $MUCH, '');
        say_waiting();
    }
    say($output, $bytes);
    say_waiting() if $told & $CLEANS_UP;
}

# Sends W to Forebay: output is waiting. Output alone does not wake Forebay, so that Forebay wakes
# only once for several replies. Ignores errors, because other calls detect that Forebay has ended
# or does not read.
sub say_waiting {
    $unsaid = 0;
    send $control, "W\0\0\0", $QUIETLY if $$ == $pid;
}

# Each line is a warning for Forebay, unlike what the application itself prints, unless it has sent
# STDERR elsewhere.
sub log_error {
    my ($error) = @_;    # a copy: eval empties $@
    my $text = eval { "$error" } // 'died with an object that cannot be shown';
    $text =~ s/^/<4>/mg if ((stat STDERR)[1] // -1) == $log_inode;
    local ($\, $,);
    print STDERR $text =~ /\n\z/ ? $text : "$text\n";
}

# The writer for the body of a streaming response.
package Forebay::Writer;

sub write {
    my ($self, $data) = @_;
    die "this response has been closed\n" if $self->[0] != $serial || $closed;
    Forebay::Host::emit('', $data) if defined $data;
}

sub close {
    my ($self) = @_;
    Forebay::Host::conclude('E', 0, $self->[1]) if $self->[0] == $serial && !$closed;
}

1;
