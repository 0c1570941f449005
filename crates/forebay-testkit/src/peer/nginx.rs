//! nginx: <https://nginx.org/en/docs/>.

use super::{Peer, filled_in, installed, is_root, on_free_port};
use crate::process::Process;
use std::process::Command;

/// Configuration around the caller's part. The caller can enable access logs.
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

/// Starts nginx with the given content of `http { ... }`. In it, `{port}` is a free port, for
/// `listen 127.0.0.1:{port}`, and `{tmp}` the folder. Returns `None` and reports a skip if nginx is
/// not installed.
pub fn nginx(http: &str) -> Option<Peer> {
    let program = installed("nginx")?;
    Some(on_free_port(|folder, port| {
        let text = filled_in(&FRAME.replace("{http}", http), folder, port);
        let file = folder.write("nginx.conf", text);
        let mut command = Command::new(&program);
        command.arg("-c").arg(file).arg("-e").arg("stderr");
        if is_root() {
            // The workers must be able to read the test's files anywhere.
            command.args(["-g", "user root;"]);
        }
        Process::start(command)
    }))
}
