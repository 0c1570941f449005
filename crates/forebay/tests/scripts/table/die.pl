#!/usr/bin/perl
die "a reason to die\n";
