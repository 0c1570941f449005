#!/usr/bin/perl
print "X-Table: yes\nContent-Type: text/plain\n\n";
our ($begun, $run);
BEGIN { our $begun++ }
$run++;
print "begun ", $begun > 0 ? 'yes' : 'no', "\n";
END { print "end 1\n" }
END { print "end 2\n" }
print "body\n";
