//! Many requests over each origin. None fails, and the memory of Forebay and its workers does not
//! grow after a warm-up. The default is a few thousand requests; `examples/abuse/endurance` sends
//! 100,000 of each kind to the release build.

mod support;

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::thread;

use forebay_testkit::folder::Folder;
use forebay_testkit::http::Client;
use forebay_testkit::peer::{self, has_php_fpm, php_fpm};
use serde_json::Value;
use support::{Forebay, proc, program, serve, site};

/// Requests over each origin, unless `FOREBAY_ENDURANCE` has another number.
const REQUESTS: usize = 3000;
/// Minimum number of requests before the first look at memory.
const WARM_UP: usize = 2000;
const CONNECTIONS: usize = 8;
/// Bytes that Forebay, and each worker, may grow.
const GROWTH: u64 = 1 << 20;
const WORKERS: usize = 2;

fn requests() -> usize {
    let wanted = std::env::var("FOREBAY_ENDURANCE").ok();
    wanted.map_or(REQUESTS, |text| text.parse().expect("FOREBAY_ENDURANCE is a number"))
}

/// Runs a warm-up, then all requests; prints a row of the table in docs/src/operations/abuse.md.
fn endure(forebay: Forebay, name: &str, requests: usize, run: impl Fn(&Forebay, usize)) {
    let pid = forebay.process.id();
    run(&forebay, WARM_UP.max(requests / 10));
    let workers = || proc::resident_of_all(&proc::descendants(pid));
    let (before, theirs) = (proc::resident(pid), workers());
    let open = proc::descriptors(pid).len();
    run(&forebay, requests);
    let (after, theirs_after) = (proc::resident(pid), workers());
    let left = proc::descriptors(pid).len();
    let kib = [before, after, theirs, theirs_after].map(|bytes| (bytes / 1024).to_string());
    println!("| {name} | {requests} | 0 | {} | {open} | {left} |", kib.join(" | "));
    assert!(after < before + GROWTH, "{name}: from {before} to {after} bytes of memory");
    let grown = theirs_after.saturating_sub(theirs);
    assert!(
        grown < GROWTH * WORKERS as u64,
        "{name}: workers from {theirs} to {theirs_after} bytes of memory"
    );
    assert!(left <= open + 2 * CONNECTIONS, "{name}: from {open} to {left} descriptors");
    forebay.stop();
}

/// Sends this many requests with `forebay bench`. None may fail, and each gets this status.
fn bench(address: SocketAddr, target: &str, status: &str, more: &[&str], requests: usize) {
    let output = Command::new(program())
        .args(["bench", &format!("http://{address}{target}"), "--quiet", "--json", "-"])
        .args(["-c", &CONNECTIONS.to_string(), "-n", &requests.to_string(), "--timeout", "20s"])
        .args(more)
        .output()
        .expect("it runs");
    let result: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| {
        panic!("{target}: {error}: {}", String::from_utf8_lossy(&output.stderr))
    });
    let told = &result["requests"];
    assert_eq!(told["failed"], 0, "{target}: {told}");
    assert_eq!(told["status"][status], requests, "{target}: {told}");
}

fn folder() -> Folder {
    let folder = Folder::new();
    folder.write("htdocs/small.txt", "a small file\n".repeat(40));
    folder.write("htdocs/large.bin", vec![b'x'; 1 << 20]);
    folder.write("htdocs/hello.php", "<?php header('Content-Type: text/plain'); echo 'hello';");
    let read = "read STDIN, my $body, $ENV{CONTENT_LENGTH} // 0;\n";
    let script = format!("#!/usr/bin/perl\n{read}print \"Content-Type: text/plain\\n\\nhello\";\n");
    folder.script("scripts/hello.pl", &script);
    let shell = "#!/bin/sh\nprintf 'Content-Type: text/plain\\n\\nhello\\n'\n";
    folder.script("scripts/hello.sh", shell);
    folder.write("app/app.py", WSGI);
    folder.write("app/app.psgi", "sub { [200, ['Content-Type', 'text/plain'], ['hello']] }\n");
    let script = "#!/usr/bin/python3\nprint('Content-Type: text/plain\\n\\nhello')\n";
    folder.script("scripts/hello.py", script);
    folder
}

/// An application that keeps nothing between requests, and reads each body.
const WSGI: &str = "def application(environ, start_response):
    body = environ['wsgi.input'].read()
    start_response('200 OK', [('Content-Type', 'text/plain')])
    return [b'hello, ', b'%d' % len(body)]
";

const FILES: &str = "[[site.route]]\nfiles = \"htdocs\"\n";

#[test]
fn small_files() {
    endure(site(folder(), FILES), "small file", requests(), |forebay, n| {
        bench(forebay.address, "/small.txt", "200", &[], n);
    });
}

#[test]
fn ranges_of_a_large_file() {
    endure(site(folder(), FILES), "range of a large file", requests(), |forebay, n| {
        let range = ["-H", "Range: bytes=1000-70999"];
        bench(forebay.address, "/large.bin", "206", &range, n);
    });
}

#[test]
fn several_ranges_of_a_large_file() {
    endure(site(folder(), FILES), "three ranges of a large file", requests(), |forebay, n| {
        let range = ["-H", "Range: bytes=0-99,5000-5999,-100"];
        bench(forebay.address, "/large.bin", "206", &range, n);
    });
}

#[test]
fn fixed_replies() {
    let forebay = site(folder(), "[[site.route]]\nrespond = \"fixed\"\n");
    endure(forebay, "fixed reply", requests(), |forebay, n| {
        bench(forebay.address, "/", "200", &[], n);
    });
}

#[test]
fn new_connections() {
    // Fewer requests, because each one occupies a port for a minute.
    let forebay = site(folder(), "[[site.route]]\nrespond = \"fixed\"\n");
    endure(forebay, "fixed reply, a connection each", requests(), |forebay, n| {
        bench(forebay.address, "/", "200", &["--no-keepalive"], n);
    });
}

#[test]
fn cgi_scripts() {
    let forebay = site(folder(), "[[site.route]]\npath = \"/*\"\ncgi = { dir = \"scripts\" }\n");
    endure(forebay, "CGI (sh)", requests(), |forebay, n| {
        bench(forebay.address, "/hello.sh", "200", &[], n);
    });
}

#[test]
fn persistent_perl_scripts() {
    let forebay = app("kind = \"perl-cgi\"\ndir = \"scripts\"");
    endure(forebay, "persistent Perl script", requests(), |forebay, n| {
        bench(forebay.address, "/hello.pl", "200", &[], n);
    });
}

#[test]
fn persistent_perl_scripts_with_bodies() {
    let forebay = app("kind = \"perl-cgi\"\ndir = \"scripts\"");
    let body = forebay.folder.write("body", vec![b'b'; 300_000]);
    let post = ["-X", "POST", "--body-file", body.to_str().expect("a plain name")];
    // Each upload goes through a temporary file.
    endure(forebay, "persistent Perl script, body of 300 kB", requests() / 5, |forebay, n| {
        bench(forebay.address, "/hello.pl", "200", &post, n);
    });
}

/// A site with one application for all paths.
fn app(keys: &str) -> Forebay {
    let route = "[[site.route]]\npath = \"/*\"\napp = \"own\"\n[app.own]\n";
    site(folder(), &format!("{route}workers = {WORKERS}\n{keys}\n"))
}

const PYTHON: &str = "/usr/bin/python3";

/// As [`app`], with Debian's Python if it is installed.
fn python_app(keys: &str) -> Option<Forebay> {
    peer::has(&["python3"]).then(|| app(&format!("{keys}\npython = \"{PYTHON}\"")))
}

#[test]
fn psgi_applications() {
    let forebay = app("kind = \"psgi\"\nfile = \"app/app.psgi\"");
    endure(forebay, "PSGI", requests(), |forebay, n| {
        bench(forebay.address, "/", "200", &[], n);
    });
}

#[test]
fn wsgi_applications() {
    let keys = "kind = \"wsgi\"\ndir = \"app\"\nmodule = \"app:application\"";
    let Some(forebay) = python_app(keys) else { return };
    endure(forebay, "WSGI", requests(), |forebay, n| {
        bench(forebay.address, "/", "200", &[], n);
    });
}

#[test]
fn wsgi_applications_with_bodies() {
    let keys = "kind = \"wsgi\"\ndir = \"app\"\nmodule = \"app:application\"";
    let Some(forebay) = python_app(keys) else { return };
    let body = forebay.folder.write("body", vec![b'b'; 300_000]);
    let post = ["-X", "POST", "--body-file", body.to_str().expect("a plain name")];
    endure(forebay, "WSGI, body of 300 kB", requests() / 5, |forebay, n| {
        bench(forebay.address, "/", "200", &post, n);
    });
}

#[test]
fn persistent_python_scripts() {
    for mode in ["fresh", "fork"] {
        let keys = format!("kind = \"python-cgi\"\ndir = \"scripts\"\nmode = \"{mode}\"");
        let Some(forebay) = python_app(&keys) else { return };
        endure(forebay, &format!("Python CGI, mode {mode}"), requests(), |forebay, n| {
            bench(forebay.address, "/hello.py", "200", &[], n);
        });
    }
}

#[test]
fn php() {
    let user = if rustix::process::geteuid().is_root() { "\nuser = \"www-data\"" } else { "" };
    if !has_php_fpm() {
        return;
    }
    let forebay = app(&format!("kind = \"php\"\nroot = \"htdocs\"{user}"));
    endure(forebay, "PHP", requests(), |forebay, n| {
        bench(forebay.address, "/hello.php", "200", &[], n);
    });
}

#[test]
fn fastcgi() {
    let Some(php) = php_fpm(4) else { return };
    let route = format!(
        "[[site.route]]\nfastcgi = {{ to = \"unix:{}\", root = \"htdocs\", max_connections = 4 }}\n",
        php.socket().display()
    );
    endure(site(folder(), &route), "FastCGI, php-fpm", requests(), |forebay, n| {
        bench(forebay.address, "/hello.php", "200", &[], n);
    });
}

#[test]
fn proxied_over_tcp() {
    let backend = site(folder(), FILES);
    let route = format!("[[site.route]]\nproxy = \"http://{}\"\n", backend.address);
    endure(site(Folder::new(), &route), "proxy, TCP", requests(), |forebay, n| {
        bench(forebay.address, "/small.txt", "200", &[], n);
    });
}

#[test]
fn proxied_large_bodies() {
    let backend = site(folder(), FILES);
    let route = format!("[[site.route]]\nproxy = \"http://{}\"\n", backend.address);
    endure(site(Folder::new(), &route), "proxy, body of 1 MB", requests() / 5, |forebay, n| {
        bench(forebay.address, "/large.bin", "200", &[], n);
    });
}

#[test]
fn proxied_over_a_unix_socket() {
    let configuration = "[[site]]\nlisten = [\"127.0.0.1:0\", \"unix:{tmp}/socket\"]\n";
    let backend = serve(folder(), &format!("{configuration}{FILES}"));
    let socket = backend.folder.path().join("socket");
    let route = format!("[[site.route]]\nproxy = \"unix:{}\"\n", socket.display());
    endure(site(Folder::new(), &route), "proxy, Unix socket", requests(), |forebay, n| {
        bench(forebay.address, "/small.txt", "200", &[], n);
    });
}

#[test]
fn files_that_a_backend_has_sent() {
    let backend = site(
        Folder::new(),
        "[[site.route]]\nrespond = \"not this\"\n\
         set_headers = { X-Accel-Redirect = \"/large.bin\" }\n",
    );
    let route = format!(
        "[[site.route]]\nproxy = \"http://{}\"\nsendfile_root = \"htdocs\"\n",
        backend.address
    );
    endure(site(folder(), &route), "X-Accel-Redirect", requests(), |forebay, n| {
        bench(forebay.address, "/x", "206", &["-H", "Range: bytes=0-9999"], n);
    });
}

#[test]
fn tunnels() {
    let backend = switching_echo();
    let route = format!("[[site.route]]\nproxy = \"http://{backend}\"\n");
    endure(site(Folder::new(), &route), "tunnel, a connection each", requests(), |forebay, n| {
        thread::scope(|scope| {
            for _ in 0..CONNECTIONS {
                scope.spawn(|| (0..n / CONNECTIONS).for_each(|turn| talk(forebay, turn)));
            }
        });
    });
}

/// Upgrades a connection, sends a word, gets it back and ends.
fn talk(forebay: &Forebay, turn: usize) {
    let mut client = Client::connect(forebay.address);
    client.send("GET / HTTP/1.1\r\nHost: h\r\nConnection: upgrade\r\nUpgrade: echo\r\n\r\n");
    assert_eq!(client.reply().status, 101);
    let word = format!("{turn:08}");
    client.send(&word);
    assert_eq!(client.bytes(8), word.as_bytes());
    client.finish_sending();
    assert!(client.is_closed());
}

/// A backend that switches to a protocol that returns all bytes.
fn switching_echo() -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port is free");
    let address = listener.local_addr().expect("it is bound");
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            thread::spawn(move || drop(switch_and_echo(stream)));
        }
    });
    address
}

fn switch_and_echo(mut stream: TcpStream) -> std::io::Result<()> {
    stream.set_read_timeout(Some(forebay_testkit::DEADLINE))?;
    stream.set_nodelay(true)?;
    let (mut head, mut bytes) = (Vec::new(), [0; 4096]);
    while !head.ends_with(b"\r\n\r\n") {
        match stream.read(&mut bytes)? {
            0 => return Ok(()),
            count => head.extend_from_slice(&bytes[..count]),
        }
    }
    stream.write_all(b"HTTP/1.1 101 Go\r\nConnection: upgrade\r\nUpgrade: echo\r\n\r\n")?;
    loop {
        match stream.read(&mut bytes)? {
            0 => return Ok(()),
            count => stream.write_all(&bytes[..count])?,
        }
    }
}
