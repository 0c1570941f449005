# The part of the host for modules and habits that expect one process per request. It serves the
# modes that run scripts in this process. It follows perl-cgi.pl, whose variables it uses.

# Variables that CGI::Carp keeps for a whole process: the settings of one script would apply to
# another.
my @CARP = map { "CGI::Carp::$_" } qw(CUSTOM_MSG DIE_HANDLER EMIT_WARNINGS FULL_PATH NO_TIMESTAMP
    PROGNAME TO_BROWSER WARN WRAP);
my $accepted = '';                             # the mark of the request that a script has accepted
my %explained;                                 # scripts whose failure was explained
my $needs_main;                                # a sub was looked for in the wrong package
my @PERLS = qw(ENV INC ARGV ARGVOUT SIG STDIN STDOUT STDERR _ a b);    # special names of Perl

# Returns the state that a script in `$package` needs before each run, if any.
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
    my $runs_again = $state->{ran}++;    # the first run follows the compilation, whose output counts
    count_output_anew() if $state->{tells} && $runs_again;
    join_main(@{ $state->{main} }) if $state->{main};
    adopt_fcgi() if $state->{accepts};
    return if !$state->{carp};
    ${ $_->[0] } = $_->[1] for @{ $state->{carp} };
    @CGI::Carp::WARNINGS = () if $runs_again;
}

# ---- CGI::Carp ----

# Gives CGI::Carp the state of a new process before the script of `$file` is compiled. Without
# PROGNAME, CGI::Carp logs the name of the outermost caller, which is this host.
sub reset_carp {
    my ($file) = @_;
    no strict 'refs';
    ${$_} = undef for @CARP;
    ($CGI::Carp::TO_BROWSER, $CGI::Carp::PROGNAME) = (1, $file);
    @CGI::Carp::WARNINGS = ();
}

# Changes CGI::Carp once, after it has been loaded. Without the change, CGI::Carp would mistake this
# host's eval for one of the script. CGI::Carp would also collect warnings only for the script that
# loads it.
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

# Calls the script's __DIE__ handler for a compile error, with the words that Perl uses for a main
# program. Perl does not call it for syntax errors inside an eval, and this host compiles scripts
# inside one. CGI::Carp ignores the error if it was not adopted before (`$had_carp`). Returns the
# error to log.
sub handle_compile_error {
    my ($error, $name, $had_carp) = @_;
    my $handler = $SIG{__DIE__};
    return $error if !defined $handler || ref $error;
    my $is_carps = defined &CGI::Carp::die && $handler eq \&CGI::Carp::die;
    if ($error !~ /BEGIN failed--compilation aborted/) {
        $error .= "Execution of $name aborted due to compilation errors.\n";
    } elsif (!$is_carps || $had_carp) {
        return $error;    # the handler was already called
    }
    local $SIG{__DIE__};
    eval { ref $handler eq 'CODE' ? $handler->($error) : do { no strict 'refs'; &$handler($error) }; 1 }
        or $error = $@;
    return $error;
}

# Resets `tell STDOUT` to 0, as in a new process: CGI::Carp uses it to see if a header was printed.
# If `tell` returns 0 after a reply, the handle does not count bytes, or the script itself has
# printed nothing.
sub count_output_anew {
    uncouple_output() if tell(STDOUT) <= 0;
    binmode STDOUT, ':pop';    # flushes
    binmode STDOUT, ':perlio';
    tell STDIN;    # selects STDIN for $.
}

# Opens STDOUT on a pipe, and then replaces the pipe with the socket, on the same descriptor. If the
# handle were opened on the socket, it would also read, and `tell` would return the read position.
sub uncouple_output {
    return if !$DUP3 || !pipe my $reader, my $writer;
    open STDOUT, '>&', $writer;
    syscall $DUP3, fileno $output, 1, 0;
}

# ---- FCGI ----

# Limits a loop of FCGI's Accept to one iteration per request. For a CGI program, Accept returns one
# request per process, and then the loop ends. The limit does not apply to a script that listens by
# itself.
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

# Returns the names that `$code` uses with main:: and also has in its own package. In a main program
# both are one variable.
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

# Replaces `caller` in the script's package: nothing calls a main program. This must precede the
# compilation of the code.
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

# Logs, once per script, the cause of an error that occurs because the script's package is not main.
sub explain_failure {
    my ($error) = @_;
    if (my ($file) = $error =~ /^Can't call method "\w+" on an undefined value at (.+) line \d+/) {
        return if $explained{$file}++ || !open my $source, '<', $file;
        read $source, my $text, 256 * 1024;
        log_error("$file: `my \$r = shift` takes the request object of mod_perl, which CGI scripts of Forebay do "
            . 'not have: run it as the `handler` of kind = "mod-perl", or use CGI.pm and %ENV in place of $r')
            if defined $text && $text =~ /^\s*my\s*\(?\s*\$r\s*\)?\s*=\s*(?:shift\b|\@_)/m;
        return;
    }
    my ($package, $name) = $error =~ /^Undefined subroutine &(\w+(?:::\w+)*)::(\w+) called at / or return;
    my $own = $script && $script->{package} or return;
    my $other = $package eq $own ? 'main' : $package eq 'main' ? $own : return;
    no strict 'refs';
    return if !defined &{"${other}::$name"};
    $needs_main = 1;
    return if $explained{$own}++;
    my $where = $other eq 'main' ? 'in package main (of a library that begins with "package main;"?)'
        : 'in the script, whose package is not main in this mode';
    log_error("$last_file: $name is there, but $where: mode = \"fork\" (cgi-bin: perl_mode) runs such scripts");
}

1;
