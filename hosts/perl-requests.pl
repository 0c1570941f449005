# The part of the host that takes requests in: their environment, and their body. It
# stands behind perl-cgi.pl, whose variables it uses.

# Takes the next request: sets %ENV and standard input. False when Forebay has closed the socket.
sub receive {
    no warnings qw(substr uninitialized);    # a message may be shorter than the one before
    # Under load it lies there already.
    $was_prefetched = 4;
    my $have = sysread($prefetch, $message, $CHUNK) || await_message() or return 0;
    $body_lost = 0;
    my $has_body = substr($message, 4, 8) ne $NO_BODY;
    # To set all of 35 variables costs 17 us, to look whether the last script left them as they were 1 us,
    # to set one that differs from the last request 0.5 us.
    my $as_set = @names == keys %ENV && eval {
        use warnings FATAL => 'uninitialized';    # a deleted variable is no empty one
        join("\0", @ENV{@names}) eq $values;
    };
    # Most often the same variable differs as the last time. A substr that is not kept is not copied.
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

# Waits for a message that does not lie there yet. How much of it is in $message, which is at least its
# environment; nothing when Forebay has closed the socket.
sub await_message {
    $was_prefetched = 0;
    # Output does not wake Forebay, so that replies to several requests wake it once. Whether Forebay is
    # there, and listens, is seen elsewhere: MSG_NOSIGNAL, MSG_DONTWAIT.
    send $control, "W\0\0\0", 0x4040 if $message ne '';
    my $got;
    while (!$got) {
        my $count = select my $ready = $input_bits, undef, undef, undef;
        CORE::exit(1) if $count < 0 && $! != $EINTR;    # a script has closed them
        next if $count < 1;
        $got = vec($ready, $control_number, 1) ? (receive_big() // return)
            : sysread $prefetch, $message, $CHUNK;
    }
    $! = 0;
    return $got;
}

# The same from the control socket, on which what the prefetch queue has no room for comes.
sub receive_big {
    my ($have, $want) = (0, $HEAD);
    while ($have < $want) {
        my $got = sysread $control, $message, $CHUNK, $have or return undef;
        $have += $got;
        $want += unpack 'N', $message if $want == $HEAD && $have >= $HEAD;
    }
    return $have;
}

# Makes %ENV what the request says, whose environment is `$received`. `$as_set`: it is what it was made
# for the last.
sub set_environment {
    my ($as_set, $received) = @_;
    *main::ENV = $environment_hash if \%ENV != $environment_hash;
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
        @names = keys %ENV;    # with their hash values
    }
    ($block, @fields) = ($received, @list);
    %places = ();
    undef $guess;
    $values = join "\0", @ENV{@names};
}

# Sets the variables in whose values a byte changed, where only bytes in values did (a port number, an
# address, a time: what differs between two like requests). False if more has changed.
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
    ($guess_name) = grep { $_ eq $fields[ $guess - 1 ] } @names;    # with its hash value
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

# Sets the variables whose values changed; false if the names are not the last request's.
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

# Puts the body on descriptor 0: a small one in a pipe, a big one in a nameless temporary file.
sub receive_body {
    my ($part, $length) = @_;
    if ($length <= $LARGEST_IN_PIPE) {
        while (length $part < $length) {
            sysread $control, $part, $length - length $part, length $part or return 0;
        }
        pipe my $reader, my $writer or return lose_body();
        fcntl $writer, 4, 0x801;    # F_SETFL, O_NONBLOCK | O_WRONLY: some pipes hold one page only
        if ((syswrite($writer, $part) || 0) == $length) {
            return open(STDIN, '<&', $reader) || lose_body();
        }
    }
    my $file;
    if (!open $file, '+>', undef) {
        my $why = $! + 0;
        $! = $why if open my $probe, '<', '/dev/null';    # Perl says EINVAL in place of EMFILE
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

# Notes that the body cannot be stored, for the reason in $!.
sub lose_body {
    $body_lost = "$!";
    return status_of_error(1);
}
