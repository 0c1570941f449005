#!/usr/bin/perl
print "Location: http://example.org/elsewhere?a=b\n\n";
