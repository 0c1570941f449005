# What a script sees while it is compiled: no visitor. Its BEGIN blocks and modules run once, and
# what they do stays for all later visitors, so they must not know the request that happened to come
# first. A script that needs to know (it prints, reads standard input or looks at variables of a
# request) cannot be compiled once: then each request starts a new perl.
package Forebay::Compilation;

use strict;

# Variables that are the same in all requests for a script.
our @SAME = qw(GATEWAY_INTERFACE SCRIPT_FILENAME SERVER_SOFTWARE);
# Variables of a request, which this request may lack.
my $OF_REQUEST = qr/^(?:AUTH_|CONTENT_|DOCUMENT_|HTTP|PATH_(?:INFO|TRANSLATED)\z|QUERY_|REDIRECT_
    |REMOTE_|REQUEST_|SCRIPT_|SERVER_|SSL_|UNIQUE_ID\z)/x;
my ($before, $report, $drawn, $opened);
# Functions of modules that draw random numbers without a trace.
my %GENERATORS = (
    'Crypt/OpenSSL/Random.pm' => qr/^random_/, 'Crypt/PRNG.pm' => qr/^(?:rand|irand|bytes|double|int32)/,
    'Crypt/URandom.pm' => qr/^(?:urandom|getrandom)/, 'Data/UUID.pm' => qr/^create/,
    'Net/SSLeay.pm' => qr/^RAND_(?:priv_|pseudo_)?bytes/, 'Session/Token.pm' => qr/^(?:new|get)\z/,
    'UUID.pm' => qr/^(?:generate|uuid)/,
);
# The numbers of inotify_init1 and inotify_add_watch.
my %NUMBERS = (x86_64 => [294, 254], map { $_ => [26, 27] } qw(aarch64 riscv64));
my ($is_watching, $calls);

# Watches %ENV, which must hold only what is the same in all requests. Calls `$report` with the name
# of the first variable of a request that code looks for. `@names` are the variables of a request.
sub watch {
    ($report, my @names) = @_;
    my %of_request = map { ($_ => 1) } @names;
    delete @of_request{@SAME};
    $before = {%ENV};
    # The random numbers of a compilation would be those of all visitors.
    my $seed = int rand 2**31;
    CORE::srand($seed);
    $drawn = CORE::rand();
    CORE::srand($seed);
    require Config;
    $calls = $NUMBERS{ $Config::Config{archname} =~ /^([a-z0-9_]+)/ ? $1 : '' };
    watch_devices() if $calls;
    $is_watching = 1;
    note_calls($_) for grep { $INC{$_} } keys %GENERATORS;
    unshift @INC, \&load_generator;
    tie %ENV, __PACKAGE__, \%of_request;
    return;
}

# Opens a handle (inotify) that tells when a process opens /dev/random or /dev/urandom.
sub watch_devices {
    my $number = syscall $calls->[0], 0x80800;    # IN_CLOEXEC | IN_NONBLOCK
    undef $opened;
    return if $number < 0;
    open $opened, '<&=', $number or return;
    binmode $opened;
    for my $device ('/dev/urandom', '/dev/random') {
        my $path = $device;
        syscall $calls->[1], $number, $path, 0x20;    # IN_OPEN
    }
}

# Returns true if one of these devices was opened, and a loaded file mentions it: the handle also
# tells of other processes.
sub has_opened_device {
    my $was_opened = $opened && sysread $opened, my $events, 4096;
    undef $opened;
    return 0 if !$was_opened;
    for my $file ($0, grep { defined && !ref } values %INC) {
        open my $text, '<', $file or next;
        local $/;
        return 1 if (readline($text) // '') =~ m{/dev/u?random\b};
    }
    return 0;
}

# In @INC: loads a module that draws random numbers, and then watches its functions.
sub load_generator {
    my (undef, $file) = @_;
    return if !$is_watching || !$GENERATORS{$file};
    {
        local @INC = grep { !ref || $_ != \&load_generator } @INC;
        require $file;
    }
    note_calls($file);
    return \'1;';
}

my %is_noted;

sub note_calls {
    my ($file) = @_;
    return if $is_noted{$file}++;
    (my $package = $file) =~ s{\.pm\z}{};
    $package =~ s{/}{::}g;
    no strict 'refs';
    no warnings;
    for my $name (grep { /$GENERATORS{$file}/ && defined &{"${package}::$_"} } keys %{"${package}::"}) {
        my $function = \&{"${package}::$name"};
        my $noted = sub {
            $report->('random numbers') if $is_watching;
            goto &$function;
        };
        my $prototype = prototype $function;
        *{"${package}::$name"} = defined $prototype
            ? eval "sub ($prototype) { goto &\$noted }" : $noted;
    }
}

# Ends that. Returns the variables that the code has set, and the names of those that it has
# deleted.
sub changes {
    my $has_drawn = CORE::rand() != $drawn || has_opened_device();
    $is_watching = 0;
    @INC = grep { !ref || $_ != \&load_generator } @INC;
    CORE::srand();
    $report->('random numbers') if $has_drawn;
    no warnings 'untie';
    untie %ENV;
    my %set = map { ($_ => $ENV{$_}) }
        grep { !exists $before->{$_} || $before->{$_} ne $ENV{$_} } keys %ENV;
    return (\%set, [grep { !exists $ENV{$_} } keys %$before]);
}

sub look {
    my ($self, $name) = @_;
    return if exists $before->{$name} || grep { $_ eq $name } @SAME;
    $report->($name) if $self->{of_request}{$name} || $name =~ $OF_REQUEST;
}

# Returns the files that are being loaded by `require` or `use`.
sub modules_above {
    my ($depth, @files) = 0;
    while (my @frame = caller $depth++) {
        push @files, $frame[6] if $frame[7];
    }
    return @files;
}

# Changes the real %ENV, because programs that the code starts see only that.
sub change {
    my ($self, $change) = @_;
    no warnings 'untie';
    untie %ENV;
    $change->();
    tie %ENV, __PACKAGE__, $self->{of_request};
}

sub TIEHASH { bless { of_request => $_[1], now => {%ENV} }, $_[0] }

sub FETCH { $_[0]->look($_[1]); $_[0]{now}{ $_[1] } }

sub EXISTS { $_[0]->look($_[1]); exists $_[0]{now}{ $_[1] } }

sub STORE {
    my ($self, $name, $value) = @_;
    $self->look($name);
    $self->change(sub { $ENV{$name} = $value });
}

sub DELETE {
    my ($self, $name) = @_;
    $self->look($name);
    $self->change(sub { delete $ENV{$name} });
    return $self->{now}{$name};
}

sub CLEAR {
    $report->('all variables');
    $_[0]->change(sub { %ENV = () });
}

sub FIRSTKEY {
    # CGI::Fast only walks over the names, for a bug of libfcgi.
    $report->('all variables') if caller ne 'CGI::Fast';
    keys %{ $_[0]{now} };
    return each %{ $_[0]{now} };
}

sub NEXTKEY { each %{ $_[0]{now} } }

sub SCALAR { scalar %{ $_[0]{now} } }

1;
