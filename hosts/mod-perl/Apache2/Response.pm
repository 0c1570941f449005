# Apache2::Response: what is set about the reply as a whole.
package Apache2::RequestRec;

use strict;
use warnings;

# Sets what the client gets with a status: a text, a path of this site, or a URL.
sub custom_response {
    my $r = &request_of;
    my ($status, $what) = @_;
    if (defined $what) { $r->{custom_response}{$status} = $what }
    else { delete $r->{custom_response}{$status} }
    return;
}

sub set_content_length {
    my $r = &request_of;
    $r->headers_out->set('Content-Length', $_[0]);
    return;
}

sub set_last_modified {
    my $r = &request_of;
    $r->{mtime} = $_[0] if $_[0] && $_[0] > ($r->{mtime} // 0);
    $r->headers_out->set('Last-Modified', Forebay::ModPerl::http_date($r->{mtime} // time));
    return;
}

sub rationalize_mtime { $_[1] > $^T ? $^T : $_[1] }

sub update_mtime {
    my $r = &request_of;
    $r->{mtime} = $_[0] if defined $_[0] && $_[0] > ($r->{mtime} // 0);
    return;
}

sub set_etag {
    my $r = &request_of;
    my ($inode, $size, $mtime) = (stat $r->filename)[1, 7, 9];
    $r->headers_out->set('ETag', sprintf '"%x-%x"', $size, $mtime * 1_000_000) if defined $size;
    return;
}

sub make_etag {
    my $r = &request_of;
    $r->set_etag;
    return $r->headers_out->get('ETag') // sprintf '"%x"', $r->{mtime} // 0;
}

sub set_keepalive { 1 }
sub send_http_header { my $r = &request_of; $r->content_type(@_) if @_; return }
sub send_mmap { 0 }

# Compares the conditions of the request with what is known of the reply. Returns OK, 304 or 412.
sub meets_conditions {
    my $r = &request_of;
    my ($in, $out) = ($r->headers_in, $r->headers_out);
    my $etag = $out->get('ETag');
    my $time = $r->{mtime};
    my $matches = sub {
        my ($field, $weakly) = @_;
        return 1 if $field =~ /\A\s*\*/;
        return 0 if !defined $etag || !$weakly && $etag =~ m{\AW/};
        (my $own = $etag) =~ s{\AW/}{};
        return grep { $_->[1] eq $own && ($weakly || !$_->[0]) } map { [/\A(W\/)?(".*")\z/] }
            $field =~ m{(?:W/)?"[^"]*"}g;
    };
    my $is_read = $r->{method} eq 'GET' || $r->{method} eq 'HEAD';
    if (defined(my $field = $in->get('If-Match'))) {
        return 412 if !$matches->($field, 0);
    } elsif (defined(my $since = Forebay::ModPerl::parse_date($in->get('If-Unmodified-Since')))) {
        return 412 if defined $time && int $time > $since;
    }
    if (defined(my $field = $in->get('If-None-Match'))) {
        return $is_read ? 304 : 412 if $matches->($field, 1);
        return 0;
    }
    my $since = Forebay::ModPerl::parse_date($in->get('If-Modified-Since'));
    return 304 if $is_read && defined $since && defined $time && int $time <= $since;
    return 0;
}

# Takes the head of a CGI reply, and sends what follows it.
sub send_cgi_header {
    my $r = &request_of;
    my ($text) = @_;
    my $rest = $text =~ s/(?:\A|\r?\n)\r?\n(.*)\z//s ? $1 : '';
    set_cgi_fields($r, $text);
    $r->{parses_headers} = 0;
    $r->print($rest) if $rest ne '';
    return;
}

# Sets the fields of a CGI reply's head.
sub set_cgi_fields {
    my ($r, $text) = @_;
    for (split /\r?\n/, $text) {
        my ($name, $value) = /\A([^:\s]+)\s*:\s*(.*?)\s*\z/s;
        die "a malformed line in the head of the reply: $_\n" if !defined $name;
        my $key = lc $name;
        if ($key eq 'status') {
            $r->{status} = $1 if $value =~ /\A(\d{3})/;
            $r->{status_line} = $value;
        }
        elsif ($key eq 'content-type') { $r->{content_type} = $value }
        elsif ($key eq 'set-cookie') { $r->err_headers_out->add($name, $value) }
        elsif ($key eq 'location') {
            $r->headers_out->set($name, $value);
            next if $r->{status} != 200;
            if ($value =~ m{\A/}) { $r->{local_redirect} = $value }
            else { $r->{status} = 302 }
        }
        else { $r->headers_out->add($name, $value) }
    }
}

1;
