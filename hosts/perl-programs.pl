# The part of the host that starts a script as a separate program, as CGI does. It follows
# perl-cgi.pl, whose variables it uses.

# Returns the switch for taint checks (T or t) in a script's #! line, which is the first line of
# `$text`; else undef.
sub taint_switch {
    my ($text) = @_;
    my ($switches) = $text =~ /\A#![^\n]*?perl[^\s]*((?:[ \t]+-[^\s]+)+)/ or return undef;
    for (split ' ', $switches) {
        return $1 if /^-[0-9acfhlnpsSuUvwWX]*([tT])/;    # switches that take no value
    }
    return undef;
}

# Answers this request with a new process, if the script cannot run in this one.
sub run_as_program {
    my ($file) = @_;
    my $child = fork;
    die "$file: cannot fork: $!\n" if !defined $child;
    if (!$child) {
        leave_for($file);
        # These modes do not need the perl that the script names.
        my $first = first_line($file);
        $first = '' if $first =~ /^#!\s*(\S*perl\S*)/ && !-x $1;
        become_program($file, $first);
    }
    1 while waitpid($child, 0) < 0 && $! == $EINTR;
    return if !$?;
    # A module that was loaded before, such as CGI::Carp, would print a page of its own.
    local $SIG{__DIE__} = 'DEFAULT';
    die $FAILED;
}

# Replaces this child by the script's program. perl runs a script without a #! line.
sub become_program {
    my ($file, $first) = @_;
    no warnings 'exec';
    CORE::exec { $file } $file if $first =~ /^#!|^\x7fELF/;
    CORE::exec { 'perl' } 'perl', $file if $first !~ /^#!/;
    give_up("cannot run $file: $! (the program in its #! line?)");
}

sub first_line {
    my ($file) = @_;
    open my $handle, '<', $file or return '';
    read $handle, my $start, 256 or return '';
    return $start =~ /^(.*?)\r?$/m ? $1 : $start;
}

# Prepares a new child: it ends together with this worker, and runs in the script's directory.
sub leave_for {
    my ($file) = @_;
    end_with($pid);
    chdir($file =~ m{^(.*/)}s ? $1 : '/');
}

# Ends this child process. Runs no code of the worker at the end, and writes none of its pending
# output.
sub give_up {
    log_error($_[0]);
    no warnings 'exec';
    CORE::exec { '/bin/sh' } 'sh', '-c', 'exit 1' or kill KILL => $$;
}

1;
