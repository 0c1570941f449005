#!/usr/bin/perl
# A small HTTP server with bad habits, for the tests of `forebay compare`.
#   server.pl PORT FOLDER [HABIT ...]
# Habits: daemonize (fork twice into a session of its own), stubborn (ignore SIGTERM),
#   children (keep two more processes), crash=N (die of SIGSEGV in the Nth request),
#   wrong (answer 500), mute (accept and never answer), exit=N (say so and end with N).
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
my $reply = "HTTP/1.1 $status\r\nContent-Length: " . length($body)
    . "\r\nConnection: close\r\n\r\n$body";
my $served = 0;
while (my $client = $listener->accept) {
    my $head = '';
    while (index($head, "\r\n\r\n") < 0) {
        sysread($client, $head, 4096, length $head) or last;
    }
    sleep 1 while $habit{mute};
    note('requests', '.');
    kill 'SEGV', $$ if $habit{crash} && ++$served == $habit{crash};
    syswrite $client, $reply;
    close $client;
}
