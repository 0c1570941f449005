#!/usr/bin/perl
# Nothing but the time, and who asks.
use strict;
use warnings;

use CGI ();

my $q = CGI->new;
my @time = gmtime;
print $q->header(-type => 'text/plain', -charset => 'utf-8');
printf "%02d:%02d:%02d for %s, %s\n", @time[2, 1, 0], $q->remote_addr, $q->param('name') // 'nobody';
