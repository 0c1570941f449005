# The part of the host that sees to modules and habits that count on a process for each request, in the
# modes that run scripts in this process. It stands behind perl-cgi.pl, whose variables it uses.

# What CGI::Carp keeps for a whole process: of one script's that would be another's.
my @CARP = map { "CGI::Carp::$_" } qw(CUSTOM_MSG DIE_HANDLER EMIT_WARNINGS FULL_PATH NO_TIMESTAMP
    PROGNAME TO_BROWSER WARN WRAP);
my $accepted = '';                             # the mark of the request that a script has accepted
my %explained;                                 # scripts whose failure was explained
my @PERLS = qw(ENV INC ARGV ARGVOUT SIG STDIN STDOUT STDERR _ a b);    # everybody's, or nobody's

# What a script in `$package` needs before each run, if anything.
sub state_of_modules {
    my ($package, $code) = @_;
    my %state;
    $state{tells} = 1 if $carp || $code =~ /\btell\b|\bCGI::Carp\b/;
    my $names = $code =~ /::/ && names_in_main($package, $code);
    $state{main} = [$package, $names] if $names;
    $state{accepts} = 1 if !$accept && $code =~ /CGI::Fast|\bFCGI\b/;
    no strict 'refs';
    $state{carp} = [map { [\${$_}, ${$_}] } @CARP] if $carp;
    return %state ? \%state : undef;
}

sub restore_modules {
    my ($state) = @_;
    my $runs_again = $state->{ran}++;    # the first time is behind the compilation, whose output counts
    count_output_anew() if $state->{tells} && $runs_again;
    join_main(@{ $state->{main} }) if $state->{main};
    adopt_fcgi() if $state->{accepts};
    return if !$state->{carp};
    ${ $_->[0] } = $_->[1] for @{ $state->{carp} };
    @CGI::Carp::WARNINGS = () if $runs_again;
}

# ---- CGI::Carp ----

# What a new process would have before the script of `$file` is compiled. CGI::Carp takes the name in
# the log from the outermost caller, which is this host, unless it is given one.
sub reset_carp {
    my ($file) = @_;
    no strict 'refs';
    ${$_} = undef for @CARP;
    ($CGI::Carp::TO_BROWSER, $CGI::Carp::PROGNAME) = (1, $file);
    @CGI::Carp::WARNINGS = ();
}

# Once, when it has been loaded: it would take this host's eval for the script's, and takes warnings in
# only for the script that loads it.
sub adopt_carp {
    return if $carp || !defined &CGI::Carp::ineval;
    $carp = 1;
    no warnings qw(once redefine);
    *CGI::Carp::ineval = \&inside_eval;
    my $import = \&CGI::Carp::import;
    *CGI::Carp::import = sub {
        if ($compiling && $forgets) { $warner = \&CGI::Carp::warn }
        else { $main::SIG{__WARN__} = \&CGI::Carp::warn }
        goto &$import;
    };
}

# Calls the script's handler for what has kept it from being compiled, with the words that it has for a
# main program. Inside an eval, as a script is compiled here, Perl does not call it for syntax errors, and
# CGI::Carp takes no notice unless it was adopted (`$had_carp`). The error to log.
sub handle_compile_error {
    my ($error, $name, $had_carp) = @_;
    my $handler = $SIG{__DIE__};
    return $error if !defined $handler || ref $error;
    my $is_carps = defined &CGI::Carp::die && $handler eq \&CGI::Carp::die;
    if ($error !~ /BEGIN failed--compilation aborted/) {
        $error .= "Execution of $name aborted due to compilation errors.\n";
    } elsif (!$is_carps || $had_carp) {
        return $error;    # it was called
    }
    local $SIG{__DIE__};
    eval { ref $handler eq 'CODE' ? $handler->($error) : do { no strict 'refs'; &$handler($error) }; 1 }
        or $error = $@;
    return $error;
}

# Makes `tell STDOUT` 0, as in a new process: CGI::Carp asks by it whether there was a header. After a
# reply it is 0 if it does not count, or if the script itself has printed nothing.
sub count_output_anew {
    uncouple_output() if tell(STDOUT) <= 0;
    binmode STDOUT, ':pop';    # this flushes
    binmode STDOUT, ':perlio';
    tell STDIN;    # which $. is about, then
}

# A handle that was opened on a socket has a side to read from, and `tell` is about that.
sub uncouple_output {
    return if !$DUP3 || !pipe my $reader, my $writer;
    open STDOUT, '>&', $writer;
    syscall $DUP3, fileno $output, 1, 0;
}

# ---- FCGI ----

# A script that is started as CGI gets one request from FCGI's Accept, then its loop ends. Here that holds
# for each request, not for the process. One that listens by itself is left alone.
sub adopt_fcgi {
    return if $accept || !defined &FCGI::Accept;
    $accept = \&FCGI::Accept;
    no warnings 'redefine';
    *FCGI::Accept = sub ($) {
        return $accept->($_[0]) if !$serving || FCGI::IsFastCGI($_[0]);
        my $mark = substr $message, $MARK, 16;
        return -1 if $accepted eq $mark;
        $accepted = $mark;
        return 0;
    };
}

# ---- the package of a script is not main ----

# What `$code` names as main's and has in its own package, too: both are the same in a main program.
sub names_in_main {
    my ($package, $code) = @_;
    my %names = map { ($_ => 1) } $code =~ /(?:[\$\@%&*]|\\&)(?:main)?::([A-Za-z]\w*)\b(?!::)/g;
    delete @names{@PERLS};
    no strict 'refs';
    my $stash = \%{"${package}::"};
    my @names = grep { exists $stash->{$_} } sort keys %names;
    return @names ? \@names : undef;
}

sub join_main {
    my ($package, $names) = @_;
    no strict 'refs';
    no warnings;
    *{"main::$_"} = \*{"${package}::$_"} for @$names;
}

# `caller` as a script sees it that is the main program: nothing called it. (In the script's own package;
# set before its code is compiled.)
sub hide_callers {
    my ($package) = @_;
    no strict 'refs';
    no warnings 'redefine';
    *{"${package}::caller"} = \&script_caller;
}

sub script_caller (;$) {
    my ($level) = @_;
    my @frame;
    for my $depth (1 .. 1 + ($level || 0)) {    # 0 is the call of this sub
        @frame = caller $depth or return;
        return if $frame[0] eq __PACKAGE__;
    }
    $#frame = 2 if !defined $level;
    return wantarray ? @frame : $frame[0];
}

# Logs, once for a script, what lies behind an error that only the script's package explains.
sub explain_failure {
    my ($error) = @_;
    my ($package, $name) = $error =~ /^Undefined subroutine &(\w+(?:::\w+)*)::(\w+) called at / or return;
    my $own = $script && $script->{package} or return;
    my $other = $package eq $own ? 'main' : $package eq 'main' ? $own : return;
    no strict 'refs';
    return if !defined &{"${other}::$name"} || $explained{$own}++;
    my $where = $other eq 'main' ? 'in package main (of a library that begins with "package main;"?)'
        : 'in the script, whose package is not main in this mode';
    log_error("$last_file: $name is there, but $where: mode = \"fork\" runs such scripts");
}

1;
