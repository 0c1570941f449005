# A handler that does nothing else, and one that lets everybody in.
package Hello;

use strict;
use warnings;

use Apache2::Const -compile => qw(OK FORBIDDEN);
use Apache2::RequestIO ();
use Apache2::RequestRec ();
use APR::Table ();

sub handler {
    my ($r) = @_;
    $r->content_type('text/plain');
    $r->print("hello\n");
    return Apache2::Const::OK;
}

sub access {
    my ($r) = @_;
    return ($r->headers_in->get('X-Refused') // '') eq '' ? Apache2::Const::OK : Apache2::Const::FORBIDDEN;
}

1;
