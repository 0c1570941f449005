# The part of the host that takes requests in: their environment, and their body. It
# stands behind perl-cgi.pl, whose variables it uses.

# Takes the next request: sets %ENV and standard input. False when Forebay has closed the socket.
sub receive {
    my ($have, $want) = receive_head() or return 0;
    $received = substr $message, $HEAD, $want - $HEAD;
    set_environment();
    $body_lost = 0;
    return 1 if substr($message, 4, 8) eq $NO_BODY;
    my ($high, $low) = unpack 'x4 NN', $message;
    return receive_body(substr($message, $want, $have - $want), $high * 2**32 + $low);
}

# Takes a request into $message, as far as the end of its environment. How much has come, and where the
# body starts.
sub receive_head {
    # Under load it lies there already.
    my $got = sysread $prefetch, $message, $CHUNK;
    $was_prefetched = $got ? 4 : 0;
    # Output does not wake Forebay, so that replies to several requests wake it once. Whether Forebay is
    # there, and listens, is seen elsewhere: MSG_NOSIGNAL, MSG_DONTWAIT.
    send $control, "W\0\0\0", 0x4040 if !$got && defined $mark;
    while (!$got) {
        my $count = select my $ready = $input_bits, undef, undef, undef;
        return if $count < 0 && $! != $EINTR;    # a script has closed them
        next if $count < 1;
        return receive_big() if vec $ready, $control_number, 1;
        $got = sysread $prefetch, $message, $CHUNK;
    }
    $! = 0;
    $mark = substr $message, 12, 16;
    return ($got, $HEAD + unpack 'N', $message);
}

# The same from the control socket, on which what the prefetch queue has no room for comes.
sub receive_big {
    my ($have, $want) = (0, $HEAD);
    while ($have < $want) {
        my $got = sysread $control, $message, $CHUNK, $have or return;
        $have += $got;
        $want += unpack 'N', $message if $want == $HEAD && $have >= $HEAD;
    }
    $mark = substr $message, 12, 16;
    return ($have, $want);
}

# Makes %ENV what the request says, which is in $received: an argument would be copied twice. To set all
# of 35 variables costs 17 us, to look whether the last script left them as they were 1 us, to set one
# that differs from the last request 1 us.
sub set_environment {
    my $as_set = @names == keys %ENV && eval {
        use warnings FATAL => 'uninitialized';    # a deleted variable is no empty one
        join("\0", @ENV{@names}) eq $values;
    };
    if ($as_set) {
        return if $received eq $block;
        # Most often the same variable differs as the last time.
        if (defined $guess && length $received == length $block) {
            my $value = substr $received, $guess_at, $guess_length;
            substr $block, $guess_at, $guess_length, $value;
            if ($block eq $received && index($value, "\0") < 0) {
                substr $values, $offsets[$guess], $guess_length, $value;
                $ENV{ $fields[ $guess - 1 ] } = $fields[$guess] = $value;
                return;
            }
            substr $block, $guess_at, $guess_length, $fields[$guess];
        }
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
        ($guess, $guess_at, $guess_length) = ($place, $start, $end - $start);
    }
    $block = $new;
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
        pipe my $reader, my $writer or die "cannot make a pipe for the body: $!\n";
        fcntl $writer, 4, 0x801;    # F_SETFL, O_NONBLOCK | O_WRONLY: some pipes hold one page only
        return open STDIN, '<&', $reader if (syswrite($writer, $part) || 0) == $length;
    }
    open my $file, '+>', undef or $body_lost = "$!";
    for (my $left = $length - length $part;; $left -= length $part) {
        $body_lost ||= "$!" if $file && (syswrite($file, $part) || 0) != length $part;
        last if !$left;
        sysread $control, $part, $left < $CHUNK ? $left : $CHUNK or return 0;
    }
    return 1 if $body_lost;
    sysseek $file, 0, 0;
    return open STDIN, '<&', $file;
}
