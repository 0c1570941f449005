#!/usr/bin/perl
print "X-Table: yes\nContent-Type: text/plain\n\n";
use Cwd;
print -e 'directory.pl' ? "with the script\n" : "elsewhere\n";
if ($ENV{QUERY_STRING} eq 'spoil') { chdir '/'; print getcwd, "\n" }
