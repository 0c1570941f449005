#!/usr/bin/perl
print "X-Table: yes\nContent-Type: text/plain\n\n";
use CGI;
my $query = CGI->new;
print map { "$_=" . $query->param($_) . "\n" } sort $query->param;
print "upload ", length(do { local $/; my $f = $query->upload('file'); $f ? <$f> : '' }), "\n";
print "method ", $query->request_method, "\n";
