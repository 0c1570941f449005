//! How a worker for Perl CGI scripts is started.

use super::Host;
use crate::spec::PerlMode;
use std::process::Command;

/// The host, which the worker reads from its control socket before anything else.
const HOST: &str = concat!(
    include_str!("../../../../hosts/perl-cgi.pl"),
    "\n",
    include_str!("../../../../hosts/perl-leftovers.pl"),
    "\n",
    include_str!("../../../../hosts/perl-requests.pl"),
    "\n",
    include_str!("../../../../hosts/perl-scripts.pl"),
    "\n",
    include_str!("../../../../hosts/perl-modules.pl"),
    "\n",
    include_str!("../../../../hosts/perl-programs.pl"),
);
/// What comes behind it where each request has a process of its own.
const PROCESSES: &str = include_str!("../../../../hosts/perl-processes.pl");
/// What such a process of Perl's loads in front of its script.
const ZYGOTE: &str = include_str!("../../../../hosts/perl-zygote.pl");

/// Reads the host (4 bytes length, then text) without a byte too much, and runs it. Standard input
/// is the control socket. No lexical variables: scripts would see them.
pub(super) const BOOTSTRAP: &str = "sysread(STDIN,$_,4)==4 or exit 1;$Forebay::Host::size=unpack'N',$_;$_='';\
    while(length()<$Forebay::Host::size){\
    sysread STDIN,$_,$Forebay::Host::size-length(),length() or exit 1}\
    eval;die $@ if $@;undef $_;Forebay::Host::serve(@ARGV)";

/// A host that runs scripts in `mode`.
pub(super) fn host(app: &str, mode: PerlMode, parent: u32) -> Host {
    let (mode, host) = match mode {
        PerlMode::Registry => ("registry", HOST.to_owned()),
        PerlMode::RegistryPrefork => ("registry-prefork", HOST.to_owned()),
        PerlMode::PerlRun => ("perlrun", HOST.to_owned()),
        PerlMode::Fork => ("fork", host_of_processes()),
        PerlMode::Cgi => ("cgi", host_of_processes()),
    };
    let mut command = Command::new("perl");
    command.args(["-e", BOOTSTRAP, mode, &parent.to_string(), app]);
    Host::new(command, &host)
}

/// The host for the modes with a process for each request.
fn host_of_processes() -> String {
    format!("{HOST}\n{PROCESSES}\n$ZYGOTE = <<'END_OF_ZYGOTE';\n{ZYGOTE}\nEND_OF_ZYGOTE\n1;\n")
}
