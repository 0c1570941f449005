# Handlers of all phases, which note the order in which they run. The query makes a phase answer
# something else: `access=403&fixup=-1`.
package Order;

use strict;
use warnings;

use Apache2::Access ();
use Apache2::Const -compile => qw(:common);
use Apache2::RequestIO ();
use Apache2::RequestRec ();
use Apache2::RequestUtil ();
use Apache2::Response ();
use APR::Table ();

our ($after, $started, $class_called) = ('', '', '');

sub note {
    my ($r, $phase, $default) = @_;
    $r->notes->add(order => $phase);
    my %answers = map { split /=/ } split /&/, $r->args // '';
    my $answer = $answers{$phase};
    return $default if !defined $answer;
    die "$phase dies\n" if $answer eq 'die';
    exit if $answer eq 'exit';
    return $answer;
}

sub post_read { note($_[0], 'post', Apache2::Const::OK) }
sub trans { note($_[0], 'trans', Apache2::Const::DECLINED) }
sub trans_two { note($_[0], 'trans2', Apache2::Const::DECLINED) }
sub map_to_storage { note($_[0], 'map', Apache2::Const::DECLINED) }
sub header_parser { note($_[0], 'header', Apache2::Const::OK) }
sub access { note($_[0], 'access', Apache2::Const::OK) }
sub access_two { note($_[0], 'access2', Apache2::Const::OK) }

sub authen {
    my ($r) = @_;
    $r->user('anna') if ($r->args // '') !~ /nobody/;
    return note($r, 'authen', Apache2::Const::OK);
}

sub password {
    my ($r) = @_;
    my ($status, $password) = $r->get_basic_auth_pw;
    return $status if $status != Apache2::Const::OK;
    return Apache2::Const::OK if $r->user eq 'anna' && $password eq 'se:cret';
    $r->note_basic_auth_failure;
    return Apache2::Const::AUTH_REQUIRED;
}

sub authz { note($_[0], 'authz', Apache2::Const::OK) }
sub type { note($_[0], 'type', Apache2::Const::DECLINED) }
sub fixup { note($_[0], 'fixup', Apache2::Const::OK) }

sub handler {
    my ($r) = @_;
    return shown($r) if $r->uri =~ /shown\z/;
    $r->content_type('text/plain');
    my $answer = note($r, 'response', Apache2::Const::OK);
    $r->print(join(' ', $r->notes->get('order')), ' user ', $r->user // 'none', ' ', $r->ap_auth_type // 'none', "\n");
    return $answer;
}

sub second { my ($r) = @_; $r->print("second\n"); return Apache2::Const::OK }

sub logger { my ($r) = @_; $after .= 'log(' . $r->status . ') '; return note($r, 'log', Apache2::Const::OK) }
sub cleanup { $after .= 'cleanup '; return Apache2::Const::OK }
sub child_init { $started .= ref($_[0]) . ' ' . ref($_[1]); return Apache2::Const::OK }

# Shows and forgets what ran after the requests before.
sub shown {
    my ($r) = @_;
    $r->content_type('text/plain');
    $r->print("$started; $after\n");
    $after = '';
    return Apache2::Const::OK;
}

# Ways to name a handler.
sub as_method { my ($class, $r) = @_; $r->content_type('text/plain'); $r->print("$class as_method\n"); return 0 }

package Order::Attribute;
sub handler : method { my ($class, $r) = @_; $r->content_type('text/plain'); $r->print("$class attribute\n"); return 0 }

package Order::Inherited;
our @ISA = 'Order::Attribute';

package Order::Object;
our $object = bless { name => 'object' };
sub page { my ($self, $r) = @_; $r->content_type('text/plain'); $r->print("$self->{name} page\n"); return 0 }

1;
