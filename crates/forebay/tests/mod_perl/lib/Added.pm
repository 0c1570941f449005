# A module that adds lines to Apache's configuration, as OCS Inventory's does.
package Added;

use strict;
use warnings;

use Apache2::RequestIO ();
use Apache2::RequestRec ();
use Apache2::RequestUtil ();
use Apache2::ServerRec ();
use Apache2::ServerUtil ();
use APR::Table ();

my ($dir) = __FILE__ =~ m{\A(.*)/};
Apache2::ServerUtil->server->add_config([
    '', '# a comment', "PerlSetVar Added 'a b'", 'PerlAddVar Added c', 'PerlSetEnv ADDED yes',
    "Include $dir/Dispatched/*.conf",
]);

sub handler {
    my ($r) = @_;
    $r->content_type('text/plain');
    my $during = eval { $r->server->add_config(['PerlSetVar Added d']); 1 } ? 'added' : 'refused';
    $r->print(join '|', $r->dir_config->get('Added'), $r->dir_config('More'), $ENV{ADDED}, $INC{'Order.pm'} ? 'loaded' : 'none', $during);
    return 0;
}

1;
