# Providers, which decide about lines of Require and about passwords.
package Rules;

use strict;
use warnings;

use Apache2::Access ();
use Apache2::Const -compile => qw(OK DECLINED FORBIDDEN HTTP_UNAUTHORIZED :authn_status :authz_status);
use Apache2::RequestIO ();
use Apache2::RequestRec ();
use APR::Table ();

# Grants to some users, once it is known who the client is.
sub staff {
    my ($class, $r, $rest) = @_;
    return Apache2::Const::AUTHZ_DENIED_NO_USER if !defined $r->user;
    return Apache2::Const::AUTHZ_GRANTED if grep { $_ eq $r->user } split ' ', $rest;
    return Apache2::Const::AUTHZ_DENIED;
}

# Decides by a field, without a user.
sub token {
    my ($r, $rest) = @_;
    my $token = $r->headers_in->get('X-Token') // '';
    $r->err_headers_out->add('X-One' => "token <$rest>");
    die "no decision\n" if $token eq 'die';
    exit if $token eq 'exit';
    return $1 if $token =~ /\A(-?\d+)\z/;
    return $token eq $rest ? Apache2::Const::AUTHZ_GRANTED : Apache2::Const::AUTHZ_DENIED;
}

sub nothing { return }

sub inside {
    my ($r) = @_;
    my $token = $r->headers_in->get('X-Token') // '';
    return $token eq 'sesame' ? Apache2::Const::OK : $token eq 'none' ? Apache2::Const::DECLINED : Apache2::Const::FORBIDDEN;
}

sub login {
    my ($r) = @_;
    $r->err_headers_out->add('X-Two' => 'login');
    my ($status, $password) = $r->get_basic_auth_pw;
    return $status if $status != Apache2::Const::OK;
    return Apache2::Const::OK if $password eq 'secret';
    $r->note_basic_auth_failure;
    return Apache2::Const::HTTP_UNAUTHORIZED;
}

sub accepts { return Apache2::Const::OK }

sub first_password {
    my ($class, $r, $user, $password) = @_;
    return Apache2::Const::AUTH_USER_NOT_FOUND if $user ne 'anna';
    return Apache2::Const::AUTH_GRANTED if $password eq 'secret';
    return $1 if $password =~ /\A(\d+)\z/;
    die "no password\n" if $password eq 'die';
    return Apache2::Const::AUTH_DENIED;
}

sub second_password {
    my ($r, $user, $password) = @_;
    return Apache2::Const::AUTH_USER_NOT_FOUND if $user ne 'otto';
    return $password eq 'secret' ? Apache2::Const::AUTH_GRANTED : Apache2::Const::AUTH_DENIED;
}

sub handler {
    my ($r) = @_;
    $r->content_type('text/plain');
    $r->print('secret page for ', $r->user // 'anybody', ' ', $r->satisfies, "\n");
    return Apache2::Const::OK;
}

1;
