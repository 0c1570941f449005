//! PAGI applications. Forebay runs `hosts/pagi.pl` as a program that speaks HTTP/1.1 on a Unix socket,
//! as the host of ASGI applications does.

use crate::program::{Listening, ProgramSpec};
use std::path::PathBuf;
use std::time::Duration;

const HOST: &str = concat!(
    include_str!("../../../hosts/pagi.pl"),
    "\n",
    include_str!("../../../hosts/pagi/http.pl"),
    "\n",
    include_str!("../../../hosts/pagi/request.pl"),
    "\n",
    include_str!("../../../hosts/pagi/websocket.pl"),
);
/// Name of the host's file in the private directory of each process.
const FILE: &str = "forebay_pagi.pl";

/// The configuration keys of a PAGI application that the host needs.
#[derive(Debug, Clone)]
pub struct Pagi {
    /// The file whose last expression is the application.
    pub file: PathBuf,
    /// Maximum number of concurrent requests and WebSockets of each process.
    pub connections: usize,
    /// Maximum length of a WebSocket message in bytes.
    pub max_message: u64,
    /// Time from SIGTERM to SIGKILL.
    pub stop_timeout: Duration,
}

/// Returns the specification of a program that runs the PAGI application. The caller must set the
/// other fields, which do not depend on `pagi`.
pub fn pagi(name: &str, pagi: &Pagi) -> ProgramSpec {
    // The current requests get 80 % of the time to finish. The rest is for the shutdown of the
    // application (lifespan).
    let grace = pagi.stop_timeout.mul_f64(0.8).as_secs_f64();
    let run = [
        "perl",
        &format!("{{room}}/{FILE}"),
        "{socket}",
        &pagi.file.to_string_lossy(),
        &pagi.connections.to_string(),
        &pagi.max_message.to_string(),
        &grace.to_string(),
    ];
    let mut spec = ProgramSpec::new(name, run.map(str::to_owned).into(), Listening::Socket);
    spec.files = vec![(FILE.to_owned(), HOST.to_owned())];
    spec.connections = pagi.connections;
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
