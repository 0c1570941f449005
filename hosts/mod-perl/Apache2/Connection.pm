# The connection of the client, as far as the gateway tells: Apache2::Connection, ConnectionUtil.
package Apache2::Connection;

use strict;
use warnings;

$INC{'Apache2/ConnectionUtil.pm'} = __FILE__;

sub new {
    my ($class, $r) = @_;
    my $self = bless { env => $r->{env} }, $class;
    return $self;
}

sub client_ip {
    my ($self, $address) = @_;
    my $before = $self->{client_ip} // $self->{env}{REMOTE_ADDR};
    $self->{client_ip} = $self->{env}{REMOTE_ADDR} = $address if defined $address;
    return $before;
}

# The names of mod_perl before Apache 2.4.
sub remote_ip { goto &client_ip }

sub remote_host { $_[0]{env}{REMOTE_HOST} }
sub get_remote_host { $_[0]{env}{REMOTE_HOST} // $_[0]->client_ip }
sub remote_logname { undef }
sub local_ip { $_[0]{env}{SERVER_ADDR} }
sub local_host { $_[0]{env}{SERVER_NAME} }
sub base_server { $Apache2::ServerRec::server }
sub id { $$ }
sub aborted { 0 }
sub keepalives { 0 }
sub keepalive { 0 }
sub pool { $_[0]{pool} ||= $Apache2::RequestRec::current->pool }
sub notes { my $self = shift; Apache2::RequestRec::table_of($self, 'notes', @_) }
sub pnotes { my $self = shift; Apache2::RequestRec::hash_of($self, 'pnotes', @_) }
sub client_addr { APR::SockAddr->new($_[0]->client_ip, $_[0]{env}{REMOTE_PORT}) }
sub remote_addr { goto &client_addr }
sub local_addr { APR::SockAddr->new($_[0]->local_ip, $_[0]{env}{SERVER_PORT}) }
sub push_handlers { }
sub client_socket { undef }

package APR::SockAddr;

$INC{'APR/SockAddr.pm'} = __FILE__;

sub new { bless { ip => $_[1], port => $_[2] }, $_[0] }
sub ip_get { $_[0]{ip} }
sub port { ($_[0]{port} // 0) + 0 }

1;
