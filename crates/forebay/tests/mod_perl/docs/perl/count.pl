#!/usr/bin/perl -w
use strict;
my $r = shift;
our $count++;
print "Content-type: text/plain\nX-Own: 1\n\n";
print "count $count ", ref $r, " $ENV{SCRIPT_NAME} ", $ENV{PATH_INFO} || "none", "\n";
exit if $r->args;
print "end\n";
__END__
rest
