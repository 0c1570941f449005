#!/usr/bin/perl
print "X-Table: 1\nContent-Type: text/plain\n\ntext\n"; __END__
no code
