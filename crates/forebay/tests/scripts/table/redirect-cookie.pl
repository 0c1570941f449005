#!/usr/bin/perl
print "Set-Cookie: a=1; path=/\nSet-Cookie: b=2; path=/\n";
print "Status: 303 See Other\nX-Own: kept\nLocation: http://example.org/\n\n";
