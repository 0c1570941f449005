#!/usr/bin/perl
print "X-Table: yes\nContent-Type: text/plain\n\n";
print "name ", $0 =~ m{([^/]*)\z}, ', absolute ', $0 =~ m{^/} ? 1 : 0, "\n"; print __FILE__ =~ m{/zero.pl\z} ? "file\n" : "no file\n", 'line ', __LINE__, "\n";
