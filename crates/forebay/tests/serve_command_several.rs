//! `forebay serve` with a program of several processes (`kind = "command"`, `workers`): the
//! selection of the process, and processes that get no requests.

mod support;

use std::collections::BTreeSet;

use forebay_testkit::folder::Folder;
use forebay_testkit::process::eventually;
use support::{Forebay, is_alive, serve};

/// An HTTP server that answers with its process id. The path selects other behaviour.
const SERVER: &str = r#"
import os, signal, sys, time
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
        if self.path == '/hold':
            open('held', 'w').close()
            while not os.path.exists('go'):
                time.sleep(0.01)
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

fn server(threads: usize, keys: &str) -> Forebay {
    let folder = Folder::new();
    folder.write("server.py", SERVER);
    let configuration = format!(
        "[server]\nthreads = {threads}\n[[site]]\nlisten = \"127.0.0.1:0\"\n\
         [[site.route]]\npath = \"/*\"\napp = \"own\"\n[app.own]\nkind = \"command\"\nspeaks = \"http\"\n\
         run = [\"python3\", \"{{dir}}/server.py\", \"{{port}}\"]\n{keys}\n"
    );
    serve(folder, &configuration)
}

/// Returns the processes that answer `target`, as soon as there are `count`.
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
    let forebay = server(1, "workers = 3");
    only_one_process_crashes(&forebay);
    forebay.stop();
}

#[test]
fn a_request_that_crashed_its_fastcgi_process_is_not_tried_on_another() {
    if !forebay_testkit::peer::has_perl("FCGI", "libfcgi-perl") {
        return;
    }
    let folder = Folder::new();
    folder.write(
        "own.pl",
        "use FCGI; use POSIX; my %env;\n\
         my $r = FCGI::Request(\\*STDIN, \\*STDOUT, \\*STDERR, \\%env);\n\
         while ($r->Accept() >= 0) { my $path = $env{PATH_INFO};\n\
         kill 9, $$ if $path eq '/kill'; POSIX::abort() if $path eq '/abort';\n\
         POSIX::_exit(3) if $path eq '/exit';\n\
         print \"Content-Type: text/plain\\r\\n\\r\\n$$\"; }\n",
    );
    let forebay = serve(
        folder,
        "[server]\nthreads = 1\n[[site]]\nlisten = \"127.0.0.1:0\"\n\
         [[site.route]]\npath = \"/*\"\napp = \"own\"\n\
         [app.own]\nkind = \"command\"\nrun = [\"perl\", \"{dir}/own.pl\"]\nspeaks = \"fastcgi\"\n\
         listen = \"stdin\"\nworkers = 3\n",
    );
    only_one_process_crashes(&forebay);
    forebay.stop();
}

/// Crashes processes, each with one request.
fn only_one_process_crashes(forebay: &Forebay) {
    // Over kept connections, and over new ones.
    for warm in ["/pid", "/close"] {
        for poison in ["/kill", "/abort", "/exit"] {
            let before = processes(forebay, warm, 3);
            let reply = forebay.get(poison);
            assert_eq!(reply.status, 502, "{poison}: {}", forebay.output());
            let mut left = BTreeSet::new();
            assert!(eventually(|| {
                left = before.iter().filter(|pid| is_alive(pid)).collect();
                left.len() < 3
            }));
            assert_eq!(left.len(), 2, "{poison} after {warm}: {}", forebay.output());
            let after = processes(forebay, warm, 3);
            assert!(left.iter().all(|pid| after.contains(*pid)), "{before:?} {after:?}");
        }
    }
}

#[test]
fn a_request_on_a_kept_connection_that_a_process_closed_is_sent_again() {
    let forebay = server(1, "workers = 3");
    let before = processes(&forebay, "/pid", 3);
    for _ in 0..6 {
        let reply = forebay.get("/first");
        assert_eq!(reply.status, 200, "{}", forebay.output());
        assert!(before.contains(reply.text()));
    }
    assert_eq!(processes(&forebay, "/pid", 3), before, "none has ended");
    forebay.stop();
}

/// Sends a request with these fields. Returns the process that answered, and the cookie that it
/// set.
fn ask(forebay: &Forebay, target: &str, fields: &str) -> (String, Option<String>) {
    let mut client = forebay.connect();
    client.send(format!("GET {target} HTTP/1.1\r\nHost: h\r\n{fields}\r\n"));
    let reply = client.reply();
    assert_eq!(reply.status, 200, "{}", forebay.output());
    (reply.text().to_owned(), reply.header("set-cookie").map(str::to_owned))
}

/// Returns the process that gets a new client's request, and the field that leads there again.
fn new_client(forebay: &Forebay, fields: &str) -> (String, String) {
    let (process, cookie) = ask(forebay, "/pid", fields);
    let cookie = cookie.unwrap_or_else(|| panic!("no cookie: {}", forebay.output()));
    let (pair, attributes) = cookie.split_once(';').expect("it has attributes");
    assert_eq!(attributes, " Path=/; HttpOnly; SameSite=Lax");
    let name = pair.strip_prefix("worker=").expect("the name that was given");
    assert!(name.len() == 16 && !name.contains(&process), "{name} says nothing of {process}");
    (process, format!("Cookie: a=b; {pair}\r\n"))
}

const STICKY: &str = "workers = 2\nsticky = { cookie = \"worker\" }";

#[test]
fn a_cookie_keeps_a_client_with_its_process_while_that_lives() {
    let forebay = server(2, STICKY);
    processes(&forebay, "/pid", 2);
    let clients = [(); 4].map(|()| new_client(&forebay, ""));
    let both: BTreeSet<_> = clients.iter().map(|(process, _)| process).collect();
    assert_eq!(both.len(), 2, "clients are shared out: {clients:?}");
    for (process, field) in clients.iter().cycle().take(16) {
        assert_eq!(ask(&forebay, "/pid", field), (process.clone(), None), "it is not set again");
    }
    let (first, field) = &clients[0];
    assert_eq!(forebay.get("/kill").status, 502);
    assert!(eventually(|| both.iter().any(|process| !is_alive(process))));
    processes(&forebay, "/pid", 2);
    for (process, field) in &clients {
        if is_alive(process) {
            assert_eq!(ask(&forebay, "/pid", field), (process.clone(), None));
        } else {
            let (other, field) = new_client(&forebay, field);
            assert_ne!(&other, process);
            assert_eq!(ask(&forebay, "/pid", &field), (other, None));
        }
    }
    let (_, unknown) = ask(&forebay, "/pid", "Cookie: worker=1; worker=\r\n");
    assert!(unknown.is_some(), "a new one in place of one that names nothing");
    let beside = format!("Cookie: worker=1\r\n{field}");
    assert_eq!(ask(&forebay, "/pid", &beside).1.is_none(), is_alive(first));
    forebay.stop();
}

#[test]
fn a_client_whose_process_is_full_goes_to_another() {
    let forebay = server(2, &format!("{STICKY}\nconnections = 1"));
    processes(&forebay, "/pid", 2);
    let (process, field) = new_client(&forebay, "");
    let mut held = forebay.connect();
    held.send(format!("GET /hold HTTP/1.1\r\nHost: h\r\n{field}\r\n"));
    assert!(eventually(|| forebay.folder.path().join("held").exists()));
    for _ in 0..3 {
        assert_ne!(new_client(&forebay, &field).0, process);
    }
    forebay.folder.write("go", "");
    assert_eq!(held.reply().text(), process);
    assert!(eventually(|| ask(&forebay, "/pid", &field) == (process.clone(), None)));
    forebay.stop();
}
