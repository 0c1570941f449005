//! nginx: <https://nginx.org/en/docs/>.

use super::{Peer, filled_in, installed, is_root, on_free_port};
use crate::process::Process;
use std::process::Command;

/// Configuration that surrounds the configuration of the test. The test can enable access logs.
const FRAME: &str = r#"
daemon off;
worker_processes 1;
error_log stderr notice;
pid "{tmp}/pid";
events {}
http {
    access_log off;
    client_body_temp_path "{tmp}/client_body";
    fastcgi_temp_path "{tmp}/fastcgi";
    proxy_temp_path "{tmp}/proxy";
    scgi_temp_path "{tmp}/scgi";
    uwsgi_temp_path "{tmp}/uwsgi";
{http}
}
"#;

/// Starts nginx with the given content of `http { ... }`. In this text, `{port}` is replaced by a
/// free port (for `listen 127.0.0.1:{port}`), and `{tmp}` by the path of the server's folder. If
/// nginx is not installed, reports the test as skipped and returns `None`.
pub fn nginx(http: &str) -> Option<Peer> {
    let program = installed("nginx")?;
    Some(on_free_port(|folder, port| {
        let text = filled_in(&FRAME.replace("{http}", http), folder, port);
        let file = folder.write("nginx.conf", text);
        let mut command = Command::new(&program);
        command.arg("-c").arg(file).arg("-e").arg("stderr");
        if is_root() {
            // The workers stay root, so that they can read the test's files in any directory.
            command.args(["-g", "user root;"]);
        }
        Process::start(command)
    }))
}
