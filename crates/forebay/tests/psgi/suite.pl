# Runs the requests of Plack::Test::Suite against a server on the first port, which runs suite.psgi.
# SERVER_PORT must be the second port. Leaves out the cases that the other arguments name.
use strict;
use warnings;
use Plack::LWPish;
use Plack::Test::Suite;
use Test::More;

my ($port, $server_port, @skipped) = @ARGV;
my $client = Plack::LWPish->new(no_proxy => ['127.0.0.1']);
for my $index (0 .. $#Plack::Test::Suite::TEST) {
    my ($name, $ask) = @{ $Plack::Test::Suite::TEST[$index] };
    next if grep $_ eq $name, @skipped;
    subtest $name => sub {
        $ask->(sub {
            my ($request) = @_;
            $request->uri->port($port);
            $request->header('X-Plack-Test' => $index);
            my $response = $client->request($request);
            $request->uri->port($server_port);    # where a case looks for the expected port
            return $response;
        });
    };
}
done_testing;
