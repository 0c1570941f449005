# The host for handlers of mod_perl 2: an application for the host that speaks with Forebay
# (psgi.pl). The other files in this directory are the API that handlers use.
package Forebay::ModPerl;

use strict;
use warnings;

our $VERSION;
our %on_demand;       # modules that only some applications use: their texts
my $MUCH = 65_536;    # bytes of a reply that wait for its end

my (%directives, %vars, @preload, %options, $home, $root, %inherited);
my ($mask, $title, $warns, $null, $directory);
my (%signals, $signals);    # handlers after the start; those of @SIGNALS as one text
my @SIGNALS = qw(ALRM CHLD HUP INT PIPE QUIT TERM USR1 USR2 __DIE__ __WARN__);

# ---- the start of a worker ----

BEGIN {
    $VERSION = 'mod_perl/2.0.12';
    no warnings 'once';
    *CORE::GLOBAL::exit = sub (;$) { leave(@_) };
    $Forebay::Host::loader = \&load;
    $mod_perl::VERSION = $mod_perl2::VERSION = 2.000012;
    $mod_perl2::VERSION_TRIPLET = '2.0.12';
    $Apache2::__T = ${^TAINT} ? 1 : 0;
    $INC{$_} = __FILE__ for qw(mod_perl.pm mod_perl2.pm Apache2.pm APR.pm APR/Error.pm
        Apache2/XSLoader.pm APR/XSLoader.pm);
    @ENV{qw(MOD_PERL MOD_PERL_API_VERSION GATEWAY_INTERFACE)} = ($VERSION, 2, 'CGI/1.1');
    %options = (SetupEnv => 1, GlobalRequest => 1);
    # Errors of wrong calls name the line of the caller.
    $Carp::Internal{$_}++ for qw(Apache2::RequestRec Apache2::RequestUtil Apache2::ServerRec
        APR::Table Forebay::Constants Forebay::Entries Forebay::ModPerl Forebay::Phases);
    # Parts of mod_perl that are not here. Those of an installed mod_perl would need Apache.
    my %missing = map { ("$_.pm" => 1) } qw(Apache2/Build Apache2/CmdParms Apache2/Command
        Apache2/HookRun Apache2/ParseSource Apache2/PerlSections Apache2/Provider
        Apache2/SourceTables Apache2/SubProcess APR/IpSubnet APR/PerlIO APR/Socket
        APR/ThreadMutex APR/ThreadRWLock ModPerl/MethodLookup ModPerl/Config ModPerl/Global);
    unshift @INC, sub {
        my ($self, $file) = @_;
        if ($file =~ m{\A(?:Apache2/FilterRec|APR/(?:Brigade|Bucket|BucketAlloc|BucketType))\.pm\z}) {
            require Apache2::Filter;
            $file = \'1;';
        }
        elsif ($on_demand{$file}) { $file = \$on_demand{$file} }
        if (ref $file) {
            open my $text, '<', $file or die "cannot read a text: $!\n";
            return $text;
        }
        return if !$missing{$file};
        (my $module = $file) =~ s{/}{::}g;
        $module =~ s/\.pm\z//;
        die "Forebay does not have $module of mod_perl (docs: guides/from-mod-perl)\n";
    };
}

sub configure {
    my ($directive, @values) = @_;
    if ($directive =~ /\APerl(Set|Add)Var\z/i) {
        my $name = shift @values;
        $vars{$name} = [lc $1 eq 'add' ? @{ $vars{$name} || [] } : (), @values];
    }
    elsif ($directive eq 'PerlOptions') {
        for (@values) {
            my ($sign, $name) = /\A([+-]?)(.*)/;
            $options{$name} = $sign ne '-';
        }
    }
    elsif ($directive =~ /\APerl\w+Handler\z/) { Forebay::Phases::push_for_all($directive, @values) }
    elsif ($directive eq 'PerlAddAuthzProvider') { Forebay::Phases::add_provider('authorization', @values) }
    elsif ($directive eq 'PerlAddAuthnProvider') { Forebay::Phases::add_provider('authentication', @values) }
    else { $directives{$directive} = \@values }
}

sub preload { @preload = @_ }

# Loads what is configured. Returns the application.
sub load {
    require Cwd;
    require Scalar::Util;
    ($home) = Cwd::getcwd() =~ /\A(.*)\z/s;    # a match removes the taint of -T
    for my $what (@preload) {
        my $file = $what =~ m{\A/} ? $what : join('/', split /::/, $what) . '.pm';
        require_in_main($file);
    }
    Forebay::Phases::load_all();
    Forebay::Phases::run_for_process('PerlChildInitHandler');
    ($mask, $title, $warns) = (umask, $0, $^W);
    %signals = %SIG;
    { no warnings 'uninitialized'; $signals = join ' ', @SIG{@SIGNALS} }
    opendir $directory, $home or die "cannot open $home: $!\n";
    open $null, '<', '/dev/null' or die "cannot open /dev/null: $!\n";
    tie *STDOUT, 'Forebay::Stdout';
    return \&answer;
}

{
    package main;
    sub Forebay::ModPerl::require_in_main { require $_[0] }
}

my $worker = $$;
our $started = time;

END {
    if ($$ == $worker && $home) {
        Forebay::Phases::run_for_process('PerlChildExitHandler');
        $Apache2::Process::pool->clear;
    }
}

# ---- settings ----

sub has_option { $options{ $_[0] } ? 1 : 0 }

sub home { $home // do { require Cwd; Cwd::getcwd() } }

sub document_root { $root // home() }

sub directive { my $values = $directives{ $_[0] }; $values ? $values->[0] : undef }

sub directives { $directives{ $_[0] } || [] }

sub requirements { directives('Require') }

# The variables of `env`.
sub own_variables { map { ($_ => $inherited{$_}) } @{ $directives{PerlSetEnv} || [] } }

# As $r->dir_config: a table, the value of a name, or all of them (dir_config->get in a list).
sub dir_config {
    my ($name, @value) = @_;
    my $r = $Apache2::RequestRec::current;
    my $table = $r ? $r->{dir_config} ||= new_vars() : new_vars();
    return $table if !defined $name;
    my $before = $table->get($name);
    if (@value) {
        if (defined $value[0]) { $table->set($name, $value[0]) }
        else { $table->unset($name) }
    }
    return $before;
}

sub new_vars {
    my $table = APR::Table->new;
    for my $name (sort keys %vars) { $table->add($name, $_) for @{ $vars{$name} } }
    return $table;
}

# ---- a request ----

# Answers a request. Returns a PSGI response, or, if a part was sent before, a function that ends it.
sub answer {
    my ($env) = @_;
    die ${ $env->{'psgi.input'} } . "\n" if ref $env->{'psgi.input'} eq 'SCALAR';
    $root //= $env->{DOCUMENT_ROOT};
    $^T = time;
    # `perl_gate` asks whether the client may have what another part of the site answers.
    my $question = delete $env->{FOREBAY_GATE};
    my $location;
    ($env->{REQUEST_METHOD}, $location) = split / /, $question, 2 if defined $question;
    my $output = Forebay::Output->new($env);
    my $r = Apache2::RequestRec::received($env, $output);
    $r->{location} = $location if defined $location;
    inherit_environment($env, $r);
    *STDIN = *{ $env->{'psgi.input'} }{IO} if $env->{'psgi.input'} != $Forebay::Host::no_input;
    $Apache2::RequestRec::current = $r;
    my $served = eval { defined $question ? Forebay::Phases::decide($r) : Forebay::Phases::serve($r) };
    my $error = $@;
    reset_interpreter();
    if (!$served) {
        release($r);
        die $error;
    }
    my $response = $served->{is_permitted} ? permission($served) : $output->finish($served);
    if (has_more($r)) {
        push @{ $env->{'psgix.cleanup.handlers'} }, sub { finish($r) };
    }
    else { release($r) }
    return $response;
}

# Returns the answer to `perl_gate` that permits the request: who the client is, what handlers have
# changed in its head, and fields of the reply. crates/forebay-origin/src/access/forward.rs reads it.
sub permission {
    my ($r) = @_;
    local @$r{qw(status content_type)} = (204, undef);
    my (undef, $fields) = Forebay::Output::head_of($r);
    push @$fields, 'Forebay-Permit' => 1;
    push @$fields, 'Forebay-User' => $r->{user} if defined $r->{user};
    return [204, $fields, ['']] if !$r->{headers_in};
    my $before = Apache2::RequestRec::fields_of($r->{env});
    my $after = $r->{headers_in};
    my %names = map { ($_->[0] => $_->[1]) } map { @{ APR::Table::entries($_)->{list} } } $before, $after;
    for my $key (sort keys %names) {
        my ($old, $new) = map { join ', ', $_->get($key) } $before, $after;
        my $is_left = APR::Table::entries($after)->EXISTS($key);
        next if $is_left && $old eq $new;
        push @$fields, 'Forebay-Field' => $is_left ? "$names{$key}: $new" : $names{$key};
    }
    return [204, $fields, ['']];
}

# Returns true if code has to run after the reply: log and cleanup handlers, cleanups of the pool.
sub has_more {
    my ($r) = @_;
    return 1 if Forebay::Phases::follow_reply();
    for (my $each = $r; $each; $each = $each->{next}) {
        return 1 if $each->{pool} && (@{ $each->{pool}{cleanups} } || @{ $each->{pool}{children} });
        return 1 if $each->{connection} && $each->{connection}{pool};
        my $own = $each->{handlers} or next;
        return 1 if grep { @{ $own->{$_} || [] } } qw(PerlLogHandler PerlCleanupHandler);
    }
    return 0;
}

# Runs what follows the reply, and frees the request.
sub finish {
    my ($r) = @_;
    my $last = $r;
    $last = $last->{next} while $last->{next};
    $Apache2::RequestRec::current = $r;
    Forebay::Phases::run($last, 'PerlLogHandler', 1);
    Forebay::Phases::run($last, 'PerlCleanupHandler', 1);
    release($r);
    reset_interpreter();
}

# Breaks the circles of requests that refer to each other, so that they and what they hold are freed.
sub release {
    my ($r) = @_;
    while ($r) {
        $r->{pool}->clear if $r->{pool};
        my $next = delete $r->{next};
        # The environment has functions for after the reply, which refer to the request.
        delete @$r{qw(handlers pnotes notes connection log prev main pool output env untied_input)};
        $r = $next;
    }
    undef $Apache2::RequestRec::current;
}

# Replaces exit: ends the handler. Children that the handler has forked end themselves.
sub leave {
    my ($code) = @_;
    CORE::exit($code // 0) if !$Apache2::RequestRec::current || $$ != $worker;
    my (undef, $file, $line) = caller 1;
    die bless { rc => 120000, func => 'ModPerl::Util::exit', file => $file, line => $line }, 'APR::Error';
}

sub is_aborted { !ref $_[0] && $_[0] eq "the client has left\n" }

# ---- the environment ----

my (@request_names, $count);          # variables of the request, and how many its environment has
my (@constant_names, $constants);     # the variables of the process that these leave as they were

# Gives %ENV the variables of this request, and takes away those of the one before, and what handlers
# have changed. Most often the names are the same, and few values differ.
sub inherit_environment {
    my ($env, $r) = @_;
    %inherited = (%ENV, MOD_PERL => $VERSION, MOD_PERL_API_VERSION => 2) if !%inherited;
    if (!$options{SetupEnv}) { $env = {} }
    # Unless a handler may still change the path, its variables are known.
    elsif (!Forebay::Phases::may_change_path($r)) { Forebay::Phases::set_path($r, $env, $root) }
    no warnings 'uninitialized';
    if (!defined $count || $count != keys %$env || grep { !exists $env->{$_} } @request_names) {
        @request_names = grep { !/\A(?:psgi|FOREBAY_)/ } keys %$env;
        $count = keys %$env;
        my %is_own = map { ($_ => 1) } @request_names;
        @constant_names = grep { !$is_own{$_} } keys %inherited;
        $constants = join "\0", @inherited{@constant_names};
    }
    for (@request_names) { $ENV{$_} = $env->{$_} if $ENV{$_} ne $env->{$_} }
    return if keys %ENV == @request_names + @constant_names
        && join("\0", @ENV{@constant_names}) eq $constants;
    my %is_wanted = map { ($_ => 1) } @request_names, @constant_names;
    delete @ENV{ grep { !$is_wanted{$_} } keys %ENV };
    @ENV{@constant_names} = @inherited{@constant_names};
    exists $ENV{$_} or $ENV{$_} = $env->{$_} for @request_names;    # empty values
}

# Tells %ENV what the phases before the response have found.
sub set_environment {
    my ($r) = @_;
    return if !$options{SetupEnv};
    if ($r->{subprocess_env}) {
        for (@{ APR::Table::entries($r->{subprocess_env})->{list} }) {
            $ENV{ $_->[1] } = $_->[2] if !exists $ENV{ $_->[1] } || $ENV{ $_->[1] } ne $_->[2];
        }
    }
    return if !$r->{prev} && !defined $r->{user} && !Forebay::Phases::may_change_path($r);
    my $own = $r->variables;
    for (keys %$own) {
        if (!defined $own->{$_}) { delete $ENV{$_} if exists $ENV{$_} }
        elsif (!exists $ENV{$_} || $ENV{$_} ne $own->{$_}) { $ENV{$_} = $own->{$_} }
    }
    if ($r->{prev}) {
        for (grep { /\AREDIRECT_/ } keys %{ $r->{env} }) { $ENV{$_} = $r->{env}{$_} }
    }
}

# Restores what handlers may have changed in the process.
sub reset_interpreter {
    no warnings;
    select STDOUT;
    tie *STDOUT, 'Forebay::Stdout' if !tied *STDOUT;
    # What a handler has tied goes with its handle.
    if (tied *STDIN) {
        open my $fresh, '<', '/dev/null' or die "cannot open /dev/null: $!\n";
        $null = $fresh;
    }
    *STDIN = *{$null}{IO};
    $\ = $, = undef;
    $/ = "\n";
    $; = "\034";
    $" = ' ';
    $| = 0;
    $@ = '';
    $^W = $warns if $^W != $warns;
    @ARGV = () if @ARGV;
    alarm 0;
    umask $mask;
    $0 = $title if $0 ne $title;
    chdir $directory;
    return if join(' ', @SIG{@SIGNALS}) eq $signals;
    for (@SIGNALS) {
        if (defined $signals{$_}) { $SIG{$_} = $signals{$_} if $SIG{$_} ne $signals{$_} }
        elsif (defined $SIG{$_}) { delete $SIG{$_} }
    }
}

# ---- the log ----

sub log_line {
    my ($level, $text, $client) = @_;
    $text = '' if !defined $text;
    utf8::encode($text) if utf8::is_utf8($text);
    $text =~ s/\n+\z//;
    $text = "[client $client] $text" if defined $client && $client ne '';
    $text =~ s/^/<$level>/mg;
    local ($\, $,);
    print STDERR "$text\n";
}

# Returns words of a visitor such that they are no line of their own in the log.
sub shown {
    my ($text) = @_;
    return $text =~ s/([\x00-\x1f\x7f])/sprintf '%%%02X', ord $1/ger;
}

sub log_status {
    my ($level, $status, $text, $client) = @_;
    if ($status) {
        local $! = $status;
        $text = "($status)$!: $text";
    }
    log_line($level & 7, $text, $client);
}

sub log_failure {
    my ($error) = @_;
    my $text = eval { "$error" } // 'died with an object that cannot be shown';
    my $r = $Apache2::RequestRec::current;
    log_line(3, $text, $r && $r->{env} && $r->{env}{REMOTE_ADDR});
}

# ---- dates and pages ----

my @DAYS = qw(Sun Mon Tue Wed Thu Fri Sat);
my @MONTHS = qw(Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec);

sub http_date {
    my ($second, $minute, $hour, $day, $month, $year, $weekday) = gmtime int $_[0];
    return sprintf '%s, %02d %s %04d %02d:%02d:%02d GMT', $DAYS[$weekday], $day, $MONTHS[$month],
        $year + 1900, $hour, $minute, $second;
}

# Returns the time of an HTTP date, or undef.
sub parse_date {
    my ($text) = @_;
    return undef if !defined $text;
    my ($day, $name, $year, @time) = $text =~ /(\d+)[ -](\w{3})[ -](\d+) (\d?\d):(\d\d)(?::(\d\d))?/;
    ($name, $day, @time[0 .. 2], $year) = $text =~ /(\w{3}) +(\d+) (\d\d):(\d\d):(\d\d) (\d{4})/ or return undef if !defined $day;
    $time[2] //= 0;
    my ($month) = grep { $MONTHS[$_] eq ucfirst lc $name } 0 .. 11;
    return undef if !defined $month;
    require Time::Local;
    $year += $year < 70 ? 2000 : 1900 if $year < 100;
    return eval { Time::Local::timegm(reverse(@time), $day, $month, $year) };
}

my %PHRASES = (
    201 => 'Created', 202 => 'Accepted', 300 => 'Multiple Choices', 301 => 'Moved Permanently',
    302 => 'Found', 303 => 'See Other', 307 => 'Temporary Redirect', 308 => 'Permanent Redirect',
    400 => 'Bad Request', 401 => 'Unauthorized', 402 => 'Payment Required', 403 => 'Forbidden',
    404 => 'Not Found', 405 => 'Method Not Allowed', 406 => 'Not Acceptable',
    408 => 'Request Timeout', 409 => 'Conflict', 410 => 'Gone', 411 => 'Length Required',
    412 => 'Precondition Failed', 413 => 'Request Entity Too Large', 414 => 'Request-URI Too Long',
    415 => 'Unsupported Media Type', 416 => 'Requested Range Not Satisfiable',
    417 => 'Expectation Failed', 422 => 'Unprocessable Entity', 423 => 'Locked',
    424 => 'Failed Dependency', 429 => 'Too Many Requests', 500 => 'Internal Server Error',
    501 => 'Not Implemented', 502 => 'Bad Gateway', 503 => 'Service Unavailable',
    504 => 'Gateway Timeout', 507 => 'Insufficient Storage',
);

sub escaped {
    my ($text) = @_;
    my %names = ('&' => '&amp;', '<' => '&lt;', '>' => '&gt;', '"' => '&quot;', "'" => '&#39;');
    $text =~ s/([&<>"'])/$names{$1}/g;
    return $text;
}

sub status_line { my $status = $_[0] == 200 ? 'OK' : $PHRASES{ $_[0] }; "$_[0] " . ($status // 'Status') }

# Returns the page for a status.
sub page_of {
    my ($status, $location) = @_;
    my $title = status_line($status);
    my $more = defined $location ? sprintf('<p><a href="%s">Continue here</a></p>', escaped($location))
        : $status == 500 ? '<p>The server had an internal error. Its log has the reason.</p>' : '';
    return "<!DOCTYPE html>\n<title>$title</title>\n<h1>$title</h1>\n$more\n";
}

# The output of a request, of its subrequests, and of what it is redirected to.
package Forebay::Output;

sub new { bless { env => $_[1], buffer => '', sent => 0 }, $_[0] }

# Adds bytes of the body. With ParseHeaders, these are the head first.
sub write {
    my ($self, $r, $bytes) = @_;
    if ($r->{parses_headers}) {
        $r->{head_text} .= $bytes;
        return if $r->{head_text} !~ /(?:\A|\r?\n)\r?\n/ && length $r->{head_text} < 65_536;
        $r->{parses_headers} = 0;
        return $r->send_cgi_header(delete $r->{head_text});
    }
    $self->{buffer} .= $bytes;
    $self->{sent} += length $bytes;
    $self->flush($r) if length $self->{buffer} > $MUCH;
}

# Sends what was written. The first part brings the head with it.
sub flush {
    my ($self, $r, $is_explicit) = @_;
    return if $r->{parses_headers};
    $r = $r->{main} while $r->{main};
    my $data = $self->filtered($r, 0, $is_explicit && $self->{buffer} eq '');
    # Filters that keep all may still set fields.
    return $self->{buffer} = '' if $data eq '' && !$self->{writer} && @{ $r->{PerlOutputFilterHandler} || [] };
    $self->{writer} ||= Forebay::Host::respond([head_of($r)], $self->{env});
    $self->{writer}->write($data) if $data ne '';
    $self->{buffer} = '';
}

# Returns what waits, as the filters of the request change it. They may change its length.
sub filtered {
    my ($self, $r, $is_end, $is_flush) = @_;
    return $self->{buffer} if !$r->{PerlOutputFilterHandler} && !Forebay::Phases::filters_replies();
    my $filters = Forebay::Filters::of($r, 'PerlOutputFilterHandler');
    $r->headers_out->unset('Content-Length') if @$filters && $r->{method} ne 'HEAD' && !$self->{is_filtered}++;
    my $data = $self->{buffer} eq '' && !$is_flush ? '' : Forebay::Filters::run($filters, $self->{buffer}, 0, $is_flush);
    return $is_end ? $data . Forebay::Filters::run($filters, '', 1) : $data;
}

# Forgets what was not sent yet. A reply that has begun cannot become another one.
sub drop {
    my ($self) = @_;
    die "the request failed after a part of its reply was sent\n" if $self->{writer};
    $self->{buffer} = '';
    $self->{sent} = 0;
}

sub finish {
    my ($self, $r) = @_;
    if ($r->{parses_headers} && length($r->{head_text} // '')) {
        $r->{parses_headers} = 0;
        $self->write($r, delete $r->{head_text});    # no head at all
    }
    my $data = $self->filtered($r, 1);
    if (!$self->{writer}) {
        my ($status, $fields) = head_of($r);
        my $body = $r->{status} == 204 || $r->{status} == 304 ? '' : $data;
        return [$status, $fields, [$body]];
    }
    my $writer = $self->{writer};
    $writer->write($data) if $data ne '';
    return sub { $writer->close };
}

# Returns status and fields of a reply.
sub head_of {
    my ($r) = @_;
    my @fields;
    my $type = exists $r->{content_type} ? $r->{content_type} : Forebay::Phases::type_of($r);
    my $has_body = $r->{status} != 204 && $r->{status} != 304;
    push @fields, 'Content-Type' => $type if defined $type && $type ne '' && $has_body;
    push @fields, 'Content-Encoding' => $r->{content_encoding} if defined $r->{content_encoding};
    push @fields, 'Content-Language' => join(',', @{ $r->{content_languages} }) if $r->{content_languages};
    for my $table (grep { defined } @$r{qw(err_headers_out headers_out)}) {
        for (@{ APR::Table::entries($table)->{list} }) {
            next if $_->[0] eq 'content-type' && defined $type;
            push @fields, $_->[1], $_->[2];
        }
    }
    push @fields, Expires => Forebay::ModPerl::http_date($^T)
        if $r->{no_cache} && !$r->headers_out->get('Expires');
    my $status = $r->{status};
    if (($r->{status_line} // '') =~ /\A([1-9]\d\d) [\x20-\x7e]+\z/ && $1 == $status) {
        $status = $r->{status_line};
        $Forebay::Host::status_lines{$status} = "Status: $status\r\n\r\n";
    }
    return ($status, \@fields);
}

1;
