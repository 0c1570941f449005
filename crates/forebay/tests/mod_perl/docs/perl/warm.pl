#!/usr/bin/perl
use strict;
my $r = shift;
$r->content_type('text/plain');
$r->send_http_header if $r->can('send_http_header');
read STDIN, my $body, $ENV{CONTENT_LENGTH};
$r->print("read $body\n");
$r->headers_out->set('X-Own' => 'own');
