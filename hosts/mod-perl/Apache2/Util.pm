# Small functions: Apache2::Util, and those of APR that need no Apache.
package Apache2::Util;

use strict;
use warnings;

sub escape_path {
    my ($path, undef, $partial) = @_;
    $partial //= 1;
    $path =~ s{([^A-Za-z0-9\$\-_.+!*'(),:@&=/~;])}{sprintf '%%%02x', ord $1}ge;
    # A colon in the first segment would look like a scheme.
    $path = "./$path" if !$partial && $path =~ m{\A[^/]*:};
    return $path;
}

sub escape_uri { escape_path($_[0], undef, 1) }

# ht_time($pool, $time, $format, $is_gmt)
sub ht_time {
    my (undef, $time, $format, $is_gmt) = @_;
    $time //= time;
    return Forebay::ModPerl::http_date($time) if !defined $format;
    require POSIX;
    return POSIX::strftime($format, $is_gmt // 1 ? gmtime $time : localtime $time);
}

sub escape_html { Forebay::ModPerl::escaped($_[0]) }

package APR::Util;

# Returns true if the password has this hash: crypt, bcrypt, {SHA} and $apr1$.
sub password_validate {
    my ($password, $hash) = @_;
    if ($hash =~ /\A\{SHA\}(.*)/s) {
        require Digest::SHA;
        my $own = Digest::SHA::sha1_base64($password);
        $own .= '=' while length($own) % 4;
        return $own eq $1;
    }
    return apr1($password, $1) eq $hash if $hash =~ /\A\$apr1\$([^\$]{1,8})\$/;
    my $own = crypt $password, $hash;
    return defined $own && $own eq $hash;
}

# The hash of `htpasswd -m`: MD5 in 1,000 rounds.
sub apr1 {
    my ($password, $salt) = @_;
    require Digest::MD5;
    my $text = "$password\$apr1\$$salt";
    my $sum = Digest::MD5::md5($password . $salt . $password);
    my $length = length $password;
    $text .= substr $sum x (1 + int $length / 16), 0, $length;
    for (my $rest = $length; $rest; $rest >>= 1) { $text .= $rest & 1 ? "\0" : substr $password, 0, 1 }
    $sum = Digest::MD5::md5($text);
    for my $round (0 .. 999) {
        $text = $round & 1 ? $password : $sum;
        $text .= $salt if $round % 3;
        $text .= $password if $round % 7;
        $sum = Digest::MD5::md5($text . ($round & 1 ? $sum : $password));
    }
    my @signs = split //, './0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz';
    my @bytes = unpack 'C*', $sum;
    my $shown = '';
    for ([0, 6, 12], [1, 7, 13], [2, 8, 14], [3, 9, 15], [4, 10, 5]) {
        my $number = $bytes[$_->[0]] << 16 | $bytes[$_->[1]] << 8 | $bytes[$_->[2]];
        $shown .= $signs[$number >> 6 * $_ & 63] for 0 .. 3;
    }
    return "\$apr1\$$salt\$$shown$signs[$bytes[11] & 63]$signs[$bytes[11] >> 6]";
}

package APR::Date;

sub parse_http { my $time = Forebay::ModPerl::parse_date($_[0]); $time // 0 }
sub parse_rfc { goto &parse_http }

package APR::Base64;

sub encode { require MIME::Base64; MIME::Base64::encode_base64($_[0], '') }
sub decode { require MIME::Base64; MIME::Base64::decode_base64($_[0]) }
sub encode_len { int(($_[0] + 2) / 3) * 4 }

package APR::UUID;

sub new {
    my $bytes;
    open my $random, '<:raw', '/dev/urandom' or die "cannot open /dev/urandom: $!\n";
    sysread($random, $bytes, 16) == 16 or die "cannot read /dev/urandom: $!\n";
    vec($bytes, 6, 8) = vec($bytes, 6, 8) & 0x0f | 0x40;
    vec($bytes, 8, 8) = vec($bytes, 8, 8) & 0x3f | 0x80;
    return bless \$bytes, __PACKAGE__;
}

sub format { join '-', unpack 'H8 H4 H4 H4 H12', ${ $_[0] } }

sub parse {
    my $text = pop;
    my ($bytes) = pack 'H32', $text =~ tr/-//dr;
    return bless \$bytes, __PACKAGE__;
}

package APR::String;

sub format_size {
    my ($size) = @_;
    return '  - ' if $size < 0;
    return sprintf '%3d ', $size if $size < 973;
    for my $unit (qw(K M G T P E)) {
        my $rest = $size % 1024;
        $size = int($size / 1024);
        next if $size >= 973;
        if ($size < 9 || $size == 9 && $rest < 973) {
            $rest = int(($rest * 5 + 256) / 512);
            ($size, $rest) = ($size + 1, 0) if $rest >= 10;
            return sprintf '%d.%d%s', $size, $rest, $unit;
        }
        return sprintf '%3d%s', $size + ($rest >= 512), $unit;
    }
    return '****';
}

package APR::OS;

sub current_thread_id { $$ }

package APR::Status;

my %ERRORS = (EAGAIN => 11, EACCES => 13, ENOENT => 2, ECONNABORTED => 103, ECONNRESET => 104,
    EPIPE => 32, EOF => 70014, TIMEUP => 70007, INTR => 4);
for my $name (keys %ERRORS) {
    no strict 'refs';
    *{"is_$name"} = sub { my $is = $_[0] == $ERRORS{$name}; $is ? 1 : 0 };
}

package APR::Finfo;

my %FIELDS = (device => 0, inode => 1, protection => 2, nlink => 3, user => 4, group => 5, size => 7,
    atime => 8, mtime => 9, ctime => 10, csize => 12);

sub stat {
    my ($path) = @_;
    my @found = CORE::stat $path or APR::Error::throw($! + 0, "APR::Finfo::stat('$path')");
    return bless { fname => $path, stat => \@found }, __PACKAGE__;
}

for my $name (keys %FIELDS) {
    no strict 'refs';
    my $at = $FIELDS{$name};
    *$name = sub { $_[0]{stat}[$at] };
}
sub fname { $_[0]{fname} }
sub name { $_[0]{fname} }
sub valid { 0x7fff }
sub filetype {
    my %types = (0100000 => 1, 0040000 => 2, 0020000 => 3, 0060000 => 4, 0010000 => 5, 0120000 => 6, 0140000 => 7);
    return $types{ $_[0]{stat}[2] & 0170000 } // 127;
}

{
    no warnings 'redefine';
    *Apache2::RequestRec::finfo = sub {
        my $r = &Apache2::RequestRec::request_of;
        my $before = $r->{finfo} ||= eval { APR::Finfo::stat($r->filename) }
            || bless { fname => $r->filename, stat => [(0) x 13] }, 'APR::Finfo';
        $r->{finfo} = $_[0] if @_;
        return $before;
    };
}

package Apache2::Resource;

sub handler { 0 }

# The size of this process is limited by Forebay (`max_memory`); a handler may set a lower limit.
package Apache2::SizeLimit;

our ($MAX_PROCESS_SIZE, $MAX_UNSHARED_SIZE, $MIN_SHARE_SIZE, $CHECK_EVERY_N_REQUESTS) = (0, 0, 0, 1);

sub set_max_process_size { $MAX_PROCESS_SIZE = pop }
sub set_max_unshared_size { $MAX_UNSHARED_SIZE = pop }
sub set_min_shared_size { $MIN_SHARE_SIZE = pop }
sub set_check_interval { $CHECK_EVERY_N_REQUESTS = pop }
sub setmax { goto &set_max_process_size }

sub handler {
    my $r = pop;
    open my $file, '<', '/proc/self/statm' or return 0;
    my ($size, undef, $shared) = map { $_ * 4 } split ' ', <$file>;
    my $is_over = $MAX_PROCESS_SIZE && $size > $MAX_PROCESS_SIZE
        || $MAX_UNSHARED_SIZE && $size - $shared > $MAX_UNSHARED_SIZE
        || $MIN_SHARE_SIZE && $shared < $MIN_SHARE_SIZE;
    if ($is_over) {
        Forebay::ModPerl::log_line(5, "the process ends, because it has $size KiB (Apache2::SizeLimit)");
        $r->child_terminate;
    }
    return 0;
}

# Loads modules again whose files have changed.
package Apache2::Reload;

my %times;

sub handler {
    for my $file (grep { defined && m{\A/} } values %INC) {
        my $time = (CORE::stat $file)[9] or next;
        my $before = $times{$file};
        $times{$file} = $time;
        next if !defined $before && $time <= $Forebay::ModPerl::started || defined $before && $time == $before;
        my ($name) = grep { ($INC{$_} // '') eq $file } keys %INC;
        delete $INC{$name};
        no warnings 'redefine';
        require $name;
    }
    return -1;
}

package Apache2::Util;

$INC{$_} = __FILE__ for qw(APR/Util.pm APR/Date.pm APR/Base64.pm APR/UUID.pm APR/String.pm APR/OS.pm
    APR/Status.pm APR/Finfo.pm Apache2/Resource.pm Apache2/SizeLimit.pm Apache2/Reload.pm);

1;
