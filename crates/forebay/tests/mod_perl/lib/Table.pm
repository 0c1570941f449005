# The handler of the table: the last part of the path names a function of Table::Row. The same file
# runs under Forebay and under Apache with mod_perl.
package Table;

use strict;
use warnings;

use Apache2::Access ();
use Apache2::Connection ();
use Apache2::Const -compile => qw(OK DECLINED DONE NOT_FOUND FORBIDDEN REDIRECT :http :methods);
use Apache2::Log ();
use Apache2::RequestIO ();
use Apache2::RequestRec ();
use Apache2::RequestUtil ();
use Apache2::Response ();
use Apache2::ServerRec ();
use Apache2::ServerUtil ();
use Apache2::SubRequest ();
use APR::Const -compile => qw(SUCCESS ENOENT :table :finfo);
use APR::Pool ();
use APR::Table ();
use ModPerl::Util ();

our %count;
our $loaded_under = $ENV{MOD_PERL} // 'nothing';

sub handler {
    my ($r) = @_;
    my ($name) = $r->uri =~ m{/([\w-]+)\z};
    $name =~ tr/-/_/;
    my $code = Table::Row->can($name) or return Apache2::Const::NOT_FOUND;
    return $code->($r);
}

sub shown {
    return join ',', map { !defined $_ ? 'undef' : ref $_ eq 'ARRAY' ? '[' . shown(@$_) . ']' : "($_)" } @_;
}

package Table::Row;

# Says if the request before this one is still there, although it has registered cleanups.
sub freed {
    my ($r) = @_;
    our $last;
    my $is_kept = defined $last ? 1 : 0;
    $last = $r;
    require Scalar::Util;
    Scalar::Util::weaken($last);
    $r->pnotes(request => $r);
    $r->pool->cleanup_register(sub { 1 });
    $r->print("kept $is_kept\n");
    return Apache2::Const::OK;
}

use strict;
use warnings;

*shown = \&Table::shown;

sub plain {
    my ($r) = @_;
    $r->content_type('text/plain');
    $r->print("a", "b", 3, "\n");
    $r->puts("puts\n");
    $r->printf("%03d|%s\n", 7, 'x');
    return Apache2::Const::OK;
}

sub printed {
    my ($r) = @_;
    $r->content_type('text/plain');
    print "one ", "two\n";
    printf "%s-%d\n", 'three', 4;
    { local $, = ','; local $\ = "!\n"; print 'a', 'b'; }
    return 0;
}

sub no_type { $_[0]->print('x'); return 0 }

sub returns {
    my ($r) = @_;
    my ($code) = ($r->args // '') =~ /(-?\w+)/;
    $r->content_type('text/plain');
    return $code eq 'undef' ? undef : $code eq 'text' ? do { no warnings; 'text' } : $code;
}

sub returns_after_output {
    my ($r) = @_;
    $r->content_type('text/plain');
    $r->print('said');
    return $r->args;
}

sub status {
    my ($r) = @_;
    $r->content_type('text/plain');
    my $before = $r->status($r->args);
    $r->print("before $before, now ", $r->status, "\n");
    return 0;
}

sub status_line {
    my ($r) = @_;
    $r->content_type('text/plain');
    $r->status(404);
    $r->status_line('404 Nothing Here');
    $r->print($r->status_line);
    return 0;
}

sub headers {
    my ($r) = @_;
    $r->content_type('text/plain; charset=utf-8');
    $r->headers_out->set('X-One' => 1);
    $r->headers_out->add('X-Two' => 'a');
    $r->headers_out->add('X-Two' => 'b');
    $r->err_headers_out->add('X-Err' => 'e');
    $r->err_headers_out->add('Set-Cookie' => 'a=1');
    $r->err_headers_out->add('Set-Cookie' => 'b=2');
    $r->headers_out->{'X-Tied'} = 'tied';
    $r->headers_out->merge('X-One' => 2);
    $r->content_encoding('x-none');
    $r->content_languages(['de', 'fr']);
    $r->set_content_length(2);
    $r->print('ok');
    return 0;
}

sub error_headers {
    my ($r) = @_;
    $r->headers_out->set('X-One' => 'lost');
    $r->err_headers_out->set('X-Err' => 'kept');
    $r->headers_out->set('Location' => '/elsewhere');
    return $r->args;
}

sub redirect {
    my ($r) = @_;
    $r->headers_out->set(Location => 'http://example.org/there?a=1');
    return Apache2::Const::REDIRECT;
}

sub redirect_by_status {
    my ($r) = @_;
    $r->headers_out->set(Location => '/there');
    $r->status(302);
    $r->content_type('text/html');
    $r->print('there');
    return 0;
}

sub request {
    my ($r) = @_;
    $r->content_type('text/plain');
    print "$_=", shown($r->$_), "\n" for qw(method method_number uri unparsed_uri args protocol proto_num
        the_request hostname header_only status location path_info main prev next is_initial_req
        assbackwards user ap_auth_type auth_name content_encoding
        document_root_end);
    print 'type=', shown($r->content_type), "\n";
    print 'filename=', shown($r->filename =~ m{([^/]*/[^/]*)\z}), "\n";
    print 'list of args=', shown(my @args = $r->args), "\n";
    print 'in=', shown(map { $r->headers_in->get($_) } qw(host X-THING x-many cookie absent)), "\n";
    print 'class=', ref $r, ' ', ref $r->pool, ' ', ref $r->server, ' ', ref $r->connection, ' ',
        ref $r->headers_in, ' ', ref $r->log, "\n";
    return 0;
}

sub Apache2::RequestRec::document_root_end { $_[0]->document_root =~ m{/([^/]*)\z} ? 'docs' : '' }

sub environment {
    my ($r) = @_;
    $r->content_type('text/plain');
    print "$_=", shown($ENV{$_}), "\n" for qw(REQUEST_METHOD QUERY_STRING SCRIPT_NAME PATH_INFO
        REQUEST_URI SERVER_PROTOCOL HTTP_HOST HTTP_X_THING CONTENT_TYPE CONTENT_LENGTH
        GATEWAY_INTERFACE MOD_PERL_API_VERSION REMOTE_USER HTTPS);
    print 'mod_perl=', $ENV{MOD_PERL} =~ m{\Amod_perl/2}, $Table::loaded_under =~ m{\Amod_perl/2}, "\n";
    print 'table=', shown($r->subprocess_env('REQUEST_METHOD'), $r->subprocess_env->get('query_string')), "\n";
    $r->subprocess_env(MINE => 'x');
    print 'mine=', shown($r->subprocess_env('MINE')), "\n";
    return 0;
}

sub body {
    my ($r) = @_;
    $r->content_type('text/plain');
    my $all = '';
    while (my $got = $r->read(my $part, 1000)) { $all .= $part }
    print length $all, ' ', unpack('%32C*', $all), ' ', $r->headers_in->get('Content-Length') // 'none', "\n";
    return 0;
}

sub body_offset {
    my ($r) = @_;
    $r->content_type('text/plain');
    my $text = 'xyz';
    my @got = ($r->read($text, 3, 5), $r->read($text, 2, -1));
    $text =~ tr/\0/./;
    print shown(@got, $text), "\n";
    return 0;
}

sub body_stdin {
    my ($r) = @_;
    $r->content_type('text/plain');
    my $line = <STDIN>;
    my $got = read STDIN, my $rest, 10;
    print shown($line, $got, $rest), "\n";
    return 0;
}

sub body_unread { $_[0]->content_type('text/plain'); $_[0]->print('unread'); return 0 }

sub body_discarded {
    my ($r) = @_;
    $r->content_type('text/plain');
    print shown($r->discard_request_body, $r->read(my $rest, 10)), "\n";
    return 0;
}

sub table {
    my ($r) = @_;
    $r->content_type('text/plain');
    my $t = APR::Table::make($r->pool, 10);
    $t->set(One => 1);
    $t->add(one => 2);
    $t->add(Two => 'b');
    $t->add(ONE => 3);
    print shown($t->get('one'), scalar $t->get('ONE'), $t->get('none'), scalar $t->get('none')), "\n";
    while (my ($name, $value) = each %$t) { print "each $name=$value\n" }
    print 'keys ', join(' ', keys %$t), "\n";
    print 'values ', join(' ', values %$t), ' all ', join(' ', %$t), "\n";
    print "by name $t->{one} ", shown($t->{1}), "\n";
    print 'exists ', shown(exists $t->{two}, exists $t->{three}), "\n";
    $t->do(sub { print "do $_[0]=$_[1]\n"; 1 });
    $t->do(sub { print "first $_[0]=$_[1]\n"; 0 });
    $t->do(sub { print "only $_[0]=$_[1]\n"; 1 }, 'TWO');
    my $copy = $t->copy($r->pool);
    $t->merge(one => 'm');
    print shown($t->get('one')), "\n";
    $t->set(oNe => 'x');
    print shown($t->get('one')), "\n";
    delete $t->{ONE};
    print join(' ', %$t), "\n";
    $t->clear;
    print scalar(keys %$t), "\n";
    my $other = APR::Table::make($r->pool, 2);
    $other->add(Two => 'o');
    $other->add(Four => 4);
    my $overlay = $copy->overlay($other, $r->pool);
    $overlay->do(sub { print "overlay $_[0]=$_[1]\n"; 1 });
    $copy->overlap($other, APR::Const::OVERLAP_TABLES_MERGE());
    print join(' ', map { "$_=" . join '|', $copy->get($_) } sort keys %$copy), "\n";
    return 0;
}

sub compressed {
    my ($r) = @_;
    $r->content_type('text/plain');
    require APR::Const;
    APR::Const->import(-compile => ':table');
    for my $way (APR::Const::OVERLAP_TABLES_SET(), APR::Const::OVERLAP_TABLES_MERGE()) {
        my $t = APR::Table::make($r->pool, 4);
        $t->add(a => 1);
        $t->add(b => 2);
        $t->add(A => 3);
        $t->compress($way);
        $t->do(sub { print "$way $_[0]=$_[1]\n"; 1 });
    }
    return 0;
}

sub notes {
    my ($r) = @_;
    $r->content_type('text/plain');
    $r->notes->set(a => 1);
    $r->notes->add(b => 'x');
    $r->pnotes(data => { list => [1, 2] });
    $r->pnotes->{more} = 5;
    print shown($r->notes->get('A'), $r->pnotes('data')->{list}, $r->pnotes('more'), $r->pnotes('none')), "\n";
    print join(' ', sort keys %{ $r->pnotes }), "\n";
    return 0;
}

sub settings {
    my ($r) = @_;
    $r->content_type('text/plain');
    print shown($r->dir_config('Color'), $r->dir_config('color'), $r->dir_config('None')), "\n";
    print shown($r->dir_config->get('List')), ' ', shown(scalar $r->dir_config->get('List')), "\n";
    print ref $r->dir_config, ' ', exists $r->dir_config->{Color} ? 'there' : 'not', "\n";
    return 0;
}

sub globals {
    my ($r) = @_;
    $r->content_type('text/plain');
    print shown(Apache2::RequestUtil->request->uri eq $r->uri, Apache2::RequestUtil->request->args), "\n";
    return 0;
}

sub exits {
    my ($r) = @_;
    $r->content_type('text/plain');
    print "before\n";
    exit 3;
}

sub exits_in_eval {
    my ($r) = @_;
    $r->content_type('text/plain');
    eval { print "in\n"; exit };
    print 'after ', ref $@, ' ', $@ == 120000 ? 'exit' : 'other', "\n";
    ModPerl::Util::exit();
}

sub dies { die "a reason to die\n" }

sub dies_with_object { die bless { secret => 'of the program' }, 'Table::Error' }

sub dies_after_output {
    my ($r) = @_;
    $r->content_type('text/plain');
    print 'said';
    die "a late reason\n";
}

sub custom_text {
    my ($r) = @_;
    $r->custom_response(403, 'none of your business');
    return 403;
}

sub custom_url {
    my ($r) = @_;
    $r->custom_response(Apache2::Const::HTTP_FORBIDDEN, 'http://example.org/login');
    return 403;
}

sub custom_path {
    my ($r) = @_;
    $r->pnotes(kept => 'k');
    $r->notes->set(why => 'because');
    $r->err_headers_out->add('Set-Cookie' => 'c=1');
    $r->custom_response(403, '/t/error-page?x=1');
    return 403;
}

sub error_page {
    my ($r) = @_;
    $r->content_type('text/plain');
    print 'page ', shown($r->args, $r->prev ? ($r->prev->uri, $r->prev->status, $r->prev->args) : 'no prev'), "\n";
    print shown($r->status, $ENV{REDIRECT_STATUS}, $ENV{REDIRECT_URL}, $ENV{REDIRECT_QUERY_STRING}), "\n";
    print shown($r->method, $r->is_initial_req), "\n";
    return 0;
}

sub custom_loop {
    my ($r) = @_;
    $r->custom_response(403, '/t/custom-loop');
    return 403;
}

sub internal {
    my ($r) = @_;
    $r->internal_redirect('/t/target?of=' . $r->args);
    return 0;
}

sub internal_dots {
    my ($r) = @_;
    $r->internal_redirect('/t/a/%2e%2e/./target?of=' . $r->args);
    return 0;
}

sub target {
    my ($r) = @_;
    $r->content_type('text/plain');
    print 'target ', shown($r->args, $r->uri, $r->prev ? $r->prev->uri : 'none', $r->is_initial_req), "\n";
    return 0;
}

sub internal_loop {
    my ($r) = @_;
    $r->internal_redirect('/t/internal-loop');
    return 0;
}

sub handlers {
    my ($r) = @_;
    $r->content_type('text/plain');
    print shown(scalar @{ $r->get_handlers('PerlResponseHandler') || [] }, ref($r->get_handlers('PerlResponseHandler') || '')), "\n";
    $r->push_handlers(PerlResponseHandler => sub { $_[0]->print("pushed\n"); return Apache2::Const::OK });
    $r->push_handlers(PerlCleanupHandler => sub { $Table::count{cleanup}++; return 0 });
    return Apache2::Const::DECLINED;
}

sub counts {
    my ($r) = @_;
    $r->content_type('text/plain');
    print join(' ', map { "$_=$Table::count{$_}" } sort keys %Table::count), "\n";
    return 0;
}

sub pool {
    my ($r) = @_;
    $r->content_type('text/plain');
    my $order = $Table::count{order} = '';
    $r->pool->cleanup_register(sub { $Table::count{order} .= $_[0] }, $_) for 1 .. 3;
    print 'registered';
    return 0;
}

sub destroyed {
    my ($r) = @_;
    $r->content_type('text/plain');
    $r->pnotes(object => bless [], 'Table::Counted');
    print 'kept';
    return 0;
}

sub Table::Counted::DESTROY { $Table::count{destroyed}++ }

sub wide {
    my ($r) = @_;
    $r->content_type('text/plain; charset=utf-8');
    print "\x{263a}\n";
    my $latin = "\xe9";
    utf8::upgrade($latin);
    print $latin, "\n";
    print "\xe9\n";
    return 0;
}

sub flushed {
    my ($r) = @_;
    $r->content_type('text/plain');
    $r->print('one ');
    $r->rflush;
    { local $| = 1; print 'two '; }
    print 'three';
    return 0;
}

sub large {
    my ($r) = @_;
    $r->content_type('text/plain');
    $r->print('x' x 1000, "\n") for 1 .. 300;
    return 0;
}

sub large_fields {
    my ($r) = @_;
    $r->content_type('text/plain');
    $r->headers_out->set('X-Large' => 'y' x $r->args);
    print 'large';
    return 0;
}

sub sends_file {
    my ($r) = @_;
    $r->content_type('text/plain');
    my $file = $r->document_root . '/file.txt';
    print shown($r->sendfile($file)), "\n";
    print shown($r->sendfile($file, 2, 3)), "\n";
    print shown($r->sendfile('/no/such/file')), "\n";
    print eval { $r->sendfile('/no/such/file'); 1 } ? 'sent' : ref $@, "\n";
    return 0;
}

sub not_modified {
    my ($r) = @_;
    $r->content_type('text/plain');
    $r->headers_out->set(ETag => '"abc"');
    $r->update_mtime(1_000_000_000);
    $r->set_last_modified;
    my $status = $r->meets_conditions;
    return $status if $status != Apache2::Const::OK;
    print 'whole';
    return 0;
}

sub no_cache {
    my ($r) = @_;
    $r->content_type('text/plain');
    print shown($r->no_cache(1)), "\n";
    return 0;
}

sub cgi_header {
    my ($r) = @_;
    my $head = ("Status: 404 Gone Away\r\nContent-type: text/x-own\r\nX-Own: 1\r\n\r\nrest");
    $r->send_cgi_header($head);
    print ' more';
    return 0;
}

sub cgi_location {
    my ($r) = @_;
    my $head = "Location: http://example.org/x\n\n";
    $r->send_cgi_header($head);
    return 0;
}

sub constants {
    my ($r) = @_;
    $r->content_type('text/plain');
    no strict 'refs';
    print join(' ', map { "$_=" . &{"Apache2::Const::$_"}() } qw(OK DECLINED DONE NOT_FOUND FORBIDDEN
        REDIRECT HTTP_OK HTTP_CREATED HTTP_UNAUTHORIZED M_GET M_POST M_OPTIONS)), "\n";
    print eval { Apache2::Const->import('NO_SUCH'); 1 } ? 'imported' : 'died', "\n";
    print eval 'package Table::Import; Apache2::Const->import(qw(:common)); FORBIDDEN()', "\n";
    return 0;
}

sub server {
    my ($r) = @_;
    $r->content_type('text/plain');
    my $s = Apache2::ServerUtil->server;
    print shown(ref $s, $s->is_virtual, ref $s->process), "\n";
    print shown($r->get_server_port > 0, ref $s->log, Apache2::ServerUtil::restart_count() > 0), "\n";
    return 0;
}

sub connection {
    my ($r) = @_;
    $r->content_type('text/plain');
    my $c = $r->connection;
    print shown($c->client_ip, $c->local_ip, $c->remote_host, $c->aborted), "\n";
    $c->client_ip('192.0.2.7');
    print shown($c->client_ip, $r->connection->client_ip), "\n";
    $c->notes->set(a => 1);
    print shown($r->connection->notes->get('a')), "\n";
    return 0;
}

sub logs {
    my ($r) = @_;
    $r->content_type('text/plain');
    $r->log_error('logged by log_error');
    $r->log->error('logged by', ' error');
    $r->log->warn('logged by warn');
    $r->server->log_error('logged by the server');
    $r->log_reason('logged by reason', '/a/file');
    warn "logged by Perl\n";
    print 'logged';
    return 0;
}

sub subclass {
    my ($r) = @_;
    my $own = Table::Request->new($r);
    $own->content_type('text/plain');
    $own->print(ref $own, ' ', $own->own, ' ', $own->uri, "\n");
    return 0;
}

package Table::Request;
our @ISA = 'Apache2::RequestRec';
sub new { bless { r => $_[1] }, $_[0] }
sub own { 'own' }

package Table::Row;

sub allowed {
    my ($r) = @_;
    $r->allow_methods(1, qw(GET PUT));
    return Apache2::Const::HTTP_METHOD_NOT_ALLOWED;
}

sub header_parsed_late {
    my ($r) = @_;
    $r->content_type('text/plain');
    $r->print('head');
    $r->rflush;
    $r->headers_out->set('X-Late' => 1);
    return 0;
}

# Leaves what it can of a visitor's secret, and ends in the way of the query.
sub spoil {
    my ($r) = @_;
    my $secret = $r->headers_in->get('Cookie');
    my $way = $r->args // '';
    $r->content_type('text/plain');
    $r->user($secret);
    $r->pnotes(secret => $secret);
    $r->notes->set(secret => $secret);
    $r->subprocess_env(SECRET => $secret);
    $r->dir_config->set(Color => $secret);
    $r->custom_response(403, $secret);
    $r->headers_out->set('X-One' => $secret);
    $r->err_headers_out->set('X-Err' => $secret);
    $r->connection->notes->set(secret => $secret);
    $r->connection->pnotes(secret => $secret);
    $r->push_handlers(PerlResponseHandler => sub { $_[0]->print($secret); 0 });
    $r->push_handlers(PerlFixupHandler => sub { die $secret });
    $ENV{SECRET} = $ENV{HTTP_COOKIE} = $ENV{REMOTE_USER} = $secret;
    $ENV{PATH} .= ':' . $secret;
    ($/, $\, $,, $|, @ARGV) = ($secret, $secret, $secret, 1, $secret);
    $" = $; = $secret;
    $SIG{__WARN__} = $SIG{__DIE__} = sub { };
    $SIG{USR1} = sub { };
    umask 0;
    chdir '/';
    $0 = $secret;
    $@ = $secret;
    if ($way eq 'die') { die "dies\n" }
    print STDOUT 'spoiled';
    if ($way eq 'exit') { exit 1 }
    if ($way eq 'stream') { $r->rflush; $r->print('more'); $r->rflush }
    if ($way eq 'alarm') { $SIG{ALRM} = 'DEFAULT'; alarm 1 }
    select STDERR;
    return 0;
}

sub remains {
    my ($r) = @_;
    $r->content_type('text/plain');
    sleep 2 if ($r->args // '') eq 'later';
    require Cwd;
    $r->print(join "\n", map { defined $_ ? $_ : 'undef' } $r->user, %{ $r->pnotes },
        $r->notes->get('secret'), $r->dir_config('Color'), $r->connection->notes->get('secret'),
        %{ $r->connection->pnotes }, $ENV{SECRET}, $ENV{HTTP_COOKIE}, $ENV{REMOTE_USER},
        $ENV{HTTP_AUTHORIZATION}, $ENV{PATH}, $r->headers_in->get('Authorization'),
        $/, $\, $,, $|, "@ARGV", $", $;, $@, umask, Cwd::getcwd(), $0,
        (map { $SIG{$_} } qw(ALRM USR1 __WARN__ __DIE__)), scalar @{ $r->get_handlers('PerlFixupHandler') || [] });
    print "\nto standard output\n";
    return 0;
}

my $kept;

sub bad {
    my ($r) = @_;
    my $way = $r->args;
    $r->content_type('text/plain');
    die "\x{263a}\n" if $way eq 'dies-with-wide-text';
    return bless {}, 'Table::Nothing' if $way eq 'returns-object';
    return (1, 2, 0) if $way eq 'returns-list';
    $r->headers_out->set('X-One' => "a\r\nX-Two: b") if $way eq 'head-with-line-break';
    $r->headers_out->set("X-One\r\nX-Two" => 'b') if $way eq 'name-with-line-break';
    $r->no_such_method if $way eq 'no-such-method';
    if ($way eq 'traces') {
        require Carp;
        my $trace = Carp::longmess('');
        die $trace if $trace !~ /Forebay::Host::serve\("t", \d+\)/;
    }
    close STDOUT if $way eq 'closes-output';
    close STDIN if $way eq 'closes-input';
    $r->read(my $text, -5) if $way eq 'reads-negative';
    $r->internal_redirect('/t/bad?recursion') if $way eq 'recursion';
    if ($way eq 'late') { $kept = $r; return 0 }
    if ($way eq 'late-again') { eval { $kept->print('late'); $kept->rflush; $kept->pnotes(a => 1) } }
    return 7_000_000_000 if $way eq 'huge-status';
    APR::Table::get({}, 'x') if $way eq 'table-misuse';
    $r->push_handlers(PerlNoSuchHandler => sub { 0 }) if $way eq 'unknown-phase';
    if ($way eq 'forks') { my $child = fork; if (!$child) { exit 0 } waitpid $child, 0 }
    require Apache2::SubProcess if $way eq 'missing-module';
    if ($way eq 'dies-while-streaming') { $r->print('part'); $r->rflush; die "in the middle\n" }
    print 'fine';
    return 0;
}

sub leftovers {
    my ($r) = @_;
    $r->content_type('text/plain');
    print shown($ENV{LEFT}, $/ eq "\n" ? 1 : 0, $\, $,, $|, scalar @ARGV, defined $SIG{ALRM} ? 1 : 0), "\n";
    return 0;
}


# ---- addresses, files, small functions ----

use Apache2::SubRequest ();
use Apache2::URI ();
use Apache2::Util ();
use APR::Base64 ();
use APR::Date ();
use APR::Finfo ();
use APR::String ();
use APR::URI ();
use APR::Util ();
use APR::UUID ();

sub addresses {
    my ($r) = @_;
    $r->content_type('text/plain');
    my $uri = $r->parsed_uri;
    print join(' ', map { "$_=" . shown($uri->$_) } qw(scheme user password hostname path query fragment rpath)), "\n";
    for my $text ('http://u:p@example.org:8080/a/b?c=d#e', '/only/path?q', 'https://example.org/', 'http://[::1]:1/x') {
        my $u = APR::URI->parse($r->pool, $text);
        print join(' ', map { "$_=" . shown($u->$_) } qw(scheme user password hostname port path query fragment hostinfo)),
            ' ', $u->unparse, "\n";
        $u->path('/new');
        print $u->unparse, "\n";
    }
    print shown(Apache2::URI::unescape_url(my $copy = 'a%20b%2Fc')), "\n";
    print shown(map { Apache2::Util::escape_path($_, $r->pool) } 'a b/c?d', 'x:y', "\xe9%"), "\n";
    print shown(APR::URI::port_of_scheme('https')), "\n";
    return 0;
}

sub constructed {
    my ($r) = @_;
    $r->content_type('text/plain');
    (my $url = $r->construct_url('/x?y')) =~ s/:\d+//;
    print "$url\n";
    return 0;
}

sub functions {
    my ($r) = @_;
    $r->content_type('text/plain');
    print APR::Base64::encode("a\0b\xff"), ' ', APR::Base64::decode('YQBi'), "\n";
    print APR::Date::parse_http('Sun, 09 Sep 2001 01:46:40 GMT'), ' ', APR::Date::parse_http('nonsense'), "\n";
    print Apache2::Util::ht_time($r->pool, 1_000_000_000), '|', Apache2::Util::ht_time($r->pool, 0, '%Y-%m-%d', 1), "\n";
    print join('|', map { APR::String::format_size($_) } 0, 42, 972, 973, 1023, 1024, 9999, 123456, 1048576, 5e9), "\n";
    my $uuid = APR::UUID->new->format;
    print $uuid =~ /\A[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\z/ ? 'uuid' : $uuid, ' ', APR::UUID->parse('01234567-89ab-cdef-0123-456789abcdef')->format, "\n";
    print shown(APR::Util::password_validate('one', '{SHA}/hUvrdLxrVNSAqF9ouJ9xUcDvG8=') ? 1 : 0,
        APR::Util::password_validate('two', 'xx') ? 1 : 0), "\n";
    my $finfo = APR::Finfo::stat($r->document_root . '/file.txt', APR::Const::FINFO_NORM(), $r->pool);
    print shown($finfo->size, $finfo->filetype), "\n";
    print eval { APR::Finfo::stat('/no/such/file', APR::Const::FINFO_NORM(), $r->pool); 1 } ? 'found' : ref $@, "\n";
    return 0;
}

sub subrequests {
    my ($r) = @_;
    $r->content_type('text/plain');
    my $sub = $r->lookup_uri('/t/target?sub=1');
    print 'looked up ', shown($sub->uri, $sub->args, $sub->status, $sub->main ? 'main' : 'none', $sub->is_initial_req), "\n";
    print 'ran ', shown($sub->run), "\n";
    my $file = $r->lookup_file($r->document_root . '/file.txt');
    print shown($file->status, $file->filename =~ m{([^/]+)\z}, $file->content_type), "\n";
    return 0;
}

# ---- CGI.pm ----

sub cgi {
    my ($r) = @_;
    require CGI;
    my $q = CGI->new($r);
    print $q->header(-type => 'text/plain', -charset => 'utf-8', -cookie => $q->cookie(-name => 'n', -value => 'v'), -x_own => 1);
    print join('|', map { "$_=" . join ',', $q->multi_param($_) } sort $q->param), "\n";
    print join(' ', $q->request_method, $q->cookie('c') // 'none', $q->script_name), "\n";
    return 0;
}

sub cgi_redirect {
    my ($r) = @_;
    require CGI;
    my $q = CGI->new($r);
    print $q->redirect('http://example.org/next');
    return 0;
}

1;
