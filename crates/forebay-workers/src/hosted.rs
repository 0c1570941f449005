//! ASGI and Rack applications, which Forebay's own hosts run as programs on a Unix socket.
//!
//! `hosts/asgi.py` speaks HTTP/1.1. `hosts/rack.rb` receives the variables of a request in place of an
//! HTTP head, and replies in HTTP/1.1.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::program::{Listening, ProgramSpec};

const ASGI_HOST: &str = concat!(
    include_str!("../../../hosts/asgi.py"),
    "\n\n",
    include_str!("../../../hosts/python-log.py"),
    "\n\n",
    include_str!("../../../hosts/asgi/http.py"),
    "\n\n",
    include_str!("../../../hosts/asgi/request.py"),
    "\n\n",
    include_str!("../../../hosts/asgi/websocket.py"),
);
/// Name of the host's file in the private directory of each process.
const ASGI_FILE: &str = "forebay_asgi.py";

/// The configuration keys of an ASGI application that the host needs.
#[derive(Debug, Clone)]
pub struct Asgi {
    /// `module:callable`; both parts may contain dots.
    pub module: String,
    /// Path of the interpreter; `None` for `python3` from PATH.
    pub python: Option<PathBuf>,
    /// Maximum number of concurrent requests and WebSockets of each process.
    pub connections: usize,
    /// Maximum length of a WebSocket message in bytes.
    pub max_message: u64,
    /// Time from SIGTERM to SIGKILL.
    pub stop_timeout: Duration,
}

/// Returns the specification of a program that runs the ASGI application. The caller must set the
/// other fields, which do not depend on `asgi`.
pub fn asgi(name: &str, asgi: &Asgi) -> ProgramSpec {
    let python = asgi.python.as_ref().map(|python| python.to_string_lossy());
    // The current requests get 80 % of the time to finish. The rest is for the shutdown of the
    // application (lifespan).
    let grace = asgi.stop_timeout.mul_f64(0.8).as_secs_f64();
    let run = [
        python.as_deref().unwrap_or("python3"),
        &format!("{{room}}/{ASGI_FILE}"),
        "{socket}",
        &asgi.module,
        &asgi.connections.to_string(),
        &asgi.max_message.to_string(),
        &grace.to_string(),
    ];
    let mut spec = ProgramSpec::new(name, run.map(str::to_owned).into(), Listening::Socket);
    spec.files = vec![(ASGI_FILE.to_owned(), ASGI_HOST.to_owned())];
    spec.connections = asgi.connections;
    spec
}

const RACK_HOST: &str = concat!(
    include_str!("../../../hosts/rack.rb"),
    "\n",
    include_str!("../../../hosts/rack/crew.rb"),
    "\n",
    include_str!("../../../hosts/rack/environments.rb"),
    "\n",
    include_str!("../../../hosts/rack/request.rb"),
    "\n",
    include_str!("../../../hosts/rack/fields.rb"),
    "\n",
    include_str!("../../../hosts/rack/reply.rb"),
    "\n",
    include_str!("../../../hosts/rack/stream.rb"),
    "\nForebay.run(ARGV[0], ARGV[1], ARGV[2].to_i)\n",
);
/// Name of the host's file in the private directory of each process.
const RACK_FILE: &str = "forebay_rack.rb";

/// The configuration keys of a Rack application that the host needs.
#[derive(Debug, Clone)]
pub struct Rack {
    /// Absolute path of the application's `config.ru`.
    pub file: PathBuf,
    /// Path of the interpreter; `None` for `ruby` from PATH.
    pub ruby: Option<PathBuf>,
    /// Maximum number of concurrent requests of each process.
    pub threads: usize,
    /// Maximum number of requests of each process, including those that wait for a thread and those
    /// that have taken over their connection.
    pub connections: usize,
}

/// Returns the specification of a program that runs the Rack application. The caller must set the
/// other fields, which do not depend on `rack`.
pub fn rack(name: &str, rack: &Rack) -> ProgramSpec {
    let ruby = rack.ruby.as_deref().unwrap_or(Path::new("ruby"));
    let run = [
        &ruby.to_string_lossy(),
        &*format!("{{room}}/{RACK_FILE}"),
        "{socket}",
        &rack.file.to_string_lossy(),
        &rack.threads.to_string(),
    ];
    let run = run.map(str::to_owned).into();
    let mut spec = ProgramSpec::new(name, run, Listening::Socket);
    spec.files = vec![(RACK_FILE.to_owned(), RACK_HOST.to_owned())];
    spec.connections = rack.connections;
    spec
}

#[cfg(test)]
mod tests {
    use super::{ASGI_HOST, RACK_HOST};

    #[test]
    fn the_host_has_no_words_that_are_filled_in() {
        for word in ["{dir}", "{room}", "{socket}", "{port}", "{host}"] {
            assert!(!ASGI_HOST.contains(word), "{word}");
        }
    }

    #[test]
    fn the_rack_host_has_no_words_that_are_filled_in() {
        for word in ["{dir}", "{room}", "{socket}", "{port}", "{host}"] {
            assert!(!RACK_HOST.contains(word), "{word}");
        }
    }
}
