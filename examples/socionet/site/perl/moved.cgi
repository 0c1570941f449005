#!/usr/bin/perl
# Old addresses, and a cookie.
use strict;
use warnings;

use CGI ();

my $q = CGI->new;
exit print $q->redirect('/perl/time.cgi?name=moved') if defined $q->param('go');
print $q->header(-type => 'text/html', -cookie => $q->cookie(-name => 'seen', -value => 'a b')),
    '<p>Not here: ', CGI::escapeHTML($q->param('what') // ''), "</p>\n";
