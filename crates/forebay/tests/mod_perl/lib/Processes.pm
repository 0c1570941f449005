# Shows its process and a module that changes; may let the process end.
package Processes;

use strict;
use warnings;

use Apache2::RequestIO ();
use Apache2::RequestRec ();
use Apache2::RequestUtil ();
use Apache2::SizeLimit ();
use Apache2::Status ();
use Changing ();

Apache2::Status->menu_item(own => 'Own <page>', sub { ['a page of a module'] });

sub handler {
    my ($r) = @_;
    if (($r->args // '') eq 'limit') {
        Apache2::SizeLimit->set_max_process_size(1);
        $r->push_handlers(PerlCleanupHandler => 'Apache2::SizeLimit');
    }
    $r->content_type('text/plain');
    $r->print("$$ ", Changing::value());
    return 0;
}

1;
