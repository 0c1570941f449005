#!/usr/bin/perl
print "Content-Type: text/plain\n\nThe time is ", scalar localtime, "\n";
