package Shop;
use Dancer2;

set logger => 'console';
set log => 'error';
get '/' => sub { 'Dancer at ' . uri_for('/x') };
get '/hello/:name' => sub { 'Hello ' . route_parameters->get('name') . '!' };
post '/form' => sub { 'got ' . body_parameters->get('a') };
get '/stream' => sub { delayed { flush; content 'one '; content 'two'; done } };
__PACKAGE__->to_app;
