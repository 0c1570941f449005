#!/usr/bin/perl
# A layer written in Perl prints its text to the buffer below it. STDOUT and a kept handle have it.
package PerlIO::via::Hold;
BEGIN { $INC{'PerlIO/via/Hold.pm'} = 1 }
sub PUSHED { bless { text => '' } }
sub WRITE { $_[0]{text} .= $_[1]; length $_[1] }
sub FLUSH {
    my ($self, $below) = @_;
    if ($below) { print {$below} $self->{text}; $self->{text} = '' }
    return 0;
}

package main;
print "Content-Type: text/plain\n\nbegun <$ENV{QUERY_STRING}>\n";
open $Kept::layered, '>&', \*STDOUT;
binmode $_, ':via(Hold)' for \*STDOUT, $Kept::layered;
print "Set-Cookie: session=<$ENV{QUERY_STRING}>\r\n";
print $Kept::layered "kept <$ENV{QUERY_STRING}>\n";
