# In mode `fork`, a separate perl process loads this code before the script. After perl has compiled
# the script, this code waits for requests and forks for each of them. Only the child runs the
# script. So the script is perl's main program, with the usual meaning of exit, END blocks, __END__,
# the package and the #! line.
package Forebay::Zygote;

use strict;

# Descriptors of this file, of the link to the worker, control and output; process id of the worker;
# system call numbers of prctl and dup3; in mode `prove` 1, or 2 if values may be shown, and the salt
# of digests; names of variables that a request has.
our @given;
my ($code, $link_number, $control_number, $output_number, $own, $prctl, $dup3, $proves, $salt, @names)
    = @given;
my ($link, $control, $output, $child_handler, $set, $deleted);
my ($baseline, $report, $proving, $inputs, $script);    # of mode `prove`
delete $INC{"/proc/self/fd/$code"};

# Sets close-on-exec, because the script's BEGIN blocks may start programs.
for ([\$link, $link_number], [\$control, $control_number], [\$output, $output_number]) {
    open ${ $_->[0] }, '+<&=', $_->[1] or die "cannot use descriptor $_->[1]: $!\n";
    fcntl ${ $_->[0] }, 2, 1;    # F_SETFD, FD_CLOEXEC
    binmode ${ $_->[0] };        # the switch -C gives all handles a layer
}
{ open my $loaded, '<&=', $code }    # closes the descriptor

# The worker reads what the code has looked at, and then, in prepare(), that the script is compiled.
my $has_told;
Forebay::Compilation::watch(sub { $has_told++ or syswrite $link, $_[0] }, @names);

INIT {
    kill KILL => $$ if $$ != $own;    # a child that a BEGIN block has forked and not ended
    alarm 0;
    prepare();
    syswrite $link, "\0";
    my $is_used;
    while (my ($environment, $part, $length) = receive()) {
        # The worker has looked at the descriptors before its first request.
        $is_used++ or reopen(\*STDIN, '<', '/dev/null');
        my $compares = $proves && prepare_proof($environment);
        my $child = fork;
        if (!defined $child) {
            print STDERR "$0: cannot fork: $!\n";
            kill KILL => $$;
        }
        if (!$child) {
            become($environment, $part, $length);
            last;
        }
        1 while waitpid($child, 0) < 0 && $! == 4;    # EINTR
        syswrite $link, pack 'N', $?;
        pass_report() if $compares;
    }
    kill KILL => $$ if $$ == $own;
}

# Records the changes that the BEGIN blocks have made, for use in each request.
sub prepare {
    $child_handler = $SIG{CHLD};
    $SIG{CHLD} = 'DEFAULT';
    my $was = select STDOUT;
    my $unbuffered = $|;
    $| = 1;    # flushes
    $| = $unbuffered;
    select $was;
    ($set, $deleted) = Forebay::Compilation::changes();
}

# Prepares to compare the state after the request with that before. Returns true if the worker waits
# for a report.
sub prepare_proof {
    return 0 if index("\0$_[0]", "\0FOREBAY_PROVE\0") < 0;
    $Forebay::Proof::salt = $salt;
    open $report, '+>', undef or undef $report;
    $baseline ||= Forebay::Proof::is_possible() && Forebay::Proof::snapshot('main') if $report;
    return 1;
}

# Passes what the child has found to the worker, with its length.
sub pass_report {
    my ($text, $at) = ('', 0);
    if ($report) {
        sysseek $report, 0, 0;
        1 while sysread $report, $text, 65_536, length $text;
        close $report;
    }
    $text = pack 'N/a*', $text;
    while ($at < length $text) { $at += syswrite($link, $text, length($text) - $at, $at) || return }
}

# This runs after the END blocks of the script, because it is compiled before them.
END {
    if (defined $proving && $proving == $$) {
        local ($?, $@, $!, $_) = ($?);
        my $begun = Time::HiRes::time();
        eval {
            local $SIG{__DIE__};
            my @faults = Forebay::Proof::faults();
            push @faults, ['the script', '', '', 'its -T needs a perl of its own for each request']
                if ${^TAINT};
            my (undef, @lines) = Forebay::Proof::report('main', $baseline, $inputs, $proves > 1, $begun,
                $script, \@faults);
            syswrite $report, join "\n", @lines;
        };
    }
}

# Returns the next request. Returns nothing if the worker has ended or no longer needs this process.
sub receive {
    my $head = take($link, 16);
    return if length $head < 16;
    my ($environment, $part, $high, $low) = unpack 'NNNN', $head;
    my $rest = take($link, $environment + $part);
    return if length $rest < $environment + $part;
    return (substr($rest, 0, $environment), substr($rest, $environment), $high * 2**32 + $low);
}

sub take {
    my ($from, $length) = @_;
    my $text = '';
    while (length $text < $length) {
        sysread $from, $text, $length - length $text, length $text or last;
    }
    return $text;
}

# Turns this child into a process that is about to run the script.
sub become {
    my ($environment, $part, $length) = @_;
    if ($prctl) {
        syscall $prctl, 1, 9, 0, 0, 0;    # PR_SET_PDEATHSIG, SIGKILL
        kill KILL => $$ if getppid != $own;
    }
    if (defined $child_handler) { $SIG{CHLD} = $child_handler }
    else { delete $SIG{CHLD} }
    my @fields = split /\0/, $environment, -1;
    pop @fields;
    my %request = @fields;
    if (delete $request{FOREBAY_PROVE} && $baseline) {
        ($proving, $script) = ($$, $request{SCRIPT_FILENAME});
        $inputs = Forebay::Proof::inputs(\%request, $part);
    }
    %ENV = (%request, %$set);
    delete @ENV{@$deleted};
    body($part, $length) if $length;
    close $control;
    close $link;
    # Keeps the handle, and with it its layers, if possible.
    if (!$dup3 || syscall($dup3, fileno $output, 1, 0) < 0) { reopen(\*STDOUT, '>&', $output) }
    close $output;
    reopen_data();
    $^T = time;
    srand;
    Forebay::Proof::refresh($baseline) if defined $proving;
    $! = 0;
    $? = 0;
}

# Puts the body on descriptor 0: a small body in a pipe, a large one in an unnamed temporary file.
sub body {
    my ($part, $length) = @_;
    my ($reader, $writer);
    my $fits = $length <= 65_536;
    if ($fits) {
        $part .= take($control, $length - length $part);
        pipe $reader, $writer or lost();
        binmode $writer;
        fcntl $writer, 4, 0x801;    # F_SETFL, O_NONBLOCK | O_WRONLY: some pipes hold only one page
        $fits = (syswrite($writer, $part) || 0) == $length;
    }
    if (!$fits) {
        open $reader, '+>', undef or lost();
        binmode $reader;
        for (my $left = $length - length $part;; $left -= length $part) {
            (syswrite($reader, $part) || 0) == length $part or lost();
            last if !$left;
            $part = take($control, $left < 65_536 ? $left : 65_536);
            kill KILL => $$ if !length $part;
        }
        sysseek $reader, 0, 0;
    }
    reopen(\*STDIN, '<&', $reader);
}

# Ends the whole worker, because it would read the rest of the body as the head of the next request.
sub lost {
    print STDERR "$0: cannot store the request body: $!\n";
    kill KILL => getppid, $$;
}

# Reopens a standard handle with the layers that it had.
sub reopen {
    my ($handle, $mode, $from) = @_;
    my (undef, undef, @extra) = PerlIO::get_layers($handle, output => $mode eq '>&');
    open $handle, $mode, $from or die "cannot redirect: $!\n";
    binmode $handle, join '', map { ":$_" } @extra if @extra;
}

# Reopens DATA in this child. Otherwise all children would share one read position in the script's
# file.
sub reopen_data {
    no strict 'refs';
    my @handles = grep { defined fileno $_ } grep { *{$_}{IO} }
        map { \*{"${_}DATA"} } 'main::', grep { /::\z/ && $_ ne 'main::' } keys %main::;
    for my $handle (@handles) {
        my $at = tell $handle;
        my @extra = PerlIO::get_layers($handle);
        open my $own_data, '<', '/proc/self/fd/' . fileno $handle or next;
        seek $own_data, $at, 0;
        binmode $own_data, ":$_" for grep { !/^(?:unix|perlio)$/ } @extra;
        *$handle = *{$own_data}{IO};
    }
}

1;
