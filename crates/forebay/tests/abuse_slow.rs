//! Many slow clients at the same time. All others are served normally, and the cost of the slow
//! ones is bounded. Figures for 1,000 connections are in docs/src/operations/abuse.md.

mod support;

use std::io::Write;
use std::net::SocketAddr;
use std::process::Command;
use std::sync::Arc;
use std::thread;

use forebay_testkit::folder::Folder;
use forebay_testkit::http::Client;
use forebay_testkit::peer::{self, php_fpm};
use forebay_testkit::process::{Process, eventually};
use forebay_testkit::stream::{Address, TestStream};
use socket2::{Domain, Socket, Type};
use support::echo::Echo;
use support::hostile::{self, Case, Expect, Hostile, Protocol, Then};
use support::{Forebay, proc, site};

const SLOW: &str = "200";

/// Clients that do not read, unless `FOREBAY_UNREADING` has another number.
const UNREADING: usize = 100;
/// Maximum cost of each client in bytes: the buffers in docs/src/operations/abuse.md.
const PER_CLIENT: u64 = 192 * 1024;
/// Additional bytes for the first requests of a debug build.
const ROOM: u64 = 1 << 20;
const LARGE: usize = 8 << 20;

#[test]
fn ordinary_clients_are_served_while_slowhttptest_runs_in_each_of_its_modes() {
    let Some(program) = peer::installed("slowhttptest") else { return };
    let folder = Folder::new();
    folder.write("htdocs/small.txt", "small");
    folder.write("htdocs/large.txt", vec![b'x'; 1 << 20]);
    let backend = Echo::start();
    let routes = "[[site.route]]\npath = \"/files/*\"\nfiles = \"htdocs\"\n".to_owned();
    let forebay = site(folder, &(routes + &backend.route()));
    let modes: [&[&str]; 4] = [
        &["-H", "-i", "1", "-x", "24"],
        &["-B", "-i", "1", "-s", "8192", "-x", "10"],
        &["-R", "-a", "10", "-b", "3000", "-t", "GET"],
        &["-X", "-w", "512", "-y", "1024", "-n", "1", "-z", "32", "-k", "3"],
    ];
    for mode in modes {
        let mut attackers = ["/files/large.txt", "/proxied"].map(|path| {
            let mut command = Command::new(&program);
            let url = format!("http://{}{path}", forebay.address);
            command.args(mode).args(["-c", SLOW, "-r", SLOW, "-l", "1", "-u", &url]);
            Process::start(command)
        });
        let served = serve_until(&forebay, || attackers.iter_mut().all(Process::has_ended));
        assert!(served > 0, "{mode:?}");
    }
    let pid = forebay.process.id();
    assert!(eventually(|| proc::descriptors(pid).len() < 100), "{:?}", proc::descriptors(pid));
    forebay.stop();
}

/// Sends requests over a kept connection and over new ones until `ended`. Returns their number.
fn serve_until(forebay: &Forebay, mut ended: impl FnMut() -> bool) -> usize {
    let mut kept = forebay.connect();
    let mut served = 0;
    let mut ask = |client: &mut Client| {
        assert_eq!(client.get("/files/small.txt").text(), "small");
        assert!(client.get("/ordinary").text().starts_with("GET /ordinary"));
        served += 1;
    };
    loop {
        ask(&mut kept);
        ask(&mut forebay.connect());
        if ended() {
            return served;
        }
        thread::yield_now();
    }
}

/// A client with a small window that sends a request and never reads.
fn ask_without_reading(address: SocketAddr, path: &str) -> TestStream {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
    socket.set_recv_buffer_size(4096).expect("a small window");
    socket.connect(&address.into()).expect("the gateway accepts");
    let mut stream = TestStream::Tcp(socket.into());
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n");
    stream.write_all(request.as_bytes()).expect("a request fits");
    stream
}

fn unreading() -> usize {
    let wanted = std::env::var("FOREBAY_UNREADING").ok();
    wanted.map_or(UNREADING, |text| text.parse().expect("FOREBAY_UNREADING is a number"))
}

/// Asserts that memory stays within the bound while clients do not read, and that others get
/// answers. Prints a row of the table.
fn clients_that_do_not_read(forebay: Forebay, path: &str, name: &str) {
    let (pid, count) = (forebay.process.id(), unreading());
    let open = proc::descriptors(pid).len();
    let mut other = forebay.connect();
    let mut small = || assert_eq!(other.get("/files/small.txt").text(), "small");
    (0..20).for_each(|_| small());
    let before = proc::resident(pid);
    let slow: Vec<_> = (0..count).map(|_| ask_without_reading(forebay.address, path)).collect();
    // Each client also has a connection to a backend or a worker, if one is free.
    assert!(eventually(|| proc::descriptors(pid).len() >= open + count * 9 / 10));
    let mut most = before;
    for _ in 0..200 {
        small();
        most = most.max(proc::resident(pid));
    }
    let each = (most - before) / count as u64 / 1024;
    println!("| {name} | {count} | {} | {} | {each} |", before / 1024, most / 1024);
    assert!(most < before + count as u64 * PER_CLIENT + ROOM, "{name}: {each} KiB for each");
    drop(slow);
    assert!(eventually(|| proc::descriptors(pid).len() <= open + 16), "{}", forebay.output());
    small();
    forebay.stop();
}

fn folder() -> Folder {
    let folder = Folder::new();
    folder.write("htdocs/small.txt", "small");
    folder.write("htdocs/large.bin", vec![b'x'; LARGE]);
    let print = format!("print \"Content-Type: text/plain\\n\\n\", 'x' x {LARGE};\n");
    folder.script("scripts/large.pl", format!("#!/usr/bin/perl\n{print}"));
    folder.write("htdocs/large.php", format!("<?php echo str_repeat('x', {LARGE});"));
    folder
}

const FILES: &str = "[[site.route]]\npath = \"/files/*\"\nfiles = \"htdocs\"\n";

#[test]
fn a_proxied_reply_that_nobody_reads_has_a_bound() {
    let backend = site(folder(), FILES);
    let here = "[[site.route]]\npaths = [\"/files/small.txt\"]\nrespond = \"small\"\n";
    let there = format!("[[site.route]]\nproxy = \"http://{}\"\n", backend.address);
    let forebay = site(Folder::new(), &format!("{here}{there}"));
    clients_that_do_not_read(forebay, "/files/large.bin", "proxy");
}

#[test]
fn a_file_that_nobody_reads_has_a_bound() {
    clients_that_do_not_read(site(folder(), FILES), "/files/large.bin", "file");
}

#[test]
fn a_fastcgi_reply_that_nobody_reads_has_a_bound() {
    let Some(php) = php_fpm(4) else { return };
    let Address::Unix(socket) = php.address() else { unreachable!("php-fpm has a Unix socket") };
    let route = format!(
        "{FILES}[[site.route]]\nfastcgi = {{ to = \"unix:{}\", root = \"htdocs\" }}\n",
        socket.display()
    );
    clients_that_do_not_read(site(folder(), &route), "/large.php", "php-fpm, 4 processes");
}

#[test]
fn fastcgi_replies_that_nobody_reads_have_a_bound() {
    let head = hostile::stdout("Content-Type: text/plain\r\n\r\n");
    let body = hostile::stdout(&"x".repeat(60_000)).repeat(LARGE / 60_000);
    let sends = [head, body, hostile::end(0)].concat();
    let large = Case { name: "", sends, drips: false, then: Then::Keep, expect: Expect::Cut };
    let backend = Hostile::start(Protocol::Fastcgi, &Arc::new(vec![large]));
    let route = format!(
        "{FILES}[[site.route]]\nfastcgi = {{ to = \"{}\", root = \"/nowhere\", \
         index = \"index.cgi\", max_connections = 2000 }}\n",
        backend.authority()
    );
    clients_that_do_not_read(site(folder(), &route), "/0", "FastCGI, a connection each");
}

#[test]
fn output_of_an_application_that_nobody_reads_has_a_bound() {
    let route = format!(
        "{FILES}[[site.route]]\nsuffix = \".pl\"\napp = \"scripts\"\n\
         [app.scripts]\nkind = \"perl-cgi\"\ndir = \"scripts\"\nworkers = 2\nqueue = 200\n"
    );
    clients_that_do_not_read(site(folder(), &route), "/large.pl", "Perl, 2 workers");
}

#[test]
fn output_of_a_cgi_script_that_nobody_reads_has_a_bound() {
    let route = format!(
        "{FILES}[[site.route]]\nsuffix = \".pl\"\ncgi = {{ dir = \"scripts\", max_processes = 16 }}\n"
    );
    clients_that_do_not_read(site(folder(), &route), "/large.pl", "CGI, 16 processes");
}
