# The part of the host that finds, compiles and forgets scripts. It follows perl-cgi.pl, whose
# variables it uses.

# Returns the compiled script of `$file`, or an HTTP status. Compiles the script again if the file
# has changed.
sub script_for {
    my ($file) = @_;
    my $version = $FSTATAT && !syscall($FSTATAT, $AT_FDCWD, $file, $stat, 0)
        ? $stat & $VERSION : join ' ', (file_status($file))[0, 1, 7, 9, 10];
    my $known = $scripts{$file};
    if ($known && $known->{version} eq $version) {
        relocate($file) if $file ne $last_file;
        return $known;
    }
    delete $scripts{$file};
    my $unfit = unfit($file, file_status($file));
    return $unfit if $unfit;
    my $source = read_file($file);
    if (!defined $source) {
        my $status = status_of_error(403);
        log_error("$file: $!");
        return $status;
    }
    # Forebay checks the first line, but the file may have changed since then. A #! line without a
    # program says nothing about the language.
    if ($source =~ /\A(#!.*\S.*)/ && $1 !~ /perl/i) {
        log_error("$file: $1 names another language than Perl; ask once more");
        return 500;
    }
    relocate($file);
    if (defined(my $taint = taint_switch($source))) {
        log_error("$file: its #! line has -$taint, which a perl that runs cannot switch on: each request"
            . ' starts a new one, as with mode = "cgi" (mode = "fork" is faster; for cgi-bin the key is'
            . ' perl_mode)');
        return $scripts{$file}
            = { version => $version, code => sub { run_as_program($file) }, quiet => 1 };
    }
    delete @INC{ keys %{ delete $libraries{$file} } } if $libraries{$file};
    my $compiled = compile($file, $source) or return 500;
    $compiled->{version} = $version;
    $scripts{$file} = $compiled if !$forgets || $compiled->{is_program};
    return $compiled;
}

# Returns the HTTP status for a file that cannot be run, and logs the reason. Returns 0 if the file
# can be run. `@now` is the result of stat.
sub unfit {
    my ($file, @now) = @_;
    if (!@now) {
        my $status = status_of_error($! == 2 || $! == 20 ? 404 : 403);    # ENOENT, ENOTDIR
        log_error("$file: $!");
        return $status if $status != 404 || root() eq $root;
        $worn_out = 'a script has changed the root directory';
        return 503;
    }
    my $fault = ($now[2] & 0170000) != 0100000 ? 'not a regular file'
        : !-x $file ? 'not executable (chmod +x)' : return 0;
    log_error("$file: $fault");
    return 403;
}

sub read_file {
    my ($file) = @_;
    open my $handle, '<', $file or return undef;
    local $/;
    return scalar(<$handle>) // '';
}

# Sets the state that depends on the script that runs.
sub relocate {
    my ($file) = @_;
    keep_libraries($last_file)
        if defined $last_file && (keys %INC != $modules || $libraries{$last_file});
    @INC{ keys %{ $libraries{$file} } } = values %{ $libraries{$file} } if $libraries{$file};
    ($last_file, $modules) = ($file, scalar keys %INC);
    FindBin::again() if $INC{'FindBin.pm'} && defined &FindBin::again;
}

# Removes files without their own package (`require "lib.pl"`) from %INC. Their subs are in the
# package of the script that has loaded them, so the next script has to load the files again.
sub keep_libraries {
    my ($file) = @_;
    my @names = grep { !/\.pm\z/ && !m{^(?:unicore/|utf8_heavy)} } keys %INC;
    @{ $libraries{$file} }{@names} = delete @INC{@names} if @names;
}

# Drops everything that the script has left in its package, as ModPerl::PerlRun does.
sub forget {
    my ($file) = @_;
    keep_libraries($file);
    forget_packages_of($file, values %{ delete $libraries{$file} || {} });
    my $package = $script->{package};
    undef $script;
    empty($package);
}

# Drops everything that a package holds, except imported symbols.
sub empty {
    my ($package) = @_;
    require B;
    no strict 'refs';
    no warnings;    # about constants
    my $stash = \%{"${package}::"};
    my @globs = map { \$stash->{$_} } grep { !/::\z/ && ref \$stash->{$_} eq 'GLOB' } keys %$stash;
    %$stash = map { ($_ => $stash->{$_}) } grep { /::\z/ } keys %$stash;
    for my $glob (@globs) {
        # Empties the values, because circular references would otherwise stay forever. Values that
        # belong to a module stay.
        my $imported = B::svref_2object($glob)->GvFLAGS >> 4;
        undef ${ *{$glob}{SCALAR} } if !($imported & 1);
        undef @{ *{$glob}{ARRAY} } if *{$glob}{ARRAY} && !($imported & 2);
        undef %{ *{$glob}{HASH} } if *{$glob}{HASH} && !($imported & 4);
        undef &{ *{$glob}{CODE} } if *{$glob}{CODE} && !($imported & 8);
    }
}

# Drops the subs of files that the next request loads again, so that the request does not redefine
# these subs. Also empties packages whose subs all come from these files.
sub forget_packages_of {
    my %is_old = map { ($_ => 1) } @_;
    my %packages;
    require B;
    for (keys %is_old) {
        $packages{$_} = 1 for (read_file($_) // '') =~ /\bpackage\s+(\w+(?:(?:::|')\w+)*)/g;
    }
    no strict 'refs';
    for my $package (keys %packages) {
        (my $module = "$package.pm") =~ s{::|'}{/}g;
        next if $INC{$module};
        my $stash = \%{"${package}::"};
        my ($own, $others) = (0, $package eq 'main');
        for my $name (grep { !/::\z/ && ref \$stash->{$_} eq 'GLOB' } keys %$stash) {
            my $code = *{ $stash->{$name} }{CODE} or next;
            my $info = B::svref_2object($code);
            next if $info->CvFLAGS & B::CVf_CONST();
            if ($is_old{ $info->FILE }) {
                forget_sub($package, $name);
                $own = 1;
            } elsif ($info->GV->isa('B::GV') && $info->GV->STASH->NAME eq $package) {
                $others = 1;    # imported subs do not count
            }
        }
        empty($package) if $own && !$others;
    }
}

# Compiles `$source` into a sub in its own package. Returns undef if that failed, after logging the
# error. Returns a sub that runs the script as a program if it needs to know the visitor. `$cut` is the position of an __END__
# or __DATA__ that does not begin a line.
sub compile {
    my ($file, $source, $cut) = @_;
    my $package = package_for($file);
    forget_subs($package);
    $source =~ s/\A\xEF\xBB\xBF//;
    CGI::initialize_globals() if defined &CGI::initialize_globals;
    my ($code, $data_at) = defined $cut
        ? (substr($source, 0, $cut), 1 + index("$source\n", "\n", $cut)) : split_source($source);
    my $warns = $code =~ /\A#!.*?perl\S*(?:[ \t]+-\w+)*?[ \t]+-\w*w/;
    my $has_end = ($forgets || $code =~ /\bEND\s*\{/) && require B;
    (my $name = $file) =~ tr/"\r\n/_/;
    hide_callers($package) if $code =~ /\bcaller\b/;
    reset_carp($file);
    drop_layers();
    count_output_anew();
    # In a main program, __END__ opens main::DATA. __DATA__ opens DATA in the package that is in
    # force at that line.
    my $is_data = defined $data_at && substr($source, length $code) =~ /\A\s*__DATA__/;
    my $end = $is_data ? 'BEGIN { $Forebay::Host::data_package = __PACKAGE__ }' : '';
    undef $exit_code;
    undef $warner;
    my $had_carp = $carp;
    $compiling = 1;
    local $^W = $warns ? 1 : 0;
    $SIG{__WARN__} = \&warn_of_others if $forgets;
    # The lines after the code end a statement without a semicolon, and POD without =cut.
    my ($sub, $error, $needs, $changes) = evaluate_without_visitor(
        "package $package; sub __script__ {\n#line 1 \"$name\"\n$code\n;\n"
            . "=pod\n\n=cut\n\n$end}\n\\&__script__");
    if ($forgets && ($SIG{__WARN__} // '') eq \&warn_of_others) {
        if ($warner) { $SIG{__WARN__} = $warner }
        else { delete $SIG{__WARN__} }
    }
    adopt_carp();
    adopt_fcgi();
    adopt_databases();
    if (!$sub && !$needs && !defined $cut) {
        my $end_at = end_within_line($source, $name, $error);
        if (defined $end_at) {
            take_end_blocks($forgets ? undef : $name) if $has_end;
            return compile($file, $source, $end_at);
        }
    }
    $error = handle_compile_error($error, $name, $had_carp) if !$sub && !$needs;
    $compiling = 0;
    my @end = $has_end ? take_end_blocks($forgets ? undef : $name) : ();
    if ($needs) {
        log_need_of_visitor($file, $needs);
        return { code => sub { run_as_program($file) }, is_program => 1, ties => 1 };
    }
    if (!$sub) {
        log_error($error);
        return undef;
    }
    my $state = compiled_state($warns, $package, $code, $changes);
    my $data_in = $is_data ? $data_package : $package;
    my $data = defined $data_at
        ? [\$source, $data_at, scalar($code =~ /^\s*use\s+utf8\b/m), $data_in] : undef;
    my $handles = handles_of($package, $code);
    return {
        code => $sub, package => $package, end => @end ? \@end : undef, data => $data,
        handles => $handles, state => $state, has_more => $forgets || @end || $data || $handles || $state,
        uses_calls => scalar($code =~ /\bsyscall\b/), ties => scalar($code =~ /\btie\b/),
        layers => scalar($code =~ /:(?:perlio|unix|stdio|mmap|pop)\b/),
        quiet => $code !~ /SIG|sigtrap/ && !($state && $state->{signals}),
    };
}

# ---- a compilation has no visitor (perl-compilation.pl) ----

# Compiles `$text` where nothing shows the request that happened to come first. Returns the result,
# the error, why the script needs to know the visitor ('' if not), and its changes of %ENV.
sub evaluate_without_visitor {
    my ($text) = @_;
    my $streams = streams_without_visitor();
    if (!$streams || !open $streams->{body}, '<&', \*STDIN) {
        $worn_out = "$!";
        return (undef, "cannot prepare to compile: $!", '', [{}, []]);
    }
    my %request = %ENV;
    %ENV = environment_without_visitor(\%request);
    my ($looked, @modules) = '';
    my $look = sub {
        $looked ||= $_[0];
        push @modules, Forebay::Compilation::modules_above();
    };
    Forebay::Compilation::watch($look, keys %request);
    redirect($streams->{input}, 0);
    redirect($streams->{output}, 1);
    my $sub = evaluate($text);
    my $error = $@;
    *main::ENV = $environment_hash if \%ENV != $environment_hash;
    my @changes = Forebay::Compilation::changes();
    {
        no warnings;
        my $was = select STDOUT;
        my $unbuffered = $|;
        $| = 1;    # flushes
        $| = $unbuffered;
        select $was;
    }
    my $needs = need_of_visitor($looked, $streams, $$);
    $needs ||= 'it ties a standard handle' if tied *STDIN || tied *STDOUT;
    $needs ||= 'it ends there' if defined $exit_code;
    redirect($streams->{body}, 0);
    redirect($output, 1);
    if ($needs) {
        alarm 0;
        delete @INC{@modules};    # the next script that uses them has to show the same
        no warnings 'untie';
        untie *STDIN;
        untie *STDOUT;
        reattach(@$_) for [\*STDIN, '<', $streams->{body}, 0], [\*STDOUT, '>', $output, 1],
            [\*STDERR, '>', $log, 2];
    }
    %ENV = %request;
    return ($sub, $error, $needs, \@changes);
}

sub environment_without_visitor {
    my ($environment) = @_;
    return (%base, map { ($_ => $environment->{$_}) } grep { exists $environment->{$_} }
        @Forebay::Compilation::SAME);
}

# Returns files for descriptors 0 and 1. Input has a line, so that a read leaves a trace.
sub streams_without_visitor {
    pipe my $input, my $writer or return;
    open my $printed, '+>', undef or return;
    binmode $_ for $input, $writer, $printed;
    syswrite $writer, "\n";
    return { input => $input, output => $printed };
}

# Returns why a script has to be compiled anew for each visitor, or ''. `$looked` names what it has
# looked at. `$process`, unless it has ended, is the process that has compiled the script.
sub need_of_visitor {
    my ($looked, $streams, $process) = @_;
    return "it uses $looked" if $looked ne '';
    return 'it prints' if -s $streams->{output};
    return 'it reads standard input' if !sysread $streams->{input}, my $line, 1;
    return '' if !defined $process;
    my %number = map { (readlink('/proc/self/fd/' . fileno $streams->{ $_->[0] }) => $_->[1]) }
        ['input', 0], ['output', 1];
    my %own = $process == $$ ? map { (fileno $_ => 1) } values %$streams : ();
    opendir my $descriptors, "/proc/$process/fd" or return 'it hides its descriptors';
    my $found = 0;
    for (readdir $descriptors) {
        my $number = $number{ readlink("/proc/$process/fd/$_") // '' };
        next if !defined $number || $own{$_};
        return 'it copies standard input or output' if $number != $_;
        $found++;
    }
    return $found == 2 ? '' : 'it replaces standard input or output';
}

sub log_need_of_visitor {
    my ($file, $needs) = @_;
    log_error("$file: a BEGIN block or a module at its load needs the request ($needs), so the script"
        . ' cannot be compiled once for all visitors: each request starts a new perl, as with'
        . ' mode = "cgi"');
}

# Opens a standard handle on its descriptor again.
sub reattach {
    my ($handle, $mode, $from, $number) = @_;
    redirect($from, $number);
    my $is_own = defined fileno $handle && fileno $handle == $number;
    $is_own ? open $handle, "$mode&", $from : open $handle, "$mode&=", $number;
}

# Makes descriptor `$number` a copy of the handle's, as dup2 does.
sub redirect {
    my ($handle, $number) = @_;
    return if $DUP3 && syscall($DUP3, fileno $handle, $number, 0) >= 0;
    require POSIX;
    POSIX::dup2(fileno $handle, $number);
}

# Logs warnings in perlrun, except one that is no problem, because the script's sub runs only once.
sub warn_of_others {
    return if $_[0] =~ /^Variable "[^"]*" will not stay shared at /;
    goto &$warner if $warner;
    warn @_;
}

# Returns the package of a script: Forebay::Script:: and the path. Characters that identifiers
# cannot contain become _xx. The name is shorter than Perl's limit of 251 bytes.
sub package_for {
    my ($file) = @_;
    (my $name = $file) =~ s/([^A-Za-z0-9])/sprintf '_%02x', ord $1/ge;
    return 'Forebay::Script::' . $name if length $name < 200;
    my $sum = unpack '%32C*', $file;
    return join '_', 'Forebay::Script::', $sum, length $file, substr $name, -150;
}

# Drops the subs of the previous version, and keeps its variables.
sub forget_subs {
    my ($package) = @_;
    no strict 'refs';
    my $stash = \%{"${package}::"};
    forget_sub($package, $_) for grep { !/::\z/ } keys %$stash;
}

sub forget_sub {
    my ($package, $name) = @_;
    no strict 'refs';
    my $entry = delete ${"${package}::"}{$name};
    return if ref \$entry ne 'GLOB';
    *{"${package}::$name"} = $_ for grep { defined } map { *{$entry}{$_} } qw(SCALAR ARRAY HASH IO);
}

# Returns the code before __END__ or __DATA__, and the start of the text after that line. In a
# here-document or POD both words are plain text.
sub split_source {
    my ($source) = @_;
    my $pod = 0;
    while ($source =~ /\G([^\n]*)(\n|\z)/g) {
        my ($line, $start) = ($1, $-[0]);
        last if $2 eq '' && $line eq '';
        $pod = $line !~ /^=cut\b/ if $line =~ /^=[a-zA-Z]/;
        next if $pod || $line =~ /^(?:=|\s*#)/;
        return (substr($source, 0, $start), pos $source) if $line =~ /^\s*__(?:END|DATA)__\b/;
        while ($line =~ /<<~?(?:"([^"]+)"|'([^']+)'|([A-Za-z_]\w*))/g) {
            my $tag = $1 // $2 // $3;
            my $at = pos $source;
            pos($source) = $source =~ /^[ \t]*\Q$tag\E$/mg && $-[0] >= $at ? pos($source) + 1 : $at;
        }
    }
    return $source;
}

# Returns the position of an __END__ or __DATA__ that has code before it on its line. Perl stops
# reading there, and so misses the end of the sub. Returns nothing if `$error` has another cause.
sub end_within_line {
    my ($source, $name, $error) = @_;
    my ($line) = $error =~ /^Missing right curly.* at \Q$name\E line (\d+), at end of line$/m or return;
    my $start = 0;
    $start = 1 + index $source, "\n", $start for 2 .. $line;
    my ($text) = substr($source, $start) =~ /\A([^\n]*)/;
    return $text =~ /\S.*?\b(?=__(?:END|DATA)__\b)/ ? $start + $+[0] : undef;
}

# Takes END blocks from Perl, so that Perl does not run them when the worker ends. Takes the blocks
# of the file `$name`. Without a name, takes those of all files except modules. END blocks of
# modules run when the worker ends.
sub take_end_blocks {
    my ($name) = @_;
    my $all = B::end_av();
    return if !$all->isa('B::AV');
    $all = $all->object_2svref;
    return if @$all == $kept_ends && !defined $name;
    my (@taken, %of_module);
    %of_module = map { ($INC{$_} // '' => 1) } grep { /\.pm\z/ } keys %INC if !defined $name;
    for my $i (reverse 0 .. $#$all) {
        my $block = \$all->[$i];
        my $info = B::svref_2object($block);
        next if defined $name ? $info->FILE ne $name
            : $of_module{ $info->FILE } || $INC{ module_file($info->STASH) };
        unshift @taken, $block;
        splice @$all, $i, 1;
    }
    $kept_ends = @$all;
    return @taken;
}

# Returns the name that the module of this package has in %INC.
sub module_file {
    my ($stash) = @_;
    return '' if !$stash->isa('B::HV');
    return join('/', split /::/, $stash->NAME) . '.pm';
}

# Returns the bareword handles that the script opens when it runs, without those that BEGIN blocks
# opened.
sub handles_of {
    my ($package, $code) = @_;
    my %names = map { ($_ => 1) }
        $code =~ /\b(?:open|opendir|sysopen|socket|pipe)\b\s*\(?\s*([A-Z][A-Z0-9_]*)\b/g;
    delete @names{qw(STDIN STDOUT STDERR)};
    no strict 'refs';
    my @handles = grep { !defined eval { fileno $_ } } map { \*{"${package}::$_"} } sort keys %names;
    return @handles ? \@handles : undef;
}

# Returns the changes that the compilation made in the process and that each run needs again. These
# are signal handlers and layers that modules set when they load, and pragmas of CGI.pm.
sub compiled_state {
    my ($warns, $package, $code, $changes) = @_;
    my %state;
    $state{environment} = $changes if %{ $changes->[0] } || @{ $changes->[1] };
    $state{warns} = 1 if $warns;
    my %signals = map { ($_ => $SIG{$_}) } grep { defined $SIG{$_} } grep { $_ ne 'FPE' } keys %SIG;
    $state{signals} = \%signals if %signals;
    for my $handle (\*STDIN, \*STDOUT, \*STDERR) {
        my (undef, undef, @extra) = PerlIO::get_layers($handle, output => $handle != \*STDIN);
        push @{ $state{layers} }, [$handle, join '', map { ":$_" } @extra] if @extra;
    }
    no strict 'refs';
    if (defined &CGI::initialize_globals) {
        $state{cgi} = [map { [\${$_}, ${$_}] } @CGI_PRAGMAS];
        $state{cgi_exports} = {%CGI::EXPORT};
    }
    my $modules = state_of_modules($package, $code);
    $state{modules} = $modules if $modules;
    return %state ? \%state : undef;
}

sub restore_state {
    my ($state) = @_;
    restore_modules($state->{modules}) if $state->{modules};
    if (my $changes = $state->{environment}) {
        @ENV{ keys %{ $changes->[0] } } = values %{ $changes->[0] };
        delete @ENV{ @{ $changes->[1] } };
    }
    $^W = 1 if $state->{warns};
    @SIG{ keys %{ $state->{signals} } } = values %{ $state->{signals} } if $state->{signals};
    for my $layer (@{ $state->{layers} || [] }) {
        binmode $layer->[0], $layer->[1];
    }
    if ($state->{cgi}) {
        ${ $_->[0] } = $_->[1] for @{ $state->{cgi} };
        %CGI::EXPORT = %{ $state->{cgi_exports} };
    }
}

# Opens DATA at the text after __END__ or __DATA__, in the package that Perl would use for a main
# program.
sub rewind_data {
    my ($for) = @_;
    my ($source, $at, $utf8, $package) = @{ $for->{data} };
    open my $handle, $utf8 ? '<:utf8' : '<', $source or return;
    seek $handle, $at, 0;
    no strict 'refs';
    *{"${package}::DATA"} = *{$handle}{IO};
    *main::DATA = *{$handle}{IO} if $package eq $for->{package};
    $open_data = \*{"${package}::DATA"};
}

# Closes DATA, because another script without DATA may use the same package.
sub close_data {
    close $open_data;
    undef $open_data;
}

1;
