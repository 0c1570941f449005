#!/usr/bin/perl
print "X-Table: yes\nContent-Type: text/plain\n\n";
sub shown { my $value = shift; defined $value ? join('.', map { ord } split //, $value) : 'undef' }
my @values = map { shown($_) } $/, $\, $,, $;, $", $|, $^W;
print "values " . join(' ', @values) . "\n";
print "topic " . (defined $_ ? "'$_'" : 'undef') . "\n";
if ($ENV{QUERY_STRING} eq 'restore') { ($/, $\, $,, $;, $", $|, $^W) = ("\n", undef, undef, "\034", ' ', 0, 0); undef $_ }
else { ($/, $\, $,, $;, $", $|, $^W, $_) = (undef, "!\n", '-', ':', '+', 1, 1, 'topic'); print 'a', 'b' }
