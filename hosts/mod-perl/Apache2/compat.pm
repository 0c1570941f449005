# Names of mod_perl 1, for applications that `use Apache2::compat`.
package Apache2::compat;

use strict;
use warnings;

$INC{"Apache/$_.pm"} = __FILE__ for qw(Constants File Log Table URI Util);
$INC{'Apache.pm'} = __FILE__;

package Apache;

sub request { Apache2::RequestUtil->request }
sub server { Apache2::ServerUtil->server }
sub exit { Forebay::ModPerl::leave($_[-1]) }
sub module { Apache2::Module::loaded($_[-1]) }
sub untaint { shift; ModPerl::Util::untaint(@_) }
sub log_error { shift; Apache2::ServerUtil->server->log_error(@_) }
sub warn { shift; Apache2::ServerUtil->server->warn(@_) }
sub server_root_relative { Apache2::ServerUtil->server_root_relative($_[1]) }
sub define { 0 }
sub perl_hook { 1 }
sub gensym { require Symbol; Symbol::gensym() }

package Apache::Constants;

our @ISA = 'Apache2::Const';

sub import {
    shift;
    @_ = ('Apache2::Const', @_ ? @_ : ':common');
    goto &Apache2::Const::import;
}

sub export { 1 }
sub SERVER_VERSION { Apache2::ServerUtil::get_server_version() }

package Apache::Table;

sub new { APR::Table->new }

package Apache::URI;

sub parse { my (undef, $r, $uri) = @_; APR::URI->parse($r->pool, defined $uri ? $uri : $r->construct_url) }

package Apache::Util;

sub import {
    my (undef, @names) = @_;
    my $package = caller;
    no strict 'refs';
    *{"${package}::$_"} = \&{$_} for grep { !/\A:/ } @names;
}

sub escape_html { Forebay::ModPerl::escaped($_[0]) }
sub escape_uri { Apache2::Util::escape_path($_[0], undef) }
sub unescape_uri { (my $text = $_[0]) =~ s/%([0-9A-Fa-f]{2})/chr hex $1/ge; return $text }
sub unescape_uri_info { (my $text = $_[0]) =~ tr/+/ /; return unescape_uri($text) }
sub parsedate { Forebay::ModPerl::parse_date($_[0]) }
sub ht_time { my ($time, $format, $is_gmt) = @_; Apache2::Util::ht_time(undef, defined $time ? $time : time, $format || '%a, %d %b %Y %H:%M:%S %Z', defined $is_gmt ? $is_gmt : 1) }

sub size_string {
    my ($size) = @_;
    return '    -' if $size < 0;
    return '   0k' if !$size;
    return '   1k' if $size < 1024;
    return sprintf '%4dk', ($size + 512) / 1024 if $size < 1_048_576;
    return sprintf $size < 103_809_024 ? '%4.1fM' : '%4dM', $size / 1_048_576;
}

package Apache::File;

sub new {
    my ($class, @file) = @_;
    require Symbol;
    my $self = bless Symbol::gensym(), $class;
    return !@file || $self->open(@file) ? $self : undef;
}

sub open { my ($self, $name, $mode) = @_; CORE::open $self, defined $mode ? "$mode $name" : $name }
sub close { CORE::close $_[0] }

sub tmpfile {
    require File::Temp;
    my ($file, $name) = File::Temp::tempfile(UNLINK => 1);
    return wantarray ? ($name, $file) : $file;
}

package Apache2::RequestRec;

sub header_in { my $r = &request_of; table_of($r, 'headers_in', @_) if $r->headers_in }
sub header_out { my $r = &request_of; table_of($r, 'headers_out', @_) }
sub err_header_out { my $r = &request_of; table_of($r, 'err_headers_out', @_) }
sub cgi_env { my $r = &request_of; $r->subprocess_env(@_) }
sub cgi_var { goto &cgi_env }
sub cgi_header_out { my $r = &request_of; set_cgi_fields($r, "$_[0]: $_[1]") }
sub is_main { my $r = &request_of; !$r->{main} }
sub register_cleanup { my $r = &request_of; $r->pool->cleanup_register(@_) }
sub post_connection { goto &register_cleanup }
sub chdir_file { my $r = &request_of; my ($dir) = $r->filename =~ m{\A(.*/)}s; chdir $dir if defined $dir; return }
sub soft_timeout { }
sub hard_timeout { }
sub kill_timeout { }
sub reset_timeout { }
sub current_callback { ModPerl::Util::current_callback() }

sub send_fd {
    my $r = &request_of;
    my ($file, $length) = @_;
    local $/ = \65_536;
    my $sent = 0;
    while (defined(my $part = readline $file)) {
        $part = substr $part, 0, $length - $sent if defined $length && $length >= 0 && $sent + length $part > $length;
        $r->print($part);
        $sent += length $part;
    }
    return $sent;
}

sub pairs_of {
    my ($text) = @_;
    return map { Apache::Util::unescape_uri_info($_) }
        map { my ($name, $value) = split /=/, $_, 2; ($name, defined $value ? $value : '') } split /[&;]/, $text;
}

sub content {
    my $r = &request_of;
    return if ($r->{env}{CONTENT_TYPE} || '') !~ m{\Aapplication/x-www-form-urlencoded};
    my $text = '';
    while ($r->read(my $part, 65_536)) { $text .= $part }
    return wantarray ? pairs_of($text) : $text;
}

package Apache2::Connection;

sub auth_type { my ($c, @new) = @_; $Apache2::RequestRec::current->ap_auth_type(@new) }
sub user { my ($c, @new) = @_; $Apache2::RequestRec::current->user(@new) }

1;
