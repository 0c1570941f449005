# Mode `prove`: what a request leaves in a perl process. A snapshot has a digest for each variable
# that outlives a request: those of packages, and lexical ones that a sub has captured. The variables
# whose digests differ from those before the request are its traces. Whether a trace depends on the
# request can only be seen from several requests, so Forebay (crates/forebay-workers/src/proofs.rs)
# decides that. This file works in the forked child that has run an unproved script, and in a worker
# that keeps proved ones.
package Forebay::Proof;

use strict;

# A walk that exceeds a limit says so, and then the script is not proved.
my ($MAX_NODES, $MAX_SECONDS, $MAX_TRACES, $MAX_DEPTH) = (500_000, 3, 3000, 40);
my $INTERVAL = 500;    # of kept requests that are checked
my $SHARE = 0.005;     # of processor time that checks may take
my ($MAX_ELEMENTS, $ELEMENT_DEPTH) = (256, 5);    # of containers whose elements are traces of their own
# Packages of perl and of this host, whose variables no script changes by itself.
my $SKIPPED = qr/^(?:B|CORE|Config|DB|Digest::MD5|DynaLoader|Forebay|Internals|PerlIO|UNIVERSAL|XSLoader
    |builtin|bytes|feature|mro|re|strict|utf8|version|vxs|warnings)(?:::|\z)/x;
# Variables of main that each request gets anew, or that process_traces() reports.
my %OF_PERL = map { ($_ => 1) } qw(ENV INC SIG ARGV ARGVOUT STDIN STDOUT STDERR stdin stdout stderr _ 0);
my $SCRIPTS = 'Forebay::Script::';

# Classes of caches whose values belong to their keys, and variables that only give out names: they
# hold nothing of a visitor.
my %IS_CACHE = map { ($_ => 1) } qw(Mojo::Cache);
my $GIVES_NAMES = qr/^(?:my \$genseq in sub Symbol::gensym|my \$value in sub Mojo::Message::Request::request_id|\$Catalyst::COUNT|\$Dancer2::Core::Request::_id)\z/;
our $compares_environment;    # CGI scripts get a new one for each request
our $salt = '';    # of digests, so that a value cannot be guessed from its digest
my (%seen, $nodes, $deadline, $too_large, @clock);
my ($old, $is_new, $after, $folded, $traces);    # of the walk
# Each object belongs to the path on which the first walk has met it, and is walked there. If it
# belonged to the first path of each walk, an element that a request adds would seem to change all
# objects behind it. The values are weak references, and paths.
my ($known, $owned, %foreign, $at) = ({}, {});

# Loads what snapshots need. Returns false if this perl lacks it.
sub is_possible {
    return eval { require B; require Digest::MD5; require Scalar::Util; require Time::HiRes; 1 };
}

# Returns the snapshot of this process. `$old`, if given, is an earlier snapshot; then `@$found`
# receives the traces since: path, digest, text of the value. The script is compiled in the package
# `$own`, or is the sub or object `$application`.
sub snapshot {
    (my $own, $old, $traces, my $application) = @_;
    begin_walk();
    (%seen, %foreign) = ();
    ($known, $owned) = ($old ? $old->{owned} : {}, {});
    my %all = (packages => {}, leaves => {}, owned => $owned);
    $after = $all{leaves};
    CGI::initialize_globals() if $INC{'CGI.pm'} && defined &CGI::initialize_globals;
    process_traces();
    for my $package ($own, grep { $_ ne $own && $_ !~ $SKIPPED } packages_below('main::', '')) {
        last if $too_large;
        $all{packages}{$package} = 1;
        my $shown = $package eq $own ? 'main' : $package;
        # A module that this request has loaded is one trace.
        $is_new = $old && !$old->{packages}{$package};
        $folded = '';
        package_traces($package, $shown);
        my $text = $folded;
        $is_new = 0;
if ($old && !$old->{packages}{$package}) {
            record("all variables of package $shown", 'f', $text);
            # The next snapshot has its variables one by one.
            delete $after->{"all variables of package $shown"};
        }
    }
    variables_of('the application', $application) if $application;
    $known = {};
    for (sort { $foreign{$a}[1] cmp $foreign{$b}[1] } keys %foreign) {
        element("what was $foreign{$_}[1]", $foreign{$_}[0], 0) if !$seen{$_};
    }
    if ($old && !$too_large) {
        for my $path (keys %{ $old->{leaves} }) {
            next if exists $after->{$path};
            push @$traces, [$path, 'a0:', ''];
        }
    }
    push @$traces, ['the variables', '', '', 'more variables than a proof can compare']
        if $traces && $too_large;
    (%seen, %foreign) = ();
    return \%all;
}

# Takes the state of the process into a snapshot again, because the host has changed it since.
sub refresh {
    ($old, $traces, $after, $known, $owned) = (undef, undef, $_[0]{leaves}, {}, {});
    begin_walk();
    delete @$after{ grep { /^descriptors of |^\$SIG\{/ } keys %$after };
    process_traces();
}

# Begins the limits of a walk. They count processor time, because a busy machine is no fault of the
# script.
sub begin_walk {
    ($nodes, $too_large, $deadline) = (0, 0, processor_time() + $MAX_SECONDS);
    @clock = ($^T - 1, time + 1);
}

sub packages_below {
    my ($name, $prefix) = @_;
    no strict 'refs';
    my @found = $prefix eq '' ? 'main' : ();
    for my $entry (sort grep { /::\z/ && $_ ne 'main::' } keys %{$name}) {
        my $package = $prefix . substr $entry, 0, -2;
        next if $package =~ $SKIPPED;
        push @found, $package, packages_below("$package\::", "$package\::");
    }
    return @found;
}

sub package_traces {
    my ($package, $shown) = @_;
    no strict 'refs';
    my $stash = \%{"$package\::"};
    my $is_main = $shown eq 'main';
    # Perl's own variables have names of punctuation or digits, or of one control character.
    for my $name (sort grep { /\w/ && !/::\z/ && !/\A(?:\d+|_<.*|\^?[A-Z]?\W)\z/s } keys %$stash) {
        next if $name eq 'BEGIN' || $is_main && $OF_PERL{$name} || $name eq '__script__';
        my $entry = \$stash->{$name};
        if (ref $entry ne 'GLOB') {    # a sub, a constant or a declaration
            my $is_code = reftype($$entry) eq 'CODE';
            captured_traces($$entry, "$shown\::$name", $package) if $is_code;
            record("\$$shown\::$name", 'f', text($$entry, 0)) if !$is_code && ref $$entry && $is_main;
            next;
        }
        $name =~ s/^([\x01-\x1a])/'^' . chr 64 + ord $1/e;
        my ($array, $hash, $code, $io) = map { *{$entry}{$_} } qw(ARRAY HASH CODE IO);
        element("\$$shown\::$name", ${*$entry}, 0);
        container("$shown\::$name", $array, 0) if $array;
        container("$shown\::$name", $hash, 0) if $hash;
        record("the handle $shown\::$name", 'h', handle_text($io)) if $io;
        captured_traces($code, "$shown\::$name", $package) if $code;
        last if $too_large;
    }
}

# Records the lexical variables that a sub of this package has captured, and its state variables.
sub captured_traces {
    my ($code, $name, $package) = @_;
    my $info = B::svref_2object($code);
    # What a script evaluates may have a value of the request in its text.
    if ($info->CvFLAGS & B::CVf_CONST()) {
        record("the constant $name", 'f', text($code->(), 0)) if $name =~ /^main::/;
    }
    elsif (!$info->XSUB && ($info->FILE // '') =~ /^\(eval/) {
        record("the text of sub $name", 'f', join "\0", constants($info));
    }
    return if $info->XSUB || $info->CvFLAGS & B::CVf_CONST();
    my $gv = $info->GV;
    # Imported subs belong to their own package.
    return if ref $gv eq 'B::GV' && $gv->STASH->NAME ne $package && $gv->NAME ne '__ANON__';
    variables_of("sub $name", $code);
}

# Records the captured variables of a sub, or the elements of an object.
sub variables_of {
    my ($name, $code) = @_;
    return element($name, $code, 0) if reftype($code) ne 'CODE';
    for (captured(B::svref_2object($code))) {
        my ($variable, $value) = @$_;
        my $path = "my $variable in $name";
        my $type = reftype($value);
        if ($type eq 'ARRAY' || $type eq 'HASH') { container($path, $value, 0) }
        elsif ($type ne 'CODE' && !$seen{ Scalar::Util::refaddr($value) }++) { element($path, $$value, 0) }
    }
}

sub reftype { Scalar::Util::reftype($_[0]) // '' }

# Returns the constants of a sub, where perl has threads.
sub constants {
    my ($info) = @_;
    my $pads = $info->PADLIST;
    return if !$$pads || ref $pads eq 'B::NULL';
    my $values = $pads->ARRAYelt(1);
    return if !$values || ref $values ne 'B::AV';
    return map { $_->FLAGS & B::SVf_READONLY() && $_->can('PV') && $_->FLAGS & B::SVf_POK() ? $_->PV : () }
        grep { ref ne 'B::SPECIAL' && ref ne 'B::NULL' } $values->ARRAY;
}

# Returns the captured variables of a sub: name with sigil, reference.
sub captured {
    my ($info) = @_;
    my $pads = $info->PADLIST;
    return if !$$pads || ref $pads eq 'B::NULL';
    my ($names, $values) = ($pads->ARRAYelt(0), $pads->ARRAYelt(1));
    return if !$names || !$values || ref $values eq 'B::SPECIAL' || ref $values eq 'B::NULL';
    my ($outer, $ours) = $] >= 5.022 ? (3, 16) : (B::SVf_FAKE(), 0);
    my (@found, $i) = ();
    my @values = $values->ARRAY;
    for my $entry ($names->ARRAY) {
        my $value = $values[$i++];
        next if !$entry || ref $entry eq 'B::SPECIAL' || ref $entry eq 'B::NULL' || !$value || ref $value eq 'B::SPECIAL';
        my $flags = $entry->FLAGS;
        next if !($flags & $outer) || $flags & $ours;
        my $variable = $entry->PV // next;
        next if $variable !~ /\A[\$\@%]\w/;
        push @found, [$variable, $value->object_2svref];
    }
    return @found;
}

# Records an array or a hash: each element, unless it has too many or is too deep.
sub container {
    my ($path, $it, $depth) = @_;
    return if $seen{ Scalar::Util::refaddr($it) }++ || $too_large;
    my $is_hash = reftype($it) eq 'HASH';
    my $sigil = $depth || $path =~ /^my / ? '' : $is_hash ? '%' : '@';
    if ($is_hash ? tied %$it : tied @$it) {
        $at = "$sigil$path";
        return record("$sigil$path", 'f', 'tied ' . text($is_hash ? tied %$it : tied @$it, 0));
    }
    my $count = $is_hash ? keys %$it : @$it;
    if ($count > $MAX_ELEMENTS || $depth > $ELEMENT_DEPTH) {
        $path =~ s/->\z//;
        return record("$sigil$path", 'f', $is_hash ? hash_text($it, 0) : array_text($it, 0));
    }
    $sigil = $sigil eq '' ? '' : '$';
    record("the length of $path", 'n', $count) if !$is_hash && $count;
    if ($is_hash) {
        for my $key (sort keys %$it) {
            element("$sigil$path\{" . key_text($key) . '}', $it->{$key}, $depth);
        }
    }
    else {
        element("$sigil$path\[$_]", $it->[$_], $depth) for 0 .. $#$it;
    }
}

# Records a scalar variable or an element, $_[1].
sub element {
    my ($path, undef, $depth) = @_;
    $at = $path;
    return record($path, 'f', 'tied ' . text(tied $_[1], 0)) if tied $_[1];
    record("the position of $path", 'n', pos $_[1]) if defined pos $_[1];
    my $value = $_[1];
    my $type = reftype($value);
    if (($type eq 'HASH' || $type eq 'ARRAY') && $depth <= $ELEMENT_DEPTH
        && !is_elsewhere($value)) {
        own($value);
        my $class = Scalar::Util::blessed($value) // $type;
        record($path, 'c', $class);
        return if $IS_CACHE{$class};
        return container("$path->", $value, $depth + 1);
    }
    return record($path, 'u', '') if !defined $value;
    return record($path, $value =~ /\A-?\d+(?:\.\d+)?\z/ ? 'n' : 't', plain($value))
        if $type eq '' && ref \$value ne 'GLOB';
    record($path, 'f', text($value, 0));
}

# Returns true if an object is walked on another path than this one.
sub is_elsewhere {
    my $address = Scalar::Util::refaddr($_[0]);
    return 1 if $seen{$address};
    my $owner = $known->{$address} or return 0;
    return 0 if !$owner->[0] || $owner->[1] eq $at;
    $foreign{$address} = [$_[0], $owner->[1]];
    return 1;
}

sub own {
    return if !defined Scalar::Util::blessed($_[0]);
    my $owner = $owned->{ Scalar::Util::refaddr($_[0]) } = [$_[0], $at];
    Scalar::Util::weaken($owner->[0]);
}

# Adds a digest to the snapshot, and a trace if it differs from that before.
sub record {
    my ($path, $kind, $text) = @_;
    return if $path =~ $GIVES_NAMES;
    if ($is_new) {
        $folded .= "$path=$kind" . length($text) . ":$text\n";
        return;
    }
    return if $kind eq 'u';    # as if it were not there
    utf8::encode($text) if utf8::is_utf8($text);
    my $digest = $kind . length($text) . ':' . substr Digest::MD5::md5_hex("$salt$text"), 0, 20;
    $after->{$path} = $digest;
    return if !$old || ($old->{leaves}{$path} // '') eq $digest;
    push @$traces, [$path, $digest, $text];
}

# Returns a value as text that is the same in each process: without addresses, times of this request
# and process ids.
sub plain {
    my ($text) = @_;
    return $text if length $text > 65_536;
    if ($text =~ /\A\d+(?:\.\d+)?\z/) {
        return 'NOW' if $text >= $clock[0] && $text <= $clock[1];
        return 'PID' if $text eq $$;
    }
    (my $copy = "$text") =~ s/\(0x[0-9a-f]{6,}\)/(ADDRESS)/g;
    return $copy;
}

sub key_text {
    my ($key) = @_;
    return 'ADDRESS' if $key =~ /\A\d{10,}\z/;
    $key =~ s/\(0x[0-9a-f]{6,}\)/(ADDRESS)/g;
    return $key;
}

# Returns the whole value as one text.
sub text {
    my $depth = $_[1];
    if (++$nodes > $MAX_NODES || !($nodes % 1000) && processor_time() > $deadline) { $too_large = 1 }
    return '' if $too_large;
    my $value = $_[0];
    return 'u' if !defined $value;
    my $type = reftype($value);
    if ($type eq '') {
        return 'h' . handle_text(*{$value}{IO}) if ref \$value eq 'GLOB';
        my $plain = plain($value);
        return 't' . length($plain) . ':' . $plain;
    }
    my $class = Scalar::Util::blessed($value) // '';
    # faults() looks at the transactions of DBI.
    return $class if $IS_CACHE{$class} || $class =~ /^DBI::|::(?:db|st)\z/ && UNIVERSAL::isa($value, 'DBI::common');
    return "$class again" if is_elsewhere($value);
    $seen{ Scalar::Util::refaddr($value) } = 1;
    own($value);
    if ($depth > $MAX_DEPTH) { $too_large = 1; return '' }
    $class .= ' ' if $class ne '';
    return $class . hash_text($value, $depth) if $type eq 'HASH';
    return $class . array_text($value, $depth) if $type eq 'ARRAY';
    return $class . 'r' . text($$value, $depth + 1) if $type eq 'SCALAR' || $type eq 'REF' || $type eq 'LVALUE';
    return $class . 'h' . handle_text(*{$value}{IO}) if $type eq 'GLOB';
    return $class . 'h' . handle_text($value) if $type eq 'IO';
    return $class . 'q' . join '/', map { $_ // '' } re::regexp_pattern($value) if $type eq 'REGEXP';
    return $class . 's' . code_text($value, $depth) if $type eq 'CODE';
    return "$class$type";
}

sub hash_text {
    my ($hash, $depth) = @_;
    return '{tied ' . text(tied %$hash, $depth + 1) . '}' if tied %$hash;
    return '{' . join(',', map {
        my $key = key_text($_);
        't' . length($key) . ":$key=" . text($hash->{$_}, $depth + 1)
    } sort keys %$hash) . '}';
}

sub array_text {
    my ($array, $depth) = @_;
    return '[tied ' . text(tied @$array, $depth + 1) . ']' if tied @$array;
    return '[' . join(',', map { text($array->[$_], $depth + 1) } 0 .. $#$array) . ']';
}

sub code_text {
    my ($code, $depth) = @_;
    my $info = B::svref_2object($code);
    return 'XS' if $info->XSUB;
    return 'host' if $info->STASH->can('NAME') && $info->STASH->NAME eq 'Forebay::Host';
    my $start = $info->START;
    my $at = $start->can('line') ? $info->FILE . ':' . $start->line : '';
    return "$at(" . join(',', map {
        my ($variable, $value) = @$_;
        my $type = reftype($value);
        "$variable=" . ($type eq 'ARRAY' || $type eq 'HASH' ? text($value, $depth + 1)
            : $type eq 'CODE' ? 'sub' : text($$value, $depth + 1));
    } captured($info)) . ')';
}

sub handle_text {
    my ($io) = @_;
    my $number = defined $io ? eval { fileno $io } : undef;
    if (defined $number && $number == -1 && (my $start = eval { tell $io } // -1) >= 0) {
        # A handle of a variable, whose text has no other name.
        local ($/, $@);
        seek $io, 0, 0;
        my $text = readline($io) // '';
        seek $io, $start, 0;
        return "a variable $start $text";
    }
    return defined $number && $number >= 0 ? target($number) : 'closed';
}

sub target {
    my $target = readlink("/proc/self/fd/$_[0]") // 'closed';
    $target =~ s/\[\d+\]\z//;
    $target =~ s{^.*/PerlIO_\w+ \(deleted\)\z}{a temporary file};
    return $target;
}

# Records the state of the process.
sub process_traces {
    record('the current directory', 't', readlink('/proc/self/cwd') // '');
    record('the umask', 'n', sprintf '%03o', umask);
    record('@INC', 'f', join "\0", map { ref || $_ } @INC);
    record('$0', 't', $0);
    if ($compares_environment) { record("\$ENV{$_}", 't', $ENV{$_} // '') for sort keys %ENV }
    no warnings;
    record("\$$_->[0]", 't', $_->[1] // 'undef')
        for ['/', $/], ['\\', $\], [',', $,], [';', $;], ['"', $"], ['|', $|];
    record('the locale', 't', POSIX::setlocale(6) // '')
        if $INC{'POSIX.pm'} && defined &POSIX::setlocale;
    for my $signal (sort grep { defined $SIG{$_} && $SIG{$_} !~ /^(?:DEFAULT)?\z/ } keys %SIG) {
        record("\$SIG{$signal}", 'f', text($SIG{$signal}, 0));
    }
    my %open;
    if (opendir my $numbers, '/proc/self/fd') {
        my $own = readlink '/proc/self/fd';
        for (grep { /\d/ && $_ > 2 } readdir $numbers) {
            my $target = target($_);
            $open{$target}++ if $target ne 'closed' && $target !~ m{\A/proc/\d+/fd\z};
        }
    }
    record("descriptors of $_", 'n', $open{$_}) for sort keys %open;
}

# ---- what is a finding at once ----

# Returns traces of a request that no later request could stand.
sub faults {
    my @faults;
    my $fault = sub { push @faults, [$_[0], '', '', $_[1]] };
    my $left = alarm 0;
    $fault->('alarm', 'an alarm is left, which would go off in a later request') if $left;
    if (open my $list, '<', "/proc/$$/task/$$/children") {
        $fault->('child processes', 'a child process is left') if (readline($list) // '') =~ /\d/;
    }
    if (opendir my $tasks, '/proc/self/task') {
        $fault->('threads', 'a thread is left') if 1 < grep { /\d/ } readdir $tasks;
    }
    if ($INC{'DBI.pm'} && DBI->can('installed_drivers')) {
        my %drivers = eval { DBI->installed_drivers };
        for my $handle (grep { defined } map { @{ $_->{ChildHandles} || [] } } values %drivers) {
            $fault->('a DBI handle', 'a transaction is left open')
                if eval { $handle->{Active} && !$handle->{AutoCommit}
                    && ($handle->{BegunWork} || $handle->{Executed}) };
        }
    }
    push @faults, unwritten();
    return @faults;
}

# Returns a fault for each bareword handle of main with text that is not yet in its file.
sub unwritten {
    my @found;
    no strict 'refs';
    for my $name (sort grep { /\A[A-Z]\w*\z/ && !$OF_PERL{$_} && ref \$main::{$_} eq 'GLOB' } keys %main::) {
        my $handle = *{ $main::{$name} }{IO} or next;
        my $number = eval { fileno $handle } // next;
        next if !-f "/proc/self/fd/$number";
        my $at = sysseek $handle, 0, 1;
        push @found, ["the handle main::$name", '', '', 'text is left that is not yet in its file']
            if $at && tell($handle) > $at || $at && $at eq '0 but true' && tell($handle) > 0;
    }
    return @found;
}

# ---- what depends on the visitor ----

# Returns what in a request may name its visitor: name, value, and whether it alone identifies one.
sub inputs {
    my ($environment, $body) = @_;
    my @inputs;
    my $add = sub {
        my ($name, $value, $identifies) = @_;
        push @inputs, [$name, $value, $identifies] if defined $value && length $value > 1;
    };
    $add->('the user', $environment->{REMOTE_USER}, 1);
    my $address = $environment->{REMOTE_ADDR} // '';
    $add->('the address', $address, 1) if $address !~ /^(?:127\.|::1\z)/;
    $add->('the field Authorization', $environment->{HTTP_AUTHORIZATION}, 1);
    for (split /;\s*/, $environment->{HTTP_COOKIE} // '') {
        my ($name, $value) = split /=/, $_, 2;
        $add->("the cookie \"$name\"", decoded($value), 1);
    }
    my $form = ($environment->{CONTENT_TYPE} // '') =~ /urlencoded/i ? "&$body" : '';
    for (split /[&;]/, ($environment->{QUERY_STRING} // '') . $form) {
        my ($name, $value) = split /=/, $_, 2;
        $add->("the parameter \"" . decoded($name) . '"', decoded($value), 0);
    }
    $add->('PATH_INFO', $environment->{PATH_INFO}, 0) if length($environment->{PATH_INFO} // '') > 1;
    return \@inputs;
}

sub decoded {
    my ($text) = @_;
    return '' if !defined $text;
    $text =~ tr/+/ /;
    $text =~ s/%([0-9A-Fa-f]{2})/chr hex $1/ge;
    return $text;
}

# Returns which input a value contains, or ''.
sub source {
    my ($inputs, $digest, $text, $path) = @_;
    my $kind = substr $digest, 0, 1;
    my $is_module = $path =~ /^all variables of package/;
    for (@$inputs) {
        my ($name, $value, $identifies) = @$_;
        next if $is_module && !$identifies;
        my $length = length $value;
        my $is_whole = $kind eq 'f' ? index($text, "t$length:$value") >= 0 : $text eq $value;
        $is_whole ||= index($path, "{$value}") >= 0;
        return $name if $is_whole && $length >= ($identifies ? 2 : 4);
        return $name if $length >= ($identifies ? 4 : 8) && index("$path\n$text", $value) >= 0;
    }
    return '';
}

# ---- the report ----

# Returns a line for each module file that has been loaded since `%$before`.
sub loaded {
    my ($before) = @_;
    return map { 'loaded ' . encoded($_) } grep { /\A[\w\/]+\.pm\z/ && !$before->{$_} } keys %INC;
}

# Loads the modules that a request has loaded in its process, so that the next one finds them, and
# only what a request itself has left counts. Returns the other lines of the report, without what
# the modules have set.
sub load_too {
    my (@lines) = @_;
    my $count = keys %INC;
    for (map { /\Aloaded ([\w\/]+\.pm)\z/ ? $1 : () } @lines) {
        my $file = $_;
        local ($@, $_) = ('', '');
        eval { require $file };
    }
    @lines = grep { !/\Aloaded / } @lines;
    return (0, @lines) if keys %INC == $count;
    return (1, grep { !/\Atrace .*(?: -\z|changes%20more)/ } @lines);
}

# Returns the lines about a request: one for each trace, and one for the end.
sub report {
    my ($own, $old, $inputs, $shows, $begun, $script, $faults, $application) = @_;
    my @traces = @$faults;
    my $new = snapshot($own, $old, \@traces, $application);
    my @lines;
    for (grep { !defined $_->[3] } @traces) {
        my $source = source($inputs, @$_[1, 2, 0]);
        $_->[3] = $source eq '' ? '' : "it holds $source";
    }
    if (@traces > $MAX_TRACES) {
        @traces = grep { $_->[3] ne '' } @traces;
        $#traces = 9 if @traces > 10;
        push @traces, ['the variables', '', '', "a request changes more than $MAX_TRACES of them"];
    }
    for (@traces) {
        my ($path, $digest, $text, $why) = @$_;
        push @lines, join ' ', 'trace', map { encoded($_) } $path, $digest,
            $shows ? substr($text, 0, 60) : '', @lines < 100 || $why ne '' ? place($path, $script) : '', $why;
    }
    my $input = substr Digest::MD5::md5_hex(join "\0", $salt, map { @$_[0, 1] } @$inputs), 0, 16;
    push @lines, join ' ', 'end', $input, int(1e6 * (Time::HiRes::time() - $begun));
    return ($new, @lines);
}

# Compares this process with its state at the last check, and returns the lines about that. The first
# requests are checked more often, because what grows with each request shows only here. `$state` has
# the number of kept requests, and keeps what the next check needs.
my $used = 0;    # processor time at the last check

sub check_kept {
    my ($state, $own, $file, $inputs, $shows, $application) = @_;
    my ($runs, $begun, $since) = ($state->{runs}, Time::HiRes::time(), processor_time() - $used);
    my $is_first = !$state->{snapshot};
    my @lines;
    ($state->{snapshot}, @lines) =
        report($own, $state->{snapshot}, $inputs, $shows, $begun, $file, [], $application);
    my $requests = $runs - ($state->{last_check} || 0);
    my $interval = $since > 0 ? $requests * (Time::HiRes::time() - $begun) / ($SHARE * $since) : 0;
    $state->{check} = $runs < 2 ? $runs + 1 : $runs < $INTERVAL ? 2 * $runs - 1
        : $runs + ($interval > $INTERVAL ? int $interval : $INTERVAL);
    ($used, $state->{last_check}) = (processor_time(), $runs);
    return $is_first ? () : @lines;
}

sub processor_time { return Time::HiRes::clock() }

# Returns reports for Forebay. The key is the worker's, so that no script can speak for another one.
sub reports {
    my ($key, $file, $token, $how, @lines) = @_;
    my $begin = join ' ', $key, $how, encoded($file), $token;
    tr/!-~ //cd for @lines;
    return map { "$begin $_\n" } grep { length() < 3000 } @lines;
}

sub encoded {
    my ($text) = @_;
    utf8::encode($text) if utf8::is_utf8($text);
    $text = substr($text, 0, 250) . '...' if length $text > 300;
    $text =~ s/([^!-\$&-~])/sprintf '%%%02X', ord $1/ge;
    return $text eq '' ? '-' : $text;
}

my %text_of;

# Returns the file and line that seem to assign a variable, or ''.
sub place {
    my ($path, $script) = @_;
    $path =~ s/^the length of (?=\w+::)/\@/ || $path =~ s/^the length of //;
    my ($variable, $sub) = $path =~ /^my [\$\@%](\w+).* in (?:sub (\S+?)|the application)(?:[\[{-].*)?\z/;
    my ($package, $name) = ('main');
    $sub //= '';
    if (defined $variable) { ($package, $name) = ($sub =~ /^(.*)::/ ? $1 : 'main', $variable) }
    elsif ($path =~ /^[\$\@%]((?:\w+::)*)(\w+)/ && $1 ne '') { ($package, $name) = (substr($1, 0, -2), $2) }
    else { return '' }
    (my $module = "$package.pm") =~ s{::}{/}g;
    my $file = $package eq 'main' ? $script : $INC{$module} // return '';
    my $is_element = $path =~ /\w(?:->)?[\[{]/;
    my $text = $text_of{$file} //= code_of($file);
    my ($first, $best);
    while ($text =~ /\b\Q$name\E\b/g) {
        my $start = 1 + rindex $text, "\n", $-[0];
        my $line = substr $text, $start, index("$text\n", "\n", $start) - $start;
        pos($text) = $start + length $line;
        next if $line =~ /^\s*#/ || !assigns($line, $name);
        $first //= $start;
        next if $line =~ /^\s*(?:our|my|use)\b/
            || $is_element && $line !~ /\$\{?\$?\Q$name\E\}?\s*(?:->)?\s*[\[{]|\b(?:push|unshift)\b/;
        $best = $start;
        last;
    }
    $best //= $first // return '';
    return "$file line " . (1 + (substr($text, 0, $best) =~ tr/\n//));
}

# Returns the text of a file before __END__, with empty lines in place of its POD.
sub code_of {
    my ($file) = @_;
    return '' if -s $file > 1_000_000 || !open my $handle, '<', $file;
    local $/;
    my $text = readline($handle) // '';
    $text =~ s/^__(?:END|DATA)__\b.*//ms;
    $text =~ s{^(=[a-zA-Z].*?)(?:^=cut\b|\z)}{"\n" x ($1 =~ tr/\n//)}msge;
    return $text;
}

# Returns true if a line of Perl seems to change the variable.
sub assigns {
    my ($line, $name) = @_;
    return $line =~ /[\$\@%]\{?\$?(?:\w+::)*\Q$name\E\b[^=;#]*?(?<![<>!=])=(?![=~>])/
        || $line =~ /\b(?:push|unshift|splice|read|sysread)\b[^;]*[\$\@]\{?\$?(?:\w+::)*\Q$name\E\b/
        || $line =~ /\$(?:\w+::)*\Q$name\E\b[^;=]*?(?:\+\+|--)|(?:\+\+|--)\s*\$(?:\w+::)*\Q$name\E\b/;
}

1;
