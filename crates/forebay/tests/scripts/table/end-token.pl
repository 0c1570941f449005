#!/usr/bin/perl
print "X-Table: yes\nContent-Type: text/plain\n\n";
print "code\n";
__END__
print "no code\n";
this is (no perl
