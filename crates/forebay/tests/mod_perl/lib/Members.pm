# Who may see the private pages, for Apache2_4::AuthCookie: a session is a name and a sum.
package Members;

use strict;
use warnings;
use Apache2::RequestIO ();
use parent 'Apache2_4::AuthCookie';

my %passwords = (anna => 'Hero');

sub authen_cred {
    my ($class, $r, $name, $password) = @_;
    return if !defined $name || ($passwords{$name} // '') ne ($password // '');
    return "$name:" . unpack '%32C*', $passwords{$name};
}

sub authen_ses_key {
    my ($class, $r, $key) = @_;
    my ($name, $sum) = split /:/, $key, 2;
    return $name if defined $passwords{$name} && $sum eq unpack '%32C*', $passwords{$name};
    return;
}

1;
