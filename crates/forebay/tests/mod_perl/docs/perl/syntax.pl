#!/usr/bin/perl
print "a" b;
