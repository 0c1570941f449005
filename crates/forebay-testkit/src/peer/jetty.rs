//! Jetty 9.4, the servlet container: <https://eclipse.dev/jetty/documentation/jetty-9/index.html>.

use std::process::Command;

use super::{Peer, has, on_a_free_port, restart};
use crate::folder::Folder;
use crate::process::Process;
use crate::stream::Address;

/// Directory of Debian's Jetty.
const HOME: &str = "/usr/share/jetty9";

/// Options for HTTP/1.1, HTTP/2 with prior knowledge, and JSP.
const MODULES: &str = "--module=http\n--module=http2c\n--module=deploy\n--module=jsp\n";

/// Text that Jetty prints at the end of its start.
const STARTED: &str = "Server:main: Started @";

/// Starts Jetty with these JSP pages, each a file name and its text. `streams` limits the
/// concurrent streams per HTTP/2 connection. If Jetty is not installed, reports the test as skipped
/// and returns `None`.
pub fn jetty_http2(pages: &[(&str, &str)], streams: usize) -> Option<Peer> {
    if !has(&["jetty9", "libjetty9-extra-java"]) {
        return None;
    }
    Some(on_a_free_port(|folder, port| {
        for (name, page) in pages {
            folder.write(&format!("webapps/ROOT/{name}"), page);
        }
        folder.write("tmp/README", "Jetty's.\n");
        // Without `scanInterval=0`, Jetty would redeploy an application that writes to its own
        // folder, and requests during the redeployment would fail.
        let keys = format!(
            "jetty.http.host=127.0.0.1\njetty.http.port={port}\n\
             jetty.http2c.maxConcurrentStreams={streams}\n\
             jetty.deploy.scanInterval=0\n"
        );
        folder.write("start.ini", format!("{MODULES}{keys}"));
        start(folder)
    }))
}

/// Restarts a Jetty that was killed or stopped, in the same folder and on the same port.
///
/// # Panics
/// Panics if Jetty does not start, for example because another process has taken the port.
pub fn restart_jetty(folder: Folder, address: &Address) -> Peer {
    restart(folder, address, start)
}

fn start(folder: &Folder) -> Result<Process, String> {
    let base = folder.path();
    let mut command = Command::new("java");
    command.args(["-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]);
    command.arg(format!("-Djava.io.tmpdir={}", base.join("tmp").display()));
    command.arg("-jar").arg(format!("{HOME}/start.jar"));
    command.arg(format!("jetty.home={HOME}")).arg(format!("jetty.base={}", base.display()));
    command.current_dir(base);
    super::start_jvm(command, STARTED)
}
