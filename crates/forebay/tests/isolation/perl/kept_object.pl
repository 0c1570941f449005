#!/usr/bin/perl
# A module keeps an object with a handle.
use IO::Handle;
use POSIX ();
print "Content-Type: text/plain\n\nbegun <$ENV{QUERY_STRING}>\n";
push @IO::Handle::kept_here, IO::Handle->new_from_fd(POSIX::dup(1), 'w') if @IO::Handle::kept_here < 5;
$_->print("kept <$ENV{QUERY_STRING}>\n") for @IO::Handle::kept_here;
