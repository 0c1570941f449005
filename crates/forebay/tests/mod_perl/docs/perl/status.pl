#!/usr/bin/perl
print "Status: 404 Gone Away\nContent-type: text/plain\nX-Own: 1\n\ngone";
