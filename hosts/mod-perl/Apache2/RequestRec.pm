# The request: Apache2::RequestRec.
package Apache2::RequestRec;

use strict;
use warnings;

our $current;    # the request that Apache2::RequestUtil->request returns

# Returns the request that a method was called on, and removes it from @_. Classes derived from
# this one keep their request as `r` or `_r`, as those derived from mod_perl's do.
sub request_of {
    return shift if ref $_[0] eq __PACKAGE__;
    my $r = shift;
    my $why = 'an unsupported object';
    for (1 .. 10) {
        return $r if ref $r eq __PACKAGE__;
        last if !ref $r || !UNIVERSAL::isa($r, 'HASH');
        $r = $r->{r} || $r->{_r};
        $why = 'an object with no `r` key';
    }
    require Carp;
    Carp::croak("this method needs a request (an object of Apache2::RequestRec), and got $why");
}

sub new {
    my ($class, $inner) = @_;
    return bless { r => $inner }, $class;
}

# The request that the gateway has sent with the variables `$env`.
sub received {
    my ($env, $output) = @_;
    my $uri = $env->{SCRIPT_NAME} . $env->{PATH_INFO};
    return bless {
        env => $env, output => $output, status => 200, uri => $uri, location => $env->{SCRIPT_NAME},
        method => $env->{REQUEST_METHOD}, unparsed_uri => $env->{REQUEST_URI},
        args => $env->{QUERY_STRING} eq '' && $env->{REQUEST_URI} !~ /\?/ ? undef : $env->{QUERY_STRING},
        protocol => $env->{SERVER_PROTOCOL},
    }, __PACKAGE__;
}

my %NUMBERS = (GET => 0, HEAD => 0, PUT => 1, POST => 2, DELETE => 3, CONNECT => 4, OPTIONS => 5,
    TRACE => 6, PATCH => 7, PROPFIND => 8, PROPPATCH => 9, MKCOL => 10, COPY => 11, MOVE => 12,
    LOCK => 13, UNLOCK => 14);

# Accessors return the value before, as mod_perl's do.
for my $name (qw(method status status_line uri unparsed_uri args protocol user ap_auth_type
    content_encoding no_local_copy finfo proxyreq filename_set)) {
    no strict 'refs';
    *$name = sub {
        my $r = &request_of;
        my $before = $r->{$name};
        $r->{$name} = $_[0] if @_;
        return $before;
    };
}

sub handler {
    my $r = &request_of;
    my $before = $r->{handler} // (Forebay::ModPerl::has_option('SetupEnv') ? 'perl-script' : 'modperl');
    return $before if !@_;
    if ($Forebay::Phases::current eq 'PerlResponseHandler' && $_[0] ne $before) {
        require Carp;
        Carp::croak("Can't switch from '$before' to '$_[0]' response handler");
    }
    $r->{handler} = $_[0];
    return $before;
}

sub method_number {
    my $r = &request_of;
    my $before = $r->{method_number} // $NUMBERS{ $r->{method} } // 26;    # M_INVALID
    $r->{method_number} = $_[0] if @_;
    return $before;
}

sub header_only { (&request_of)->{method} eq 'HEAD' ? 1 : 0 }

sub the_request {
    my $r = &request_of;
    my $before = $r->{the_request}
        // join ' ', @{ $r->{env} }{qw(REQUEST_METHOD REQUEST_URI SERVER_PROTOCOL)};
    $r->{the_request} = $_[0] if @_;
    return $before;
}

sub proto_num {
    my $r = &request_of;
    return $r->{protocol} =~ m{(\d+)(?:\.(\d+))?} ? $1 * 1000 + ($2 // 0) : 9;
}

sub assbackwards { 0 }

sub request_time { $_[0]{request_time} // $^T }

sub mtime { my $r = &request_of; my $before = $r->{mtime} // 0; $r->{mtime} = $_[0] if @_; $before }

sub allowed { my $r = &request_of; my $b = $r->{allowed} // 0; $r->{allowed} = $_[0] if @_; $b }

sub hostname {
    my $r = &request_of;
    my $before = $r->{hostname};
    if (!defined $before) {
        $before = lc($r->{env}{HTTP_HOST} // $r->{env}{SERVER_NAME} // '');
        $before =~ s/:\d*\z//;
        $r->{hostname} = $before;
    }
    $r->{hostname} = $_[0] if @_;
    return $before;
}

sub pool { (&request_of)->{pool} ||= APR::Pool::of_request() }

sub server { $Apache2::ServerRec::server }

sub connection {
    my $r = &request_of;
    return $r->{main}->connection if $r->{main};
    return $r->{prev}->connection if $r->{prev};
    return $r->{connection} ||= Apache2::Connection->new($r);
}

sub useragent_ip { (&request_of)->connection->client_ip(@_) }

sub main { (&request_of)->{main} }
sub prev { (&request_of)->{prev} }
sub next { (&request_of)->{next} }

sub bytes_sent { (&request_of)->{output}{sent} }

sub user_is_set { defined((&request_of)->{user}) }

# ---- the file ----

sub filename {
    my $r = &request_of;
    Forebay::Phases::find_file($r) if !defined $r->{filename};
    my $before = $r->{filename};
    if (@_) {
        $r->{filename} = $_[0];
        delete $r->{finfo};
    }
    return $before;
}

sub canonical_filename { (&request_of)->filename }

sub path_info {
    my $r = &request_of;
    Forebay::Phases::find_file($r) if !defined $r->{path_info};
    my $before = $r->{path_info};
    $r->{path_info} = $_[0] if @_;
    return $before;
}

# ---- the head of the reply ----

sub content_type {
    my $r = &request_of;
    if (@_ && !defined wantarray) {    # no need to find out the type of the file
        $r->{content_type} = $_[0];
        return;
    }
    my $before = exists $r->{content_type} ? $r->{content_type} : Forebay::Phases::type_of($r);
    $r->{content_type} = $_[0] if @_;
    return $before;
}

sub content_languages {
    my $r = &request_of;
    my $before = $r->{content_languages};
    $r->{content_languages} = $_[0] if @_;
    return $before;
}

sub no_cache {
    my $r = &request_of;
    my $before = $r->{no_cache} // 0;
    if (@_) {
        $r->{no_cache} = $_[0] ? 1 : 0;
        for (['Pragma', 'no-cache'], ['Cache-control', 'no-cache']) {
            if ($_[0]) { $r->headers_out->set(@$_) }
            else { $r->headers_out->unset($_->[0]) }
        }
    }
    return $before;
}

sub chunked { 0 }
sub range { (&request_of)->headers_in->get('Range') }
sub clength { (&request_of)->headers_out->get('Content-Length') // 0 }

# ---- tables ----

# Returns a table of `$holder`; or one of its values, which a third argument sets.
sub table_of {
    my ($holder, $name, @entry) = @_;
    my $table = $holder->{$name} ||= APR::Table->new;
    return $table if !@entry;
    my $before = $table->get($entry[0]);
    if (@entry > 1) {
        if (defined $entry[1]) { $table->set(@entry) }
        else { $table->unset($entry[0]) }
    }
    return $before;
}

sub hash_of {
    my ($holder, $name, @entry) = @_;
    my $hash = $holder->{$name} ||= {};
    return $hash if !@entry;
    $hash->{ $entry[0] } = $entry[1] if @entry > 1;
    return $hash->{ $entry[0] };
}

sub headers_out { (&request_of)->{headers_out} ||= APR::Table->new }
sub err_headers_out { (&request_of)->{err_headers_out} ||= APR::Table->new }
sub notes { my $r = &request_of; table_of($r, 'notes', @_) }
sub pnotes { my $r = &request_of; hash_of($r, 'pnotes', @_) }
sub pnotes_kill { delete((&request_of)->{pnotes}); return }

sub headers_in {
    my $r = &request_of;
    return $r->{headers_in} ||= fields_of($r->{env});
}

# Returns the fields of the request's head, in the order of their names.
sub fields_of {
    my ($env) = @_;
    my $table = APR::Table->new;
    $table->add('Content-Type', $env->{CONTENT_TYPE}) if ($env->{CONTENT_TYPE} // '') ne '';
    $table->add('Content-Length', $env->{CONTENT_LENGTH}) if ($env->{CONTENT_LENGTH} // '') ne '';
    for (sort grep { /\AHTTP_/ } keys %$env) {
        my $name = join '-', map { ucfirst lc } split /_/, substr($_, 5), -1;
        $table->add($name, $env->{$_});
    }
    return $table;
}

# Variables that the host itself uses, and those that say what mod_perl works out by itself.
my $OF_CGI = qr/\A(?:HTTP_|(?:REMOTE|SERVER|REQUEST|SCRIPT|PATH|DOCUMENT|CONTENT)_|QUERY_STRING|GATEWAY_INTERFACE)/;
my $INTERNAL = qr/\A(?:psgi|FOREBAY_)/;

# Returns the variables that follow from what the phases have found; undef for one that is unset.
sub variables {
    my ($r) = @_;
    my $path_info = $r->path_info;
    my $name = $r->{uri};
    if ($path_info ne '' && length $path_info <= length $name) {
        substr $name, -length $path_info, length $path_info, '';
    }
    my $has_info = $path_info ne '';
    return {
        SCRIPT_NAME => $name, SCRIPT_FILENAME => $r->filename,
        PATH_INFO => $has_info ? $path_info : undef,
        PATH_TRANSLATED => $has_info ? Forebay::ModPerl::document_root() . $path_info : undef,
        REQUEST_METHOD => $r->{method}, QUERY_STRING => $r->{args} // '',
        defined $r->{user} ? (REMOTE_USER => $r->{user}) : (),
        defined $r->{ap_auth_type} ? (AUTH_TYPE => $r->{ap_auth_type}) : (),
    };
}

sub subprocess_env {
    my $r = &request_of;
    # Without a use for its result, this call fills the table, and %ENV.
    my $fills = !@_ && !defined wantarray;
    if (!$r->{subprocess_env} || $fills) {
        my $table = $r->{subprocess_env} ||= APR::Table->new;
        my %env = (Forebay::ModPerl::own_variables(), %{ $r->{env} });
        @env{qw(MOD_PERL MOD_PERL_API_VERSION)} = ($Forebay::ModPerl::VERSION, 2);
        # With -SetupEnv, the variables of CGI are not there.
        if ($fills || Forebay::ModPerl::has_option('SetupEnv')) { %env = (%env, %{ $r->variables }) }
        else { delete @env{ grep { /$OF_CGI/ } keys %env } }
        for (sort grep { defined $env{$_} && !/$INTERNAL/ } keys %env) {
            $table->add($_, $env{$_}) if !defined $table->get($_);
        }
    }
    $r->{subprocess_env}->do(sub { $ENV{ $_[0] } = $_[1]; 1 }) if $fills;
    return table_of($r, 'subprocess_env', @_);
}

1;
