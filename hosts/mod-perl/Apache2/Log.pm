# The log of the server: Apache2::Log and the log methods of requests and servers.
package Apache2::Log;

use strict;
use warnings;

my @LEVELS = qw(emerg alert crit error warn notice info debug);

sub new { bless { client => $_[1] }, $_[0] }

for my $level (0 .. $#LEVELS) {
    no strict 'refs';
    *{ $LEVELS[$level] } = sub {
        my ($self, @text) = @_;
        my $text = @text == 1 && ref $text[0] eq 'CODE' ? $text[0]->() : join '', @text;
        Forebay::ModPerl::log_line($level, $text, ref $self && $self->{client});
    };
}

sub log { $_[0]->notice(@_[1 .. $#_]) }

package Apache2::Log::Request;
our @ISA = 'Apache2::Log';

package Apache2::Log::Server;
our @ISA = 'Apache2::Log';

package Apache2::Log;

sub LOG_MARK { (caller)[1, 2] }

package Apache2::RequestRec;

sub log {
    my $r = &request_of;
    return $r->{log} ||= Apache2::Log::Request->new($r->{env}{REMOTE_ADDR});
}

sub log_error {
    my $r = &request_of;
    Forebay::ModPerl::log_line(3, join('', @_), $r->{env}{REMOTE_ADDR});
}

sub warn {
    my $r = &request_of;
    Forebay::ModPerl::log_line(4, join('', @_), $r->{env}{REMOTE_ADDR});
}

sub log_reason {
    my $r = &request_of;
    my ($text, $file) = @_;
    $file = Forebay::ModPerl::shown($r->uri) if !defined $file;
    Forebay::ModPerl::log_line(3, "access to $file failed, reason: $text", $r->{env}{REMOTE_ADDR});
}

# $r->log_rerror($file, $line, $level, $status, $message)
sub log_rerror {
    my $r = &request_of;
    my (undef, undef, $level, $status, @text) = @_;
    Forebay::ModPerl::log_status($level, $status, join('', @text), $r->{env}{REMOTE_ADDR});
}

package Apache2::ServerRec;

sub log { Apache2::Log::Server->new }

sub log_error { shift; Forebay::ModPerl::log_line(3, join '', @_) }

# Called as a function, as a class method, and as a method.
sub warn {
    shift if ref $_[0] || @_ > 1 && $_[0] eq __PACKAGE__;
    Forebay::ModPerl::log_line(4, join '', @_);
}

sub log_serror {
    my (undef, undef, undef, $level, $status, @text) = @_;
    Forebay::ModPerl::log_status($level, $status, join '', @text);
}

sub loglevel { 4 }

1;
