#!/usr/bin/perl
print "X-Table: yes\nContent-Type: text/plain\n\n";
my $kept = '';
open my $handle, '>', \$kept or die $!;
my $was = select $handle;
print "kept";
select $was;
print "shown, $kept\n";
