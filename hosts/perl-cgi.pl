# Forebay's host for CGI scripts written in Perl: a worker that compiles each script once and runs
# it for one request after another. It needs core Perl only. It is no web server: Forebay
# (crates/forebay-workers) starts it, sends it requests and reads the output of the script.
#
# Descriptors at the start: 0 the control socket, 1 the output socket, 2 a pipe to the log, 3 the
# prefetch queue. The host at once moves all of them except the log to other numbers. A script then
# finds the descriptors that CGI requires: the body on 0, the client on 1, the log on 2. These are
# real descriptors, so that child processes write to the client, too. PROTOCOL.md describes the
# protocol on the sockets.
package Forebay::Host;

# Compiles a script. This sub precedes `use strict` and the host's `my` variables, so that they do
# not apply to the script.
sub evaluate { eval $_[0] }

use strict;
use warnings;

my ($control, $prefetch);
my ($output, $log, $null, $home);               # $output, $log, $null: spare copies of 1, 2 and 0
my ($output_inode, $log_inode, $null_device);
my ($pid, $mask, $enters_directory, $locale);
my @identity;                                  # real and effective user, real and effective groups
my ($identity, $group_count);                  # as system calls return them
my ($null_stat, $output_stat, $log_stat);      # of descriptors 0, 1 and 2, from fstat
my $last_stat = '';                             # of the file of $script, from the last look at it
my ($input_bits, $control_number) = ('');       # for select
my $message = '';                              # receive buffer
my $NO_BODY = "\0" x 8;
my $was_prefetched;                                 # flag 4 if the request was prefetched, else 0
my (%base, $block, @fields, $distinct);        # environment: inherited, and as last received;
                                               # the guessed value is in $values instead
my %places;                                    # of values: offset in $block => index in @fields
my @offsets;                                   # of values: index in @fields => offset in $values
my ($guess, $guess_at, $guess_length);         # index of the value that differed last; its span
my ($guess_name, $guess_offset);               # name of this value, and its offset in $values
my ($before_guess, $behind_guess);             # the text around this value in the environment
my (@names, $values);                          # the environment that was set last
my (%scripts, $script, $last_file, $body_lost);
my ($serving, $compiling, $exit_code);
my $forgets;                                   # drop variables and subs after each request
my $proves;                                    # run only proved scripts in this process
my ($is_proved, $kept);                        # Forebay says that this script, the last kept one, is
my %libraries;                                 # script => its entries of %INC that are not modules
my $EXIT = bless [], 'Forebay::Host::Exit';
my $FAILED = bless [], 'Forebay::Host::Failed';    # an error that is already in the log
my $open_data;                                 # the script has a DATA handle
our $data_package;                             # the package in force at a script's __DATA__
my $warner;                                    # receives the warnings of a compilation
my $kept_ends = 0;                             # END blocks of modules, which Perl itself runs
my $worn_out;                                  # the reason why this worker ends after the request
my ($seeded, $timed);                          # the script has called srand; has set a timer
my ($root, $environment_hash);                 # device and inode of /; the %ENV that Perl made
my ($carp, $accept);                           # perl-modules.pl has changed CGI::Carp, FCGI

# Signals whose handlers are reset after each request.
my @SIGNALS = qw(ALRM CHLD CLD CONT HUP INT PIPE QUIT SEGV TERM TSTP USR1 USR2 VTALRM WINCH XCPU
    __DIE__ __WARN__);
# Variables that `use CGI` with pragmas sets once per process, and that CGI::initialize_globals()
# resets.
my @CGI_PRAGMAS = map { "CGI::$_" } qw(APPEND_QUERY_STRING CLOSE_UPLOAD_FILES DEBUG HEADERS_ONCE
    NOSTICKY NO_UNDEF_PARAMS NPH PARAM_UTF8 PUTDATA_UPLOAD TABINDEX USE_PARAM_SEMICOLONS XHTML);
my %PRCTL = (x86_64 => 157, aarch64 => 167, riscv64 => 167, i386 => 172, i486 => 172, i586 => 172,
    i686 => 172, arm => 172, s390x => 172, powerpc64le => 171);
# The numbers of fstat, fstatat, getresuid, getresgid and getgroups. Perl's stat, $< and $( return
# lists and strings for the same facts, and need three to ten times as many instructions.
my %CALLS = (x86_64 => [5, 262, 118, 120, 115],
    map { $_ => [80, 79, 148, 150, 158] } qw(aarch64 riscv64));
my ($FSTAT, $FSTATAT, $GETRESUID, $GETRESGID, $GETGROUPS);
my %DUP3 = (x86_64 => 292, map { $_ => 24 } qw(aarch64 riscv64));
my $DUP3;
my $AT_FDCWD = -100;
# The buffers for the results of these calls. The first 16 bytes of struct stat are device and
# inode, which identify a file. Size and the times of modification and status change identify its
# version.
my ($stat, $groups) = ("\0" x 256, '');
my ($real, $effective, $saved, $real_group, $effective_group, $saved_group) = ("\0" x 4) x 6;
my $VERSION = pack 'a16 x32 a8 x32 a32', map { "\xff" x $_ } 16, 8, 32;
my $modules = -1;                              # number of files in %INC before the script
my ($INODE, $RAW_DEVICE) = (1, 6);             # indexes in the list that stat returns
# Offsets in a message: its mark, which the end marker repeats, and the environment.
my ($MARK, $HEAD) = (12, 28);
my ($CHUNK, $LARGEST_IN_PIPE) = (65_536, 65_536);
my $EINTR = 4;
# ENOMEM, ENFILE, EMFILE: this process, not the file, is at fault.
my %IS_WANT = map { ($_ => 1) } 12, 23, 24;

BEGIN {
    # With Time::HiRes, times have fractions of a second, which distinguish two edits within one
    # second. Debian's package perl-base alone has no Time::HiRes.
    *file_status = eval { require Time::HiRes; \&Time::HiRes::stat } || sub { stat $_[0] };
    no warnings 'once';
    *CORE::GLOBAL::exit = sub (;$) { leave_script(@_ ? $_[0] : 0) };
    *CORE::GLOBAL::srand = sub (;$) { $seeded = 1; @_ ? CORE::srand($_[0]) : CORE::srand() };
    *CORE::GLOBAL::chroot = sub (_) {
        $worn_out = 'a script has called chroot';
        CORE::chroot($_[0]);
    };
    if (defined &Time::HiRes::setitimer) {
        my $set = \&Time::HiRes::setitimer;
        no warnings 'redefine';
        *Time::HiRes::setitimer = sub ($$;$) { $timed = 1; goto &$set };
        *set_timer = $set;
    }
}

# Serves requests until Forebay closes the control socket. This file handles the modes registry,
# registry-prefork and perlrun; perl-processes.pl handles fork and cgi,
# and perl-proving.pl prove.
sub serve {
    my ($mode, $parent, undef, @preload) = @_;    # `ps` shows the third
    end_with($parent);
    adopt_orphans();
    adopt_descriptors();
    preload_all(@preload) if @preload;
    ($pid, $mask, $enters_directory, %base) = ($$, umask, $mode ne 'registry', %ENV);
    $forgets = $mode eq 'perlrun';
    $proves = $mode eq 'prove';
    remember_process();
    reset_interpreter();
    settle_databases() if $INC{'DBI.pm'};    # Apache::DBI has connections that `preload` opened
    syswrite $control, "R\0\0\0";
    serve_processes($mode) if defined &serve_processes && $mode ne 'prove';
    no warnings 'once';
    *CORE::GLOBAL::fork = \&fork_script;
    serve_proving() if $mode eq 'prove';
    while (receive()) {
        last if answer();
    }
    CORE::exit(0);
}

# Runs files and loads modules once for all scripts, as PerlRequire and PerlModule of mod_perl do.
# There is no client yet, so what they print goes to the log.
sub preload_all {
    open STDOUT, '>&', $log or die "cannot redirect standard output: $!\n";
    for my $what (@_) {
        my $file = $what =~ m{\A/} ? $what : join('/', split /::/, $what) . '.pm';
        require_in_main($file);
        # Forgets the file, so that a script that requires it gets the subs in its own package.
        delete $INC{$file} if $file eq $what;
    }
    adopt_databases();
    select STDOUT;
    open STDOUT, '>&', $output or die "cannot restore standard output: $!\n";
    open STDERR, '>&', $log or die "cannot restore the log: $!\n";
    open STDIN, '<&', $null or die "cannot restore standard input: $!\n";
    die "preload has left a descriptor below 3 open\n"
        if fileno STDIN != 0 || fileno STDOUT != 1 || fileno STDERR != 2;
}

# The code of a file that names no package runs in the package of the caller. Here it must be main.
{
    package main;
    sub Forebay::Host::require_in_main { require $_[0] }
}

# Asks the kernel to end this process when Forebay ends, for whatever reason.
sub end_with {
    my ($parent) = @_;
    require Config;
    my ($machine) = $Config::Config{archname} =~ /^([a-z0-9_]+)/;
    syscall($PRCTL{$machine}, 1, 9, 0, 0, 0) if $PRCTL{$machine};    # PR_SET_PDEATHSIG, SIGKILL
    CORE::exit(0) if getppid() != $parent;
}

# Makes this process the parent of all descendants whose own parent ends. Then waitpid and /proc
# show every process that a script has left. Children do not inherit this setting.
sub adopt_orphans {
    my ($machine) = $Config::Config{archname} =~ /^([a-z0-9_]+)/;
    syscall($PRCTL{$machine}, 36, 1, 0, 0, 0) if $PRCTL{$machine};    # PR_SET_CHILD_SUBREAPER
}

# Records the state of the process that a script may change. Uses system calls if they return the
# same as Perl's functions.
sub remember_process {
    @identity = ($<, $>, $(, $));
    ($root, $environment_hash) = (root(), \%ENV);
    $output_inode = (stat STDOUT)[$INODE];
    $log_inode = (stat STDERR)[$INODE];
    $null_device = (stat STDIN)[$RAW_DEVICE];
    my ($machine) = $Config::Config{archname} =~ /^([a-z0-9_]+)/;
    $DUP3 = $DUP3{$machine};
    my $calls = $CALLS{$machine} or return;
    my $root = '/';
    syscall($calls->[1], $AT_FDCWD, $root, $stat, 0);
    return if "@{[unpack 'J2 x32 J x32 J x8 J', $stat]}" ne "@{[(stat $root)[0, 1, 7, 9, 10]]}";
    ($FSTAT, $FSTATAT, $GETRESUID, $GETRESGID, $GETGROUPS) = @$calls;
    ($null_stat, $output_stat, $log_stat) = map { syscall($FSTAT, $_, $stat); "$stat" } 0, 1, 2;
    $group_count = syscall($GETGROUPS, 0, $groups);
    $groups = "\0" x (4 * $group_count + 4);
    syscall($GETGROUPS, $group_count, $groups) if $group_count;
    syscall($GETRESUID, $real, $effective, $saved);
    syscall($GETRESGID, $real_group, $effective_group, $saved_group);
    $identity = "$real$effective$saved$real_group$effective_group$saved_group$groups";
}

sub root { join ' ', (stat '/')[0, $INODE] }

sub adopt_descriptors {
    open $control, '+<&', \*STDIN or die "cannot keep the control socket: $!\n";
    open my $third, '+<&=', 3 or die "no prefetch queue: $!\n";
    open $prefetch, '+<&', $third or die "cannot keep the prefetch queue: $!\n";
    close $third;
    $control_number = fileno $control;
    vec($input_bits, $_, 1) = 1 for $control_number, fileno $prefetch;
    open STDIN, '<', '/dev/null' or die "cannot open /dev/null: $!\n";
    open $null, '<&', \*STDIN or die "cannot copy descriptor 0: $!\n";
    open $output, '>&', \*STDOUT or die "cannot copy descriptor 1: $!\n";
    open $log, '>&', \*STDERR or die "cannot copy descriptor 2: $!\n";
    opendir $home, '.' or die "cannot open the working directory: $!\n";
}

# ---- the script runs ----

# Forks for a script. The child gets no copy of the host's own sockets. So the search for processes
# that can write to the client finds only descriptors that the script has kept.
sub fork_script () {
    my $child = CORE::fork();
    if (defined $child && !$child) {
        local $!;
        close $_ for $control, $prefetch, $output;
    }
    return $child;
}

# Answers the request that receive() took. Returns true if this worker has to end.
sub answer {
    my $file = $ENV{SCRIPT_FILENAME} // '';
    $0 = $file if $0 ne $file;
    $^T = time;
    chdir($file =~ m{^(.*/)}s ? $1 : '/') if $enters_directory;
    $serving = 1;
    # Most often the request is for the previous script, and its file has not changed.
    my $failure = $script && $file eq $last_file && !$body_lost && $FSTATAT
        && !syscall($FSTATAT, $AT_FDCWD, $file, $stat, 0)
        && ($stat eq $last_stat || ($stat & $VERSION) eq $script->{version} && ($last_stat = $stat))
        ? 0 : find_script($file);
    my $has_more = $script && $script->{has_more};
    if ($script) {
        return answer_apart() if $proves && !($is_proved && $script == $kept) && !is_kept();
        CGI::initialize_globals() if $INC{'CGI.pm'} && defined &CGI::initialize_globals;
        restore_state($script->{state}) if $has_more && $script->{state};
        rewind_data($script) if $has_more && $script->{data};
        $failure = 500 if !guarded($script->{code});
    }
    my $code = $exit_code;
    if ($has_more) {
        $script->{end} = [take_end_blocks(), @{ $script->{end} || [] }] if $forgets;
        guarded($_) or $failure = 500 for @{ $script->{end} || [] };
    }
    stop_timers() if $timed || $script && $script->{uses_calls};
    $worn_out ||= "$!" if $IS_WANT{ $! + 0 };
    if ($$ != $pid) {    # a child that the script has forked
        CORE::exit($failure ? 255 : $code || 0);
    }
    if ($has_more) {
        close_data() if $open_data;
        forget($file) if $forgets;
    }
    $serving = 0;
    close_handles() if $has_more && $script && $script->{handles};
    return finish($failure);
}

# Makes the script of `$file` the current one. Returns the HTTP status of a failure, or 0.
sub find_script {
    my ($file) = @_;
    undef $script;
    $last_stat = '';
    if ($body_lost) {
        log_error("cannot store the request body: $body_lost");
        return $worn_out ? 503 : 500;
    }
    my $found = script_for($file);
    return $found if !ref $found;
    $script = $found;
    return 0;
}

# Calls a function. If the function calls exit(), even within an eval, guarded() returns. Returns
# false if the function died; the message is then in the log.
sub guarded {
    undef $exit_code;
    SCRIPT: {
        local $_;
        return 1 if eval { $_[0]->(); alarm 0; 1 };
        alarm 0;
        return 1 if defined $exit_code;
        my $error = $@;
        return 0 if ref $error eq 'Forebay::Host::Failed';
        log_error($error);
        explain_failure($error) if !ref $error;
        return 0;
    }
    return 1;
}

# Replaces exit() in a script. An exception works everywhere, but an eval of the script would catch
# it. `last` passes through eval, but cannot leave a sort block or a signal handler.
sub leave_script {
    my ($code) = @_;
    CORE::exit($code) if !$serving || ($$ != $pid && !($script && $script->{end}));
    $exit_code = $code;
    alarm 0;
    if (!$compiling && inside_eval()) {
        no warnings 'exiting';
        eval { last SCRIPT };
    }
    local $SIG{__DIE__};
    die $EXIT;
}

# Returns true if the script (not this host) has an eval around the current call.
sub inside_eval {
    my $depth = 2;    # leave_script, or CGI::Carp::die
    while (my ($package, $sub) = (caller $depth++)[0, 3]) {
        return 0 if $package eq __PACKAGE__;
        return 1 if $sub eq '(eval)';
    }
    return 0;
}

# Returns the HTTP status for the error in $!: 503 if this worker cannot do its work but another
# can.
sub status_of_error {
    my ($status) = @_;
    return $status if !$IS_WANT{ $! + 0 };
    $worn_out = "$!";
    return 503;
}

# Each line is a warning for Forebay, unlike what the script itself prints, unless the script has
# sent STDERR elsewhere.
sub log_error {
    my ($error) = @_;    # a copy: eval empties $@
    my $text = eval { "$error" } // 'died with an object that cannot be shown';
    $text =~ s/^/<4>/mg if ((stat STDERR)[$INODE] // -1) == ($log_inode // -2);
    local ($\, $,);
    print STDERR $text =~ /\n\z/ ? $text : "$text\n";
}

# ---- the request ends ----

# Resets the interpreter, flushes all output and sends the end marker to Forebay. Returns true if
# this worker has to end. After the search for children, no code of the script may run, because it
# could start another child. After the end marker, nothing may write to the output.
sub finish {
    my ($status) = @_;
    my $ends = 0;
    # A destructor or a method of a tied variable may call exit, which must not end this process.
    $serving = 1;
    my $sound = eval {
        if ($INC{'DBI.pm'} && !settle_databases()) {
            $worn_out ||= 'a database connection is lost, and the script keeps its handle';
        }
        reset_interpreter();
        has_own_descriptors() || restore_descriptors();
    };
    log_error($@) if !$sound && $@;
    $serving = 0;
    # F_SETFL: makes writes block again, because the script or its children may have changed that. A
    # child that a destructor has forked has no $output, and ends here.
    fcntl($output, 4, 0) || defined fileno $output || CORE::exit(1);
    flush_all() or $sound = 0;
    $ends = 1 if !$sound || is_another();
    $ends = 1 if waitpid(-1, 1) >= 0 && background_writer($proves ? own_processes() : {});    # WNOHANG
    $ends = 1 if $INC{'threads.pm'} && has_threads();
    if ($worn_out) {
        $ends = 1;
        log_error("$ENV{SCRIPT_FILENAME}: $worn_out; the worker is replaced");
    }
    # If the script has reopened STDOUT for reading, only $output can carry the end marker.
    if (!$sound || !print(STDOUT '') || !reply(\*STDOUT, $status, $ends)) {
        $ends = 1;
        reply($output, $status, $ends);
    }
    $! = 0;
    return $ends;
}

# Returns true if the standard handles have the descriptors that they had at the start.
sub has_own_descriptors {
    no warnings;
    # After `tell STDIN`, $. is the line count of STDIN. Only a close of STDIN resets this count.
    return tell(STDIN) >= 0 && !$. && $FSTAT
        && fileno STDIN == 0 && fileno STDOUT == 1 && fileno STDERR == 2
        && !syscall($FSTAT, 0, $stat) && ($stat eq $null_stat || is_same($null_stat))
        && !syscall($FSTAT, 1, $stat) && ($stat eq $output_stat || is_same($output_stat))
        && !syscall($FSTAT, 2, $stat) && ($stat eq $log_stat || is_same($log_stat));
}

# Writes the end marker to `$handle`: flags, and an HTTP status if the request failed. Returns false
# if the write fails.
sub reply {
    my ($handle, $status, $flags) = @_;
    my $end_marker = substr($message, $MARK, 16) . ($status || $flags
        ? pack 'a C n', $status ? 'S' : 'E', $flags | $was_prefetched, $status
        : $was_prefetched ? "E\4\0\0" : "E\0\0\0");
    no warnings;
    my $written;
    1 until $written = syswrite $handle, $end_marker or $! != $EINTR;
    return $written;
}

# Closes the script's bareword handles, as the end of a CGI process does. This writes their text and
# releases their locks.
sub close_handles {
    for my $handle (@{ $script->{handles} }) {
        next if !defined eval { fileno $handle };
        close $handle or closedir $handle;
    }
}

# Returns true if $stat and the argument describe the same file. Then also stores $stat in the
# argument, because each new line in the log changes the times of the log's file.
sub is_same {
    return 0 if substr($stat, 0, 16) ne substr $_[0], 0, 16;
    $_[0] = $stat;
    return 1;
}

# Restores descriptors 0, 1 and 2 if the script closed or redirected them. Returns false if the
# script now uses one of these numbers for something else.
sub restore_descriptors {
    no warnings;
    my $sound = 1;
    tell STDIN;
    if ($. || (stat STDIN)[$RAW_DEVICE] != $null_device || fileno STDIN != 0) {
        close STDIN;
        $sound &&= open(STDIN, '<&', $null) && fileno STDIN == 0;
    }
    if ((stat STDOUT)[$INODE] != $output_inode || fileno STDOUT != 1) {
        $sound &&= open(STDOUT, '>&', $output) && fileno STDOUT == 1;
        uncouple_output() if $sound;
    }
    if ((stat STDERR)[$INODE] != $log_inode || fileno STDERR != 2) {
        $sound &&= open(STDERR, '>&', $log) && fileno STDERR == 2;
    }
    return $sound;
}

# Returns true if the script has changed the user or group of this process. To change it back would
# not be enough, because the kernel drops PR_SET_PDEATHSIG at the first change.
sub is_another {
    if ($GETRESUID) {
        return syscall($GETRESUID, $real, $effective, $saved)
            || syscall($GETRESGID, $real_group, $effective_group, $saved_group)
            || syscall($GETGROUPS, $group_count + 1, $groups) != $group_count
            || "$real$effective$saved$real_group$effective_group$saved_group$groups" ne $identity;
    }
    return $> != $identity[1] || $< != $identity[0] || $) ne $identity[3] || $( ne $identity[2];
}

# Resets the state of the process to that of a new process, except the script's own variables and
# loaded modules. This may free objects of the script, whose destructors then run.
sub reset_interpreter {
    no warnings qw(uninitialized untie);
    if (tied(*STDIN) || tied(*STDOUT) || tied(*STDERR) || tied %ENV) {
        untie *STDIN;
        untie *STDOUT;
        untie *STDERR;
        untie %ENV;
    }
    *main::ENV = $environment_hash if \%ENV != $environment_hash;
    if (!$script || $script->{ties}) {
        untie $/;
        untie $;;
        untie $";
        untie $,;
        untie $\;
    }
    if ($seeded) {
        CORE::srand();
        $seeded = 0;
    }
    select STDOUT;
    $\ = $, = undef;
    # Assigns each variable separately, because a list assignment takes twice as long.
    $/ = "\n" if $/ ne "\n";
    $; = "\034";
    $" = ' ';
    $@ = '';
    $? = 0;
    $^W = 0;
    @ARGV = () if @ARGV;
    # If the script's text does not contain "SIG", only a module can have set a handler. Modules set
    # handlers of few signals. The check of one handler costs 0.1 us, and Perl has 68 of them.
    if ($script && $script->{quiet}
        ? defined($SIG{ALRM} // $SIG{CHLD} // $SIG{PIPE} // $SIG{INT} // $SIG{TERM}
            // $SIG{__DIE__} // $SIG{__WARN__})
        : join('', @SIG{@SIGNALS}) ne '') {
        delete @SIG{ grep { defined $SIG{$_} } @SIGNALS };
        alarm 0;    # a destructor may have set it
    }
    umask $mask;
    chdir $home;
    reset_locale() if $INC{'POSIX.pm'} && defined &POSIX::setlocale;
    $! = 0;
}

sub reset_locale {
    return if defined $locale && POSIX::setlocale(6) eq $locale;    # LC_ALL
    POSIX::setlocale(6, $locale // '');
    $locale //= POSIX::setlocale(6);
}
