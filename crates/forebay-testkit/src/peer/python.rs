//! Servers written in Python: wsgiref of the standard library
//! <https://docs.python.org/3/library/wsgiref.html>, and gRPC servers
//! <https://grpc.io/docs/languages/python/>.

use std::path::Path;
use std::process::Command;

use super::{Peer, has, on_free_port};
use crate::process::Process;

const WSGIREF: &str = "\
import os, runpy, sys
from wsgiref.simple_server import make_server
path, port, pid = sys.argv[1:]
server = make_server('127.0.0.1', int(port), runpy.run_path(path)['application'])
with open(pid, 'w') as file:
    file.write(str(os.getpid()))
server.serve_forever()
";

/// Starts wsgiref with the `application` that the Python file `app` defines. If Python is missing,
/// reports the test as skipped and returns `None`.
pub fn wsgiref(app: &Path) -> Option<Peer> {
    has(&["python3"]).then(|| {
        on_free_port(|folder, port| {
            let mut command = Command::new("/usr/bin/python3");
            command.args(["-c", WSGIREF]).arg(app).arg(port.to_string());
            command.arg(folder.path().join("pid"));
            Process::start(command)
        })
    })
}

/// Starts the gRPC server in the Python file `script`. The arguments of the script are `serve`, the
/// port, and the path of a file for its process ID. If the gRPC library is missing, reports the
/// test as skipped and returns `None`.
pub fn grpc(script: &Path) -> Option<Peer> {
    has(&["python3-grpcio"]).then(|| {
        on_free_port(|folder, port| {
            let mut command = Command::new("/usr/bin/python3");
            command.arg(script).args(["serve", &port.to_string()]).arg(folder.path().join("pid"));
            Process::start(command)
        })
    })
}
