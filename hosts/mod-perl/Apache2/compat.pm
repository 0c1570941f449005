# Names of mod_perl 1, for applications that `use Apache2::compat`.
package Apache2::compat;

use strict;
use warnings;

$INC{"Apache/$_.pm"} = __FILE__ for qw(Constants File Log Table URI Util);
$INC{'Apache.pm'} = __FILE__;

# Methods that mod_perl 1 had with other results, and how they are called then.
my %old = (
    'APR::URI::unparse' => do {
        my $new = \&APR::URI::unparse;
        sub { local $_[0]{scheme} = $_[0]{scheme} // 'http'; $new->($_[0], $_[1] // 8) };
    },
    'Apache2::Connection::local_addr' => sub { packed($_[0]->local_ip, $_[0]{env}{SERVER_PORT}) },
    'Apache2::Connection::remote_addr' => sub { packed($_[0]->client_ip, $_[0]{env}{REMOTE_PORT}) },
    'Apache2::RequestRec::notes' => sub {
        my $r = &Apache2::RequestRec::request_of;
        my $notes = $r->{notes} ||= APR::Table->new;
        return @_ ? Apache2::RequestRec::value_of($notes, @_) : $notes;
    },
    'Apache2::Util::ht_time' => sub { Apache::Util::ht_time(@_) },
);
my %new;

sub packed { my ($address, $port) = @_; require Socket; Socket::pack_sockaddr_in($port, Socket::inet_aton($address)) }

sub override_mp2_api {
    my ($name) = @_;
    no strict 'refs';
    no warnings 'redefine';
    $new{$name} = \&{$name};
    *{$name} = $old{$name} if $old{$name};
}

sub restore_mp2_api {
    my ($name) = @_;
    no strict 'refs';
    no warnings 'redefine';
    *{$name} = delete $new{$name};
}

package Apache;

sub args { my $r = shift; my $args = $r->args; wantarray && defined $args ? Apache2::RequestRec::pairs_of($args) : $args }
sub request { Apache2::RequestUtil->request }
sub server { Apache2::ServerUtil->server }
sub exit { Forebay::ModPerl::leave($_[-1]) }
sub module { Apache2::Module::loaded($_[-1]) }
sub untaint { shift; ModPerl::Util::untaint(@_) }
sub log_error { shift if @_ > 1; Apache2::ServerUtil->server->log_error(@_) }
sub warn { shift if @_ > 1; Apache2::ServerUtil->server->warn(@_) }
sub server_root_relative { Apache2::ServerUtil->server_root_relative($_[1]) }
sub unescape_url { my $text = $_[-1]; Apache2::URI::unescape_url($text) }
sub unescape_url_info { my $text = $_[-1]; Apache2::URI::unescape_url_info($text) }
sub define { Apache2::ServerUtil::exists_config_define($_[-1]) }
sub perl_hook { 1 }
sub httpd_conf { }
sub gensym { require Symbol; Symbol::gensym() }

package Apache::Server;

our ($Starting, $ReStarting, $CWD) = (0, 1, Apache2::ServerUtil::server_root());

sub warn { goto &Apache::warn }

package Apache::Constants;

our @ISA = 'Apache2::Const';

sub import {
    shift;
    # Groups that mod_perl 1 named otherwise.
    my %groups = (':response' => ':common', ':server' => ':common', ':args_how' => ':cmd_how');
    @_ = ('Apache2::Const', map { $groups{$_} || $_ } @_ ? @_ : ':common');
    goto &Apache2::Const::import;
}

sub export { 1 }
sub SERVER_VERSION { Apache2::ServerUtil::get_server_version() }

package Apache::Table;

sub new { APR::Table->new }

package Apache::URI;

sub parse { my (undef, $r, $uri) = @_; APR::URI->parse($r->pool, defined $uri ? $uri : $r->construct_url) }

{ no warnings 'once'; *Apache2::URI::parse = \&parse }

package Apache::Util;

sub import {
    my (undef, @names) = @_;
    my $package = caller;
    no strict 'refs';
    *{"${package}::$_"} = \&{$_} for grep { !/\A:/ } @names;
}

sub escape_path { goto &Apache2::Util::escape_path }
sub escape_html { Forebay::ModPerl::escaped($_[0]) }
sub escape_uri { Apache2::Util::escape_path($_[0], undef) }
sub validate_password { APR::Util::password_validate(@_) ? 1 : 0 }
sub unescape_uri { goto &Apache2::URI::unescape_url }
sub unescape_uri_info { (my $text = $_[0]) =~ tr/+/ /; return unescape_uri($text) }
my $new_time = \&Apache2::Util::ht_time;
sub parsedate { Forebay::ModPerl::parse_date($_[0]) }
sub ht_time { my ($time, $format, $is_gmt) = @_; $new_time->(undef, defined $time ? $time : time, $format || '%a, %d %b %Y %H:%M:%S %Z', defined $is_gmt ? $is_gmt : 1) }

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

sub header_in { my $r = &request_of; value_of($r->headers_in, @_) }
sub header_out { my $r = &request_of; value_of($r->headers_out, @_) }
sub err_header_out { my $r = &request_of; value_of($r->err_headers_out, @_) }

# Returns the value of a name, or all in a list, which a third argument replaces.
sub value_of {
    my ($table, $name, @value) = @_;
    my @before = $table->get($name);
    if (@value) {
        if (defined $value[0]) { $table->set($name, $value[0]) }
        else { $table->unset($name) }
    }
    return wantarray ? @before : $before[0];
}
sub cgi_env { my $r = &request_of; $r->subprocess_env(@_) }
sub cgi_var { goto &cgi_env }
sub cgi_header_out { my $r = &request_of; set_cgi_fields($r, "$_[0]: $_[1]") }
sub server_root_relative { my $r = &request_of; Apache2::ServerUtil::server_root_relative($r->pool, @_) }
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
    return map { Apache::Util::unescape_uri_info($_) } split /[=&;]/, $text, -1;
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
