# The part of the host for the modes that give each request its own process. Forebay appends it to
# perl-cgi.pl, whose variables it uses.
#   cgi    the host starts the script as a program, in whatever language it is written
#   fork   another perl process compiles the script as its main program (perl-zygote.pl), stops
#          before the script runs, and forks for each request
# A request ends when its process has ended and no other process of the script can write to the
# client any more.

my $MOST_ZYGOTES = 32;                         # per worker; the least recently used one ends
my $SET_FD_FLAGS = 2;
my (%zygotes, $uses, $code_file);
our $ZYGOTE;            # the text of perl-zygote.pl, after that of perl-compilation.pl
our ($proof_key, $proof_salt, $shows_values);    # of perl-proving.pl

sub serve_processes {
    my ($mode) = @_;
    keep_zygote_code() if $mode eq 'fork';
    while (1) {
        $was_prefetched = 4;
        my $have = sysread($prefetch, $message, $CHUNK) || await_message() or last;
        last if answer_process($mode, $have);
    }
    CORE::exit(0);
}

sub keep_zygote_code {
    open $code_file, '+>', undef or die "cannot make a temporary file: $!\n";
    syswrite $code_file, $ZYGOTE;
}

sub own_processes { return { map { ($_->{pid} // 0) => 1 } values %zygotes } }

# Answers the request whose first `$have` bytes are in $message. Returns true if this worker has to
# end.
sub answer_process {
    my ($mode, $have) = @_;
    my ($size, $high, $low) = unpack 'N3', $message;
    my @fields = split /\0/, substr($message, $HEAD, $size), -1;
    pop @fields;
    my $start = $HEAD + $size;
    my $request = {
        environment => {%base, @fields}, part => substr($message, $start, $have - $start),
        length => $high * 2**32 + $low,
    };
    my ($status, $ends) = run_process($mode, $request);
    return 1 if !defined $status;
    $ends = 1 if !await_writers() || $worn_out;
    fcntl $output, 4, 0;    # F_SETFL: writes wait
    reply($output, $status, $ends ? 1 : 0);
    return $ends;
}

# Runs one request. Returns two values: the HTTP status of a failure, or 0; and true if this worker
# has to end. Returns nothing if the control socket has closed.
sub run_process {
    my ($mode, $request) = @_;
    my $file = $request->{file} = $request->{environment}{SCRIPT_FILENAME} // '';
    if ($proves) {
        $request->{token} = token_of($file);
        my $is_refused = (delete $request->{environment}{FOREBAY_PROOF} // '') eq "refused $request->{token}";
        $request->{environment}{FOREBAY_PROVE} = 1 if !$is_refused;
    }
    my @now = file_status($file);
    my $status = unfit($file, @now);
    return (refuse($request) ? $status : undef) if $status;
    if ($mode eq 'fork') {
        my $zygote = zygote_for($request, @now);
        return run_forked($request, $zygote) if ref $zygote;
        return (refuse($request) ? $zygote : undef) if defined $zygote;
    }
    return run_program($mode, $request);
}

# Reads the body and drops it. Returns false if the control socket has closed.
sub refuse {
    my ($request) = @_;
    $body_lost = 0;
    my $whole = !$request->{length} || receive_body(@$request{qw(part length)});
    restore_descriptors();
    return $whole;
}

# ---- a program ----

sub run_program {
    my ($mode, $request) = @_;
    my ($file, $environment) = @$request{qw(file environment)};
    my $first = first_line($file);
    if ($first !~ /^(?:#!|\x7fELF)/ && $mode eq 'cgi') {
        log_error("$file: neither a program nor a script with a #! line");
        return refuse($request) ? 500 : undef;
    }
    $body_lost = 0;
    !$request->{length} || receive_body(@$request{qw(part length)}) or return;
    my $child = $body_lost ? undef : fork;
    if (defined $child && !$child) {
        leave_for($file);
        %ENV = %$environment;
        become_program($file, $first);
    }
    my $error = $body_lost ? "cannot store the request body: $body_lost" : "cannot fork: $!";
    restore_descriptors();
    if (!defined $child) {
        log_error("$file: $error");
        return $worn_out ? 503 : 500;
    }
    waitpid $child, 0;
    return status_of($?);
}

# Returns the status for a process that has ended. For Forebay, 502 means that a signal has cut the
# reply short.
sub status_of {
    my ($how) = @_;
    return $how & 127 ? 502 : $how ? 500 : 0;
}

# ---- a fork of a process that has compiled the script ----

# Returns the process that has compiled the script, and starts it if there is none or if the file
# has changed. Returns the HTTP status of a failure, or nothing if the script has to run as a program:
# it is not written in Perl, or cannot be compiled once.
sub zygote_for {
    my ($request, @now) = @_;
    my $file = $request->{file};
    my $made_from = join ' ', @now[0, 1, 7, 9, 10];
    my $known = $zygotes{$file};
    if (!$known || $known->{made_from} ne $made_from) {
        end_zygote($file) if $known;
        my $first = first_line($file);
        $known = $first =~ /perl/ || $first !~ /^#!|^\x7fELF/
            ? start_zygote($request, $first) : { is_program => 1 };
        return $known if !ref $known;
        $known->{made_from} = $made_from;
        $zygotes{$file} = $known;
    }
    $known->{used} = ++$uses;
    if (keys %zygotes > $MOST_ZYGOTES) {
        end_zygote((sort { $zygotes{$a}{used} <=> $zygotes{$b}{used} } keys %zygotes)[0]);
    }
    return $known->{is_program} ? undef : $known;
}

sub end_zygote {
    my ($file) = @_;
    my $zygote = delete $zygotes{$file};
    return if $zygote->{is_program};
    shutdown $zygote->{link}, 2;    # a child of a script may have a copy
    close $zygote->{link};
    waitpid $zygote->{pid}, 0;
}

# Starts perl as the kernel would for the script's first line, but perl-zygote.pl is loaded first.
# The script is compiled without a visitor. If that shows that it cannot be, it is run as a program.
sub start_zygote {
    my ($request, $first) = @_;
    my ($file, $environment) = @$request{qw(file environment)};
    socketpair my $link, my $its_link, 1, 1, 0 or return fail("cannot make a socket: $!");
    my $streams = streams_without_visitor() or return fail("cannot make a temporary file: $!");
    my $child = fork;
    return fail("cannot fork: $!") if !defined $child;
    if (!$child) {
        leave_for($file);
        open STDIN, '<&', $streams->{input} or give_up("cannot redirect standard input: $!");
        open STDOUT, '>&', $streams->{output} or give_up("cannot redirect standard output: $!");
        my @passed = map { fcntl $_, $SET_FD_FLAGS, 0; fileno $_ }
            $code_file, $its_link, $control, $output;
        my $load = sprintf '-M5.006;BEGIN{@Forebay::Zygote::given=(%s);require q(/proc/self/fd/%d)}',
            join(',', @passed, $$, $PRCTL{ ($Config::Config{archname} =~ /^([a-z0-9_]+)/)[0] } // 0,
                $DUP3 // 0, $proves ? 1 + $shows_values : 0, 'q(' . ($proof_salt // '') . ')',
                map { "q($_)" } grep { /^\w+\z/ } keys %$environment),
            $passed[0];
        my ($program, $switches) = $first =~ /^#!\s*(\S+)\s*(.*)/ ? ($1, $2) : ('perl', '');
        $program = $1 if $program =~ m{/env\z} && $switches =~ /(\S*perl\S*)/;
        # perl wants to see these on its command line, too.
        my @early = map { "-$_" } grep { defined } taint_switch($first);
        push @early, grep { /^-[acfhlnpsSuUvwWX]*C/ } split ' ', $switches;
        %ENV = environment_without_visitor($environment);
        no warnings 'exec';
        CORE::exec { $program } $program, @early, $load, $file
            or give_up("cannot run $program, which $file names: $!");
    }
    close $its_link;
    my $seen = '';    # what it has looked at, and NUL when it is compiled
    1 while $seen !~ /\0\z/ && sysread $link, $seen, $CHUNK, length $seen;
    my $is_compiled = $seen =~ s/\0\z//;
    my $needs = need_of_visitor($seen, $streams, $is_compiled ? $child : undef);
    return { link => $link, pid => $child } if $is_compiled && !$needs;
    close $link;
    waitpid $child, 0;
    $needs ||= 'it ends there' if !$?;
    return status_of($?) if !$needs;    # the log has the error
    log_need_of_visitor($file, $needs);
    return { is_program => 1 };
}

sub fail {
    log_error($_[0]);
    return 500;
}

sub run_forked {
    my ($request, $zygote) = @_;
    my $environment = join '', map { "$_\0" } %{ $request->{environment} };
    my $part = $request->{part};
    my $head = pack 'NNNN', length $environment, length $part,
        int($request->{length} / 2**32), $request->{length} % 2**32;
    local $SIG{PIPE} = 'IGNORE';
    my $sent = syswrite $zygote->{link}, "$head$environment$part";
    if ($sent && sysread($zygote->{link}, my $word, 4)) {
        receive_proof($request, $zygote) if $request->{environment}{FOREBAY_PROVE};
        return status_of(unpack 'N', $word);
    }
    # Part of the body may still be in the control socket, so this worker ends, too.
    log_error("$request->{file}: the process that had compiled it has ended");
    return (500, 1);
}

# Receives what the child has found out about its request.
sub receive_proof {
    my ($request, $zygote) = @_;
    sysread($zygote->{link}, my $size, 4) == 4 or return;
    my ($text, $left) = ('', unpack 'N', $size);
    while ($left > length $text) {
        sysread $zygote->{link}, $text, $left - length $text, length $text or return;
    }
    tell_proof($request->{file}, $request->{token}, 'forked', split /\n/, $text) if $text ne '';
}

# ---- leftover processes ----

# Waits for processes of the script that have the output socket as descriptor 1, as other servers
# do. Returns false if a process has this socket as another descriptor, or if that cannot be known.
sub await_writers {
    my $pause = 0.001;
    my $own = own_processes();
    while (my $found = background_writer($own)) {
        return 0 if $found > 1;
        select undef, undef, undef, $pause;
        $pause *= 2 if $pause < 0.05;
    }
    return 1;
}

1;
