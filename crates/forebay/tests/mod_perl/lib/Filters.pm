# Filters of replies and bodies: streaming ones, and one that works with buckets.
package Filters;

use strict;
use warnings;

use base 'Apache2::Filter';

use Apache2::Connection ();
use Apache2::Const -compile => qw(OK DECLINED);
use Apache2::RequestIO ();
use Apache2::RequestRec ();
use Apache2::Response ();
use APR::Brigade ();
use APR::Bucket ();
use APR::Table ();

sub upper : FilterRequestHandler {
    my ($f) = @_;
    if (!$f->ctx) {
        $f->r->headers_out->unset('Content-Length');
        $f->ctx({ length => 0 });
    }
    while ($f->read(my $part, 10)) {
        $f->ctx->{length} += length $part;
        $f->print(uc $part);
    }
    $f->print('[', $f->ctx->{length}, ']') if $f->seen_eos;
    return Apache2::Const::OK;
}

sub reversed : FilterRequestHandler {
    my ($f, $brigade) = @_;
    my $changed = APR::Brigade->new($f->c->pool, $f->c->bucket_alloc);
    while (!$brigade->is_empty) {
        my $bucket = $brigade->first;
        $bucket->remove;
        if ($bucket->is_eos) {
            $changed->insert_tail(APR::Bucket->new($changed->bucket_alloc, '<end>'));
            $changed->insert_tail($bucket);
            last;
        }
        $bucket->read(my $data);
        $changed->insert_tail(APR::Bucket->new($changed->bucket_alloc, scalar reverse $data));
    }
    return $f->next->pass_brigade($changed);
}

# Of the body.
sub next_letter : FilterRequestHandler {
    my ($f) = @_;
    while ($f->read(my $part, 1000)) {
        $part =~ tr/a-z/b-za/;
        $f->print($part);
    }
    return Apache2::Const::OK;
}

sub declines : FilterRequestHandler { return Apache2::Const::DECLINED }

sub handler {
    my ($r) = @_;
    my $args = $r->args // '';
    $r->content_type('text/plain');
    $r->add_output_filter(\&upper) if $args eq 'upper';
    $r->add_output_filter(\&reversed) if $args eq 'reversed';
    $r->set_content_length(12) if $args eq 'length';
    my $body = '';
    while ($r->read(my $part, 1000)) { $body .= $part }
    $r->print("hello world $body\n");
    if ($args eq 'flush') {
        $r->rflush;
        $r->print('more');
    }
    return Apache2::Const::OK;
}

1;
