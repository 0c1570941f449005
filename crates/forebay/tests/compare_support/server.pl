#!/usr/bin/perl
# A small HTTP server with bad habits, for the tests of `forebay compare`.
#   server.pl PORT FOLDER [HABIT ...]
# Habits: daemonize (fork twice into a session of its own), stubborn (ignore SIGTERM),
#   children (keep two more processes), crash=N (die of SIGSEGV in the Nth request),
#   keep=S (serve one connection until it is idle for S seconds, and nobody else meanwhile),
#   slow=S (sleep S seconds in each request), wrong (answer 500), lies=N,M (another body in replies after the Nth, up to the Mth), mute (accept and never answer), exit=N (say so and end with N).
# Every process writes its id to FOLDER/pids, every request a byte to FOLDER/requests.
use strict;
use warnings;
use IO::Socket::INET;
use POSIX ();

my ($port, $folder, @habits) = @ARGV;
my %habit = map { my ($name, $value) = split /=/, $_, 2; ($name => $value // 1) } @habits;

sub note {
    my ($name, $text) = @_;
    open my $file, '>>', "$folder/$name" or die "$folder/$name: $!";
    syswrite $file, $text;
}

if ($habit{exit}) {
    print STDERR "cannot read the flux table\n";
    exit $habit{exit};
}
if ($habit{daemonize}) {
    exit 0 if fork;
    POSIX::setsid();
    exit 0 if fork;
}
$SIG{TERM} = 'IGNORE' if $habit{stubborn};
if ($habit{children}) {
    for (1 .. 2) {
        next if fork;
        note('pids', "$$\n");
        sleep 1 while 1;
    }
}
note('pids', "$$\n");

my $listener = IO::Socket::INET->new(
    LocalAddr => '127.0.0.1', LocalPort => $port, Listen => 64, ReuseAddr => 1)
    or die "cannot listen on $port: $!\n";
my $body = "Hello from $$\n";
my $status = $habit{wrong} ? '500 Internal Server Error' : '200 OK';
my $connection = $habit{keep} ? 'keep-alive' : 'close';
my $reply = "HTTP/1.1 $status\r\nContent-Length: " . length($body)
    . "\r\nConnection: $connection\r\n\r\n$body";
my $served = 0;

# Reads a head, and returns true. With keep=S, returns false if the connection ends, or is idle for S seconds.
sub head_came {
    my ($client) = @_;
    my $head = '';
    while (index($head, "\r\n\r\n") < 0) {
        if ($habit{keep}) {
            vec(my $wanted = '', fileno $client, 1) = 1;
            select($wanted, undef, undef, $habit{keep}) or return 0;
        }
        sysread($client, $head, 4096, length $head) or return !$habit{keep};
    }
    return 1;
}

while (my $client = $listener->accept) {
    while (head_came($client)) {
        sleep 1 while $habit{mute};
        note('requests', '.');
        kill 'SEGV', $$ if $habit{crash} && ++$served == $habit{crash};
        select undef, undef, undef, $habit{slow} if $habit{slow};
        my $sent = $reply;
        if ($habit{lies}) {
            my ($from, $to) = split /,/, $habit{lies};
            $sent =~ s/Hello/Hallo/ if ++$served > $from && $served <= $to;
        }
        syswrite $client, $sent;
        last unless $habit{keep};
    }
    close $client;
}
