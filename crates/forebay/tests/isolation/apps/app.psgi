# The victim and the attacks of a PSGI application: the path names one.
use POSIX ();
my (@kept, %attacks);
my $plain = ['Content-Type', 'text/plain'];

%attacks = (
    victim => sub { [200, $plain, ["victim <$_[0]{QUERY_STRING}>\n"]] },
    # Writes to the writer of an earlier request.
    kept_writer => sub {
        my $nonce = $_[0]{QUERY_STRING};
        sub {
            eval { $_->write("kept <$nonce>\n") } for splice @kept;
            my $writer = $_[0]->([200, $plain]);
            $writer->write("begun <$nonce>\n");
            push @kept, $writer;
            $writer->close if $nonce % 2;
        };
    },
    # A child writes to its descriptor of the client.
    child => sub {
        my $nonce = $_[0]{QUERY_STRING};
        unless (fork) {
            select undef, undef, undef, 0.05;
            syswrite STDOUT, "late <$nonce>\n";
            POSIX::_exit(0);
        }
        [200, $plain, ["begun <$nonce>\n"]];
    },
    # A child continues the reply as if it were the worker.
    child_replies => sub {
        my $nonce = $_[0]{QUERY_STRING};
        my $child = fork;
        select undef, undef, undef, 0.05 unless $child;
        [200, $plain, ["begun <$nonce>\n"]];
    },
    background_job => sub {
        system qq{(sleep 0.05; printf 'late <$_[0]{QUERY_STRING}>\\n') &};
        [200, $plain, ["begun <$_[0]{QUERY_STRING}>\n"]];
    },
    dies => sub { die "for a reason\n" },
    ends => sub { exit },
    killed => sub { kill KILL => $$; [200, $plain, []] },
);

sub {
    my $env = shift;
    my ($name) = $env->{PATH_INFO} =~ m{(\w+)$};
    $attacks{$name}->($env);
};
