//! The hosts and the command lines of workers for Perl CGI scripts and PSGI applications.

use std::path::Path;
use std::process::Command;

use super::Host;
use crate::proofs::ProofKey;
use crate::spec::PerlMode;

/// The source of the host. A worker first reads this source from the control socket.
const HOST: &str = concat!(
    include_str!("../../../../hosts/perl-cgi.pl"),
    "\n",
    include_str!("../../../../hosts/perl-leftovers.pl"),
    "\n",
    include_str!("../../../../hosts/perl-databases.pl"),
    "\n",
    include_str!("../../../../hosts/perl-requests.pl"),
    "\n",
    include_str!("../../../../hosts/perl-compilation.pl"),
    "package Forebay::Host;\n",
    include_str!("../../../../hosts/perl-scripts.pl"),
    "\n",
    include_str!("../../../../hosts/perl-modules.pl"),
    "\n",
    include_str!("../../../../hosts/perl-programs.pl"),
);
/// The additional part for the modes that run one process per request.
const PROCESSES: &str = include_str!("../../../../hosts/perl-processes.pl");
/// For these modes, the code that loads modules before a script starts.
const ZYGOTE: &str = concat!(
    include_str!("../../../../hosts/perl-compilation.pl"),
    include_str!("../../../../hosts/perl-zygote.pl"),
);
/// The additional parts for mode `prove`. The first one is also a part of the zygote.
pub(super) const PROOFS: &str = include_str!("../../../../hosts/perl-proofs.pl");
const PROVING: &str = include_str!("../../../../hosts/perl-proving.pl");

/// Perl code that reads the source of the host from the control socket (standard input), and runs
/// the host. The code reads exactly 4 bytes with a length, and the source. The code uses no lexical
/// variables, because scripts would see them. With the switch -T, perl refuses to run what was read,
/// but the keys of a hash are never tainted. The arguments are taken out of @ARGV: Perl does not count
/// references to what a function is called with, so that a script which empties @ARGV would free them,
/// and Carp, which shows them in a trace, would read freed memory.
pub(super) const BOOTSTRAP: &str = "sysread(STDIN,$_,4)==4 or exit 1;$Forebay::Host::size=unpack'N',$_;$_='';\
    while(length()<$Forebay::Host::size){\
    sysread STDIN,$_,$Forebay::Host::size-length(),length() or exit 1}\
    ($_)=keys%{{$_,0}};eval;die $@ if $@;undef $_;Forebay::Host::serve(splice@ARGV)";

/// Returns the host that runs scripts in `mode`, and first loads the files and modules in `preload`.
pub(super) fn host(
    app: &str,
    (mode, preload): (PerlMode, &[String]),
    parent: u32,
    proof: &ProofKey,
) -> Host {
    let (mode, host) = match mode {
        PerlMode::Registry => ("registry", HOST.to_owned()),
        PerlMode::RegistryPrefork => ("registry-prefork", HOST.to_owned()),
        PerlMode::PerlRun => ("perlrun", HOST.to_owned()),
        PerlMode::Fork => ("fork", host_of_processes()),
        PerlMode::Cgi => ("cgi", host_of_processes()),
        PerlMode::Prove => ("prove", host_of_proofs(proof)),
    };
    let mut command = Command::new("perl");
    command.args(["-e", BOOTSTRAP, mode, &parent.to_string(), app]).args(preload);
    Host::new(command, &host)
}

/// Returns the host for the modes with one process per request.
fn host_of_processes() -> String {
    with_zygote(HOST, ZYGOTE)
}

/// Returns the host for mode `prove`.
fn host_of_proofs(proof: &ProofKey) -> String {
    let host = with_zygote(HOST, &format!("{PROOFS}\n{ZYGOTE}"));
    let ProofKey { key, salt, shows_values } = proof;
    format!(
        "{host}\n{PROVING}\n\
         ($proof_key, $proof_salt, $shows_values) = ('{key}', '{salt}', {});\n{PROOFS}\n",
        u8::from(*shows_values)
    )
}

fn with_zygote(host: &str, zygote: &str) -> String {
    format!("{host}\n{PROCESSES}\n$ZYGOTE = <<'END_OF_ZYGOTE';\n{zygote}\nEND_OF_ZYGOTE\n1;\n")
}

/// The source of the host. A worker first reads this source from the control socket.
pub(super) const PSGI_HOST: &str = include_str!("../../../../hosts/psgi.pl");

/// The additional part for mode `prove`.
const PSGI_PROVING: &str = include_str!("../../../../hosts/psgi-proving.pl");

/// Returns the host that runs the application in `file`.
pub(super) fn psgi_host(app: &str, file: &Path, parent: u32, proof: &ProofKey) -> Host {
    let mut command = Command::new("perl");
    command.args(["-e", BOOTSTRAP]).arg(file).args([&parent.to_string(), app]);
    if proof.key.is_empty() {
        return Host::new(command, PSGI_HOST);
    }
    let ProofKey { key, salt, shows_values } = proof;
    let source = format!(
        "{{\n{PSGI_HOST}\n{PSGI_PROVING}\n($proof_key, $proof_salt, $shows_values, $application_file) = \
         ('{key}', '{salt}', {}, $ARGV[0]);\n}}\n{{\n{PROOFS}\n}}\n",
        u8::from(*shows_values)
    );
    Host::new(command, &source)
}
