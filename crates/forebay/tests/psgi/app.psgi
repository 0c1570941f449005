# One application with a path for each thing that PSGI lets an application do. Core Perl only.
use strict;
use warnings;

# A body that is not a handle, and logs when it is closed.
package Lines {
    sub new { my ($class, @lines) = @_; return bless [@lines], $class }
    sub getline { my ($self) = @_; return shift @$self }
    sub close { print STDERR "lines closed\n" }
}

my @text = ('Content-Type', 'text/plain');
my $loaded = 0;
$loaded++;
my $calls = 0;

# Waits until the test opens the named pipe for writing and closes it.
sub wait_for { my ($name) = @_; open my $pipe, '<', "$ENV{WHERE}/$name" or die "$name: $!"; <$pipe> }

sub file { my ($name) = @_; open my $handle, '<', "$ENV{WHERE}/$name" or die "$name: $!"; return $handle }

my %answers = (
    '/pid' => sub { [200, [@text], [$$]] },
    '/calls' => sub { $calls++; [200, [@text], ["loaded $loaded, called $calls"]] },
    '/env' => sub {
        my ($env) = @_;
        my @lines = map { "$_=" . ($env->{$_} // 'undef') . "\n" } sort keys %$env;
        return [200, [@text], [@lines, "version @{ $env->{'psgi.version'} }\n"]];
    },
    '/echo' => sub {
        my ($env) = @_;
        my ($body, $input) = ('', $env->{'psgi.input'});
        1 while $input->read($body, 8192, length $body);
        seek $input, 0, 0;
        my $again = '';
        1 while read $input, $again, 8192, length $again;
        return [200, [@text, 'X-Length', $env->{CONTENT_LENGTH} // 'none'], [$again eq $body ? $body : 'no']];
    },
    '/pieces' => sub { [200, [@text, 'X-Two', 'a', 'X-Two', 'b'], ['a', '', 'b' x 10, "\n"]] },
    '/size' => sub { my ($env) = @_; [200, [@text], ['x' x $env->{QUERY_STRING}]] },
    '/file' => sub { my ($env) = @_; [200, [@text], file($env->{QUERY_STRING})] },
    '/rest-of-file' => sub {
        my ($env) = @_;
        my $handle = file($env->{QUERY_STRING});
        scalar <$handle>;
        return [200, [@text], $handle];
    },
    '/utf8-file' => sub {
        open my $handle, '<:encoding(latin1)', \"caf\xe9" or die;
        return [200, [@text], $handle];
    },
    '/lines' => sub { [200, [@text], Lines->new("one\n", '', "two\n")] },
    '/delayed' => sub { sub { $_[0]->([200, [@text], ['later']]) } },
    '/stream' => sub {
        sub {
            my $writer = $_[0]->([200, [@text]]);
            $writer->write('one');
            wait_for('go');
            $writer->write('two');
            $writer->close;
            wait_for('end');
        };
    },
    '/unclosed' => sub { sub { $_[0]->([200, [@text]])->write('all') } },
    '/chunked' => sub {
        sub {
            my $writer = $_[0]->([200, [@text, 'Transfer-Encoding', 'chunked']]);
            $writer->write($_) for "3\r\n", "abc\r", "\n2;x=y\r\nde\r\n0", "\r\n\r\n";
            $writer->close;
        };
    },
    '/hints' => sub {
        my ($env) = @_;
        $env->{'psgix.informational'}->(103, ['Link', '</a.css>; rel=preload', 'Link', '</b.js>']);
        return [200, [@text], ['hinted']];
    },
    '/upgrade' => sub {
        my ($env) = @_;
        my $io = $env->{'psgix.io'} or return [426, [@text], ['no socket']];
        return [200, [@text], ['not now']] if $env->{QUERY_STRING} eq 'decline';
        return sub {
            my ($head, $line) = ("HTTP/1.1 101 Switching Protocols\r\nUpgrade: echo\r\n", '');
            $head .= "X-Pid: $$\r\nConnection: upgrade\r\n\r\n";
            # Sends the head byte by byte, and each byte may arrive alone.
            for my $byte ($env->{QUERY_STRING} eq 'bytes' ? split //, $head : $head) {
                syswrite $io, $byte;
                select undef, undef, undef, 0.002 if length $byte == 1;
            }
            while (sysread $io, my $part, 100) {
                $line .= $part;
                syswrite $io, "echo $1\n" while $line =~ s/\A(.*)\n//;
                last if $line eq 'bye';
            }
            syswrite $io, 'gone';
        };
    },
    '/clean' => sub {
        push @{ $_[0]{'psgix.cleanup.handlers'} }, sub { };
        return [200, ['Content-Type' => 'text/plain'], ['clean']];
    },
    '/cleanup' => sub {
        my ($env) = @_;
        push @{ $env->{'psgix.cleanup.handlers'} }, sub { wait_for('go') }, sub { die "cleaned up\n" };
        return [200, [@text], [$$]];
    },
    '/harakiri' => sub { my ($env) = @_; $env->{'psgix.harakiri.commit'} = 1; [200, [@text], [$$]] },
    '/late-harakiri' => sub {
        my ($env) = @_;
        push @{ $env->{'psgix.cleanup.handlers'} }, sub { $_[0]{'psgix.harakiri.commit'} = 1 };
        return [200, [@text], [$$]];
    },
    '/status' => sub { my ($env) = @_; [$env->{QUERY_STRING}, [], []] },
    '/fields' => sub { [200, ['Status', '404', 'X-Empty', '', 'X-Undef', undef], ['ok']] },
    '/print' => sub { print "printed\n"; system 'echo', 'by a child'; [200, [@text], ['ok']] },
    '/die' => sub { die "for a reason\n" },
    '/die-object' => sub { die { a => 1 } },
    '/wide' => sub { [200, [@text], ["\x{263a}"]] },
    '/wide-stream' => sub { sub { my $w = $_[0]->([200, [@text]]); $w->write('a'); $w->write("\x{263a}") } },
    '/latin1' => sub { my $text = "caf\xe9"; utf8::upgrade($text); [200, [@text], [$text]] },
    '/break' => sub { [200, ['X-A', "b\r\nX-Injected: c"], ['no']] },
    '/nothing' => sub { undef },
    '/silent' => sub { sub { } },
    '/twice' => sub { sub { $_[0]->([200, [@text], ['once']]); $_[0]->([200, [@text], ['twice']]) } },
    # The child continues in the host as if it were the worker.
    '/fork' => sub { my $child = fork; waitpid $child, 0 if $child; [200, [@text], [$child ? 'parent' : 'child']] },
    '/fork-big' => sub { my $child = fork; waitpid $child, 0 if $child; [200, [@text], [($child ? 'p' : 'c') x 100_000]] },
    '/fork-stream' => sub {
        my $child = fork;
        waitpid $child, 0 if $child;
        return sub { my $w = $_[0]->([200, [@text]]); $w->write($child ? 'parent' : 'child'); $w->close };
    },
    '/exit' => sub { exit 3 },
    '/kill' => sub { kill 9, $$; sleep 10 },
    '/die-in-stream' => sub { sub { my $w = $_[0]->([200, [@text]]); $w->write('half'); die "half way\n" } },
    '/die-after' => sub { sub { my $w = $_[0]->([200, [@text]]); $w->write('all'); $w->close; die "too late\n" } },
);

sub {
    my ($env) = @_;
    my $answer = $answers{ $env->{PATH_INFO} }
        or return [404, [@text], ["$env->{SCRIPT_NAME} $env->{PATH_INFO}"]];
    return $answer->($env);
};
