//! Caddy: <https://caddyserver.com/docs/>.

use std::net::Ipv4Addr;
use std::process::Command;

use super::{Peer, filled_in, installed, on_free_port_when};
use crate::DEADLINE;
use crate::process::Process;
use crate::stream::{Address, TestStream};

/// Options that precede the sites of the test.
const OPTIONS: &str = "{
    admin off
    auto_https off
    storage file_system {tmp}/storage
    log {
        level WARN
    }
}
";

/// Starts Caddy with the given sites, in a new folder with `files`. In the text `sites`, `{port}`
/// is replaced by a free port, and `{tmp}` by the path of the folder. If Caddy is not installed,
/// reports the test as skipped and returns `None`.
pub fn caddy(sites: &str, files: &[(&str, &str)]) -> Option<Peer> {
    let program = installed("caddy")?;
    let start = |folder: &crate::folder::Folder, port| {
        for (name, content) in files {
            folder.write(name, content);
        }
        let file =
            folder.write("Caddyfile", filled_in(&format!("{OPTIONS}{sites}\n"), folder, port));
        let mut command = Command::new(&program);
        command.args(["run", "--adapter", "caddyfile", "--config"]).arg(file);
        // Caddy saves its last configuration and its identity in these directories.
        for name in ["HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME"] {
            command.env(name, folder.path());
        }
        Process::start(command)
    };
    Some(on_free_port_when(start, |_, port| {
        let address = Address::Tcp((Ipv4Addr::LOCALHOST, port).into());
        TestStream::connect(&address, DEADLINE).is_ok()
    }))
}
