# Handlers that decide about what others answer.
package Gate;

use strict;
use warnings;

use Apache2::Const -compile => qw(OK FORBIDDEN REDIRECT);
use Apache2::RequestIO ();
use Apache2::RequestRec ();
use Apache2::RequestUtil ();
use Apache2::Response ();
use APR::Table ();

sub refused { $_[0]->err_headers_out->add('Set-Cookie' => 'why=refused'); return Apache2::Const::FORBIDDEN }

sub moved {
    my ($r) = @_;
    $r->headers_out->set(Location => 'http://localhost/login?to=' . $r->uri);
    return Apache2::Const::REDIRECT;
}

sub answered {
    my ($r) = @_;
    $r->custom_response(Apache2::Const::FORBIDDEN, "a page of the gate's own\n");
    return Apache2::Const::FORBIDDEN;
}

sub dies { die "no decision\n" }

sub fields {
    my ($r) = @_;
    $r->headers_out->set('X-One' => 'one');
    $r->err_headers_out->add('Set-Cookie' => "seen=$_; path=/") for 1, 2;
    return Apache2::Const::OK;
}

# Passes the user's group on, and hides the session.
sub groups {
    my ($r) = @_;
    $r->headers_in->set('X-Group' => 'staff');
    my $cookie = $r->headers_in->get('Cookie') // '';
    $cookie =~ s/Members_Members=[^;]*;?\s*//;
    $r->headers_in->set(Cookie => $cookie);
    $r->headers_in->unset('X-Thing');
    return Apache2::Const::OK;
}

sub seen {
    my ($r) = @_;
    $r->content_type('text/plain');
    $r->print(join ' ', "user $ENV{REMOTE_USER}", map { "$_=" . ($r->headers_in->get($_) // 'none') } qw(Auth-User X-Group));
    return Apache2::Const::OK;
}

sub echo {
    my ($r) = @_;
    $r->content_type('text/plain');
    my $in = $r->headers_in;
    $r->print(join ' ', "user $ENV{REMOTE_USER}", map { "$_=" . ($in->get($_) // 'none') }
        qw(X-Group Cookie X-Thing X-Many));
    return Apache2::Const::OK;
}

1;
