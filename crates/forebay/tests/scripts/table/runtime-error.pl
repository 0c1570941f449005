#!/usr/bin/perl
my $nothing;
$nothing->method;
