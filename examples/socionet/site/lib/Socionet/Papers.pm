# Papers as text: /papers/ lists them, /papers/HANDLE shows one. A handler for mod_perl 2.
package Socionet::Papers;

use strict;
use warnings;

use Apache2::Const -compile => qw(OK NOT_FOUND REDIRECT HTTP_METHOD_NOT_ALLOWED M_GET M_POST);
use Apache2::Log ();
use Apache2::RequestIO ();
use Apache2::RequestRec ();
use Apache2::RequestUtil ();
use Apache2::Response ();
use APR::Table ();

use Socionet::Database ();

my $LAST_CHANGE = 1_190_000_000;    # of the collection

sub handler {
    my ($r) = @_;
    my $handle = $r->path_info;
    if ($handle eq '') {
        $r->headers_out->set(Location => '/papers/');
        return Apache2::Const::REDIRECT;
    }
    $handle =~ s{\A/}{};
    return one($r, $handle) if $handle ne '';
    my $text = '';
    if ($r->method_number == Apache2::Const::M_POST) {
        1 while $r->read($text, 4096, length $text);
    }
    elsif ($r->method_number == Apache2::Const::M_GET) { $text = $r->args // '' }
    else { return Apache2::Const::HTTP_METHOD_NOT_ALLOWED }
    my %fields = map { split /=/, $_, 2 } grep { /=/ } split /&/, $text;
    my $papers = Socionet::Database::search($fields{title} // '', $r->dir_config('PapersOnPage'));
    $r->content_type('text/plain; charset=utf-8');
    $r->no_cache(1);
    $r->headers_out->set('X-Papers' => scalar @$papers);
    $r->print(map { "$_->{handle} $_->{title}\n" } @$papers);
    return Apache2::Const::OK;
}

# Answers with one paper, unless the client has it.
sub one {
    my ($r, $handle) = @_;
    my $paper = Socionet::Database::paper($handle);
    if (!$paper) {
        $r->warn("no paper $handle");
        $r->custom_response(Apache2::Const::NOT_FOUND, "no such paper\n");
        return Apache2::Const::NOT_FOUND;
    }
    $r->set_last_modified($LAST_CHANGE);
    my $condition = $r->meets_conditions;
    return $condition if $condition != Apache2::Const::OK;
    $r->content_type('text/plain; charset=utf-8');
    my $page = "$paper->{title} ($paper->{year})\nfor " . $r->useragent_ip . "\n";
    utf8::encode($page);
    $r->set_content_length(length $page);
    $r->print($page);
    return Apache2::Const::OK;
}

1;
