# The part of the host that receives requests: their environment and their body. It follows
# perl-cgi.pl, whose variables it uses.

# Receives the next request: sets %ENV and standard input. Returns false after Forebay has closed
# the socket.
sub receive {
    # Under load a request is already in the queue.
    $was_prefetched = 4;
    my $have = sysread($prefetch, $message, $CHUNK) || await_message() or return 0;
    return receive_message($have);
}

# Does that for the request whose first `$have` bytes are in $message.
sub receive_message {
    no warnings qw(substr uninitialized);    # a message may be shorter than the previous one
    my ($have) = @_;
    $body_lost = 0;
    my $has_body = substr($message, 4, 8) ne $NO_BODY;
    # To set all of 35 variables costs 17 us. To check that the last script has not changed them
    # costs 1 us. To set one that differs from the last request costs 0.5 us.
    my $as_set = @names == keys %ENV && eval {
        use warnings FATAL => 'uninitialized';    # a deleted variable differs from an empty one
        join("\0", @ENV{@names}) eq $values;
    };
    # Most often, the variable that differs is the same as last time. Perl does not copy a substr
    # that is not stored.
    if ($as_set && defined $guess
        && ($has_body ? substr $message, $HEAD, unpack 'N', $message : substr $message, $HEAD)
            eq $before_guess . substr($message, $guess_at, $guess_length) . $behind_guess
        && index($message, "\0", $guess_at) == $guess_at + $guess_length)
    {
        substr $values, $guess_offset, $guess_length, substr $message, $guess_at, $guess_length;
        $ENV{$guess_name} = substr $message, $guess_at, $guess_length;
    }
    else {
        set_environment($as_set, substr $message, $HEAD, unpack 'N', $message);
    }
    return 1 if !$has_body;
    my ($size, $high, $low) = unpack 'N3', $message;
    my $start = $HEAD + $size;
    return receive_body(substr($message, $start, $have - $start), $high * 2**32 + $low);
}

# Waits for a message if the queue is empty. Returns the number of bytes in $message, which holds at
# least the environment. Returns nothing after Forebay has closed the socket.
sub await_message {
    $was_prefetched = 0;
    # Output does not wake Forebay. This message does, so that Forebay wakes once for the replies to
    # several requests. The flags are MSG_NOSIGNAL and MSG_DONTWAIT. Errors are ignored, because
    # other calls detect that Forebay has ended.
    send $control, "W\0\0\0", 0x4040 if $message ne '';
    my $got;
    while (!$got) {
        my $count = select my $ready = $input_bits | $watched, undef, undef, undef;
        # select fails if a script has closed both sockets, or one of its database connections.
        CORE::exit(1) if $count < 0 && $! != $EINTR;
        next if $count < 1;
        if (has_news($ready)) {
            if (!settle_databases()) {
                log_error('a database connection is lost, and a module keeps its handle; '
                    . 'the worker is replaced');
                CORE::exit(0);
            }
            $watched = '';    # else select returns at once if the driver leaves the data unread
            next;
        }
        $got = vec($ready, $control_number, 1) ? (receive_big() // return)
            : sysread $prefetch, $message, $CHUNK;
    }
    $! = 0;
    return $got;
}

# Receives a message that was too large for the prefetch queue from the control socket.
sub receive_big {
    my ($have, $want) = (0, $HEAD);
    while ($have < $want) {
        my $got = sysread $control, $message, $CHUNK, $have or return undef;
        $have += $got;
        $want += unpack 'N', $message if $want == $HEAD && $have >= $HEAD;
    }
    return $have;
}

# Sets %ENV to the environment `$received` of a request. `$as_set` is true if %ENV is unchanged
# since the last request.
sub set_environment {
    my ($as_set, $received) = @_;
    if (defined $guess) {
        $fields[$guess] = substr $values, $guess_offset, $guess_length;
        $block = $before_guess . $fields[$guess] . $behind_guess;
    }
    if ($as_set) {
        return if $received eq $block;
        return if $distinct && length $received == length $block && set_different_bytes($received);
    }
    $@ = '';
    my @list = split /\0/, $received, -1;
    pop @list;
    if (!$as_set || !$distinct || @list != @fields || !set_changed(\@list)) {
        my %given = @list;
        $distinct = keys(%given) * 2 == @list;
        %ENV = (%base, %given);
        @names = keys %ENV;    # the names with their hash values
    }
    ($block, @fields) = ($received, @list);
    %places = ();
    undef $guess;
    $values = join "\0", @ENV{@names};
}

# Sets the variables whose values changed in some bytes, if all lengths are unchanged. Similar
# requests differ in this way, for example in a port number, an address or a time. Returns false if
# there are other changes.
sub set_different_bytes {
    my ($new) = @_;
    locate_values() if !%places;
    my $difference = $new ^ $block;
    while ($difference =~ /[^\0]/g) {
        my $start = 1 + rindex $new, "\0", $-[0];
        my $end = index $new, "\0", $-[0];
        my $place = $places{$start};
        return 0 if !$place || 1 + rindex($block, "\0", $-[0]) != $start
            || index($block, "\0", $-[0]) != $end;
        my $value = substr $new, $start, $end - $start;
        $ENV{ $fields[ $place - 1 ] } = $fields[$place] = $value;
        substr $values, $offsets[$place], $end - $start, $value;
        pos $difference = $end;
        ($guess, $guess_at, $guess_length) = ($place, $HEAD + $start, $end - $start);
    }
    $block = $new;
    $guess_offset = $offsets[$guess];
    ($guess_name) = grep { $_ eq $fields[ $guess - 1 ] } @names;    # the name with its hash value
    $before_guess = substr $block, 0, $guess_at - $HEAD;
    $behind_guess = substr $block, $guess_at - $HEAD + $guess_length;
    return 1;
}

sub locate_values {
    my ($at, $offset, %offsets) = (0, 0);
    for (@names) {
        $offsets{$_} = $offset;
        $offset += 1 + length $ENV{$_};
    }
    for my $i (0 .. $#fields) {
        if ($i % 2) {
            $places{$at} = $i;
            $offsets[$i] = $offsets{ $fields[ $i - 1 ] };
        }
        $at += 1 + length $fields[$i];
    }
}

# Sets the variables whose values changed. Returns false if the names differ from those of the last
# request.
sub set_changed {
    my ($received) = @_;
    my $i = 0;
    for (@$received) {
        if ($_ ne $fields[$i++]) {
            return 0 if $i % 2;
            $ENV{ $fields[ $i - 2 ] } = $_;
        }
    }
    return 1;
}

# Puts the body on descriptor 0: a small body in a pipe, a large one in an unnamed temporary file.
sub receive_body {
    my ($part, $length) = @_;
    if ($length <= $LARGEST_IN_PIPE) {
        while (length $part < $length) {
            sysread $control, $part, $length - length $part, length $part or return 0;
        }
        pipe my $reader, my $writer or return lose_body();
        fcntl $writer, 4, 0x801;    # F_SETFL, O_NONBLOCK | O_WRONLY: some pipes hold only one page
        if ((syswrite($writer, $part) || 0) == $length) {
            return open(STDIN, '<&', $reader) || lose_body();
        }
    }
    my $file;
    if (!open $file, '+>', undef) {
        my $why = $! + 0;
        $! = $why if open my $probe, '<', '/dev/null';    # Perl reports EINVAL instead of EMFILE
        lose_body();
    }
    for (my $left = $length - length $part;; $left -= length $part) {
        $body_lost ||= "$!" if $file && (syswrite($file, $part) || 0) != length $part;
        last if !$left;
        sysread $control, $part, $left < $CHUNK ? $left : $CHUNK or return 0;
    }
    return 1 if $body_lost;
    sysseek $file, 0, 0;
    return open(STDIN, '<&', $file) || lose_body();
}

# Records that the body cannot be stored, for the reason in $!.
sub lose_body {
    $body_lost = "$!";
    return status_of_error(1);
}
