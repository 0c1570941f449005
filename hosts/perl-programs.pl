# The part of the host that starts a script as a program of its own, as CGI does. It stands behind
# perl-cgi.pl, whose variables it uses.

# The switch for taint checks in a script's #! line, which is the first of `$text`: T or t, else undef.
sub taint_switch {
    my ($text) = @_;
    my ($switches) = $text =~ /\A#![^\n]*?perl[^\s]*((?:[ \t]+-[^\s]+)+)/ or return undef;
    for (split ' ', $switches) {
        return $1 if /^-[0-9acfhlnpsSuUvwWX]*([tT])/;    # those without a value of their own
    }
    return undef;
}

# Answers this request with a new process, where a script cannot run in this one.
sub run_as_program {
    my ($file) = @_;
    my $child = fork;
    die "$file: cannot fork: $!\n" if !defined $child;
    if (!$child) {
        leave_for($file);
        no warnings 'exec';
        CORE::exec { $file } $file or give_up("cannot run $file: $! (the program in its #! line?)");
    }
    1 while waitpid($child, 0) < 0 && $! == $EINTR;
    die $FAILED if $?;
}

# In a new child: ends with this worker, and goes where the script is.
sub leave_for {
    my ($file) = @_;
    end_with($pid);
    chdir($file =~ m{^(.*/)}s ? $1 : '/');
}

# Ends this process, a child, with nothing of the worker's run or flushed.
sub give_up {
    log_error($_[0]);
    no warnings 'exec';
    CORE::exec { '/bin/sh' } 'sh', '-c', 'exit 1' or kill KILL => $$;
}

1;
