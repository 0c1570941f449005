# Apache2::Access: who may, and how the client says who it is.
package Apache2::RequestRec;

use strict;
use warnings;

sub auth_type {
    my $r = &request_of;
    my $before = $r->{auth_type} // Forebay::ModPerl::directive('AuthType');
    $r->{auth_type} = $_[0] if @_;
    return $before;
}

sub auth_name {
    my $r = &request_of;
    my $before = $r->{auth_name} // Forebay::ModPerl::directive('AuthName');
    $r->{auth_name} = $_[0] if @_;
    return $before;
}

sub requires {
    my $requires = Forebay::ModPerl::requirements();
    return @$requires ? [map { { method_mask => -1, requirement => $_ } } @$requires] : undef;
}

sub some_auth_required { @{ Forebay::ModPerl::requirements() } ? 1 : 0 }
my %SATISFY = (all => 0, any => 1);
sub satisfies { $SATISFY{ Forebay::ModPerl::directive('Satisfy') // '' } // 2 }    # SATISFY_NOSPEC
sub allow_options { 15 }
sub allow_overrides { 0 }
sub allow_override_opts { 0 }
sub allow_methods {
    my $r = &request_of;
    my ($resets, @methods) = @_;
    $r->{allowed_methods} = [$resets ? () : @{ $r->{allowed_methods} || [] }, @methods];
    return;
}

# Returns a status and the password, and sets the user.
sub get_basic_auth_pw {
    my $r = &request_of;
    $r->{auth_type} = 'Basic' if !defined $r->auth_type;
    return -1 if lc $r->auth_type ne 'basic';
    if (!defined $r->auth_name) {
        $r->log_error('need AuthName: ' . Forebay::ModPerl::shown($r->uri));
        return 500;
    }
    my $field = $r->headers_in->get('Authorization');
    if (!defined $field || $field !~ /\ABasic\s+(\S*)/i) {
        $r->note_basic_auth_failure;
        return 401;
    }
    require MIME::Base64;
    my ($user, $password) = split /:/, MIME::Base64::decode_base64($1), 2;
    @$r{qw(user ap_auth_type)} = (defined $user ? $user : '', 'Basic');
    return (0, defined $password ? $password : '');
}

sub note_basic_auth_failure {
    my $r = &request_of;
    my $name = $r->auth_name // '';
    $name =~ s/(["\\])/\\$1/g;
    $r->err_headers_out->set('WWW-Authenticate', qq{Basic realm="$name"});
    return;
}

sub note_digest_auth_failure {
    my $r = &request_of;
    require Digest::MD5;
    my $name = $r->auth_name // '';
    $name =~ s/(["\\])/\\$1/g;
    my $nonce = Digest::MD5::md5_hex(rand() . time . $$);
    $r->err_headers_out->set('WWW-Authenticate', qq{Digest realm="$name", nonce="$nonce"});
    return;
}

sub note_auth_failure {
    my $r = &request_of;
    my $type = lc($r->auth_type // '');
    $r->note_basic_auth_failure if $type eq 'basic';
    $r->note_digest_auth_failure if $type eq 'digest';
    return;
}

1;
