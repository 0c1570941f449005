# Forebay's host for PSGI applications (https://metacpan.org/pod/PSGI, version 1.1): a worker that loads
# an application once and calls it for one request after another. Core Perl only. It is no web server:
# Forebay (crates/forebay-workers) starts it, hands it requests and sends what it answers to the client.
#
# Descriptors at the start: 0 the control socket, 1 the output socket, 2 a pipe to the log, 3 the
# prefetch queue.
# The sockets are moved out of the way, so that what an application or its children print goes to the
# log. What goes over them stands in README.md.
#
# A reply is a head as CGI has it (the last Status counts), before it any number of heads with a status
# of 1xx, which are interim replies, and the body.
package Forebay::Host;

use strict;
use warnings;

my ($control, $prefetch, $output, $pid);
my ($input_bits, $control_number) = ('');  # for select
my $message = '';                         # receive buffer
my $mark;                                 # of the request, to be repeated at its end
my $was_prefetched;                            # the request was not waited for: a flag, or 0
my ($app, @names, @values, $no_input);     # @names, @values: of the environment, in every request
my $last_block = '';                      # what the last environment() was made of
my (@fields, $guess);                     # of an environment; which of them differs in the next, if known
my ($before_guess, $behind_guess);        # what was around it in the block
my ($guess_at, $length_around) = (0, 0);  # where it is in a message; the length of both
my ($begun, $closed);                     # of the reply: head written; end told
my $has_emitted;                          # some of the reply
my ($is_running, $told);                  # the application runs on; flags of what ended the reply
my $serial = 0;                           # counts requests, so that old writers are known
my ($to_http10, $undo_chunks);            # of this request
my $starved;                              # this process has no descriptor for the body
my ($taken_over, $children);              # psgix.io of this request; child processes before it
my %status_lines;

my %PRCTL = (x86_64 => 157, aarch64 => 167, riscv64 => 167, i386 => 172, i486 => 172, i586 => 172,
    i686 => 172, arm => 172, s390x => 172, powerpc64le => 171);
my ($ENDS, $CLEANS_UP, $LAY_THERE) = (1, 2, 4);    # flags
my ($MARK, $HEAD, $CHUNK) = (12, 28, 65_536);    # places in a message
my $NO_BODY = "\0" x 8;
my $LARGEST_IN_MEMORY = 1_048_576;        # of a request body
my $MUCH = 65_536;                        # of output: two times as much might have to wait for Forebay
my $QUIETLY = 0x4040;                     # MSG_NOSIGNAL, MSG_DONTWAIT
my $unsaid = 0;                           # bytes written since Forebay was told of output
my $EINTR = 4;

# Loads `$file` and serves requests until Forebay closes the control socket.
sub serve {
    my ($file, $parent) = @_;
    end_with($parent);
    adopt_descriptors();
    $pid = $$;
    $SIG{PIPE} = 'IGNORE';
    no warnings 'once';
    *CORE::GLOBAL::fork = \&fork_application;
    $ENV{PLACK_ENV} //= 'deployment';
    $app = load($file);
    prepare_base();
    syswrite $control, "R\0\0\0";
    while (my $env = receive()) {
        last if answer($env);
    }
    # Until Forebay has read the end marker, an end of this process would count as a crash.
    1 while !$taken_over && sysread $control, my $rest, $CHUNK;
    exit 0;
}

# Has the kernel end this process when Forebay ends, however Forebay ends.
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

# Forks for the application. The child gets no copy of the host's own sockets, so that it can neither
# take requests nor write into replies.
sub fork_application () {
    my $child = CORE::fork();
    if (defined $child && !$child) {
        local $!;
        close $_ for $control, $prefetch, $output;
    }
    return $child;
}

# The application that the last expression of `$file` is. In a package of its own, as Plack's loader
# does it, and with $0 and @ARGV that FindBin and frameworks look at.
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

# What is the same in the environment of every request.
sub prepare_base {
    open $no_input, '<', \'' or die "cannot open an empty string: $!\n";
    my %same = (
        'psgi.version' => [1, 1], 'psgi.errors' => \*STDERR,
        'psgi.multithread' => !!0, 'psgi.multiprocess' => !!1, 'psgi.run_once' => !!0,
        'psgi.nonblocking' => !!0, 'psgi.streaming' => !!1,
        'psgix.input.buffered' => !!1, 'psgix.harakiri' => !!1, 'psgix.cleanup' => !!1,
    );
    @names = keys %same;
    @values = @same{@names};
}

# ---- a request comes in ----

# The environment of the next request; undef when Forebay has closed the socket.
sub receive {
    # Under load it lies there already.
    my $got = sysread $prefetch, $message, $CHUNK;
    $was_prefetched = $got ? $LAY_THERE : 0;
    say_waiting() if !$got && $serial;
    while (!$got) {
        my $count = select my $ready = $input_bits, undef, undef, undef;
        return undef if $count < 0 && $! != $EINTR;    # the application has closed them
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
    # Most often the same value differs as the last time, as the client's port does.
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
    $env->{'psgix.informational'} = sub { inform($request, @_) };
    $env->{'psgi.url_scheme'} = $env->{REQUEST_SCHEME};
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

# The environment in `$block`. If no more than one value differs from the last one's, the next is expected
# to differ there, too: made from @fields, whose names have their hash values, it takes 22,000 instructions
# where this takes 36,000.
sub environment {
    my ($block) = @_;
    # The last NUL would be one more, empty, name.
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

# A handle of the output socket, for an application that answers with a 101 of its own: what it reads
# and writes then is what the client sends and gets. Forebay ends this process behind such a request.
sub own_end {
    require IO::Socket::UNIX;
    $children = children();
    return IO::Socket::UNIX->new_from_fd($output, '+<') // die "cannot copy a socket: $!\n";
}

# Closes that handle, which was not used, for all who have kept it. False if a new child may have it, too.
sub give_back {
    close $taken_over;
    return $children ne 'unknown' && children() eq $children;
}

sub children {
    local $/;
    open my $list, '<', "/proc/$$/task/$$/children" or return 'unknown';
    return scalar(<$list>) // '';
}

# Receives until so many bytes are there, perhaps more. False when Forebay has closed the socket.
sub receive_up_to {
    my ($want) = @_;
    while (length $message < $want) {
        my $got = sysread $control, $message, $CHUNK, length $message;
        return 0 if !$got && (defined $got || $! != $EINTR);
    }
    return 1;
}

# A handle with the body, which starts at `$start` of what was received: in memory, or in a nameless
# file if it is big. What cannot be stored makes the handle a message.
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
    # Perl says EINVAL in place of ENFILE and EMFILE.
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

# ---- the application answers ----

# Has the application answer. True if this worker has to end.
sub answer {
    my ($env) = @_;
    $serial++;
    $begun = $closed = $is_running = $has_emitted = 0;
    undef $undo_chunks;
    if (!eval { call($env); 1 }) {
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
    # It has taken the connection over, or has forgotten to answer; its output may not be Forebay's.
    if ($env->{'psgix.io'}) {
        ($closed, $told) = (1, $ENDS);
        return say($control, "S\1\1\xf4");    # 500
    }
    die "the application did not call the responder\n";
}

# Sends a response; or its head, and returns the writer for its body.
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
        local $/ = \$CHUNK;
        while (defined(my $part = $body->getline)) {
            emit($start, $part);
            ($start, $begun) = ('', 1);
        }
        emit($start);
        $begun = 1;
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
    # Not more than was promised, should the file grow. Should it shrink, the gateway sees it.
    while ($left -= length $part) {
        sysread $body, $part, $left < 2 * $CHUNK ? $left : 2 * $CHUNK or last;
        say($output, $part);
    }
    return close $body;
}

# How many bytes can be read from a handle past its buffer, where it is one on a plain file that sysread
# reads as getline would; else undef.
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

# The head of a reply. `$length`, where it is known, is told where the application does not, as the
# gateway may have to pass the first part of the body on before it has seen the last.
sub head {
    my ($status, $headers, $length) = @_;
    no warnings;    # what is not defined, or not there, is empty
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

# Middleware may frame the body as HTTP/1.1 does, which is the gateway's to do: a function that gives
# the bytes back, called with one piece after another.
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
            substr $buffer, 0, $left, '';    # the line break behind a chunk
            $left = 0;
            $buffer =~ s/\A([0-9a-fA-F]{1,15})[^\n]*\n// or last;
            $left = hex $1;
            $ended = !$left;
            $left += 2;
        }
        return $bytes;
    };
}

# Sends bytes of the reply at once, those of the body as they are meant for the client.
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
    say_waiting() if !$has_emitted++;    # from then on it watches
}

# Writes all of it.
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
            exit 0;    # Forebay has gone, and this process with it
        }
    }
}

# psgix.informational: an interim reply (103 Early Hints).
sub inform {
    my ($request, $status, $headers) = @_;
    return if $request != $serial || $to_http10 || $begun || $closed;
    die "no interim response has the status $status\n" if $status !~ /\A1[0-9][0-9]\z/ || $status == 101;
    emit(head($status, $headers));
}

# Sends the rest of the reply, and behind it how it has ended: `$kind` and `$number` as the protocol has
# them.
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

# Forebay is not woken by output, so that those that wait for replies wait for as many as are made in one
# go: it is told that there is some. Whether it is there, and listens, is seen elsewhere.
sub say_waiting {
    $unsaid = 0;
    send $control, "W\0\0\0", $QUIETLY if $$ == $pid;
}

sub log_error {
    my ($error) = @_;    # a copy: eval empties $@
    my $text = eval { "$error" } // 'died with an object that cannot be shown';
    local ($\, $,);
    print STDERR $text =~ /\n\z/ ? $text : "$text\n";
}

# What a streaming application writes its body to.
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
