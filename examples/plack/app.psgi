# The application of a well-known benchmark of Plack: it reads one parameter and answers with 4,000
# bytes. An access log formats a line for each request and discards it.
use strict;
use warnings;
use Plack::Builder;
use Plack::Request;

my $body = 'x' x 4000;

builder {
    enable 'AccessLog', logger => sub { };
    sub {
        my $request = Plack::Request->new($_[0]);
        my $foo = $request->param('foo');
        my $response = $request->new_response(200);
        $response->content_type('text/plain');
        $response->header('X-Foo' => $foo);
        $response->body($body);
        return $response->finalize;
    };
};
