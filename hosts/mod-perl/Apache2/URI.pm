# Apache2::URI and APR::URI: the parts of a URL.
package APR::URI;

use strict;
use warnings;

my %PORTS = (http => 80, https => 443, ftp => 21, gopher => 70, nntp => 119, ldap => 389, telnet => 23,
    pop => 110, imap => 143, prospero => 191, wais => 210, nfs => 2049, rtsp => 554, sip => 5060,
    snews => 563, acap => 674, tip => 3372, ssh => 22);

# APR::URI->parse($pool, $text)
sub parse {
    my (undef, undef, $text) = @_;
    my %parts;
    my $rest = $text;
    if ($rest =~ s{\A([A-Za-z][A-Za-z0-9+.-]*)://}{}) {
        $parts{scheme} = $1;
        $rest =~ s{\A([^/?#]*)}{};
        my $site = $1;
        if ($site =~ s/\A(.*)@//) {
            @parts{qw(user password)} = split /:/, $1, 2;
        }
        if ($site =~ /\A(\[[^\]]*\]|[^:]*)(?::(\d*))?\z/) {
            @parts{qw(hostname port_str)} = ($1, $2);
            $parts{hostname} =~ tr/[]//d;
        }
        $parts{hostinfo} = $1 if $text =~ m{\A[^:]+://([^/?#]*)};
    }
    $parts{fragment} = $1 if $rest =~ s/#(.*)\z//s;
    $parts{query} = $1 if $rest =~ s/\?(.*)\z//s;
    $parts{path} = $rest if $rest ne '';
    return bless \%parts, __PACKAGE__;
}

for my $part (qw(scheme user password hostname path query fragment hostinfo port_str)) {
    no strict 'refs';
    *$part = sub {
        my ($self, @value) = @_;
        my $before = $self->{$part};
        $self->{$part} = $value[0] if @value;
        return $before;
    };
}

sub port {
    my ($self, @value) = @_;
    my $before = $self->{port_str};
    $self->{port_str} = $value[0] if @value;
    return defined $before && $before ne '' ? $before + 0 : undef;
}

sub is_initialized { 1 }
sub dns_looked_up { 0 }
sub dns_resolved { 0 }
sub port_of_scheme { $PORTS{ lc $_[-1] } // 0 }

sub rpath {
    my ($self) = @_;
    my $base = $self->{path_info};
    my $path = $self->{path} // '';
    return $path if !defined $base || $base eq '';
    $path =~ s/\Q$base\E\z//;
    return $path;
}

# Flags are those of APR::Const's group :uri.
sub unparse {
    my ($self, $flags) = @_;
    $flags //= 4;    # URI_UNP_OMITPASSWORD
    my $text = '';
    if (!($flags & 1) && defined $self->{hostname}) {
        my $scheme = $self->{scheme};
        $text = defined $scheme ? "$scheme://" : '//';
        my ($user, $password) = ($flags & 2 ? undef : $self->{user}, $flags & 4 ? undef : $self->{password});
        if (defined $user || defined $password) {
            $text .= $user if defined $user;
            $text .= ':' . ($flags & 8 ? $password : 'XXXXXXXX') if defined $password;
            $text .= '@';
        }
        $text .= $self->{hostname} =~ /:/ ? "[$self->{hostname}]" : $self->{hostname};
        my $port = $self->{port_str};
        my $is_default = !defined $port || $port eq '' || $port == port_of_scheme($scheme // '');
        $text .= ":$port" if !$is_default;
    }
    if (!($flags & 16)) {
        $text .= $self->{path} // '';
        if (!($flags & 32)) {
            $text .= "?$self->{query}" if defined $self->{query};
            $text .= "#$self->{fragment}" if defined $self->{fragment};
        }
    }
    return $text;
}

package Apache2::RequestRec;

sub parsed_uri {
    my $r = &request_of;
    if (!$r->{parsed_uri}) {
        my $uri = $r->{parsed_uri} = APR::URI->parse(undef, $r->{unparsed_uri});
        $uri->{path} = $r->{uri};
    }
    $r->{parsed_uri}{path_info} = $r->path_info;
    return $r->{parsed_uri};
}

sub parse_uri {
    my $r = &request_of;
    my $uri = APR::URI->parse(undef, $_[0]);
    @$r{qw(unparsed_uri uri args parsed_uri)} = ($_[0], $uri->{path}, $uri->{query}, $uri);
    return;
}

# http://host:port
sub construct_server {
    my $r = &request_of;
    my ($host, $port) = @_;
    $host //= $r->get_server_name;
    $port //= $r->get_server_port;
    my $scheme = $r->{env}{REQUEST_SCHEME} // 'http';
    return $port == ($scheme eq 'https' ? 443 : 80) ? $host : "$host:$port";
}

sub construct_url {
    my $r = &request_of;
    my $path = @_ ? $_[0] : $r->uri;
    return ($r->{env}{REQUEST_SCHEME} // 'http') . '://' . $r->construct_server . $path;
}

package Apache2::URI;

sub unescape_url {
    $_[0] =~ s/%([0-9A-Fa-f]{2})/chr hex $1/ge;
    return $_[0];
}

sub unescape_url_info {
    $_[0] =~ tr/+/ /;
    return unescape_url($_[0]);
}

$INC{'APR/URI.pm'} = __FILE__;

1;
