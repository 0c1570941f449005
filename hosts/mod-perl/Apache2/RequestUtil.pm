# Apache2::RequestUtil: the current request, handlers, settings.
package Apache2::RequestUtil;

use strict;
use warnings;

sub request {
    my $before = $Apache2::RequestRec::current;
    if (@_ > 1) { $Apache2::RequestRec::current = $_[1] }
    elsif (!$before || !Forebay::ModPerl::has_option('GlobalRequest')) {
        require Carp;
        Carp::croak("global \$r object is not available: set options = [\"+GlobalRequest\"]");
    }
    return $before;
}

# In startup.pl: as PerlAddAuthzProvider and PerlAddAuthnProvider. What a second function would answer,
# passwords for Digest, nobody asks for here.
sub register_auth_provider {
    my (undef, $group, $name, undef, $function) = @_;
    Forebay::Phases::add_provider($group, $name, $function);
    return 0;
}

sub get_status_line { Forebay::ModPerl::status_line($_[0]) }

package Apache2::RequestRec;

sub push_handlers {
    my $r = &request_of;
    my ($phase, @new) = @_;
    my $list = own_handlers($r, $phase);
    push @$list, map { Forebay::Phases::resolved($_) } map { ref eq 'ARRAY' ? @$_ : $_ } @new;
    return 1;
}

sub add_handlers { goto &push_handlers }

sub set_handlers {
    my $r = &request_of;
    my ($phase, @new) = @_;
    my $list = own_handlers($r, $phase);
    @$list = map { Forebay::Phases::resolved($_) } grep { defined && $_ ne '' }
        map { ref eq 'ARRAY' ? @$_ : $_ } @new;
    return 1;
}

sub get_handlers {
    my $r = &request_of;
    my $list = $r->{handlers}{ $_[0] } // Forebay::Phases::of_all($_[0]);
    return @$list ? [map { $_->{code} } @$list] : undef;
}

# Returns the handlers of this request, which a first change copies from those of all requests.
sub own_handlers {
    my ($r, $phase) = @_;
    Forebay::Phases::check_name($phase);
    return $r->{handlers}{$phase} ||= [@{ Forebay::Phases::of_all($phase) }];
}

sub dir_config {
    my $r = &request_of;
    return Forebay::ModPerl::dir_config(@_);
}

# What belongs to the part of the site: here, the settings of the application.
sub per_dir_config { bless {}, 'Apache2::ConfVector' }

sub location { my $location = (&request_of)->{location}; $location eq '' ? '/' : $location }

sub document_root {
    my $r = &request_of;
    my $before = $r->{document_root} // Forebay::ModPerl::document_root();
    $r->{document_root} = $_[0] if @_;
    return $before;
}

sub get_server_name { (&request_of)->{env}{SERVER_NAME} }
sub get_server_port { (&request_of)->{env}{SERVER_PORT} + 0 }
sub get_remote_host { my $r = &request_of; $r->connection->get_remote_host }
sub get_remote_logname { undef }
sub get_limit_req_body { 0 }
sub is_initial_req { my $r = &request_of; $r->{main} || $r->{prev} ? 0 : 1 }
sub is_perl_option_enabled { shift; Forebay::ModPerl::has_option(@_) }
sub slurp_filename {
    my $r = &request_of;
    open my $file, '<:raw', $r->filename
        or APR::Error::throw($! + 0, sprintf 'slurp_filename(\'%s\')', $r->filename);
    local $/;
    my $text = <$file>;
    ($text) = $text =~ /\A(.*)\z/s if @_ && !$_[0];    # no taint
    return \$text;
}
sub no_server_signature { }
sub psignature {
    my $r = &request_of;
    my $about = join ' ', Apache2::ServerUtil::get_server_banner(), 'Server at', $r->get_server_name, 'Port', $r->get_server_port;
    return ($_[0] // '') . '<address>' . Forebay::ModPerl::escaped($about) . "</address>\n";
}
sub as_string {
    my $r = &request_of;
    my $text = $r->the_request . "\n";
    my $add = sub { $text .= "$_[0]: $_[1]\n"; 1 };
    $r->headers_in->do($add);
    $text .= sprintf "\n%s %s\n", $r->{protocol}, $r->{status_line} // Forebay::ModPerl::status_line($r->{status});
    my $type = $r->content_type;
    $text .= "Content-Type: $type\n" if defined $type;
    $r->headers_out->do($add);
    $r->err_headers_out->do($add);
    return "$text\n";
}
sub default_type { 'text/plain' }
sub new_request { die "Apache2::RequestRec->new needs a connection of Apache\n" }
sub child_terminate { (&request_of)->{env}{'psgix.harakiri.commit'} = 1 }
sub add_config { die "add_config has no effect: Forebay reads no configuration of Apache\n" }

1;
