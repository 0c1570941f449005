# HTML::Mason's handler, as its manual has it.
package Mason;

use strict;
use warnings;

use HTML::Mason::ApacheHandler ();

my $mason;

sub handler {
    my ($r) = @_;
    $mason ||= HTML::Mason::ApacheHandler->new(
        comp_root => $r->document_root, data_dir => $r->dir_config('MasonData'), args_method => 'CGI',
        error_mode => 'fatal');
    return $mason->handle_request($r);
}

1;
