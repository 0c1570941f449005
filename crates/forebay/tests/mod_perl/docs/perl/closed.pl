#!/usr/bin/perl
print "Content-type: text/plain\n\nclosed";
