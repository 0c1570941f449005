# Requests of mod_perl's tests, with the names that Apache::TestRequest has. It asks LWP, without the
# parts of Apache::Test that look for an httpd.
package Apache::TestRequest;

use strict;
use warnings;

use Apache::Test ();
use Exporter 'import';
use HTTP::Request::Common ();
use LWP::UserAgent ();

my @METHODS = qw(GET HEAD POST PUT);
our @EXPORT = ((map { ($_, "${_}_BODY", "${_}_BODY_ASSERT", "${_}_OK", "${_}_RC", "${_}_STR", "${_}_HEAD") } @METHODS),
    'OPTIONS', 'UPLOAD_BODY', 'UPLOAD_BODY_ASSERT');
our @EXPORT_OK = qw(same_interp_tie same_interp_do same_interp_skip_not_found);
our ($Module, $Scheme);
use constant INTERP_KEY => 'X-PerlInterpreter';
my $agent;

sub hostport { Apache::Test::vars('servername') . ':' . Apache::Test::vars('port') }
sub has_lwp { 1 }
sub install_http11 { 1 }
sub user_agent_keepalive { }
sub module { 'default' }
sub scheme { 'http' }
sub user_agent {
    my (%options) = @_;
    undef $agent if delete $options{reset} || %options;
    $options{requests_redirectable} = ['GET', 'HEAD', 'POST']
        if $options{requests_redirectable} && !ref $options{requests_redirectable};
    # As in Apache::TestRequest, all but POST is redirected.
    $options{requests_redirectable} = [] if exists $options{requests_redirectable} && !ref $options{requests_redirectable};
    $agent ||= LWP::UserAgent->new(requests_redirectable => ['GET', 'HEAD'], %options);
    return $agent;
}

sub resolve_url {
    my ($url) = @_;
    return $url if $url =~ m{\A\w+://};
    return 'http://' . hostport() . ($url =~ m{\A/} ? '' : '/') . $url;
}

sub module2url { my ($module, $options) = @_; (my $path = $module) =~ s/::/__/g; return resolve_url($options->{path} || "/$path") }
sub module2path { (my $path = $_[0]) =~ s/::/__/g; return $path }

sub request {
    my ($method, $url, @more) = @_;
    my (%own, @fields);
    while (@more) {
        my ($name, $value) = splice @more, 0, 2;
        if ($name =~ /\A(?:username|password|realm|redirect_ok|cert|cookie_jar)\z/) { $own{$name} = $value }
        elsif ($name eq 'content' && !ref $value) { push @fields, Content => $value }
        else { push @fields, $name => $value }
    }
    my $ua = user_agent();
    push @fields, Content_Type => 'application/x-www-form-urlencoded'
        if $method eq 'POST' && !grep { /\Acontent.type\z/i } @fields;
    my $request = HTTP::Request::Common->can($method)->(resolve_url($url), @fields);
    if (defined $own{username}) {
        my $realm = $own{realm} || 'realm';
        $ua = LWP::UserAgent->new(requests_redirectable => []);
        no warnings 'redefine';
        local *LWP::UserAgent::get_basic_credentials = sub { @own{qw(username password)} };
        return $ua->request($request);
    }
    local $ua->{requests_redirectable} = $own{redirect_ok} ? ['GET', 'HEAD', 'POST'] : [] if exists $own{redirect_ok};
    return $ua->request($request);
}

sub assert {
    my ($reply) = @_;
    return $reply->content if $reply->is_success;
    die 'the request has failed with status ' . $reply->code . "\n";
}

for my $method (@METHODS, 'OPTIONS') {
    no strict 'refs';
    *{$method} = sub { request($method, @_) };
    *{"${method}_BODY"} = sub { request($method, @_)->content };
    *{"${method}_BODY_ASSERT"} = sub { assert(request($method, @_)) };
    *{"${method}_OK"} = sub { request($method, @_)->is_success };
    *{"${method}_RC"} = sub { request($method, @_)->code };
    *{"${method}_STR"} = sub { request($method, @_)->as_string };
    *{"${method}_HEAD"} = sub {
        my $text = request($method, @_)->headers_as_string;
        $text =~ s/^/#/mg;
        return $text;
    };
}

sub UPLOAD_BODY {
    my ($url, %options) = @_;
    my @part = defined $options{filename} ? (filename => [$options{filename}])
        : (HTTPUPLOAD => [undef, 'text', Content => $options{content}]);
    return request('POST', $url, Content_Type => 'form-data', Content => \@part)->content;
}

{ no warnings 'once'; *UPLOAD_BODY_ASSERT = \&UPLOAD_BODY }

# Each application of the runner has one process.
sub same_interp_tie { 1 }
sub same_interp_do { my (undef, $do, @arguments) = @_; return $do->(@arguments) }
sub same_interp_skip_not_found { my ($skips, $received, $expected) = @_; return Apache::TestUtil::t_cmp($received, $expected) }

sub vhost_socket {
    require IO::Socket::INET;
    return IO::Socket::INET->new(hostport());
}

sub getline { my ($socket) = @_; return scalar <$socket> }

1;
