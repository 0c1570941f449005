use Mojolicious::Lite -signatures;

app->secrets(['test']);
app->log->level('warn');
get '/' => sub ($c) { $c->render(text => 'Mojo at ' . $c->url_for('/x')) };
get '/hello/:name' => sub ($c) { $c->render(template => 'hello') };
post '/form' => sub ($c) { $c->render(json => { got => $c->param('a'), session => ++$c->session->{n} }) };
get '/stream' => sub ($c) {
    $c->write_chunk('one ', sub ($c, @) { $c->write_chunk('two', sub ($c, @) { $c->finish }) });
};
get '/die' => sub ($c) { die 'mojo died' };
app->start;

__DATA__

@@ hello.html.ep
Hello <%= $name %>!
