#!/usr/bin/perl
my $nothing = 1;
