#!/usr/bin/perl
package Other;
print "X-Table: data\nContent-Type: text/plain\n\n", <DATA>;
__DATA__
one
two
