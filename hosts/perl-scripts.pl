# The part of the host that finds scripts, compiles them and forgets them. It stands behind
# perl-cgi.pl, whose variables it uses.

# The compiled script of `$file`, compiled again if the file has changed; or an HTTP status.
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
    # Forebay has looked at its first line, before it changed. One that names nothing is no mark.
    if ($source =~ /\A(#!.*\S.*)/ && $1 !~ /perl/i) {
        log_error("$file: $1 names another language than Perl; ask once more");
        return 500;
    }
    relocate($file);
    if (defined(my $taint = taint_switch($source))) {
        log_error("$file: its #! line has -$taint, which a perl that runs cannot switch on: each request"
            . ' starts a new one, as with mode = "cgi" (mode = "fork" is faster)');
        return $scripts{$file}
            = { version => $version, code => sub { run_as_program($file) }, quiet => 1 };
    }
    delete @INC{ keys %{ delete $libraries{$file} } } if $libraries{$file};
    my $compiled = compile($file, $source) or return defined $exit_code ? 0 : 500;
    $compiled->{version} = $version;
    $scripts{$file} = $compiled if !$forgets;
    return $compiled;
}

# The HTTP status for a file that cannot be run, whose status is `@now`, with the reason in the log;
# or 0.
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

# What depends on which script runs.
sub relocate {
    my ($file) = @_;
    keep_libraries($last_file)
        if defined $last_file && (keys %INC != $modules || $libraries{$last_file});
    @INC{ keys %{ $libraries{$file} } } = values %{ $libraries{$file} } if $libraries{$file};
    ($last_file, $modules) = ($file, scalar keys %INC);
    FindBin::again() if $INC{'FindBin.pm'} && defined &FindBin::again;
}

# Takes files without a package of their own (`require "lib.pl"`) out of %INC: their subs are in the
# package of the script that has loaded them, where the next script does not find them.
sub keep_libraries {
    my ($file) = @_;
    my @names = grep { !/\.pm\z/ && !m{^(?:unicore/|utf8_heavy)} } keys %INC;
    @{ $libraries{$file} }{@names} = delete @INC{@names} if @names;
}

# Drops all that the script has left in its package, as ModPerl::PerlRun does.
sub forget {
    my ($file) = @_;
    keep_libraries($file);
    forget_packages_of($file, values %{ delete $libraries{$file} || {} });
    my $package = $script->{package};
    undef $script;
    empty($package);
}

# Drops what a package holds but has not imported.
sub empty {
    my ($package) = @_;
    require B;
    no strict 'refs';
    no warnings;    # of constants
    my $stash = \%{"${package}::"};
    my @globs = map { \$stash->{$_} } grep { !/::\z/ && ref \$stash->{$_} eq 'GLOB' } keys %$stash;
    %$stash = map { ($_ => $stash->{$_}) } grep { /::\z/ } keys %$stash;
    for my $glob (@globs) {
        # Emptied, as what refers to itself would stay for ever; but not what belongs to a module.
        my $imported = B::svref_2object($glob)->GvFLAGS >> 4;
        undef ${ *{$glob}{SCALAR} } if !($imported & 1);
        undef @{ *{$glob}{ARRAY} } if *{$glob}{ARRAY} && !($imported & 2);
        undef %{ *{$glob}{HASH} } if *{$glob}{HASH} && !($imported & 4);
        undef &{ *{$glob}{CODE} } if *{$glob}{CODE} && !($imported & 8);
    }
}

# Drops the subs of files that are loaded anew by the next request, which else redefines them, and what
# else is in the packages that they begin.
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
                $others = 1;    # what it has imported is not
            }
        }
        empty($package) if $own && !$others;
    }
}

# Compiles `$source` into a sub in a package of its own; undef if that failed, which is in the log
# then, or if the script has left with exit() in a BEGIN block. `$cut`: where __END__ or __DATA__ is, if
# it does not begin a line.
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
    count_output_anew();
    # __END__ is about main in a main program, __DATA__ about the package that it stands in.
    my $is_data = defined $data_at && substr($source, length $code) =~ /\A\s*__DATA__/;
    my $end = $is_data ? 'BEGIN { $Forebay::Host::data_package = __PACKAGE__ }' : '';
    undef $exit_code;
    undef $warner;
    my $had_carp = $carp;
    $compiling = 1;
    local $^W = $warns ? 1 : 0;
    $SIG{__WARN__} = \&warn_of_others if $forgets;
    # The lines after the code end a statement without semicolon and POD without =cut.
    my $sub = evaluate("package $package; sub __script__ {\n#line 1 \"$name\"\n$code\n;\n"
            . "=pod\n\n=cut\n\n$end}\n\\&__script__");
    my $error = $@;
    if ($forgets && ($SIG{__WARN__} // '') eq \&warn_of_others) {
        if ($warner) { $SIG{__WARN__} = $warner }
        else { delete $SIG{__WARN__} }
    }
    adopt_carp();
    adopt_fcgi();
    if (!$sub && !defined $exit_code && !defined $cut) {
        my $end_at = end_within_line($source, $name, $error);
        if (defined $end_at) {
            take_end_blocks($forgets ? undef : $name) if $has_end;
            return compile($file, $source, $end_at);
        }
    }
    $error = handle_compile_error($error, $name, $had_carp) if !$sub && !defined $exit_code;
    $compiling = 0;
    my @end = $has_end ? take_end_blocks($forgets ? undef : $name) : ();
    if (!$sub) {
        log_error($error) if !defined $exit_code;
        return undef;
    }
    my $state = compiled_state($warns, $package, $code);
    my $data_in = $is_data ? $data_package : $package;
    my $data = defined $data_at
        ? [\$source, $data_at, scalar($code =~ /^\s*use\s+utf8\b/m), $data_in] : undef;
    my $handles = handles_of($package, $code);
    return {
        code => $sub, package => $package, end => @end ? \@end : undef, data => $data,
        handles => $handles, state => $state, has_more => $forgets || @end || $data || $handles || $state,
        uses_calls => scalar($code =~ /\bsyscall\b/), quiet => $code !~ /SIG|sigtrap/ && !($state && $state->{signals}),
    };
}

# Where the sub that a script becomes runs only once, one warning is none.
sub warn_of_others {
    return if $_[0] =~ /^Variable "[^"]*" will not stay shared at /;
    goto &$warner if $warner;
    warn @_;
}

# Forebay::Script:: and the path, with what no identifier can have as _xx; Perl's limit is 251 bytes.
sub package_for {
    my ($file) = @_;
    (my $name = $file) =~ s/([^A-Za-z0-9])/sprintf '_%02x', ord $1/ge;
    return 'Forebay::Script::' . $name if length $name < 200;
    my $sum = unpack '%32C*', $file;
    return join '_', 'Forebay::Script::', $sum, length $file, substr $name, -150;
}

# Drops the subs of the version before, keeps its variables.
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

# The code before __END__ or __DATA__, and where the text after that line starts. Either word inside a
# here-document or POD is text.
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

# Returns the place of an __END__ or __DATA__ that has code before it on its line: there Perl stops to
# read, and so misses the end of the sub. Nothing if `$error` does not say so.
sub end_within_line {
    my ($source, $name, $error) = @_;
    my ($line) = $error =~ /^Missing right curly.* at \Q$name\E line (\d+), at end of line$/m or return;
    my $start = 0;
    $start = 1 + index $source, "\n", $start for 2 .. $line;
    my ($text) = substr($source, $start) =~ /\A([^\n]*)/;
    return $text =~ /\S.*?\b(?=__(?:END|DATA)__\b)/ ? $start + $+[0] : undef;
}

# The END blocks of the file `$name`, or of all files but modules that stay loaded, taken from Perl so
# that it does not run them at its own end. (Those of modules run when the worker ends.)
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

# The name in %INC of the module whose package this is.
sub module_file {
    my ($stash) = @_;
    return '' if !$stash->isa('B::HV');
    return join('/', split /::/, $stash->NAME) . '.pm';
}

# The bareword handles that the script opens when it runs; not those that BEGIN blocks have opened.
sub handles_of {
    my ($package, $code) = @_;
    my %names = map { ($_ => 1) }
        $code =~ /\b(?:open|opendir|sysopen|socket|pipe)\b\s*\(?\s*([A-Z][A-Z0-9_]*)\b/g;
    delete @names{qw(STDIN STDOUT STDERR)};
    no strict 'refs';
    my @handles = grep { !defined eval { fileno $_ } } map { \*{"${package}::$_"} } sort keys %names;
    return @handles ? \@handles : undef;
}

# What the compilation has changed in the process and each run must find so: signal handlers and
# layers that modules set when they are loaded, pragmas of CGI.pm.
sub compiled_state {
    my ($warns, $package, $code) = @_;
    my %state;
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

# Opens DATA at the text after __END__ or __DATA__, where it stands in a file that Perl itself reads.
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

# Closes it: the package may be another script's, too, which has none.
sub close_data {
    close $open_data;
    undef $open_data;
}

1;
