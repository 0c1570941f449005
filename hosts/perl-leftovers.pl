# The part of the host that finds what a script has left: processes that can write to the client,
# threads, timers, text in buffers, layers. It follows perl-cgi.pl, whose variables it uses.

my $MOST_SEARCHES = 8;                         # for processes that can write to the client
my $changes = 0;                               # descriptors and processes lost during a search
my $flushes = 0;                               # number of requests, for drop_layers
my @nothing;

# Cancels the two timers that count processor time, because their signals end the process. The third
# timer is cancelled by `alarm 0`.
sub stop_timers {
    defined &set_timer && set_timer($_, 0) for 1, 2;    # ITIMER_VIRTUAL, ITIMER_PROF
    $timed = 0;
}

# Returns true if a thread that a script has started still runs, or if that cannot be known.
sub has_threads {
    opendir my $tasks, '/proc/self/task' or return 1;
    return 1 < grep { /\d/ } readdir $tasks;
}

# Reaps children. Looks for processes of scripts that still have the output socket, because they
# could write to the client of a later request. Returns 0 if there is none. Returns 1 if a process
# has the socket as descriptor 1. Returns 2 if a process has the socket as another descriptor, or if
# that cannot be known. Processes in `%$own` belong to this host.
#
# A process may fork and end during a search. Its child then becomes a child of this process, and
# the next search sees it. Each search looks at a process before it lists the children of that
# process. So if two consecutive searches see the same processes, they have seen all of them.
sub background_writer {
    my ($own) = @_;
    # A handler would reap children during a search.
    $SIG{CHLD} = "DEFAULT" if defined $SIG{CHLD};
    my $before = '';
    for (1 .. $MOST_SEARCHES) {
        my $child;
        1 while ($child = waitpid -1, 1) > 0;    # WNOHANG
        return 0 if $child < 0;
        my ($found, $seen) = search_descendants($own);
        return $found if $found;
        return 0 if $seen eq $before;
        $before = $seen;
    }
    return 2;
}

# Looks at all descendants once. Returns a number as background_writer does, and a text that lists
# the processes and their states.
sub search_descendants {
    my ($own) = @_;
    my $ours = readlink '/proc/self/fd/' . fileno $output or return 2;
    my $children = children_of("/proc/$$/task/$$/children") or return 2;
    my @left = grep { !$own->{$_} } @$children;
    return 1 if grep { (readlink("/proc/$_/fd/1") // '') eq $ours } @left;
    my $seen = '';
    while (defined(my $process = shift @left)) {
        my $state = state_of($process, $ours);
        return 2 if $state eq 'writes';
        $seen .= "$process $state,";
        push @left, map { @{ children_of($_) || [] } } glob "/proc/$process/task/*/children";
    }
    return (0, $seen);
}

sub children_of {
    my ($file) = @_;
    local $/ = "\n";
    open my $list, '<', $file or return undef;
    return [split ' ', <$list> // ''];
}

# Returns "writes" if a descriptor of the process is the socket `$ours`, or if that cannot be known.
# Otherwise returns a text, which changes if the process ends or closes descriptors between two
# searches.
sub state_of {
    my ($process, $ours) = @_;
    my $descriptors;
    if (!opendir $descriptors, "/proc/$process/fd") {
        local $/;
        open my $file, '<', "/proc/$process/stat" or return $IS_WANT{ $! + 0 } ? 'writes' : 'gone ' . ++$changes;
        return (<$file> // '') =~ /.*\) Z/s ? 'ended' : 'writes';    # a process of another user?
    }
    for (readdir $descriptors) {
        next if !/\d/;
        my $target = readlink("/proc/$process/fd/$_") // return 'changes ' . ++$changes;
        return 'writes' if $target eq $ours;
    }
    return 'runs';
}

# Writes the text that Perl's handles and their layers hold, and drops the layers that scripts have
# added. Returns false if this worker has to end.
sub flush_all {
    # Handles that scripts keep may hold text for this client. Before `exec` starts a program, Perl
    # flushes all its handles. Without a program, `exec` does nothing else.
    no warnings 'exec';
    CORE::exec @nothing;
    # A layer written in Perl prints its text to the layer below, but only when the handle is
    # closed. Other handles may have such layers, too, so the worker ends.
    if ($INC{'PerlIO/via.pm'}) {
        close STDOUT;
        return 0;
    }
    $! = 0;
    binmode STDOUT;    # drops layers, and writes the text that they hold
    CORE::exit(1) if $! && $! != $EINTR;    # a part of the text may be lost
    binmode STDIN;
    binmode STDERR;
    drop_layers() if !$script || $script->{layers} || !(++$flushes % 16);
    $| = 0 if $|;
    return 1;
}

# Drops all layers of the standard handles except unix and perlio; binmode alone leaves others. A
# check takes 17,000 instructions. So flush_all() checks only after scripts whose text names a
# layer, and after every 16th request, because modules may add layers, too.
sub drop_layers {
    for my $handle (\*STDIN, \*STDOUT, \*STDERR) {
        my $count = () = PerlIO::get_layers($handle, output => $handle != \*STDIN);
        next if $count == 2;
        binmode $handle, ':pop' for 3 .. $count;
        binmode $handle, ':perlio' if $count == 1;
    }
}

1;
