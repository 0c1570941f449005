//! The hosts and the command lines of workers for Python CGI scripts and for WSGI applications.

use super::Host;
use crate::proofs::ProofKey;
use crate::spec::PythonMode;
use std::path::Path;
use std::process::Command;

/// The source of the host for CGI scripts. A worker first reads this source from the control
/// socket.
const CGI_HOST: &str = concat!(
    include_str!("../../../../hosts/python-cgi.py"),
    "\n\n",
    include_str!("../../../../hosts/python-inbox.py"),
    "\n\n",
    include_str!("../../../../hosts/python-log.py"),
    "\n\n",
    include_str!("../../../../hosts/python-cgi/request.py"),
    "\n\n",
    include_str!("../../../../hosts/python-cgi/handles.py"),
    "\n\n",
    include_str!("../../../../hosts/python-cgi/modules.py")
);
/// The additional part for mode `prove`.
const PROOFS: &str = include_str!("../../../../hosts/python-proofs.py");
const CGI_PROVING: &str = include_str!("../../../../hosts/python-cgi/proving.py");
const WSGI_PROVING: &str = include_str!("../../../../hosts/wsgi-proving.py");
/// The sources of the modules `cgi` and `cgitb`, which Python 3.13 and later do not have.
const CGI: &str = include_str!("../../../../hosts/python-cgi/cgi.py");
const CGITB: &str = include_str!("../../../../hosts/python-cgi/cgitb.py");
/// The source of the host for WSGI applications.
const WSGI_HOST: &str = concat!(
    include_str!("../../../../hosts/wsgi.py"),
    "\n\n",
    include_str!("../../../../hosts/python-inbox.py"),
    "\n\n",
    include_str!("../../../../hosts/python-log.py")
);

/// Python code that reads the host from the control socket, which is standard input, and runs it.
/// The code reads exactly 4 bytes with a length, and then the sources, which are separated by NUL.
const BOOTSTRAP: &str = "\
def start():
    import os, sys
    left = int.from_bytes(os.read(0, 4), 'big')
    text = b''
    while left > len(text):
        more = os.read(0, left - len(text))
        if not more:
            os._exit(1)
        text += more
    host, *others = text.decode().split('\\0')
    scope = {'__name__': 'forebay_host'}
    exec(compile(host, '<forebay host>', 'exec'), scope)
    return scope['serve'](*sys.argv[1:], *others)
raise SystemExit(start())";

/// Returns the host that runs scripts in `mode`.
pub(super) fn cgi_host(
    python: Option<&Path>,
    mode: PythonMode,
    parent: u32,
    proof: &ProofKey,
) -> Host {
    let mode = match mode {
        PythonMode::Fresh => "fresh",
        PythonMode::Fork => "fork",
        PythonMode::Prove => "prove",
    };
    let host =
        if mode == "prove" { proving(CGI_HOST, CGI_PROVING, proof) } else { CGI_HOST.into() };
    Host::new(command(python, mode, parent), &[&host, CGI, CGITB].join("\0"))
}

/// Returns the host for the application `module` (`module:callable`).
pub(super) fn wsgi_host(
    python: Option<&Path>,
    module: &str,
    parent: u32,
    proof: &ProofKey,
) -> Host {
    let host = if proof.key.is_empty() {
        WSGI_HOST.to_owned()
    } else {
        proving(WSGI_HOST, WSGI_PROVING, proof)
    };
    Host::new(command(python, module, parent), &host)
}

/// Returns the host with its part for mode `prove`.
fn proving(host: &str, part: &str, proof: &ProofKey) -> String {
    let ProofKey { key, salt, shows_values } = proof;
    let shows_values = if *shows_values { "True" } else { "False" };
    format!(
        "{host}\n\n{PROOFS}\n\n{part}\n\nPROOF_KEY, PROOF_SALT = '{key}', b'{salt}'\n\
         SHOWS_VALUES = {shows_values}\n"
    )
}

fn command(python: Option<&Path>, what: &str, parent: u32) -> Command {
    let mut command = Command::new(python.unwrap_or(Path::new("python3")));
    command.args(["-c", BOOTSTRAP, what, &parent.to_string()]);
    command
}
