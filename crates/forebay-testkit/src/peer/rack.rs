//! Servers for Rack applications: <https://github.com/rack/rack>.

use std::path::Path;
use std::process::Command;

use super::{Peer, has, on_free_port};
use crate::process::Process;

/// Ruby program that runs Rack's FastCGI handler. The handler takes the listening socket as its
/// standard input.
const FASTCGI: &str = r#"
    require 'rack'
    require 'socket'
    require 'uri'
    app, port, pid = ARGV
    app = Rack::Builder.parse_file(app).first
    STDIN.reopen(TCPServer.new('127.0.0.1', port))
    File.write(pid, Process.pid)
    Rack::Handler::FastCGI.run(app)
"#;

/// Starts Rack's FastCGI handler with the application in the file `app` (`config.ru`). If Ruby or a
/// library is missing, reports the test as skipped and returns `None`.
pub fn rack_fastcgi(app: &Path) -> Option<Peer> {
    has(&["ruby", "ruby-rack", "ruby-fcgi"]).then(|| {
        on_free_port(|folder, port| {
            let mut command = Command::new("ruby");
            command.args(["-e", FASTCGI]).arg(app).arg(port.to_string());
            command.arg(folder.path().join("pid"));
            Process::start(command)
        })
    })
}
