# ModPerl::Registry and its family as handlers: each script is a function, in a package of its own.
package ModPerl::RegistryCooker;

# Compiles a script. This precedes `use strict` and the variables of this file, so that they do not
# apply to the script.
sub evaluate { eval $_[0] }

use strict;
use warnings;

my %scripts;    # class and file => its function, its package and its version

sub handler : method {
    my ($class, $r) = @_;
    return $class->new($r)->default_handler;
}

sub new { my ($class, $r) = @_; bless { REQ => $r, FILENAME => $r->filename }, $class }

sub default_handler {
    my ($self) = @_;
    my ($r, $file) = @$self{qw(REQ FILENAME)};
    return 404 if !-e $file;
    return 403 if -d _ || !-r _;
    if (!-x _ || !$self->may_run) {
        $r->log_error('file permissions deny server execution (' . Forebay::ModPerl::shown($file) . ')');
        return 403;
    }
    my $version = join ' ', (stat _)[1, 7, 9];
    my $key = ref($self) . " $file";
    my $script = $scripts{$key};
    if (!$script || $script->{version} ne $version || !$self->is_kept) {
        $script = $self->compile($file) or return 500;
        $script->{version} = $version;
        $scripts{$key} = $script;
    }
    require Cwd;
    my ($home) = Cwd::getcwd() =~ /\A(.*)\z/s;
    if ($self->changes_directory) { chdir $1 if $file =~ m{\A(.*/)}s }
    local $0 = $file;
    my $answer = eval { $script->{code}->($r, @_); 0 };
    my $error = $@;
    chdir $home;
    forget($script->{package}) if !$self->is_kept;
    if (!defined $answer) {
        die $error if ref $error eq 'APR::Error' && $error->{rc} == 120000;
        $r->log_error($error);
        return 500;
    }
    # The status that the script has set is that of the reply.
    return 0;
}

sub may_run { 1 }
sub is_kept { 1 }
sub changes_directory { 0 }
sub prefix { 'ModPerl::ROOT::' . ref $_[0] }

sub compile {
    my ($self, $file) = @_;
    open my $handle, '<:raw', $file or return undef;
    my $source = do { local $/; <$handle> };
    (my $name = $file) =~ s/([^A-Za-z0-9_])/sprintf '_%02x', ord $1/ge;
    my $package = $self->prefix . "::$name";
    forget($package) if !$self->is_kept;
    close $handle;
    ($source) = $source =~ /\A(.*)\z/s;    # a match removes the taint of -T
    $source =~ s/^__(?:END|DATA)__(?:\r?\n.*)?\z//ms;
    { no strict 'refs'; delete ${"${package}::"}{handler} }
    (my $shown = $file) =~ tr/"\r\n/_/;
    my $warns = $source =~ /\A#!.*perl\S*.*\s-\w*w/;
    local $^W = $warns ? 1 : $^W;
    no warnings 'redefine';
    my $code = evaluate("package $package; sub handler {\n#line 1 \"$shown\"\n$source\n}\n\\&handler");
    if (!$code) {
        $self->{REQ}->log_error($@);
        return undef;
    }
    return { code => $code, package => $package };
}

# Drops what a script has left in its package.
sub forget {
    my ($package) = @_;
    no strict 'refs';
    my $stash = \%{"${package}::"};
    for my $name (grep { !/::\z/ } keys %$stash) {
        my $glob = \$stash->{$name};
        if (ref $glob eq 'GLOB') {
            undef ${ *{$glob}{SCALAR} } if *{$glob}{SCALAR};
            @{ *{$glob}{ARRAY} } = () if *{$glob}{ARRAY};
            %{ *{$glob}{HASH} } = () if *{$glob}{HASH};
        }
        delete $stash->{$name};
    }
}

package ModPerl::Registry;
our @ISA = 'ModPerl::RegistryCooker';

package ModPerl::RegistryPrefork;
our @ISA = 'ModPerl::Registry';
sub changes_directory { 1 }

package ModPerl::RegistryBB;
our @ISA = 'ModPerl::RegistryCooker';

package ModPerl::PerlRun;
our @ISA = 'ModPerl::RegistryCooker';
sub is_kept { 0 }

package ModPerl::PerlRunPrefork;
our @ISA = 'ModPerl::PerlRun';
sub changes_directory { 1 }

package ModPerl::RegistryLoader;
sub new { my ($class, %given) = @_; bless {%given}, $class }
sub handler { 0 }

package ModPerl::RegistryCooker;

$INC{"ModPerl/$_.pm"} = __FILE__ for qw(Registry RegistryCooker RegistryPrefork RegistryBB PerlRun
    PerlRunPrefork RegistryLoader);

1;
