#!/usr/bin/perl
print "X-Table: yes\nContent-Type: text/plain\n\n";
our ($name, $value) = ('depth', 12.5);
format STDOUT =
@<<<<<<<< @##.##
$name, $value
.
write;
print "written\n";
