//! Apache httpd with the prefork MPM: <https://httpd.apache.org/docs/2.4/>.

use std::process::Command;

use super::{Peer, WORKER, filled_in, installed, is_root, on_free_port, skip};
use crate::process::Process;
use std::path::Path;

/// Directory of Debian's modules.
const MODULES: &str = "/usr/lib/apache2/modules";

/// Configuration that precedes the configuration of the test.
const FRAME: &str = r#"
ServerRoot "{tmp}"
ServerName localhost
DefaultRuntimeDir "{tmp}"
PidFile "{tmp}/pid"
ErrorLog /dev/stderr
Listen 127.0.0.1:{port}
LoadModule mpm_prefork_module /usr/lib/apache2/modules/mod_mpm_prefork.so
LoadModule authz_core_module /usr/lib/apache2/modules/mod_authz_core.so
StartServers 2
"#;

/// Starts Apache with the given modules (such as "cgi", "perl" or "proxy_fcgi") and configuration.
///
/// In the configuration, `{port}` is replaced by a free port, and `{tmp}` by the path of the
/// server's folder. If the test runs as root, Apache runs as Debian's user for web servers. This
/// user can read the files in a [`Folder`](crate::folder::Folder). If Apache or a module is not
/// installed, reports the test as skipped and returns `None`.
pub fn apache(modules: &[&str], conf: &str) -> Option<Peer> {
    let program = installed("apache2")?;
    let mut frame = FRAME.to_owned();
    for module in modules {
        let file = format!("{MODULES}/mod_{module}.so");
        if !Path::new(&file).is_file() {
            skip(&format!("Apache's mod_{module} is not installed (no {file})"));
            return None;
        }
        frame.push_str(&format!("LoadModule {module}_module {file}\n"));
    }
    if is_root() {
        frame.push_str(&format!("User {WORKER}\nGroup {WORKER}\n"));
    }
    Some(on_free_port(|folder, port| {
        let text = filled_in(&format!("{frame}{conf}\n"), folder, port);
        let file = folder.write("apache.conf", text);
        let mut command = Command::new(&program);
        command.arg("-DFOREGROUND").arg("-f").arg(file);
        Process::start(command)
    }))
}
