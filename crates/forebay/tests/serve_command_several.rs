//! `forebay serve` with a program of several processes (`kind = "command"`, `workers`): which of them
//! gets a request, and which never does.

mod support;

use std::collections::BTreeSet;

use forebay_testkit::folder::Folder;
use forebay_testkit::process::eventually;
use support::{Forebay, is_alive, serve};

/// An HTTP server that answers with its process id; what else it does is the path's.
const SERVER: &str = r#"
import os, signal, sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

class Handler(BaseHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'
    served = False

    def do_GET(self):
        if self.path == '/kill':
            os.kill(os.getpid(), signal.SIGKILL)
        if self.path == '/abort':
            os.abort()
        if self.path == '/exit':
            os._exit(3)
        if self.path == '/first' and self.served:
            self.close_connection = True
            return
        self.served = True
        text = str(os.getpid()).encode()
        self.send_response(200)
        self.send_header('Content-Length', str(len(text)))
        if self.path == '/close':
            self.send_header('Connection', 'close')
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *args):
        pass

ThreadingHTTPServer(('127.0.0.1', int(sys.argv[1])), Handler).serve_forever()
"#;

fn server(keys: &str) -> Forebay {
    let folder = Folder::new();
    folder.write("server.py", SERVER);
    let configuration = format!(
        "[server]\nthreads = 1\n[[site]]\nlisten = \"127.0.0.1:0\"\n[[site.route]]\npath = \"/*\"\n\
         app = \"own\"\n[app.own]\nkind = \"command\"\nspeaks = \"http\"\n\
         run = [\"python3\", \"{{dir}}/server.py\", \"{{port}}\"]\n{keys}\n"
    );
    serve(folder, &configuration)
}

/// The processes that answer `target`, once `count` do.
fn processes(forebay: &Forebay, target: &str, count: usize) -> BTreeSet<String> {
    let mut seen = BTreeSet::new();
    assert!(
        eventually(|| {
            let reply = forebay.get(target);
            if reply.status == 200 {
                seen.insert(reply.text().to_owned());
            }
            seen.retain(|pid| is_alive(pid));
            seen.len() == count
        }),
        "{seen:?}: {}",
        forebay.output()
    );
    seen
}

#[test]
fn a_request_that_crashed_its_process_is_not_tried_on_another() {
    let forebay = server("workers = 3");
    // Over connections that are kept, and over new ones.
    for warm in ["/pid", "/close"] {
        for poison in ["/kill", "/abort", "/exit"] {
            let before = processes(&forebay, warm, 3);
            let reply = forebay.get(poison);
            assert_eq!(reply.status, 502, "{poison}: {}", forebay.output());
            let mut left = BTreeSet::new();
            assert!(eventually(|| {
                left = before.iter().filter(|pid| is_alive(pid)).collect();
                left.len() < 3
            }));
            assert_eq!(left.len(), 2, "{poison} after {warm}: {}", forebay.output());
            let after = processes(&forebay, warm, 3);
            assert!(left.iter().all(|pid| after.contains(*pid)), "{before:?} {after:?}");
        }
    }
    forebay.stop();
}

#[test]
fn a_request_on_a_kept_connection_that_a_process_closed_is_sent_again() {
    let forebay = server("workers = 3");
    let before = processes(&forebay, "/pid", 3);
    for _ in 0..6 {
        let reply = forebay.get("/first");
        assert_eq!(reply.status, 200, "{}", forebay.output());
        assert!(before.contains(reply.text()));
    }
    assert_eq!(processes(&forebay, "/pid", 3), before, "none has ended");
    forebay.stop();
}
