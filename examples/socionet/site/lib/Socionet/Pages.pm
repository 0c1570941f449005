# Pages of HTML::Mason, below /mason.
package Socionet::Pages;

use strict;
use warnings;

use Apache2::RequestRec ();
use Apache2::RequestUtil ();
use HTML::Mason::ApacheHandler ();

my $mason;

sub handler {
    my ($r) = @_;
    # Which process makes the handler depends on the first request, and so does its directory of compiled pages.
    $mason ||= HTML::Mason::ApacheHandler->new(
        comp_root => $r->document_root, data_dir => $r->dir_config('PagesData') . "/$$",
        args_method => $r->dir_config('PagesArguments'), error_mode => 'fatal');
    return $mason->handle_request($r);
}

1;
