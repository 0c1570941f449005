#!/usr/bin/perl
print "X-Table: yes\nContent-Type: text/plain\n\n";
our $depth;
sub deeper { local $depth = $depth + 1; $depth < 5 ? deeper() : $depth }
print deeper(), ' ', defined $depth ? $depth : 'undef', "\n";
my @sorted = sort { $b <=> $a } 3, 1, 2;
print "@sorted\n";
my $string = "abc"; $string =~ tr/a-c/A-C/; print "$string $&\n" if $string =~ /B/;
