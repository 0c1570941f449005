# The phases of a request, in Apache's order: which handlers run, and what their answers mean.
package Forebay::Phases;

use strict;
use warnings;

my ($OK, $DECLINED, $DONE) = (0, -1, -2);
my $MOST_REDIRECTS = 10;    # as Apache's LimitInternalRecursion

our $current = '';          # the phase that runs
our $kept_type;             # of the content, while internal_redirect_handler runs
my %configured;             # phase => handlers of all requests
my %resolved;               # text => handler
my %providers;              # authentication or authorization => name => handler
my ($precede, $follow) = (0, 0);    # how many phases before the response, and after the reply, have any
my %IS_PHASE = map { ("Perl${_}Handler" => 1) } qw(PostReadRequest Init Trans MapToStorage
    HeaderParser Access Authen Authz Type Fixup Response Log Cleanup ChildInit ChildExit
    OpenLogs PostConfig PreConnection ProcessConnection OutputFilter InputFilter);

our %IS_EARLY = map { ("Perl${_}Handler" => 1) } qw(PostReadRequest Init Trans MapToStorage
    HeaderParser Access Authen Authz Type Fixup);
my @LATE = qw(PerlLogHandler PerlCleanupHandler);

# ---- handlers ----

sub check_name {
    my ($phase) = @_;
    return if $IS_PHASE{ $phase // '' };
    require Carp;
    Carp::croak('there is no phase ' . ($phase // 'undef'));
}

sub push_for_all {
    my ($phase, @new) = @_;
    check_name($phase);
    push @{ $configured{$phase} }, map { resolved($_) } map { ref eq 'ARRAY' ? @$_ : $_ } @new;
    $precede = grep { @{ $configured{$_} || [] } } keys %IS_EARLY;
    $follow = grep { @{ $configured{$_} || [] } } @LATE;
    return 1;
}

sub set_for_all {
    my ($phase, @new) = @_;
    check_name($phase);
    $configured{$phase} = [];
    return push_for_all($phase, grep { defined } @new);
}

sub of_all {
    my ($phase) = @_;
    check_name($phase);
    return $configured{$phase} ||= [];
}

# Returns true if a phase before the response has handlers, which may set the path or the method.
sub may_change_path { $precede || $_[0]{handlers} }

sub follow_reply { $follow }

sub filters_replies { $configured{PerlOutputFilterHandler} }

sub handlers_of {
    my ($r, $phase) = @_;
    return $r->{handlers} && $r->{handlers}{$phase} || $configured{$phase} || [];
}

# Returns the handler that `$what` names: a function, or a text as in Apache's configuration. Its
# module is loaded when it is first needed.
sub resolved {
    my ($what) = @_;
    return { code => $what, name => 'a function', is_method => is_method($what) } if ref $what;
    return $resolved{$what} ||= { name => $what };
}

sub load {
    my ($handler) = @_;
    (my $name = $handler->{name}) =~ s/\A\+//;
    if ($name =~ /\Asub\b/) {
        return $handler->{code} = eval "package main; no strict; $name" || die "a handler in the configuration: $@";
    }
    my ($class, $method) = split /->/, $name, 2;
    if (defined $method) {
        if ($class =~ s/\A\$//) {
            no strict 'refs';
            my $object = ${$class};
            die "\$$class has no object\n" if !ref $object;
            return $handler->{code} = sub { $object->$method(@_) };
        }
        require_class($class);
        return $handler->{code} = sub { $class->$method(@_) };
    }
    no strict 'refs';
    my $code = defined &{"${class}::handler"} ? \&{"${class}::handler"}
        : defined &{$class} ? \&{$class} : undef;
    if (!$code) {
        my ($package, $function) = $class =~ /\A(.*)::(\w+)\z/;
        my $loaded = eval { require_class($class); 1 };
        my $error = $@;
        if ($loaded && defined &{"${class}::handler"}) { $code = \&{"${class}::handler"} }
        elsif (!$loaded && defined $package && !is_of($error, $class)) { die $error }
        elsif (defined $package && has_function($package, $class)) { $code = \&{$class} }
        elsif (my $inherited = $loaded && $class->can('handler')) { $code = $inherited }
        else { die $loaded ? "$class has no function `handler`\n" : $error }
    }
    if ($class->can('handler') && $class->can('handler') == $code && is_method($code)) {
        return $handler->{code} = sub { $class->handler(@_) };
    }
    return $handler->{code} = $code;
}

# Returns true if the module is there and has the function. Its own errors are not hidden.
sub has_function {
    my ($package, $function) = @_;
    my $loaded = eval { require_class($package); 1 };
    die $@ if !$loaded && !is_of($@, $package);
    no strict 'refs';
    return $loaded && defined &{$function};
}

# Returns true if the error says that the module itself is missing.
sub is_of {
    my ($error, $class) = @_;
    (my $file = "$class.pm") =~ s{::}{/}g;
    return $error =~ /\ACan't locate \Q$file\E /;
}

sub require_class {
    my ($class) = @_;
    no strict 'refs';
    (my $file = "$class.pm") =~ s{::}{/}g;
    return if $INC{$file};
    my $error;
    return if eval { require $file; 1 };
    $error = $@;
    # A package of another file, such as startup.pl.
    return if is_of($error, $class) && grep { !/::\z/ } keys %{"${class}::"};
    die $error;
}

sub is_method {
    my ($code) = @_;
    return 0 if ref $code ne 'CODE';
    require attributes;
    return scalar grep { $_ eq 'method' } attributes::get($code);
}

# Loads the handlers of all requests.
sub load_all {
    require Apache2::Filter if grep { /Filter/ } keys %configured;
    for my $list (values %configured) {
        $_->{code} || load($_) for @$list;
    }
    $_->{code} || load($_) for map { values %$_ } values %providers;
}

# Calls a handler. Returns its answer, as mod_perl understands it; undef if it has called exit,
# which ends its phase.
sub call {
    my ($handler, $phase, @arguments) = @_;
    local $current = $phase;
    my $status;
    if (!eval { $status = ($handler->{code} || load($handler))->(@arguments); 1 }) {
        my $error = $@;
        return undef if ref $error eq 'APR::Error' && $error->{rc} == 120000;
        die $error if Forebay::ModPerl::is_aborted($error);
        return $error->{rc} if ref $error eq 'APR::Error' && $error->{rc} >= 400 && $error->{rc} < 600;
        Forebay::ModPerl::log_failure($error);
        return 500;
    }
    no warnings 'numeric';
    $status = defined $status ? int $status : $OK;
    return $status == 200 ? $OK : $status;
}

# Calls the handlers of a phase until one of them answers. With `$is_for_all`, OK is no answer.
sub run {
    my ($r, $phase, $is_for_all) = @_;
    for (my $at = 0;; $at++) {
        # A handler may add others.
        my $list = $r->{handlers} && $r->{handlers}{$phase} || $configured{$phase} or last;
        my $handler = $list->[$at] or last;
        my $answer = call($handler, $phase, $r);
        return $OK if !defined $answer;
        return $answer if $answer != $DECLINED && !($is_for_all && $answer == $OK);
    }
    return $is_for_all ? $OK : $DECLINED;
}

sub run_for_process {
    my ($phase) = @_;
    call($_, $phase, $Apache2::Process::pool, $Apache2::ServerRec::server)
        for @{ $configured{$phase} || [] };
}

# ---- a request ----

# Answers the request. Afterwards $r, or what it was redirected to, has what the reply needs.
sub serve {
    my ($r) = @_;
    return settle($r, respond($r)) if !$precede && !@{ Forebay::ModPerl::requirements() };
    my $status = run($r, 'PerlPostReadRequestHandler', 1);
    $status = run($r, 'PerlInitHandler', 1) if $status == $OK;
    $status = prepare($r) if $status == $OK;
    return settle($r, $status == $OK ? respond($r) : $status);
}

# Runs the phases that decide about a request that the application does not answer itself. Returns
# the request whose head the reply has; it is permitted if no handler has objected or answered.
sub decide {
    my ($r) = @_;
    my $status = run($r, 'PerlPostReadRequestHandler', 1);
    $status = run($r, 'PerlInitHandler', 1) if $status == $OK;
    $status = run($r, 'PerlHeaderParserHandler', 1) if $status == $OK;
    $status = authorize($r) if $status == $OK;
    my $last = settle($r, $status);
    $last->{is_permitted} = $status == $OK && $last == $r && !$r->{output}{writer};
    return $last;
}

# Runs the phases before the response. Returns OK, or the status that ends the request.
sub prepare {
    my ($r) = @_;
    my $status = run($r, 'PerlTransHandler');
    return $status if $status != $OK && $status != $DECLINED;
    $status = run($r, 'PerlMapToStorageHandler');
    return $status if $status != $OK && $status != $DECLINED;
    return $OK if !is_inside($r);
    if (!$r->{main}) {
        $status = run($r, 'PerlHeaderParserHandler', 1);
        return $status if $status != $OK;
    }
    $status = authorize($r);
    return $status if $status != $OK;
    $status = run($r, 'PerlTypeHandler');
    return $status if $status != $OK && $status != $DECLINED;
    return run($r, 'PerlFixupHandler', 1);
}

# Returns true if a path belongs to the application. Redirects may lead to other paths of the site:
# these are files, for which the application's handlers are not configured.
sub is_inside {
    my ($r) = @_;
    my $location = $r->{location};
    return index("$r->{uri}/", "$location/") == 0;
}

# ---- who may ----

# The answers of authz and authn providers, with Apache's numbers.
my ($DENIED, $GRANTED, $NEUTRAL, $NOT_FOUND, $NO_USER) = (0, 1, 2, 3, 4);

sub add_provider {
    my ($group, $name, $what) = @_;
    $providers{$group}{$name} = resolved($what);
}

# Runs the phases that decide whether the client may.
sub authorize {
    my ($r) = @_;
    my $status = run($r, 'PerlAccessHandler', 1);
    my $is_any = $r->satisfies == 1 && @{ handlers_of($r, 'PerlAccessHandler') };
    return $status if $is_any ? $status == $OK : $status != $OK;
    my $requirements = Forebay::ModPerl::requirements();
    return $status if !@$requirements;
    # Nobody has to log in for what is decided without a user.
    my $verdict = verdict($r, $requirements);
    return $OK if $verdict == $GRANTED;
    return refused($r, 403) if $verdict == $DENIED;
    return $verdict if $verdict != $NO_USER;
    $status = run($r, 'PerlAuthenHandler');
    $status = check_password($r) if $status == $DECLINED;
    return unfinished($r, 'check user') if $status == $DECLINED;
    return $status if $status != $OK;
    return unfinished($r, 'check user: no handler has set one') if !defined $r->{user};
    $status = run($r, 'PerlAuthzHandler');
    return $status if $status != $DECLINED;
    $verdict = verdict($r, $requirements);
    return $OK if $verdict == $GRANTED;
    return $verdict if $verdict != $DENIED && $verdict != $NO_USER;
    return refused($r, 403) if $verdict == $DENIED && !defined $r->auth_type;
    $r->note_auth_failure;
    return refused($r, 401);
}

sub unfinished {
    my ($r, $what) = @_;
    $r->log_error("configuration error: couldn't $what: " . Forebay::ModPerl::shown($r->uri));
    return 500;
}

sub refused {
    my ($r, $status) = @_;
    my $who = $r->{user} // 'the client';
    $r->log_error('no rule of Require admits ' . Forebay::ModPerl::shown("$who: " . $r->uri));
    return $status;
}

# Returns what the requirements say together, of which one is enough: granted, denied, needs a user,
# or the status of an error.
sub verdict {
    my ($r, $requirements) = @_;
    my $verdict = $DENIED;
    for (@$requirements) {
        my $each = meets($r, $_);
        return $each if $each == $GRANTED;
        return unfinished($r, "evaluate '$_'") if $each != $DENIED && $each != $NEUTRAL && $each != $NO_USER;
        $verdict = $NO_USER if $each == $NO_USER;
    }
    return $verdict;
}

sub meets {
    my ($r, $requirement) = @_;
    my ($kind, $rest) = $requirement =~ /\A\s*(\S+)\s*(.*?)\s*\z/s or return $DENIED;
    if (my $provider = $providers{authorization}{$kind}) {
        return call($provider, $current, $r, $rest) // 500;
    }
    return $rest =~ /\Agranted\z/i ? $GRANTED : $DENIED if $kind eq 'all';
    # Apache decides these without a user, but they are not known here.
    return $DENIED if $kind =~ /\A(?:ip|host|forward-dns|local|env|method|expr|not)\z/;
    # An authz handler may know the others.
    return $NO_USER if !defined $r->{user};
    return $GRANTED if $kind eq 'valid-user';
    return $kind eq 'user' && grep({ $_ eq $r->{user} } words($rest)) ? $GRANTED : $DENIED;
}

# Returns the words of a line of Apache's configuration.
sub words {
    my ($text) = @_;
    my @words;
    while ($text =~ /\G\s*(?:(["'])((?:\\.|(?!\1).)*)\1?|(\S+))/gs) {
        push @words, $3 // $2 =~ s/\\([\\"'])/$1/gr;
    }
    return @words;
}

# Asks the authn providers about the password, as mod_auth_basic does.
sub check_password {
    my ($r) = @_;
    my $names = Forebay::ModPerl::directives('AuthBasicProvider');
    return $DECLINED if !@$names || lc($r->auth_type // '') ne 'basic';
    my ($status, $password) = $r->get_basic_auth_pw;
    return $status if $status != $OK;
    my $answer = $NOT_FOUND;
    for (@$names) {
        my $provider = $providers{authentication}{$_} or return unfinished($r, "find the provider $_");
        $answer = call($provider, $current, $r, $r->{user}, $password) // 500;
        last if $answer != $NOT_FOUND;
    }
    return $OK if $answer == $GRANTED;
    return unfinished($r, 'check the password') if $answer != $DENIED && $answer != $NOT_FOUND;
    $r->note_basic_auth_failure;
    return 401;
}

sub respond {
    my ($r) = @_;
    local $Apache2::RequestRec::current = $r;
    Forebay::ModPerl::set_environment($r);
    return send_file($r) if !is_inside($r);
    $r->{parses_headers} = 1 if Forebay::ModPerl::has_option('ParseHeaders');
    if ($r->{PerlInputFilterHandler} || $configured{PerlInputFilterHandler}) {
        # A handler that reads gets the error.
        my $is_whole = eval { Forebay::Filters::filter_body($r, Forebay::Filters::of($r, 'PerlInputFilterHandler')); 1 };
        $r->{input_error} = $@ if !$is_whole;
    }
    # Their functions for the beginning run before the response.
    Forebay::Filters::of($r, 'PerlOutputFilterHandler') if $configured{PerlOutputFilterHandler};
    my $status = run($r, 'PerlResponseHandler');
    if (defined $r->{input_error}) {
        Forebay::ModPerl::log_failure($r->{input_error});
        return 500;
    }
    if ($status == $OK && defined $r->{local_redirect} && $r->{status} == 200) {
        $r->{output}->drop;
        $r->internal_redirect($r->{local_redirect});
    }
    return $status == $DECLINED ? send_file($r) : $status;
}

# Turns a status that is not OK into an error page, a redirect or a custom response. Returns the
# request whose head the reply has.
sub settle {
    my ($r, $status) = @_;
    my $last = $r;
    $last = $last->{next} while $last->{next};
    return $last if $status == $OK || $status == $DONE;
    if ($status < 100 || $status > 599) {
        $last->log_error("a handler has returned $status, which is no status");
        $status = 500;
    }
    return refuse($last, $status);
}

sub refuse {
    my ($r, $status) = @_;
    my $output = $r->{output};
    $output->drop;
    my $is_error_document = $r->{prev} && $r->{is_error_document};
    my $custom = $is_error_document ? undef : $r->{custom_response}{$status};
    $r->{status} = $status;
    delete $r->{status_line};
    $r->{PerlOutputFilterHandler} = [] if $r->{PerlOutputFilterHandler} || filters_replies();
    $r->{parses_headers} = 0;
    if (defined $custom && $custom =~ m{\A/}) {
        my $target = eval { redirected($r, $custom, 'GET') };
        if ($target) {
            $target->{is_error_document} = 1;
            $target->{status} = $status;
            return settle($target, run_again($target));
        }
    }
    my $location = $r->headers_out->get('Location');
    $r->{headers_out} = $r->{err_headers_out} || APR::Table->new;
    delete $r->{err_headers_out};
    delete @$r{qw(content_encoding content_languages)};
    if (defined $custom && $custom =~ m{\A[a-z][a-z0-9+.-]*://}i) {
        ($r->{status}, $location, $custom) = (302, $custom, undef);
    }
    my $is_redirect = $r->{status} >= 300 && $r->{status} < 400 && $r->{status} != 304 || $r->{status} == 201;
    $r->{headers_out}->set('Location', $location) if $is_redirect && defined $location;
    $r->{headers_out}->set('Allow', join ', ', @{ $r->{allowed_methods} || ['GET', 'HEAD', 'POST'] })
        if $status == 405 || $status == 501;
    if ($status == 304 || $status == 204) {
        $r->{content_type} = undef;
        return $r;
    }
    $r->{content_type} = 'text/html; charset=iso-8859-1';
    $output->write($r, defined $custom ? $custom =~ s/\A"//r : Forebay::ModPerl::page_of($r->{status}, $location));
    return $r;
}

# ---- internal redirects ----

# Returns how many requests lead to this one, and itself.
sub depth_of {
    my ($r) = @_;
    my $depth = 0;
    for (; $r; $r = $r->{prev} || $r->{main}) { $depth++ }
    return $depth;
}

# Returns the path and the query of a target within this site. The path is decoded, and has no dot
# segments, which would lead out of a directory.
sub parts_of {
    my ($target) = @_;
    my ($path, $args) = split /\?/, $target, 2;
    $path =~ s/%([0-9A-Fa-f]{2})/chr hex $1/ge;
    my @kept;
    for (split m{/}, $path, -1) {
        if ($_ eq '..') { pop @kept if @kept > 1 }
        elsif ($_ ne '.') { push @kept, $_ }
    }
    $path = join '/', @kept;
    return ($path eq '' ? '/' : $path, $args);
}

# Returns the request for a path of this site, to which `$r` leads.
sub redirected {
    my ($r, $target, $method) = @_;
    if (depth_of($r) > $MOST_REDIRECTS) {
        $r->log_error("Request exceeded the limit of $MOST_REDIRECTS internal redirects"
            . ' due to probable configuration error: ' . Forebay::ModPerl::shown($r->uri));
        die "too many internal redirects\n";
    }
    my ($path, $args) = parts_of($target);
    my %env = %{ $r->{env} };
    for (keys %{ $r->{env} }) {
        next if /\A(?:psgi|REDIRECT_|FOREBAY_)/;
        $env{"REDIRECT_$_"} = $env{$_} if /\A(?:HTTPS|REMOTE_USER|UNIQUE_ID|QUERY_STRING)\z/;
    }
    $env{REDIRECT_URL} = $r->{uri};
    $env{REDIRECT_STATUS} = $r->{status};
    $env{REDIRECT_QUERY_STRING} = $r->{args} // '';
    $env{QUERY_STRING} = defined $args ? $args : '';
    my $new = bless {
        env => \%env, output => $r->{output}, status => 200, uri => $path, location => $r->{location},
        method => $method // $r->{method}, unparsed_uri => $target, args => $args,
        protocol => $r->{protocol}, prev => $r, user => $r->{user},
        err_headers_out => $r->{err_headers_out}, notes => $r->{notes} && renamed($r->{notes}),
        defined $kept_type ? (content_type => $kept_type) : (),
        pnotes => $r->{pnotes}, headers_in => $r->{headers_in}, custom_response => $r->{custom_response},
    }, 'Apache2::RequestRec';
    $r->{next} = $new;
    return $new;
}

sub renamed {
    my ($notes) = @_;
    my $table = APR::Table->new;
    $notes->do(sub { $table->add("REDIRECT_$_[0]", $_[1]); 1 });
    return $table;
}

sub run_again {
    my ($r) = @_;
    my $status = prepare($r);
    return $status == $OK ? respond($r) : $status;
}

package Apache2::RequestRec;

# Answers with what another path of the application answers.
sub internal_redirect {
    my $r = &request_of;
    my ($target) = @_;
    my $method = $r->{method} eq 'HEAD' ? 'HEAD' : 'GET';
    my $new = eval { Forebay::Phases::redirected($r, $target, $method) };
    if (!$new) {
        $r->{failed} = 500;
        die bless { rc => 500, func => 'internal_redirect', file => '', line => 0 }, 'APR::Error';
    }
    my $status = Forebay::Phases::run_again($new);
    Forebay::Phases::settle($new, $status);
    return;
}

# Keeps the type of the content that is set.
sub internal_redirect_handler {
    my $r = &request_of;
    local $Forebay::Phases::kept_type = $r->{content_type};
    return $r->internal_redirect(@_);
}

sub internal_fast_redirect { goto &internal_redirect }

package Forebay::Phases;

# ---- files: the phases that Apache itself has ----

# Finds the file that the path names, as far as it exists, and what follows it in the path.
sub find_file {
    my ($r) = @_;
    my ($file, $rest);
    my $alias = Forebay::ModPerl::directive('Alias');
    if (defined $r->{filename}) { ($file, $rest) = ('', $r->{filename}) }    # set by a handler
    elsif (defined $alias && is_inside($r)) { ($file, $rest) = ($alias, substr $r->{uri}, length $r->{location}) }
    else { ($file, $rest) = ($r->{document_root} // Forebay::ModPerl::document_root(), $r->{uri}) }
    $rest =~ tr{/}{}s;
    my ($end, $length) = (0, length $rest);
    do {
        $end = index $rest, '/', $end + 1;
        $end = $length if $end < 0;
    } while ($end < $length && -d $file . substr $rest, 0, $end);
    $file .= substr $rest, 0, $end, '';
    $r->{path_info} = $rest if !defined $r->{path_info};
    $r->{filename} = $file;
}

# Finds the file, and tells the environment of the request.
sub set_path {
    my ($r, $env, $root) = @_;
    find_file($r);
    my $info = $r->{path_info};
    $env->{SCRIPT_FILENAME} = $r->{filename};
    $env->{SCRIPT_NAME} = $r->{uri};
    return delete @$env{qw(PATH_INFO PATH_TRANSLATED)} if $info eq '';
    $env->{PATH_INFO} = $info;
    $env->{PATH_TRANSLATED} = $root . $info;
    substr $env->{SCRIPT_NAME}, -length $info, length $info, '' if length $info <= length $r->{uri};
}

my %TYPES = (
    html => 'text/html', htm => 'text/html', txt => 'text/plain', css => 'text/css',
    csv => 'text/csv', xml => 'application/xml', js => 'text/javascript', json => 'application/json',
    png => 'image/png', gif => 'image/gif', jpg => 'image/jpeg', jpeg => 'image/jpeg',
    svg => 'image/svg+xml', ico => 'image/vnd.microsoft.icon', webp => 'image/webp',
    pdf => 'application/pdf', zip => 'application/zip', gz => 'application/gzip',
    mp3 => 'audio/mpeg', mp4 => 'video/mp4', webm => 'video/webm', woff => 'font/woff',
    woff2 => 'font/woff2', ttf => 'font/ttf', wasm => 'application/wasm', md => 'text/markdown',
    xhtml => 'application/xhtml+xml', rtf => 'application/rtf', doc => 'application/msword',
);

# Returns the type that the name of the file says, or undef.
sub type_of {
    my ($r) = @_;
    my $type;
    if (defined $r->filename && -d $r->filename) { $type = 'httpd/unix-directory' }
    elsif (($r->filename // '') =~ /\.([A-Za-z0-9]+)\z/) { $type = $TYPES{ lc $1 } }
    return $r->{content_type} = $type;
}

# What answers if no handler does: the file of the path, unless `root` is not set or a part of the
# path begins with a dot.
sub send_file {
    my ($r) = @_;
    my $file = $r->filename;
    my @roots = grep { defined } map { Forebay::ModPerl::directive($_) } qw(DocumentRoot Alias);
    # A file elsewhere is one that a handler has chosen.
    return 404 if !@roots || grep { index($file, "$_/") == 0 && substr($file, length) =~ m{/\.} } @roots;
    if (-d $file && $r->path_info eq '') {
        if ($file !~ m{/\z} && $r->{uri} !~ m{/\z}) {
            my $path = $r->{env}{REQUEST_URI} =~ s/\?.*//sr;
            $r->headers_out->set('Location', "$path/" . (defined $r->{args} ? "?$r->{args}" : ''));
            return 301;
        }
        (my $index = $file) =~ s{/*\z}{/index.html};
        return -e $index ? do { $r->internal_redirect($r->{uri} . 'index.html'); $OK } : 404 if $r->{method} =~ /\A(?:GET|HEAD)\z/;
    }
    return 404 if !-e $file || $r->path_info ne '';
    return 403 if !-f _;
    return 405 if $r->{method} !~ /\A(?:GET|HEAD)\z/;
    open my $handle, '<:raw', $file or return $! == 2 ? 404 : 403;
    my ($size, $time) = (stat $handle)[7, 9];
    $r->{content_type} = type_of($r) if !exists $r->{content_type};
    $r->set_last_modified($time);
    $r->set_etag;
    my $condition = $r->{status} == 200 ? $r->meets_conditions : $OK;
    return $condition if $condition != $OK;
    $r->set_content_length($size);
    return $OK if $r->{method} eq 'HEAD';
    while (read $handle, my $part, 65_536) { $r->{output}->write($r, $part) }
    return $OK;
}

1;
