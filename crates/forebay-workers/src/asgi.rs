//! ASGI applications. Forebay runs `hosts/asgi.py` as a program that speaks HTTP/1.1 on a Unix
//! socket.

use crate::program::{Listening, ProgramSpec};
use std::path::PathBuf;
use std::time::Duration;

const HOST: &str = concat!(
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
const FILE: &str = "forebay_asgi.py";

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
        &format!("{{room}}/{FILE}"),
        "{socket}",
        &asgi.module,
        &asgi.connections.to_string(),
        &asgi.max_message.to_string(),
        &grace.to_string(),
    ];
    let mut spec = ProgramSpec::new(name, run.map(str::to_owned).into(), Listening::Socket);
    spec.files = vec![(FILE.to_owned(), HOST.to_owned())];
    spec.connections = asgi.connections;
    spec
}

#[cfg(test)]
mod tests {
    use super::HOST;

    #[test]
    fn the_host_has_no_words_that_are_filled_in() {
        for word in ["{dir}", "{room}", "{socket}", "{port}", "{host}"] {
            assert!(!HOST.contains(word), "{word}");
        }
    }
}
