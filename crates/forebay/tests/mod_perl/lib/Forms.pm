# libapreq2's API and CGI.pm, as handlers use them.
package Forms;

use strict;
use warnings;

use Apache2::Const -compile => qw(OK NOT_FOUND);
use Apache2::Cookie ();
use Apache2::Request ();
use Apache2::RequestIO ();
use Apache2::RequestRec ();
use Apache2::Upload ();
use APR::Request ();

sub handler {
    my ($r) = @_;
    my ($name) = $r->uri =~ m{/([\w-]+)\z};
    $name =~ tr/-/_/;
    my $code = Forms::Row->can($name) or return Apache2::Const::NOT_FOUND;
    return $code->($r);
}

package Forms::Row;

sub shown { join ',', map { defined $_ ? "($_)" : 'undef' } @_ }

sub params {
    my ($r) = @_;
    $r->content_type('text/plain');
    my $req = Apache2::Request->new($r);
    $req->print('names ', join(' ', $req->param), "\n");
    $req->print('a ', shown($req->param('a')), ' ', shown(scalar $req->param('a')), "\n");
    $req->print('none ', shown($req->param('none')), ' ', shown(scalar $req->param('none')), "\n");
    $req->print('body ', shown($req->body('a')), ' uri ', $req->uri, ' again ', shown(Apache2::Request->new($r)->param('a')), "\n");
    my $table = $req->param;
    $req->print(ref $table, ' ', join('|', map { "$_=" . join ',', $table->get($_) } sort keys %$table), "\n");
    return 0;
}

sub uploads {
    my ($r) = @_;
    $r->content_type('text/plain');
    my $req = Apache2::Request->new($r, TEMP_DIR => '/tmp');
    $r->print('text ', shown($req->param('text')), "\n");
    for my $name ($req->upload) {
        my $upload = $req->upload($name);
        my $size = $upload->slurp(my $content);
        $r->print(join(' ', $name, $upload->filename, $upload->type, $upload->size, $size, unpack('%32C*', $content)), "\n");
        my $handle = $upload->fh;
        my $first = <$handle>;
        $r->print('line ', length $first, ' name ', $upload->tempname =~ m{\A/tmp/apreq} ? 'temporary' : $upload->tempname, "\n");
    }
    return 0;
}

sub limited {
    my ($r) = @_;
    $r->content_type('text/plain');
    my $req = Apache2::Request->new($r, POST_MAX => 100);
    my $a = eval { $req->param('a') };
    my $error = $@;
    chomp $error;
    $r->print(shown($a), ' ', $error, ' ', $req->body_status ? 'refused' : 'read', "\n");
    return 0;
}

sub cookies {
    my ($r) = @_;
    $r->content_type('text/plain');
    my %cookies = Apache2::Cookie->fetch($r);
    $r->print(join(' ', map { "$_=" . $cookies{$_}->value } sort keys %cookies), "\n");
    my $jar = Apache2::Cookie::Jar->new($r);
    $r->print(join(' ', sort $jar->cookies), ' ', shown(map { $_->value } $jar->cookies('c')), "\n");
    my $cookie = Apache2::Cookie->new($r, -name => 'sid', -value => ['a b', 'c&d'], -path => '/shop',
        -domain => '.example.org', -secure => 1, -httponly => 1);
    $cookie->bake($r);
    $r->print("$cookie ", shown($cookie->value), "\n");
    my $soon = Apache2::Cookie->new($r, -name => 'e', -value => 'v', -expires => '+1h');
    $r->print($soon->as_string =~ /expires=\w{3}, \d\d-\w{3}-\d{4} \d\d:\d\d:\d\d GMT\z/ ? 'expires' : $soon->as_string, "\n");
    return 0;
}

1;
