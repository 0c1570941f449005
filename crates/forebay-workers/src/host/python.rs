//! How a worker for Python CGI scripts, or for a WSGI application, is started.

use super::Host;
use crate::spec::PythonMode;
use std::path::Path;
use std::process::Command;

/// The host for scripts, which the worker reads from its control socket before anything else.
const CGI_HOST: &str = concat!(
    include_str!("../../../../hosts/python-cgi.py"),
    "\n\n",
    include_str!("../../../../hosts/python-inbox.py"),
    "\n\n",
    include_str!("../../../../hosts/python-cgi/request.py"),
    "\n\n",
    include_str!("../../../../hosts/python-cgi/handles.py"),
    "\n\n",
    include_str!("../../../../hosts/python-cgi/modules.py")
);
/// What interpreters from 3.13 on have no module for any more.
const CGI: &str = include_str!("../../../../hosts/python-cgi/cgi.py");
const CGITB: &str = include_str!("../../../../hosts/python-cgi/cgitb.py");
/// The host for applications.
const WSGI_HOST: &str = concat!(
    include_str!("../../../../hosts/wsgi.py"),
    "\n\n",
    include_str!("../../../../hosts/python-inbox.py")
);

/// Reads the host (4 bytes length, then texts with NUL between them) from standard input, which is
/// the control socket, without a byte too much, and runs it.
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

/// A host that runs scripts in `mode`.
pub(super) fn cgi_host(python: Option<&Path>, mode: PythonMode, parent: u32) -> Host {
    let mode = match mode {
        PythonMode::Fresh => "fresh",
        PythonMode::Fork => "fork",
    };
    Host::new(command(python, mode, parent), &[CGI_HOST, CGI, CGITB].join("\0"))
}

/// A host for the application that `module` (`module:callable`) names.
pub(super) fn wsgi_host(python: Option<&Path>, module: &str, parent: u32) -> Host {
    Host::new(command(python, module, parent), WSGI_HOST)
}

fn command(python: Option<&Path>, what: &str, parent: u32) -> Command {
    let mut command = Command::new(python.unwrap_or(Path::new("python3")));
    command.args(["-c", BOOTSTRAP, what, &parent.to_string()]);
    command
}
