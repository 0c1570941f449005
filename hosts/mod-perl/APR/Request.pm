# libapreq2: parameters, uploads and cookies (APR::Request, Apache2::Request, Upload, Cookie).
package APR::Request;

use strict;
use warnings;

my $READ_LIMIT = 64 * 1024 * 1024;    # of a body
my $MEMORY = 256 * 1024;              # of an upload, before it goes to a file
my $MOST_FIELDS = 10_000;             # of a body
my $LONGEST_HEAD = 16_384;            # of a part

my ($OVERLIMIT, $BADDATA) = (120015, 120010);

sub decode {
    my ($text) = @_;
    $text =~ tr/+/ /;
    $text =~ s{%(?:u([0-9A-Fa-f]{4})|([0-9A-Fa-f]{2}))}{
        if (defined $1) { my $char = chr hex $1; utf8::encode($char); $char }
        else { chr hex $2 }
    }ge;
    return $text;
}

sub encode {
    my ($text) = @_;
    utf8::encode($text) if utf8::is_utf8($text);
    $text =~ s/([^A-Za-z0-9_.\-~*\/ ])/sprintf '%%%02X', ord $1/ge;
    $text =~ tr/ /+/;
    return $text;
}

# The limits and results of a request, which all objects of it share.
sub state_of {
    my ($self) = @_;
    my $r = Apache2::RequestRec::request_of($self);
    return $r->{apreq} ||= { read_limit => $READ_LIMIT, brigade_limit => $MEMORY };
}

sub fields_of {
    my ($text) = @_;
    my $table = APR::Table->new;
    for (grep { $_ ne '' } split /[&;]/, $text // '') {
        my ($name, $value) = split /=/, $_, 2;
        $table->add(decode($name), decode($value // ''));
    }
    return $table;
}

sub args_table {
    my ($self) = @_;
    my $r = Apache2::RequestRec::request_of($self);
    return state_of($r)->{args} ||= fields_of($r->{args});
}

# Reads the body, once. A body that breaks a rule leaves what was read before, and a status.
sub body_table {
    my ($self) = @_;
    my $r = Apache2::RequestRec::request_of($self);
    my $state = state_of($r);
    return $state->{body} if $state->{body};
    $state->{body} = APR::Table->new;
    $state->{uploads} = [];
    $state->{body_status} = 0;
    my $type = $r->headers_in->get('Content-Type') // '';
    my $length = $r->headers_in->get('Content-Length') // 0;
    if ($length > $state->{read_limit}) {
        $state->{body_status} = $OVERLIMIT;
    } elsif ($type =~ m{\Aapplication/x-www-form-urlencoded}i) {
        my $text = '';
        1 while $r->read($text, 65_536, length $text);
        $state->{body} = fields_of($text);
    } elsif ($type =~ m{\Amultipart/form-data.*?\bboundary="?([^";,\s]+)}is) {
        $state->{body_status} = read_parts($r, $state, $1);
    }
    return $state->{body};
}

# Reads a multipart body. Returns 0, or the error.
sub read_parts {
    my ($r, $state, $boundary) = @_;
    my $delimiter = "\r\n--$boundary";
    my ($buffer, $part, $fields) = ("\r\n", undef, 0);
    my $more = sub { $r->read($buffer, 65_536, length $buffer) };
    while (1) {
        my $at = index $buffer, $delimiter;
        if ($at < 0) {
            # The end of the buffer may be the beginning of a delimiter.
            my $sure = length($buffer) - length $delimiter;
            if ($sure > 0) { keep($state, $part, substr $buffer, 0, $sure, '') }
            $more->() or return $BADDATA;
            next;
        }
        keep($state, $part, substr $buffer, 0, $at, '');
        add_part($r, $state, $part);
        substr $buffer, 0, length $delimiter, '';
        while (length $buffer < 2) { $more->() or return $BADDATA }
        return 0 if $buffer =~ /\A--/;
        my $end;
        while (($end = index $buffer, "\r\n\r\n") < 0) {
            return $BADDATA if length $buffer > $LONGEST_HEAD || !$more->();
        }
        return $BADDATA if ++$fields > $MOST_FIELDS;
        $part = new_part(substr $buffer, 0, $end + 4, '');
    }
}

sub new_part {
    my ($head) = @_;
    my $info = APR::Table->new;
    for (split /\r\n(?![ \t])/, $head) {
        $info->add($1, $2) if /\A([^:\s]+):\s*(.*?)\s*\z/s;
    }
    my $disposition = $info->get('Content-Disposition') // '';
    my %words;
    while ($disposition =~ /;\s*([\w*-]+)=(?:"((?:[^"\\]|\\.)*)"|([^;\s]*))/g) {
        my ($word, $value) = ($1, $2 // $3);
        $value =~ s/\\(["\\])/$1/g if defined $2;
        $words{ lc $word } = $value;
    }
    return { name => $words{name}, filename => $words{filename}, info => $info, text => '', size => 0 };
}

# Adds bytes to a part: those of a large upload go to a file.
sub keep {
    my ($state, $part, $bytes) = @_;
    return if !$part || $bytes eq '';
    $part->{size} += length $bytes;
    if ($part->{file}) { print { $part->{file} } $bytes or die "cannot store an upload: $!\n" }
    else {
        $part->{text} .= $bytes;
        to_file($state, $part) if defined $part->{filename} && $part->{size} > $state->{brigade_limit};
    }
}

sub to_file {
    my ($state, $part) = @_;
    return if $part->{file};
    require File::Temp;
    $part->{file} = File::Temp->new(
        TEMPLATE => 'apreqXXXXXX', UNLINK => 1, defined $state->{temp_dir} ? (DIR => $state->{temp_dir}) : (TMPDIR => 1));
    binmode $part->{file};
    print { $part->{file} } $part->{text} or die "cannot store an upload: $!\n";
    $part->{text} = '';
}

sub add_part {
    my ($r, $state, $part) = @_;
    return if !$part || !defined $part->{name};
    if (!defined $part->{filename}) {
        $state->{body}->add($part->{name}, $part->{text});
        return;
    }
    $state->{body}->add($part->{name}, $part->{filename});
    $part->{file}->flush if $part->{file};
    die "uploads are disabled\n" if $state->{disable_uploads} && $part->{size};
    $part->{state} = $state;
    push @{ $state->{uploads} }, bless $part, 'Apache2::Upload';
    $state->{upload_hook}->($state->{uploads}[-1], $part->{text}, $part->{size}) if $state->{upload_hook};
}

# ---- the methods of APR::Request ----

# The values of a name: the first one, or all in a list. Without a name: all names, or a table.
sub values_of {
    my ($tables, $wants_list, @name) = @_;
    if (!@name) {
        if ($wants_list) {
            my %known;
            return grep { !$known{ lc $_ }++ } map { $_->[1] } map { @{ APR::Table::entries($_)->{list} } } @$tables;
        }
        my $all = APR::Table->new;
        for my $table (@$tables) { $table->do(sub { $all->add(@_); 1 }) }
        return $all;
    }
    my @values = map { $_->get($name[0]) } @$tables;
    return $wants_list ? @values : $values[0];
}

sub param {
    my ($self, @name) = @_;
    return values_of([args_table($self), checked_body($self)], wantarray, @name);
}

sub args {
    my ($self, @name) = @_;
    # Without arguments in a scalar, as of Apache2::RequestRec, it is the text of the query.
    return Apache2::RequestRec::args($self) if !@name && !wantarray && !ref $self->{apreq_only};
    return values_of([args_table($self)], wantarray, @name);
}

sub body { my ($self, @name) = @_; values_of([checked_body($self)], wantarray, @name) }

# As libapreq2, dies with the error of the body.
sub checked_body {
    my ($self) = @_;
    my $table = body_table($self);
    my $status = state_of($self)->{body_status};
    APR::Request::Error::throw($self, $status) if $status;
    return $table;
}

sub upload {
    my ($self, @name) = @_;
    checked_body($self);
    my @uploads = @{ state_of($self)->{uploads} };
    if (!@name) {
        my %known;
        return wantarray ? grep { !$known{$_}++ } map { $_->{name} } @uploads
            : do { my $table = APR::Table->new; $table->add($_->{name}, $_->{filename}) for @uploads; $table };
    }
    my @found = grep { lc $_->{name} eq lc $name[0] } @uploads;
    return wantarray ? @found : $found[0];
}

sub parms { goto &params }
sub params { my ($self) = @_; scalar values_of([args_table($self), checked_body($self)], 0) }
sub parse { my ($self) = @_; body_table($self); state_of($self)->{body_status} }
sub status { my $self = shift; Apache2::RequestRec::status($self, @_) }
sub args_status { 0 }
sub body_status { my ($self) = @_; body_table($self); state_of($self)->{body_status} }
sub param_status { my ($self) = @_; (0, $self->body_status) }
sub jar_status { 0 }
sub cookie_status { 0 }

sub jar {
    my ($self, @name) = @_;
    my $jar = Apache2::Cookie::Jar->new($self);
    return @name ? $jar->cookies(@name) : $jar;
}

for my $limit (qw(read_limit brigade_limit temp_dir)) {
    no strict 'refs';
    *$limit = sub {
        my ($self, @value) = @_;
        my $state = state_of($self);
        my $before = $state->{$limit};
        $state->{$limit} = $value[0] if @value;
        return $before;
    };
}

sub upload_hook { state_of($_[0])->{upload_hook} = $_[1] }
sub disable_uploads { state_of($_[0])->{disable_uploads} = $_[1] // 1 }
sub env { Apache2::RequestRec::request_of($_[0]) }
sub pool { Apache2::RequestRec::request_of($_[0])->pool }

package APR::Request::Error;
our @ISA = 'APR::Error';

sub throw {
    my ($request, $status) = @_;
    die bless { rc => $status, func => 'APR::Request', file => '', line => 0, request => $request }, __PACKAGE__;
}

sub as_string {
    my ($self) = @_;
    return $self->{rc} == 120015 ? "the body is larger than its limit\n" : "the body is malformed\n";
}

package APR::Request::Apache2;
our @ISA = 'APR::Request';

sub handle { my ($class, $r) = @_; bless { r => $r, apreq_only => \1 }, $class }

package Apache2::Request;
our @ISA = ('APR::Request', 'Apache2::RequestRec');

sub new {
    my ($class, $r, %options) = @_;
    my $self = bless { r => $r }, $class;
    my $state = APR::Request::state_of($self);
    my %keys = (POST_MAX => 'read_limit', MAX_BODY => 'read_limit', READ_LIMIT => 'read_limit',
        MAX_BRIGADE => 'brigade_limit', BRIGADE_LIMIT => 'brigade_limit', TEMP_DIR => 'temp_dir',
        DISABLE_UPLOADS => 'disable_uploads', UPLOAD_HOOK => 'upload_hook', HOOK_DATA => 'hook_data');
    for (keys %options) { $state->{ $keys{ uc $_ } } = $options{$_} if $keys{ uc $_ } }
    return $self;
}

sub instance { my ($class, $r, @options) = @_; $class->new($r, @options) }

package Apache2::Upload;

sub name { $_[0]{name} }
sub filename { $_[0]{filename} }
sub size { $_[0]{size} }
sub info { my ($self, @name) = @_; @name ? $self->{info}->get($name[0]) : $self->{info} }
sub type { my $type = $_[0]{info}->get('Content-Type'); $type =~ s/\s*;.*//s if defined $type; $type }
sub tempname { my ($self) = @_; APR::Request::to_file($self->{state}, $self); $self->{file}->flush; $self->{file}->filename }

sub fh {
    my ($self) = @_;
    my $handle;
    if ($self->{file}) { CORE::open $handle, '<:raw', $self->tempname or die "cannot read an upload: $!\n" }
    else { CORE::open $handle, '<', \$self->{text} }
    return $handle;
}

sub io { $_[0]->fh }
sub upload_fh { $_[0]->fh }
sub upload { $_[0] }

sub slurp {
    my ($self) = @_;
    my $handle = $self->fh;
    local $/;
    $_[1] = <$handle> // '';
    return length $_[1];
}

sub link {
    my ($self, $to) = @_;
    my $from = $self->tempname;
    return 1 if CORE::link $from, $to;
    require File::Copy;
    return File::Copy::copy($from, $to) || die "cannot link an upload to $to: $!\n";
}

# ---- cookies ----

package APR::Request::Cookie;

require overload;
overload->import('""' => sub { $_[0]->as_string }, fallback => 1);

my %UNITS = (s => 1, m => 60, h => 3600, d => 86_400, M => 2_592_000, y => 31_536_000);

# Apache2::Cookie->new($r, -name => ..., -value => ...)
sub new {
    my ($class, $r, %given) = @_;
    my $self = bless { env => $r, path => '/' }, $class;
    delete $self->{path} if $class eq 'APR::Request::Cookie';
    for (keys %given) {
        (my $key = lc) =~ s/\A-//;
        $self->$key($given{$_}) if defined $given{$_} && $key =~ /\A(?:name|value|path|domain|expires|secure|httponly|comment|commenturl|port|version)\z/;
    }
    return $self;
}

for my $part (qw(name path domain secure httponly comment commentURL port version)) {
    no strict 'refs';
    *$part = sub {
        my ($self, @value) = @_;
        my $before = $self->{$part};
        $self->{$part} = $value[0] if @value;
        return $before;
    };
}

sub commenturl { goto &commentURL }

sub value {
    my ($self, @value) = @_;
    if (@value) {
        my $value = $value[0];
        my @parts = ref $value eq 'ARRAY' ? @$value : ref $value eq 'HASH' ? %$value : $value;
        $self->{raw} = join '&', map { APR::Request::encode($_) } @parts;
    }
    return if !defined wantarray;
    my @all = map { APR::Request::decode($_) } split /&/, $self->{raw} // '', -1;
    return wantarray ? @all : $all[0];
}

sub raw_value { $_[0]{raw} }
sub freeze { my ($class, $value) = @_; my $cookie = bless {}, 'APR::Request::Cookie'; $cookie->value($value); $cookie->{raw} }
sub thaw { my ($self) = @_; $self->value }

sub expires {
    my ($self, @value) = @_;
    if (@value) {
        my $value = $value[0];
        my $time = $value =~ /\A([+-]?\d+)([smhdMy])\z/ ? time + $1 * $UNITS{$2}
            : $value eq 'now' ? time : $value =~ /\A\d+\z/ ? time + $value : undef;
        $self->{expires} = defined $time ? Forebay::ModPerl::http_date($time) =~ s/ (\w{3}) (\d{4}) /-$1-$2 /r : $value;
    }
    return $self->{expires};
}

sub as_string {
    my ($self) = @_;
    my $text = $self->{name} . '=' . ($self->{raw} // '');
    $text .= "; path=$self->{path}" if defined $self->{path};
    $text .= "; domain=$self->{domain}" if defined $self->{domain};
    $text .= "; expires=$self->{expires}" if defined $self->{expires};
    $text .= '; secure' if $self->{secure};
    $text .= '; HttpOnly' if $self->{httponly};
    return $text;
}

sub bake {
    my ($self, $r) = @_;
    $r = Apache2::RequestRec::request_of($r || $self->{env});
    $r->err_headers_out->add('Set-Cookie', $self->as_string);
    return;
}

sub bake2 { goto &bake }
sub is_tainted { 0 }

package Apache2::Cookie;
our @ISA = 'APR::Request::Cookie';

# All cookies of the request, by name.
sub fetch {
    my ($class, $r) = @_;
    $r ||= $Apache2::RequestRec::current;
    my %jar = map { ($_->name => $_) } reverse parsed($class, $r);
    return wantarray ? %jar : \%jar;
}

sub parsed {
    my ($class, $r) = @_;
    my $text = Apache2::RequestRec::request_of($r)->headers_in->get('Cookie') // '';
    my @cookies;
    for (split /[;,]\s*/, $text) {
        my ($name, $value) = /\A\s*([^=\s]+)\s*=\s*(.*?)\s*\z/s or next;
        next if $name =~ /\A\$/;
        $value =~ s/\A"(.*)"\z/$1/s;
        push @cookies, bless { name => $name, raw => $value, env => $r }, $class;
    }
    return @cookies;
}

package Apache2::Cookie::Jar;

sub new { my ($class, $r) = @_; bless { cookies => [Apache2::Cookie::parsed('Apache2::Cookie', $r)] }, $class }

sub cookies {
    my ($self, @name) = @_;
    my @all = @{ $self->{cookies} };
    if (!@name) {
        return wantarray ? map { $_->name } @all
            : do { my $table = APR::Table->new; $table->add($_->name, $_->value) for @all; $table };
    }
    my @found = grep { $_->name eq $name[0] } @all;
    return wantarray ? @found : $found[0];
}

sub get { my ($self, $name) = @_; scalar $self->cookies($name) }
sub status { 0 }

package APR::Request;

$INC{$_} = __FILE__ for qw(Apache2/Request.pm Apache2/Upload.pm Apache2/Cookie.pm APR/Request/Apache2.pm
    APR/Request/Param.pm APR/Request/Cookie.pm APR/Request/Error.pm APR/Request/Hook.pm
    APR/Request/Parser.pm APR/Request/CGI.pm);

1;
