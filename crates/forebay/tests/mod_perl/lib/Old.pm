# A handler with names of mod_perl 1.
package Old;

use strict;
use warnings;

use Apache2::compat;
use Apache::Constants qw(:common);

sub handler {
    my ($r) = @_;
    my $args = $r->args || 'none';
    my %content = $r->content;
    $r->content_type('text/plain');
    $r->header_out('X-One' => 1);
    $r->send_http_header;
    $r->print("$args ", join(',', map { "$_=$content{$_}" } sort keys %content), ' ', $r->header_in('X-Thing'), ' ',
        $r->is_main ? 'main' : 'sub', ' ', Apache::Util::size_string(5000), "\n");
    return OK;
}

1;
