# The server and what is known about it: Apache2::ServerRec, ServerUtil, Process and Module.
package Apache2::ServerRec;

use strict;
use warnings;

our $server = bless {}, __PACKAGE__;

sub server_hostname { $_[0]->about('SERVER_NAME', 'localhost') }
sub port { $_[0]->about('SERVER_PORT', 0) + 0 }
sub server_admin { $_[0]->about('SERVER_ADMIN', '[no address given]') }
sub server_scheme { $_[0]->about('REQUEST_SCHEME', '') }
sub is_virtual { 0 }
sub timeout { 300 * 1_000_000 }
sub keep_alive_timeout { 5 * 1_000_000 }
sub keep_alive_max { 100 }
sub keep_alive { 1 }
sub limit_req_line { 8190 }
sub limit_req_fieldsize { 8190 }
sub limit_req_fields { 100 }
sub path { undef }
sub addrs { APR::SockAddr->new($_[0]->about('SERVER_ADDR', '127.0.0.1'), $_[0]->port) }
sub names { [] }
sub wild_names { [] }
sub error_fname { undef }
sub next { undef }
sub process { $Apache2::Process::process }
sub document_root { Forebay::ModPerl::document_root() }

# A fact of the request that runs, since the server itself is not in this process.
sub about {
    my (undef, $name, $default) = @_;
    my $r = $Apache2::RequestRec::current;
    return $r && $r->{env}{$name} // $default;
}

sub dir_config { shift; Forebay::ModPerl::dir_config(@_) }

sub push_handlers { shift; Forebay::Phases::push_for_all(@_) }

sub add_handlers { shift; Forebay::Phases::push_for_all(@_) }

sub set_handlers { shift; Forebay::Phases::set_for_all(@_) }

sub get_handlers { shift; Forebay::Phases::of_all(@_) }

sub method_register { 27 }

sub add_version_component { }

sub is_perl_option_enabled { Forebay::ModPerl::has_option($_[1]) }

# Follows lines of Apache's configuration that concern an application. All others are errors.
sub add_config {
    my ($self, $lines) = @_;
    die "Can't run 'add_config' after server startup\n" if $Apache2::RequestRec::current;
    follow($_, 0) for @$lines;
    return;
}

sub follow {
    my ($line, $depth) = @_;
    my ($directive, @values) = Forebay::Phases::words($line);
    return if !defined $directive || $directive =~ /\A#/;
    my $name = lc $directive;
    if ($name eq 'include' || $name eq 'includeoptional') {
        die "files include each other: $line\n" if $depth > 20;
        for my $path (map { glob_of($_) } @values) {
            die "cannot read $path: $!\n" if !-e $path && $name eq 'include';
            follow_file($path, $depth + 1) if -e $path;
        }
    }
    elsif ($name eq 'perlmodule') { Forebay::ModPerl::require_in_main(join('/', split /::/) . '.pm') for @values }
    elsif ($name =~ /\Aperl(?:config|postconfig)?require\z/) { Forebay::ModPerl::require_in_main($_) for @values }
    elsif ($name =~ /\Aperl(?:set|add)var\z/) { Forebay::ModPerl::configure($directive, @values) }
    elsif ($name eq 'perlsetenv') {
        $ENV{ $values[0] } = $values[1];
        Forebay::ModPerl::configure('PerlSetEnv', @{ Forebay::ModPerl::directives('PerlSetEnv') }, $values[0]);
    }
    else { die "add_config: Forebay does not follow $directive here: write it as a key of the application\n" }
}

sub glob_of {
    my ($pattern) = @_;
    $pattern = Forebay::ModPerl::home() . "/$pattern" if $pattern !~ m{\A/};
    return $pattern =~ /[*?\[]/ ? glob $pattern =~ s/([\s\\{}~'"])/\\$1/gr : $pattern;
}

# Follows the lines of a file, or of the files in a directory.
sub follow_file {
    my ($path, $depth) = @_;
    if (-d $path) {
        opendir my $directory, $path or die "cannot open $path: $!\n";
        follow_file("$path/$_", $depth) for sort grep { !/\A\.\.?\z/ } readdir $directory;
        return;
    }
    open my $file, '<', $path or die "cannot read $path: $!\n";
    my $text = do { local $/; <$file> };
    $text =~ s/\\\n//g;
    follow($_, $depth) for split /\n/, $text;
}

package Apache2::ServerUtil;

sub server { $Apache2::ServerRec::server }

sub server_root { Forebay::ModPerl::home() }

sub server_root_relative {
    my ($pool, $path) = @_;
    if (!@_ || ref $pool && !UNIVERSAL::isa($pool, 'APR::Pool')) {
        require Carp;
        Carp::croak('server_root_relative($pool, [$path]): p is not of type APR::Pool');
    }
    $path = '' if !defined $path;
    return $path =~ m{\A/} ? $path : Forebay::ModPerl::home() . ($path eq '' ? '' : "/$path");
}

sub restart_count { 2 }    # Apache reads its configuration twice before it serves
sub get_server_version { $ENV{SERVER_SOFTWARE} // 'Forebay' }
sub get_server_banner { get_server_version() }
sub get_server_description { get_server_version() }
sub get_server_built { '' }
sub user_id { $> }
sub group_id { $) + 0 }
sub exists_config_define { $_[-1] =~ /\A(?:APACHE2|MODPERL2)\z/ ? 1 : 0 }
sub server_shutdown_cleanup_register {
    return $Apache2::Process::pool->cleanup_register(@_) if !$Apache2::RequestRec::current;
    require Carp;
    Carp::croak("Can't run 'server_shutdown_cleanup_register' after server startup");
}

sub base_server_pool { $Apache2::Process::pool }

package Apache2::Process;

our $pool = $APR::Pool::process;
our $process = bless {}, __PACKAGE__;

sub pool { $pool }
sub pconf { $pool }
sub short_name { 'forebay' }

package Apache2::Module;

# Modules of Apache that applications look for. What they do for an application is done here, too.
my %LOADED = map { ("mod_$_" => 1) }
    qw(perl mime dir auth_basic authn_core authz_core authz_user env log_config alias);

sub loaded {
    my $name = pop;
    $name =~ s/\.c\z//;
    return $LOADED{$name} || 0;
}

sub get_config { undef }
sub top_module { undef }
sub find_linked_module { undef }
sub remove_loaded_module { }

package Apache2::MPM;

sub is_threaded { 0 }
sub show { 'Prefork' }
# Facts of the prefork MPM, by the numbers of Apache2::Const's group :mpmq.
my %FACTS = (1 => 0, 2 => 0, 3 => 2, 5 => 0, 6 => 0, 14 => 0);
sub query { $FACTS{ $_[-1] } }

# A view of the settings: the lines that Apache's configuration would have.
package Apache2::Directive;

sub conftree { bless {}, __PACKAGE__ }

sub lookup {
    my ($self, $name) = @_;
    my %lines = (
        User => scalar getpwuid $>, Group => scalar getgrgid $) + 0,
        DocumentRoot => Forebay::ModPerl::document_root(),
        ServerName => Apache2::ServerRec->server_hostname,
    );
    my ($found) = grep { lc eq lc $name } keys %lines;
    return defined $found ? $lines{$found} : Forebay::ModPerl::directive($name);
}

sub as_hash { {} }
sub as_string { '' }
sub first_child { undef }
sub next { undef }
sub parent { undef }

# The page of this process; modules add their own pages.
package Apache2::Status;

my %items;

sub menu_item {
    my (undef, $name, $title, $function) = @_;
    $items{$name} = [$title, $function];
}

sub handler : method {
    my ($class, $r) = @_;
    my ($name) = ($r->args // '') =~ /\A(\w+)/;
    $r->content_type('text/html; charset=utf-8');
    my $item = defined $name ? $items{$name} : undef;
    my @lines = $item ? @{ $item->[1]->($r, undef) || [] } : (
        '<ul>', (map { qq{<li><a href="?$_">} . Forebay::ModPerl::escaped($items{$_}[0]) . '</a></li>' } sort keys %items),
        '</ul><h2>Loaded modules</h2><ul>',
        (map { '<li>' . Forebay::ModPerl::escaped($_) . '</li>' } sort keys %INC), '</ul>');
    $r->print(map { "$_\n" } '<!DOCTYPE html><title>Perl</title>',
        Forebay::ModPerl::escaped("Perl $^V, process $$"), @lines);
    return 0;
}

package Apache2::ServerUtil;

$INC{$_} = __FILE__
    for map { "Apache2/$_.pm" } qw(ServerUtil Process Module MPM Directive Status);

1;
