# Runs the requests of Plack::Test::Suite against a server on the given port, which runs
# suite.psgi.
use strict;
use warnings;
use Plack::LWPish;
use Plack::Test::Suite;
use Test::More;

my ($port) = @ARGV;
my $client = Plack::LWPish->new(no_proxy => ['127.0.0.1']);
for my $index (0 .. $#Plack::Test::Suite::TEST) {
    my ($name, $ask) = @{ $Plack::Test::Suite::TEST[$index] };
    subtest $name => sub {
        $ask->(sub {
            my ($request) = @_;
            $request->uri->port($port);
            $request->header('X-Plack-Test' => $index);
            return $client->request($request);
        });
    };
}
done_testing;
