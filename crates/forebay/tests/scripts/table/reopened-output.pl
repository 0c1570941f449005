#!/usr/bin/perl
print "X-Table: yes\nContent-Type: text/plain\n\n";
use File::Temp;
my $file = File::Temp->new;
open my $saved, '>&', \*STDOUT or die $!;
print "before\n";
close STDOUT;
open STDOUT, '>', $file->filename or die $!;
print "to the file\n";
close STDOUT;
open STDOUT, '>&', $saved or die $!;
open my $in, '<', $file->filename or die $!;
print "file: ", <$in>;
print "after\n";
