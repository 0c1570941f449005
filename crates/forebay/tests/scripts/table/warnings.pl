#!/usr/bin/perl -w
print "X-Table: yes\nContent-Type: text/plain\n\n";
my $nothing;
my $text = "a $nothing";
warn "a plain warning\n";
print "warned\n";
