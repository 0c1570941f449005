#!/usr/bin/perl
use CGI::Fast;
my $n = 0;
while (my $q = CGI::Fast->new) {
    $n++;
    print "X-Table: fast\nContent-Type: text/plain\n\n", $q->param('a'), " $n\n";
}
print "end\n";
