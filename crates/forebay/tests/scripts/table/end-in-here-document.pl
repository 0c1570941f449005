#!/usr/bin/perl
print "X-Table: yes\nContent-Type: text/plain\n\n";
print <<'TEXT';
before
__END__
after
TEXT
print "code\n";
