# The part of the host for PSGI in mode `prove`. It follows psgi.pl, whose variables it uses. Until
# Forebay has proved the application, each request runs in a child of this process, which compares
# what the request has left (perl-proofs.pl). perl-proving.pl describes FOREBAY_PROOF.
package Forebay::Host;

our ($proof_key, $proof_salt, $shows_values, $application_file) = ('', '', 0);
my $proof_log;                            # STDERR without the layers of the application
my ($proof_token, $own_package, $proof_baseline, %kept_state);
my $ENDS_TOO = 3;                         # exit code of a child after which this worker ends

# Answers a request. Returns true if this worker has to end.
sub answer_proving {
    my ($env) = @_;
    if (!defined $proof_token) {
        open $proof_log, '>&', \*STDERR or die "cannot copy STDERR: $!\n";
        binmode $proof_log;
        Forebay::Proof::is_possible()
            or log_error('this perl lacks B, Digest::MD5 or Time::HiRes, so nothing can be proved');
        $Forebay::Proof::salt = $proof_salt;
        $Forebay::Proof::compares_environment = 1;
        ($own_package = $application_file) =~ s/([^A-Za-z0-9])/sprintf '_%02x', ord $1/ge;
        $own_package = "Forebay::App::$own_package";
        $proof_token = substr Digest::MD5::md5_hex(join ' ', map { ($_, (stat)[0, 1, 7, 9, 10]) }
            $application_file, sort grep { defined && !ref } values %INC), 0, 16;
    }
    my $word = delete $env->{FOREBAY_PROOF} // '';
    if ($word eq "keep $proof_token") {
        my $ends = answer($env);
        my $state = \%kept_state;
        if (++$state->{runs} >= ($state->{check} || 1)) {
            my $inputs = Forebay::Proof::inputs($env, '');
            %$env = ();    # the objects of the request end with it
            my @lines = Forebay::Proof::check_kept(
                $state, $own_package, $application_file, $inputs, $shows_values, $app);
            syswrite $proof_log, $_ for Forebay::Proof::reports(
                $proof_key, $application_file, $proof_token, 'kept', @lines);
        }
        return $ends;
    }
    return answer_in_child($env, $word ne "refused $proof_token");
}

sub answer_in_child {
    my ($env, $compares) = @_;
    $proof_baseline ||= Forebay::Proof::snapshot($own_package, undef, undef, $app) if $compares;
    open my $report, '+>', undef or $compares = 0;
    my $child = CORE::fork();
    if (!defined $child) {
        log_error("cannot fork: $!");
        conclude('S', 500, $env);
        return 1;
    }
    if (!$child) {
        end_with($pid);
        $pid = $$;
        Forebay::Proof::refresh($proof_baseline) if $compares;
        srand;
        my ($inputs, %loaded) = (Forebay::Proof::inputs($env, ''), %INC);
        my $ends = answer($env);
        my $begun = Time::HiRes::time();
        %$env = ();    # the objects of the request end with it
        if ($compares) {
            eval {
                my @faults = Forebay::Proof::faults();
                my (undef, @lines) = Forebay::Proof::report($own_package, $proof_baseline, $inputs,
                    $shows_values, $begun, $application_file, \@faults, $app);
                syswrite $report, join "\n", Forebay::Proof::loaded(\%loaded), @lines, '';
            };
            log_error("cannot compare: $@") if $@;
        }
        # Without destructors, which could close connections that this worker has opened at its start.
        syswrite $report, $ends ? "ends\n" : "done\n";
        kill KILL => $$;
    }
    1 while waitpid($child, 0) < 0 && $! == $EINTR;
    $serial++;
    sysseek $report, 0, 0;
    my $text = '';
    1 while sysread $report, $text, 65_536, length $text;
    if ($text !~ s/(done|ends)\n\z//) {    # the application has ended the child
        kill KILL => $$;
    }
    my $ends = $1 eq 'ends';
    my ($has_loaded, @lines) = Forebay::Proof::load_too(split /\n/, $text);
    undef $proof_baseline if $has_loaded;
    syswrite $proof_log, $_ for Forebay::Proof::reports($proof_key, $application_file, $proof_token,
        'forked', @lines);
    return $ends;
}

1;
