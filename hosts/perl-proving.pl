# The part of the host for mode `prove`. A script that is not proved runs as in mode `fork`
# (perl-processes.pl), and the child compares what the request has left (perl-proofs.pl). A proved
# script runs in this process, as in mode `registry-prefork`. Forebay decides, and says so in the
# first variable of the request: FOREBAY_PROOF, with "keep" or "refused" and the version of the
# script's file. Without it, the script is still to be proved.

my $KEEP = "FOREBAY_PROOF\0keep ";
my $kept_word = $KEEP;                         # this variable in requests for the last kept script

sub serve_proving {
    Forebay::Proof::is_possible()
        or log_error('this perl lacks B, Digest::MD5 or Time::HiRes, so no script can be proved');
    $Forebay::Proof::salt = $proof_salt;
    keep_zygote_code();
    while (1) {
        $was_prefetched = 4;
        my $have = sysread($prefetch, $message, $CHUNK) || await_message() or last;
        $is_proved = $kept && substr($message, $HEAD, length $kept_word) eq $kept_word;
        if (!$is_proved && substr($message, $HEAD, length $KEEP) ne $KEEP) {
            last if answer_process('fork', $have);
            next;
        }
        receive_message($have) or last;
        end_zygote($ENV{SCRIPT_FILENAME}) if %zygotes && $zygotes{ $ENV{SCRIPT_FILENAME} };
        my $ends = answer();
        refuse_kept() if !$script && !$body_lost || $needs_main;
        last if $ends;
        check_kept() if $script && !--$script->{left};
    }
    CORE::exit(0);
}

# Returns true if Forebay has proved this version of the current script.
sub is_kept {
    $script->{token} ||= version_token($script->{version});
    return 0 if $ENV{FOREBAY_PROOF} ne "keep $script->{token}";
    ($kept, $kept_word) = ($script, "FOREBAY_PROOF\0keep $script->{token}\0");
    $script->{left} = 1 if ($script->{left} || 0) < 1;
    return 1;
}

# Returns the version of a file as Forebay writes it.
sub version_token {
    my ($version) = @_;
    return join '.', unpack 'J2 x32 J x32 J4', $version if $FSTATAT;
    $version =~ tr/ /./;
    return $version;
}

sub token_of {
    my ($file) = @_;
    return version_token(join ' ', (file_status($file))[0, 1, 7, 9, 10]) if !$FSTATAT;
    return syscall($FSTATAT, $AT_FDCWD, $file, $stat, 0) ? '' : version_token($stat & $VERSION);
}

# Answers a request in a child of this process, because the file of the proved script has just
# changed.
sub answer_apart {
    tell_proof($last_file, $script->{token}, 'forked', 'changed');
    my $child = CORE::fork();
    if (defined $child && !$child) {
        end_with($pid);
        $pid = $$;
        close $_ for $control, $prefetch;
        my $failed = !guarded($script->{code});
        my $code = $exit_code;
        guarded($_) or $failed = 1 for @{ $script->{end} || [] };
        $serving = 0;
        flush_all();
        CORE::exit($failed ? 255 : $code || 0);
    }
    $serving = 0;
    return finish(500) if !defined $child;
    1 while waitpid($child, 0) < 0 && $! == $EINTR;
    return finish(status_of($?));
}

sub check_kept {
    $script->{runs} = $script->{check} || 1;
    my @lines = Forebay::Proof::check_kept($script, $script->{package}, $last_file,
        Forebay::Proof::inputs(\%ENV, ''), $shows_values);
    $script->{left} = $script->{check} - $script->{runs};
    tell_proof($last_file, $script->{token}, 'kept', @lines);
}

# Tells Forebay that the proved script does not work as a sub of another package.
sub refuse_kept {
    my $file = $ENV{SCRIPT_FILENAME};
    my $why = $needs_main ? 'it expects its subs in the package main' : 'it cannot be compiled as a sub';
    tell_proof($file, substr($ENV{FOREBAY_PROOF}, length 'keep '), 'kept',
        join ' ', 'trace', map { Forebay::Proof::encoded($_) } 'the script', '', '', '', $why);
    undef $needs_main;
}

sub tell_proof { syswrite $log, $_ for Forebay::Proof::reports($proof_key, @_) }

1;
