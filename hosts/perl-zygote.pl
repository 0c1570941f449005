# Loaded in front of a script that perl has been started with, in mode `fork`. When perl has compiled
# the script and would run it, this waits for requests instead and forks for each; only the child
# goes on, and so the script is perl's main program, with all that this means for exit, END blocks,
# __END__, the package and the #! line.
package Forebay::Zygote;

use strict;

# Descriptors: this file, the link to the worker, control, output; the worker; numbers of prctl and dup3.
our @given;
my ($code, $link_number, $control_number, $output_number, $own, $prctl, $dup3) = @given;
my %inherited = %ENV;
my ($link, $control, $output, $printed, $child_handler, %set, @deleted);
delete $INC{"/proc/self/fd/$code"};

# To be let go of before the script's BEGIN blocks start programs.
for ([\$link, $link_number], [\$control, $control_number], [\$output, $output_number]) {
    open ${ $_->[0] }, '+<&=', $_->[1] or die "cannot use descriptor $_->[1]: $!\n";
    fcntl ${ $_->[0] }, 2, 1;    # F_SETFD, FD_CLOEXEC
}
{ open my $loaded, '<&=', $code }    # and closed

INIT {
    kill KILL => $$ if $$ != $own;    # a child that a BEGIN block has forked and not ended
    alarm 0;
    prepare();
    syswrite $link, 'r';
    while (my ($environment, $part, $length) = receive()) {
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
    }
    kill KILL => $$ if $$ == $own;
}

# Sees to what the BEGIN blocks have left.
sub prepare {
    $child_handler = $SIG{CHLD};
    $SIG{CHLD} = 'DEFAULT';
    my $was = select STDOUT;
    my $unbuffered = $|;
    $| = 1;    # this flushes
    $| = $unbuffered;
    select $was;
    $printed = '';
    if (open my $file, '<', '/proc/self/fd/1') {
        local $/;
        $printed = <$file>;
    }
    # What they have set in the environment holds for each request, but for what a request brings.
    my $of_request = qr/^(?:HTTP|REMOTE|REQUEST|QUERY|CONTENT|PATH_INFO|PATH_TRANSLATED|SCRIPT|SERVER
        |DOCUMENT|GATEWAY|AUTH_TYPE)/x;
    %set = map { ($_ => $ENV{$_}) }
        grep { !/$of_request/ && (!exists $inherited{$_} || $inherited{$_} ne $ENV{$_}) } keys %ENV;
    @deleted = grep { !/$of_request/ && !exists $ENV{$_} } keys %inherited;
}

# The next request; nothing when the worker has ended or has no more use for this process.
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

# Makes this process, a child, what a new one would be that is about to run the script.
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
    %ENV = (%request, %set);
    delete @ENV{@deleted};
    body($part, $length) if $length;
    close $control;
    close $link;
    # `tell` has counted what was printed, and goes on where the handle stays what it was.
    if (!$dup3 || (fileno(STDOUT) // -1) != 1 || syscall($dup3, fileno $output, 1, 0) < 0) {
        reopen(\*STDOUT, '>&', $output);
    }
    close $output;
    syswrite STDOUT, $printed if length $printed;
    reopen_data();
    $^T = time;
    srand;
    $! = 0;
    $? = 0;
}

# Puts the body on descriptor 0: a small one in a pipe, a big one in a nameless temporary file.
sub body {
    my ($part, $length) = @_;
    my ($reader, $writer);
    my $fits = $length <= 65_536;
    if ($fits) {
        $part .= take($control, $length - length $part);
        pipe $reader, $writer or lost();
        fcntl $writer, 4, 0x801;    # F_SETFL, O_NONBLOCK | O_WRONLY: some pipes hold one page only
        $fits = (syswrite($writer, $part) || 0) == $length;
    }
    if (!$fits) {
        open $reader, '+>', undef or lost();
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

# The rest of the body would be the next request's head, so that the whole worker has to end.
sub lost {
    print STDERR "$0: cannot store the request body: $!\n";
    kill KILL => getppid, $$;
}

# Opens a standard handle anew, with the layers that it had.
sub reopen {
    my ($handle, $mode, $from) = @_;
    my (undef, undef, @extra) = PerlIO::get_layers($handle, output => $mode eq '>&');
    open $handle, $mode, $from or die "cannot redirect: $!\n";
    binmode $handle, join '', map { ":$_" } @extra if @extra;
}

# The children would share the place in the script's file up to which DATA has been read.
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
