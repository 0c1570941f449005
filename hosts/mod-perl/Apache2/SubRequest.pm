# Apache2::SubRequest: what another path of the application would be, and its answer.
package Apache2::RequestRec;

use strict;
use warnings;

sub lookup_uri {
    my $r = &request_of;
    my ($target, $method) = @_;
    if ($target !~ m{\A/}) {
        (my $base = $r->{uri}) =~ s{[^/]*\z}{};
        $target = $base . $target;
    }
    return Forebay::Phases::looked_up($r, $target, $method);
}

sub lookup_method_uri { my $r = &request_of; $r->lookup_uri(@_[1, 0]) }

sub lookup_file {
    my $r = &request_of;
    my ($file) = @_;
    if ($file !~ m{\A/}) {
        (my $base = $r->filename) =~ s{[^/]*\z}{};
        $file = $base . $file;
    }
    return Forebay::Phases::looked_up($r, $r->{uri}, undef, $file);
}

package Apache2::SubRequest;
our @ISA = 'Apache2::RequestRec';

# Answers the subrequest: its output becomes a part of the reply.
sub run {
    my ($self) = @_;
    my $r = Apache2::RequestRec::request_of($self);
    my $status = $r->{looked_up} == 0 ? Forebay::Phases::respond($r) : $r->{looked_up};
    $r->{status} = $status if $status > 0;
    return $status;
}

package Forebay::Phases;

# Returns the subrequest for a path, or for `$file`, after the phases before its response.
sub looked_up {
    my ($r, $target, $method, $file) = @_;
    die "too many subrequests within each other\n" if depth_of($r) > 20;
    my ($path, $args) = parts_of($target);
    my %env = %{ $r->{env} };
    $env{QUERY_STRING} = $args // '';
    my $sub = bless {
        env => \%env, output => $r->{output}, status => 200, uri => $path, location => $r->{location},
        method => $method // 'GET', unparsed_uri => $target, args => $args,
        protocol => 'INCLUDED', main => $r, user => $r->{user}, headers_in => $r->headers_in->copy,
        (defined $file ? (filename => $file, path_info => '') : ()),
    }, 'Apache2::RequestRec';
    $sub->{looked_up} = defined $file ? authorize($sub) : prepare($sub);
    $sub->{looked_up} = 0 if $sub->{looked_up} == -1;
    $sub->{status} = $sub->{looked_up} if $sub->{looked_up} > 0;
    find_file($sub) if !defined $file && !defined $sub->{filename};
    return bless { r => $sub }, 'Apache2::SubRequest';
}

1;
