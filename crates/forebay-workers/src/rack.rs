//! Rack applications. Forebay runs `hosts/rack.rb` as a program that listens on a Unix socket. The
//! host receives the variables of a request in place of an HTTP head, and replies in HTTP/1.1.

use crate::program::{Listening, ProgramSpec};
use std::path::{Path, PathBuf};

const HOST: &str = concat!(
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
const FILE: &str = "forebay_rack.rb";

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
        &*format!("{{room}}/{FILE}"),
        "{socket}",
        &rack.file.to_string_lossy(),
        &rack.threads.to_string(),
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
