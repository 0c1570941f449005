# Shows the settings of its process.
package Settings;

use strict;
use warnings;

use Apache2::RequestIO ();
use Apache2::RequestRec ();
use Apache2::RequestUtil ();

sub handler {
    my ($r) = @_;
    $r->content_type('text/plain');
    my $body = '';
    1 while $r->read($body, 65_536, length $body);
    my $global = eval { Apache2::RequestUtil->request; 1 } ? 'yes' : 'no';
    $r->print(join(' ', 'taint', ${^TAINT}, 'warnings', $^W, 'home', $ENV{HOME} // 'none', 'own', $ENV{OWN} // 'none',
        'host', $ENV{HTTP_HOST} // 'none', 'global', $global, 'body', length $body), "\n");
    return 0;
}

1;
