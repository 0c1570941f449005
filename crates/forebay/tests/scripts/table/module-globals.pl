#!/usr/bin/perl
print "X-Table: yes\nContent-Type: text/plain\n\n";
use CGI qw(-nosticky :standard);
print "a=", param('a') // '', " all=", join(',', map { "$_:" . join '/', CGI::multi_param($_) } sort(param())), "\n";
print textfield('a', 'default'), "\n";
print cookie('c') // 'no cookie', "\n";
