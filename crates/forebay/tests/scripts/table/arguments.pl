#!/usr/bin/perl
print "X-Table: yes\nContent-Type: text/plain\n\n";
print scalar(@ARGV), " arguments: @ARGV\n";
push @ARGV, 'left';
@ARGV = () if $ENV{QUERY_STRING} eq 'restore=1';
