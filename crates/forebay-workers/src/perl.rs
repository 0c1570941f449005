//! How a Perl worker is started.

use crate::spec::PerlMode;
use std::process::Command;

/// The host, which the worker reads from its control socket before anything else.
const HOST: &str = include_str!("../../../hosts/perl-cgi.pl");

/// Reads the host (4 bytes length, then text) without a byte too much, and runs it. Standard input
/// is the control socket. No lexical variables: scripts would see them.
const BOOTSTRAP: &str = "sysread(STDIN,$_,4)==4 or exit 1;$Forebay::Host::size=unpack'N',$_;$_='';\
    while(length()<$Forebay::Host::size){\
    sysread STDIN,$_,$Forebay::Host::size-length(),length() or exit 1}\
    eval;die $@ if $@;undef $_;Forebay::Host::serve(@ARGV)";

/// The command without its descriptors, and what to write to the control socket first.
pub(crate) fn command(app: &str, mode: PerlMode) -> (Command, Vec<u8>) {
    let mode = match mode {
        PerlMode::Registry => "registry",
        PerlMode::RegistryPrefork => "registry-prefork",
    };
    let mut command = Command::new("perl");
    command.args(["-e", BOOTSTRAP, mode, &std::process::id().to_string(), app]);
    let mut first = Vec::with_capacity(4 + HOST.len());
    first.extend_from_slice(&(HOST.len() as u32).to_be_bytes());
    first.extend_from_slice(HOST.as_bytes());
    (command, first)
}
