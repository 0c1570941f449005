# Forebay's host for CGI scripts written in Perl: a worker that compiles each script once and runs it
# for one request after another. Core Perl only. It is no web server: Forebay (crates/forebay-workers)
# starts it, hands it requests and reads what the script prints.
#
# Descriptors at the start: 0 the control socket, 1 the output socket, 2 a pipe to the log, 3 the prefetch queue.
# All but the log are moved out of the way at once, so that a script finds what CGI promises: the body
# on 0, the client on 1, the log on 2, all of them real, so that output of child processes goes the same
# way. What goes over the sockets stands in README.md.
package Forebay::Host;

# Compiles a script. First in this file, so that the script sees none of its lexicals and pragmas.
sub evaluate { eval $_[0] }

use strict;
use warnings;

my ($control, $prefetch);
my ($output, $log, $null, $home);               # $output, $log, $null: spare copies of 1, 2 and 0
my ($output_inode, $log_inode, $null_device);
my ($pid, $mask, $enters_directory, $locale);
my @identity;                                  # real and effective user, real and effective groups
my ($identity, $group_count);                  # the same, as system calls give it
my ($null_file, $output_file, $log_file);      # device and inode of descriptors 0, 1 and 2
my ($input_bits, $control_number) = ('');       # for select
my $message = '';                              # receive buffer
my $received;                                  # the environment in it
my $NO_BODY = "\0" x 8;
my $mark;                                      # of the request, to be repeated at its end
my $was_prefetched;                                 # the request was not waited for: 4 or 0, a flag
my (%base, $block, @fields, $distinct);        # the environment: inherited, and as last received
my %places;                                    # offset in $block => index in @fields, of values
my @offsets;                                   # index in @fields => offset in $values, of values
my ($guess, $guess_at, $guess_length);         # the value that differed last: index, span in $block
my (@names, $values);                          # the environment as it was last set
my (%scripts, $script, $last_file, $body_lost);
my ($serving, $compiling, $exit_code);
my $forgets;                                   # a script's variables and subs, after each request
my %libraries;                                 # script => what it has in %INC besides modules
my $EXIT = bless [], 'Forebay::Host::Exit';
my $FAILED = bless [], 'Forebay::Host::Failed';    # an error that is in the log already, if anywhere
my $open_data;                                 # DATA, which a script has
our $data_package;                             # the one in force where a script's __DATA__ stands
my $warner;                                    # what gets the warnings of a compilation
my $kept_ends = 0;                             # END blocks that are left to Perl, of modules
my ($carp, $accept);                           # CGI::Carp and FCGI as perl-modules.pl changes them

# The signals whose handlers are put back after each request.
my @SIGNALS = qw(ALRM CHLD CLD CONT HUP INT PIPE QUIT SEGV TERM TSTP USR1 USR2 VTALRM WINCH XCPU
    __DIE__ __WARN__);
# What `use CGI` with pragmas sets once per process, and CGI::initialize_globals() forgets.
my @CGI_PRAGMAS = map { "CGI::$_" } qw(APPEND_QUERY_STRING CLOSE_UPLOAD_FILES DEBUG HEADERS_ONCE
    NOSTICKY NO_UNDEF_PARAMS NPH PARAM_UTF8 PUTDATA_UPLOAD TABINDEX USE_PARAM_SEMICOLONS XHTML);
my %PRCTL = (x86_64 => 157, aarch64 => 167, riscv64 => 167, i386 => 172, i486 => 172, i586 => 172,
    i686 => 172, arm => 172, s390x => 172, powerpc64le => 171);
# The numbers of fstat, fstatat, getresuid, getresgid and getgroups. Perl's stat, $< and $( say the same
# in lists and strings, for three to ten times the instructions.
my %CALLS = (x86_64 => [5, 262, 118, 120, 115],
    map { $_ => [80, 79, 148, 150, 158] } qw(aarch64 riscv64));
my ($FSTAT, $FSTATAT, $GETRESUID, $GETRESGID, $GETGROUPS);
my %DUP3 = (x86_64 => 292, map { $_ => 24 } qw(aarch64 riscv64));
my $DUP3;
my $AT_FDCWD = -100;
# What they write to. The first 16 bytes of struct stat are device and inode, which tell a file from
# others; size and the times of modification and status change tell versions of it apart.
my ($stat, $groups) = ("\0" x 256, '');
my ($real, $effective, $saved, $real_group, $effective_group, $saved_group) = ("\0" x 4) x 6;
my $VERSION = pack 'a16 x32 a8 x32 a32', map { "\xff" x $_ } 16, 8, 32;
my $modules = -1;                              # how many files were in %INC before the script
my ($INODE, $RAW_DEVICE) = (1, 6);             # places in what stat returns
my ($HEAD, $CHUNK, $LARGEST_IN_PIPE) = (28, 65_536, 65_536);
my $EINTR = 4;

BEGIN {
    # Times below a second tell edits within one second apart; perl-base alone has none.
    *file_status = eval { require Time::HiRes; \&Time::HiRes::stat } || sub { stat $_[0] };
    no warnings 'once';
    *CORE::GLOBAL::exit = sub (;$) { leave_script(@_ ? $_[0] : 0) };
}

# Serves requests until Forebay closes the control socket. `$mode`: registry, registry-prefork or
# perlrun here; fork and cgi are in perl-processes.pl.
sub serve {
    my ($mode, $parent) = @_;
    end_with($parent);
    ($pid, $mask, $enters_directory, %base) = ($$, umask, $mode ne 'registry', %ENV);
    $forgets = $mode eq 'perlrun';
    adopt_descriptors();
    remember_process();
    reset_interpreter();
    syswrite $control, "R\0\0\0";
    serve_processes($mode) if defined &serve_processes;
    while (receive()) {
        last if answer();
    }
    CORE::exit(0);
}

# Has the kernel end this process when Forebay ends, however Forebay ends.
sub end_with {
    my ($parent) = @_;
    require Config;
    my ($machine) = $Config::Config{archname} =~ /^([a-z0-9_]+)/;
    syscall($PRCTL{$machine}, 1, 9, 0, 0, 0) if $PRCTL{$machine};    # PR_SET_PDEATHSIG, SIGKILL
    CORE::exit(0) if getppid() != $parent;
}

# Notes what a script may change of the process; with system calls if they say what Perl says.
sub remember_process {
    @identity = ($<, $>, $(, $));
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
    ($null_file, $output_file, $log_file)
        = map { syscall($FSTAT, $_, $stat); substr $stat, 0, 16 } 0, 1, 2;
    $group_count = syscall($GETGROUPS, 0, $groups);
    $groups = "\0" x (4 * $group_count + 4);
    syscall($GETGROUPS, $group_count, $groups) if $group_count;
    syscall($GETRESUID, $real, $effective, $saved);
    syscall($GETRESGID, $real_group, $effective_group, $saved_group);
    $identity = "$real$effective$saved$real_group$effective_group$saved_group$groups";
}

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

# ---- a request comes in ----

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

# ---- the script runs ----

# Answers the request that receive() took. True if this worker has to end.
sub answer {
    my $file = $ENV{SCRIPT_FILENAME} // '';
    $0 = $file if $0 ne $file;
    $^T = time;
    chdir($file =~ m{^(.*/)}s ? $1 : '/') if $enters_directory;
    $serving = 1;
    # Most often it is the script before, and its file is the same.
    $script = $scripts{$file};
    my $failure = $script && $file eq $last_file && !$body_lost && $FSTATAT
        && !syscall($FSTATAT, $AT_FDCWD, $file, $stat, 0) && ($stat & $VERSION) eq $script->{version}
        ? 0 : find_script($file);
    if ($script) {
        CGI::initialize_globals() if $INC{'CGI.pm'} && defined &CGI::initialize_globals;
        restore_state($script->{state}) if $script->{state};
        rewind_data($script) if $script->{data};
        $failure = 500 if !guarded($script->{code});
    }
    my $code = $exit_code;
    if ($forgets) {
        $script->{end} = [take_end_blocks(), @{ $script->{end} || [] }]
            if $script && $script->{package};
    }
    if ($script && $script->{end}) {
        guarded($_) or $failure = 500 for @{ $script->{end} };
    }
    if ($$ != $pid) {    # a child the script has forked
        CORE::exit($failure ? 255 : $code || 0);
    }
    close_data() if $open_data;
    forget($file) if $forgets && $script && $script->{package};
    $serving = 0;
    return finish($failure);
}

# Makes the script of `$file` the one that runs. The HTTP status of a failure, or 0.
sub find_script {
    my ($file) = @_;
    undef $script;
    if ($body_lost) {
        complain("cannot store the request body: $body_lost");
        return 500;
    }
    my $found = script_for($file);
    return $found if !ref $found;
    $script = $found;
    return 0;
}

# Calls a function. exit() comes back here, whatever the script has wrapped around it. False if it died;
# the message is in the log then.
sub guarded {
    undef $exit_code;
    SCRIPT: {
        local $_;
        return 1 if eval { $_[0]->(); alarm 0; 1 };
        alarm 0;
        return 1 if defined $exit_code;
        my $error = $@;
        return 0 if ref $error eq 'Forebay::Host::Failed';
        complain($error);
        explain_failure($error) if !ref $error;
        return 0;
    }
    return 1;
}

# What exit() does in a script. An exception is safe everywhere, but an eval of the script's own would
# catch it; `last` passes through eval, but not out of a sort block or a signal handler.
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

# True if the script (not this host) has an eval around the place that is running.
sub inside_eval {
    my $depth = 2;    # leave_script, or CGI::Carp::die
    while (my ($package, $sub) = (caller $depth++)[0, 3]) {
        return 0 if $package eq __PACKAGE__;
        return 1 if $sub eq '(eval)';
    }
    return 0;
}

sub complain {
    my ($error) = @_;    # a copy: eval empties $@
    my $text = eval { "$error" } // 'died with an object that cannot be shown';
    local ($\, $,);
    print STDERR $text =~ /\n\z/ ? $text : "$text\n";
}

# ---- the request ends ----

# Lets everything out that was written, tells Forebay, and puts the interpreter back in order. True if
# this worker has to end.
sub finish {
    my ($status) = @_;
    close_handles() if $script && $script->{handles};
    my $ends = background_writer();
    untie *STDIN if tied *STDIN;
    untie *STDOUT if tied *STDOUT;
    untie *STDERR if tied *STDERR;
    select STDOUT;
    my $sound = restore_descriptors();
    $ends = $ends || !$sound || is_another() ? 1 : 0;
    my $kind = $status ? 'S' : 'E';
    $\ = $, = undef;
    wait_for_client();
    # With the last of the output, in one write, unless a layer of the script's would change it.
    my $plain = $sound && join(' ', PerlIO::get_layers(STDOUT)) eq 'unix perlio';
    $! = 0;
    my $told = $plain && print STDOUT end_marker($kind, $ends, $status);
    binmode STDOUT;    # this flushes
    CORE::exit(1) if $told && $! && $! != $EINTR;    # nobody knows how much arrived
    $| = 0 if $|;
    if (!$told) {
        $ends = 1 if $plain;    # it was made a handle to read from
        reply($kind, $ends, $status);
    }
    reset_interpreter();
    return $ends;
}

# The end of a request, told behind its output.
sub reply {
    my $end_marker = end_marker(@_);
    wait_for_client();
    1 until syswrite $output, $end_marker or $! != $EINTR;
}

# Has writes to the output socket wait again, whatever the script or its children have made of it.
sub wait_for_client {
    fcntl $output, 4, 0;    # F_SETFL
}

sub end_marker {
    my ($kind, $flags, $status) = @_;
    return $mark . pack 'a C n', $kind, $flags | $was_prefetched, $status;
}

# Closes the script's bareword handles, as the end of a CGI process does: what was written to them
# arrives, and locks go.
sub close_handles {
    for my $handle (@{ $script->{handles} }) {
        next if !defined eval { fileno $handle };
        close $handle or closedir $handle;
    }
}

# Reaps children. Whether one that runs on, or what it has started, could still write to this client,
# which by then is another: 1 if a child has it as descriptor 1, 2 otherwise and if that cannot be known.
# Processes in `%$own` are this host's.
sub background_writer {
    my ($own) = @_;
    my $child;
    1 while ($child = waitpid -1, 1) > 0;    # WNOHANG
    return 0 if $child < 0;
    my $ours = readlink '/proc/self/fd/' . fileno $output or return 2;
    my $children = children_of("/proc/$$/task/$$/children") or return 2;
    my @left = grep { !$own->{$_} } @$children;
    return 1 if grep { (readlink("/proc/$_/fd/1") // '') eq $ours } @left;
    while (defined(my $process = shift @left)) {
        return 2 if can_write($process, $ours, $own);
        push @left, map { @{ children_of($_) || [] } } glob "/proc/$process/task/*/children";
    }
    return 0;
}

sub children_of {
    my ($file) = @_;
    local $/ = "\n";
    open my $list, '<', $file or return undef;
    return [split ' ', <$list> // ''];
}

# True if one of the process's descriptors is the socket `$ours`. Where requests have processes of their
# own (`$has_own`) a fork has none that it does not know of; elsewhere it has this host's copy.
sub can_write {
    my ($process, $ours, $has_own) = @_;
    my $copy = $has_own ? -1 : fileno $output;
    my $descriptors;
    if (!opendir $descriptors, "/proc/$process/fd") {
        local $/;
        open my $file, '<', "/proc/$process/stat" or return 0;
        return (<$file> // '') !~ /.*\) Z/s;    # it may be another user's
    }
    return scalar grep { /\d/ && $_ != $copy && (readlink("/proc/$process/fd/$_") // '') eq $ours }
        readdir $descriptors;
}

# Puts descriptors 0, 1 and 2 back where the script closed or redirected them. False if it cannot be
# done because something else of the script's has the number now.
sub restore_descriptors {
    no warnings;
    my $sound = 1;
    # tell makes $. the line count of STDIN, which only close resets.
    return 1 if tell(STDIN) >= 0 && !$. && $FSTAT
        && fileno STDIN == 0 && !syscall($FSTAT, 0, $stat) && rindex($stat, $null_file, 0) == 0
        && fileno STDOUT == 1 && !syscall($FSTAT, 1, $stat) && rindex($stat, $output_file, 0) == 0
        && fileno STDERR == 2 && !syscall($FSTAT, 2, $stat) && rindex($stat, $log_file, 0) == 0;
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

# True if the script has made this process another user's or group's. To put that back would not be
# enough: the kernel has forgotten then that this process ends with Forebay.
sub is_another {
    if ($GETRESUID) {
        return 1 if syscall($GETRESUID, $real, $effective, $saved);
        return 1 if syscall($GETRESGID, $real_group, $effective_group, $saved_group);
        return 1 if syscall($GETGROUPS, $group_count + 1, $groups) != $group_count;
        return "$real$effective$saved$real_group$effective_group$saved_group$groups" ne $identity;
    }
    return $> != $identity[1] || $< != $identity[0] || $) ne $identity[3] || $( ne $identity[2];
}

# Everything a new process would have fresh, except the script's own variables and loaded modules.
sub reset_interpreter {
    no warnings 'uninitialized';
    # One by one: a list assignment takes twice as long.
    $/ = "\n" if $/ ne "\n";
    $; = "\034";
    $" = ' ';
    $@ = '';
    $! = 0;
    $? = 0;
    $^W = 0;
    @ARGV = () if @ARGV;
    # Where the script has no "SIG" in it only a module may have set a handler, and of few signals. To
    # look at one costs 0.1 us, and there are 68.
    if ($script && $script->{quiet}
        ? defined($SIG{ALRM} // $SIG{CHLD} // $SIG{PIPE} // $SIG{INT} // $SIG{TERM}
            // $SIG{__DIE__} // $SIG{__WARN__})
        : join('', @SIG{@SIGNALS}) ne '') {
        delete @SIG{ grep { defined $SIG{$_} } @SIGNALS };
    }
    binmode STDIN;
    binmode STDERR;
    umask $mask;
    chdir $home;
    reset_locale() if $INC{'POSIX.pm'} && defined &POSIX::setlocale;
}

sub reset_locale {
    return if defined $locale && POSIX::setlocale(6) eq $locale;    # LC_ALL
    POSIX::setlocale(6, $locale // '');
    $locale //= POSIX::setlocale(6);
}

# ---- scripts ----

# The compiled script of `$file`, compiled again if the file has changed; or an HTTP status.
sub script_for {
    my ($file) = @_;
    my $version = $FSTATAT && !syscall($FSTATAT, $AT_FDCWD, $file, $stat, 0)
        ? $stat & $VERSION : join ' ', (file_status($file))[0, 1, 7, 9, 10];
    my $known = $scripts{$file};
    if ($known && $known->{version} eq $version) {
        relocate($file) if $file ne $last_file;
        return $known;
    }
    delete $scripts{$file};
    my $unfit = unfit($file, file_status($file));
    return $unfit if $unfit;
    my $source = read_file($file);
    if (!defined $source) {
        complain("$file: $!");
        return 403;
    }
    # Forebay has looked at its first line, before it changed. One that names nothing is no mark.
    if ($source =~ /\A(#!.*\S.*)/ && $1 !~ /perl/i) {
        complain("$file: $1 names another language than Perl; ask once more");
        return 500;
    }
    relocate($file);
    if (defined(my $taint = taint_switch($source))) {
        complain("$file: its #! line has -$taint, which a perl that runs cannot switch on: each request"
            . ' starts a new one, as with mode = "cgi" (mode = "fork" is faster)');
        return $scripts{$file}
            = { version => $version, code => sub { run_as_program($file) }, quiet => 1 };
    }
    delete @INC{ keys %{ delete $libraries{$file} } } if $libraries{$file};
    my $compiled = compile($file, $source) or return defined $exit_code ? 0 : 500;
    $compiled->{version} = $version;
    $scripts{$file} = $compiled if !$forgets;
    return $compiled;
}

# The HTTP status for a file that cannot be run, whose status is `@now`, with the reason in the log;
# or 0.
sub unfit {
    my ($file, @now) = @_;
    if (!@now) {
        complain("$file: $!");
        return $! == 2 || $! == 20 ? 404 : 403;    # ENOENT, ENOTDIR
    }
    my $fault = ($now[2] & 0170000) != 0100000 ? 'not a regular file'
        : !-x $file ? 'not executable (chmod +x)' : return 0;
    complain("$file: $fault");
    return 403;
}

sub read_file {
    my ($file) = @_;
    open my $handle, '<', $file or return undef;
    local $/;
    return scalar(<$handle>) // '';
}

# What depends on which script runs.
sub relocate {
    my ($file) = @_;
    keep_libraries($last_file)
        if defined $last_file && (keys %INC != $modules || $libraries{$last_file});
    @INC{ keys %{ $libraries{$file} } } = values %{ $libraries{$file} } if $libraries{$file};
    ($last_file, $modules) = ($file, scalar keys %INC);
    FindBin::again() if $INC{'FindBin.pm'} && defined &FindBin::again;
}

# Takes files without a package of their own (`require "lib.pl"`) out of %INC: their subs are in the
# package of the script that has loaded them, where the next script does not find them.
sub keep_libraries {
    my ($file) = @_;
    my @names = grep { !/\.pm\z/ && !m{^(?:unicore/|utf8_heavy)} } keys %INC;
    @{ $libraries{$file} }{@names} = delete @INC{@names} if @names;
}

# Drops all that the script has left in its package, as ModPerl::PerlRun does.
sub forget {
    my ($file) = @_;
    keep_libraries($file);
    forget_packages_of($file, values %{ delete $libraries{$file} || {} });
    my $package = $script->{package};
    undef $script;
    empty($package);
}

# Drops what a package holds but has not imported.
sub empty {
    my ($package) = @_;
    require B;
    no strict 'refs';
    no warnings;    # of constants
    my $stash = \%{"${package}::"};
    my @globs = map { \$stash->{$_} } grep { !/::\z/ && ref \$stash->{$_} eq 'GLOB' } keys %$stash;
    %$stash = map { ($_ => $stash->{$_}) } grep { /::\z/ } keys %$stash;
    for my $glob (@globs) {
        # Emptied, as what refers to itself would stay for ever; but not what belongs to a module.
        my $imported = B::svref_2object($glob)->GvFLAGS >> 4;
        undef ${ *{$glob}{SCALAR} } if !($imported & 1);
        undef @{ *{$glob}{ARRAY} } if *{$glob}{ARRAY} && !($imported & 2);
        undef %{ *{$glob}{HASH} } if *{$glob}{HASH} && !($imported & 4);
        undef &{ *{$glob}{CODE} } if *{$glob}{CODE} && !($imported & 8);
    }
}

# Drops the subs of files that are loaded anew by the next request, which else redefines them, and what
# else is in the packages that they begin.
sub forget_packages_of {
    my %is_old = map { ($_ => 1) } @_;
    my %packages;
    require B;
    for (keys %is_old) {
        $packages{$_} = 1 for (read_file($_) // '') =~ /\bpackage\s+(\w+(?:(?:::|')\w+)*)/g;
    }
    no strict 'refs';
    for my $package (keys %packages) {
        (my $module = "$package.pm") =~ s{::|'}{/}g;
        next if $INC{$module};
        my $stash = \%{"${package}::"};
        my ($own, $others) = (0, $package eq 'main');
        for my $name (grep { !/::\z/ && ref \$stash->{$_} eq 'GLOB' } keys %$stash) {
            my $code = *{ $stash->{$name} }{CODE} or next;
            my $info = B::svref_2object($code);
            next if $info->CvFLAGS & B::CVf_CONST();
            if ($is_old{ $info->FILE }) {
                forget_sub($package, $name);
                $own = 1;
            } elsif ($info->GV->isa('B::GV') && $info->GV->STASH->NAME eq $package) {
                $others = 1;    # what it has imported is not
            }
        }
        empty($package) if $own && !$others;
    }
}

# Compiles `$source` into a sub in a package of its own; undef if that failed, which is in the log
# then, or if the script has left with exit() in a BEGIN block.
sub compile {
    my ($file, $source) = @_;
    my $package = package_for($file);
    forget_subs($package);
    $source =~ s/\A\xEF\xBB\xBF//;
    CGI::initialize_globals() if defined &CGI::initialize_globals;
    my ($code, $data_at) = split_source($source);
    my $warns = $code =~ /\A#!.*?perl\S*(?:[ \t]+-\w+)*?[ \t]+-\w*w/;
    my $has_end = ($forgets || $code =~ /\bEND\s*\{/) && require B;
    (my $name = $file) =~ tr/"\r\n/_/;
    hide_callers($package) if $code =~ /\bcaller\b/;
    reset_carp($file);
    count_output_anew();
    # __END__ is about main in a main program, __DATA__ about the package that it stands in.
    my $is_data = defined $data_at && substr($source, length $code) =~ /\A\s*__DATA__/;
    my $end = $is_data ? 'BEGIN { $Forebay::Host::data_package = __PACKAGE__ }' : '';
    undef $exit_code;
    undef $warner;
    my $had_carp = $carp;
    $compiling = 1;
    local $^W = $warns ? 1 : 0;
    $SIG{__WARN__} = \&warn_of_others if $forgets;
    # The lines after the code end a statement without semicolon and POD without =cut.
    my $sub = evaluate("package $package; sub __script__ {\n#line 1 \"$name\"\n$code\n;\n"
            . "=pod\n\n=cut\n\n$end}\n\\&__script__");
    my $error = $@;
    if ($forgets && ($SIG{__WARN__} // '') eq \&warn_of_others) {
        if ($warner) { $SIG{__WARN__} = $warner }
        else { delete $SIG{__WARN__} }
    }
    adopt_carp();
    adopt_fcgi();
    $error = handle_compile_error($error, $name, $had_carp) if !$sub && !defined $exit_code;
    $compiling = 0;
    my @end = $has_end ? take_end_blocks($forgets ? undef : $name) : ();
    if (!$sub) {
        complain($error) if !defined $exit_code;
        return undef;
    }
    my $state = compiled_state($warns, $package, $code);
    my $data_in = $is_data ? $data_package : $package;
    return {
        code => $sub, package => $package, end => @end ? \@end : undef,
        data => defined $data_at
            ? [\$source, $data_at, scalar($code =~ /^\s*use\s+utf8\b/m), $data_in] : undef,
        handles => handles_of($package, $code), state => $state,
        quiet => $code !~ /SIG|sigtrap/ && !($state && $state->{signals}),
    };
}

# Where the sub that a script becomes runs only once, one warning is none.
sub warn_of_others {
    return if $_[0] =~ /^Variable "[^"]*" will not stay shared at /;
    goto &$warner if $warner;
    warn @_;
}

# Forebay::Script:: and the path, with what no identifier can have as _xx; Perl's limit is 251 bytes.
sub package_for {
    my ($file) = @_;
    (my $name = $file) =~ s/([^A-Za-z0-9])/sprintf '_%02x', ord $1/ge;
    return 'Forebay::Script::' . $name if length $name < 200;
    my $sum = unpack '%32C*', $file;
    return join '_', 'Forebay::Script::', $sum, length $file, substr $name, -150;
}

# Drops the subs of the version before, keeps its variables.
sub forget_subs {
    my ($package) = @_;
    no strict 'refs';
    my $stash = \%{"${package}::"};
    forget_sub($package, $_) for grep { !/::\z/ } keys %$stash;
}

sub forget_sub {
    my ($package, $name) = @_;
    no strict 'refs';
    my $entry = delete ${"${package}::"}{$name};
    return if ref \$entry ne 'GLOB';
    *{"${package}::$name"} = $_ for grep { defined } map { *{$entry}{$_} } qw(SCALAR ARRAY HASH IO);
}

# The code before __END__ or __DATA__, and where the text after that line starts. Either word inside a
# here-document or POD is text.
sub split_source {
    my ($source) = @_;
    my $pod = 0;
    while ($source =~ /\G([^\n]*)(\n|\z)/g) {
        my ($line, $start) = ($1, $-[0]);
        last if $2 eq '' && $line eq '';
        $pod = $line !~ /^=cut\b/ if $line =~ /^=[a-zA-Z]/;
        next if $pod || $line =~ /^(?:=|\s*#)/;
        return (substr($source, 0, $start), pos $source) if $line =~ /^\s*__(?:END|DATA)__\b/;
        while ($line =~ /<<~?(?:"([^"]+)"|'([^']+)'|([A-Za-z_]\w*))/g) {
            my $tag = $1 // $2 // $3;
            my $at = pos $source;
            pos($source) = $source =~ /^[ \t]*\Q$tag\E$/mg && $-[0] >= $at ? pos($source) + 1 : $at;
        }
    }
    return $source;
}

# The END blocks of the file `$name`, or of all files but modules that stay loaded, taken from Perl so
# that it does not run them at its own end. (Those of modules run when the worker ends.)
sub take_end_blocks {
    my ($name) = @_;
    my $all = B::end_av();
    return if !$all->isa('B::AV');
    $all = $all->object_2svref;
    return if @$all == $kept_ends && !defined $name;
    my (@taken, %of_module);
    %of_module = map { ($INC{$_} // '' => 1) } grep { /\.pm\z/ } keys %INC if !defined $name;
    for my $i (reverse 0 .. $#$all) {
        my $block = \$all->[$i];
        my $info = B::svref_2object($block);
        next if defined $name ? $info->FILE ne $name
            : $of_module{ $info->FILE } || $INC{ module_file($info->STASH) };
        unshift @taken, $block;
        splice @$all, $i, 1;
    }
    $kept_ends = @$all;
    return @taken;
}

# The name in %INC of the module whose package this is.
sub module_file {
    my ($stash) = @_;
    return '' if !$stash->isa('B::HV');
    return join('/', split /::/, $stash->NAME) . '.pm';
}

# The bareword handles that the script opens when it runs; not those that BEGIN blocks have opened.
sub handles_of {
    my ($package, $code) = @_;
    my %names = map { ($_ => 1) }
        $code =~ /\b(?:open|opendir|sysopen|socket|pipe)\b\s*\(?\s*([A-Z][A-Z0-9_]*)\b/g;
    delete @names{qw(STDIN STDOUT STDERR)};
    no strict 'refs';
    my @handles = grep { !defined eval { fileno $_ } } map { \*{"${package}::$_"} } sort keys %names;
    return @handles ? \@handles : undef;
}

# What the compilation has changed in the process and each run must find so: signal handlers and
# layers that modules set when they are loaded, pragmas of CGI.pm.
sub compiled_state {
    my ($warns, $package, $code) = @_;
    my %state;
    $state{warns} = 1 if $warns;
    my %signals = map { ($_ => $SIG{$_}) } grep { defined $SIG{$_} } grep { $_ ne 'FPE' } keys %SIG;
    $state{signals} = \%signals if %signals;
    for my $handle (\*STDIN, \*STDOUT, \*STDERR) {
        my (undef, undef, @extra) = PerlIO::get_layers($handle, output => $handle != \*STDIN);
        push @{ $state{layers} }, [$handle, join '', map { ":$_" } @extra] if @extra;
    }
    no strict 'refs';
    if (defined &CGI::initialize_globals) {
        $state{cgi} = [map { [\${$_}, ${$_}] } @CGI_PRAGMAS];
        $state{cgi_exports} = {%CGI::EXPORT};
    }
    my $modules = state_of_modules($package, $code);
    $state{modules} = $modules if $modules;
    return %state ? \%state : undef;
}

sub restore_state {
    my ($state) = @_;
    restore_modules($state->{modules}) if $state->{modules};
    $^W = 1 if $state->{warns};
    @SIG{ keys %{ $state->{signals} } } = values %{ $state->{signals} } if $state->{signals};
    for my $layer (@{ $state->{layers} || [] }) {
        binmode $layer->[0], $layer->[1];
    }
    if ($state->{cgi}) {
        ${ $_->[0] } = $_->[1] for @{ $state->{cgi} };
        %CGI::EXPORT = %{ $state->{cgi_exports} };
    }
}

# Opens DATA at the text after __END__ or __DATA__, where it stands in a file that Perl itself reads.
sub rewind_data {
    my ($for) = @_;
    my ($source, $at, $utf8, $package) = @{ $for->{data} };
    open my $handle, $utf8 ? '<:utf8' : '<', $source or return;
    seek $handle, $at, 0;
    no strict 'refs';
    *{"${package}::DATA"} = *{$handle}{IO};
    *main::DATA = *{$handle}{IO} if $package eq $for->{package};
    $open_data = \*{"${package}::DATA"};
}

# Closes it: the package may be another script's, too, which has none.
sub close_data {
    close $open_data;
    undef $open_data;
}

1;
