//! Rack applications: one of our own hosts as a program that listens on a Unix socket. It receives the
//! variables of a request in place of an HTTP head, and answers in HTTP/1.1.

use crate::program::{Listening, ProgramSpec};
use std::path::{Path, PathBuf};

const HOST: &str = concat!(
    include_str!("../../../hosts/rack.rb"),
    "\n",
    include_str!("../../../hosts/rack/request.rb"),
    "\n",
    include_str!("../../../hosts/rack/reply.rb"),
    "\n",
    include_str!("../../../hosts/rack/stream.rb"),
    "\nForebay.run(ARGV[0], ARGV[1], ARGV[2].to_i, ARGV[3].to_i)\n",
);
/// The host's file in the private directory of a process.
const FILE: &str = "forebay_rack.rb";

/// The keys of an application that its host receives.
#[derive(Debug, Clone)]
pub struct Rack {
    /// The `config.ru`; an absolute path.
    pub file: PathBuf,
    /// The interpreter. `None`: `ruby` from PATH.
    pub ruby: Option<PathBuf>,
    /// Requests that each process runs at once.
    pub threads: usize,
    /// Connections to each process, including those that requests have taken over.
    pub connections: usize,
}

/// Returns a program that runs the Rack application. The caller sets all fields that do not depend
/// on `rack`.
pub fn rack(name: &str, rack: &Rack) -> ProgramSpec {
    let ruby = rack.ruby.as_deref().unwrap_or(Path::new("ruby"));
    let run = [
        &ruby.to_string_lossy(),
        &*format!("{{room}}/{FILE}"),
        "{socket}",
        &rack.file.to_string_lossy(),
        &rack.threads.to_string(),
        &rack.connections.to_string(),
    ];
    let run = run.map(str::to_owned).into();
    let mut spec = ProgramSpec::new(name, run, Listening::Socket);
    spec.files = vec![(FILE.to_owned(), HOST.to_owned())];
    spec.connections = rack.connections;
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
