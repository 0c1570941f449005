#!/usr/bin/perl
use CGI;
my $query = CGI->new;
print $query->header(-type => 'text/plain', -status => '404 Not Here', -X_Table => 'yes', -cookie => $query->cookie(-name => 'a', -value => 'b'));
print "page\n";
