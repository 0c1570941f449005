//! Logs of `forebay serve` that go to syslog or to the journal, and log files that Forebay rotates
//! itself.

mod support;

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::net::{Ipv4Addr, TcpListener, UdpSocket};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::thread;

use forebay_testkit::DEADLINE;
use forebay_testkit::folder::Folder;
use forebay_testkit::http::Client;
use forebay_testkit::process::eventually;
use forebay_testkit::stream::Address;
use rustix::process::Signal;
use support::{proc, serve};

/// A request whose parts try to end a log line.
const HOSTILE: &[u8] = b"GET /%0d%0a<0>forged?q=%1b[31m HTTP/1.1\r\nHost: h\r\n\
    User-Agent: a\"\xff\tPRIORITY=0\r\nReferer: \xc2\x9b\r\n\r\n";

fn datagrams(path: &Path) -> UnixDatagram {
    let socket = UnixDatagram::bind(path).unwrap();
    socket.set_read_timeout(Some(DEADLINE)).unwrap();
    socket
}

fn message(mut receive: impl FnMut(&mut [u8]) -> std::io::Result<usize>) -> String {
    let mut buffer = vec![0; 65536];
    let length = receive(&mut buffer).expect("a message arrives");
    String::from_utf8(buffer[..length].to_vec()).expect("messages are UTF-8")
}

/// Reads a message after its length.
fn framed(stream: &mut impl BufRead) -> String {
    let mut length = Vec::new();
    stream.read_until(b' ', &mut length).unwrap();
    let length: usize = str::from_utf8(&length).unwrap().trim_end().parse().unwrap();
    let mut text = vec![0; length];
    stream.read_exact(&mut text).unwrap();
    String::from_utf8(text).unwrap()
}

#[test]
fn each_service_gets_one_message_for_each_request() {
    let folder = Folder::new();
    let local = datagrams(&folder.path().join("syslog"));
    let journal = datagrams(&folder.path().join("journal"));
    let udp = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    udp.set_read_timeout(Some(DEADLINE)).unwrap();
    let tcp = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = |address: std::io::Result<std::net::SocketAddr>| address.unwrap().port();
    let (udp_port, tcp_port) = (port(udp.local_addr()), port(tcp.local_addr()));
    let forebay = serve(
        folder,
        &format!(
            "[log]\naccess = \"syslog:unix:{{tmp}}/syslog\"\nsyslog_facility = \"local7\"\n\
             syslog_tag = \"shop\"\nerror = \"syslog:tcp://127.0.0.1:{tcp_port}\"\n\
             [[site]]\nlisten = \"127.0.0.1:0\"\n\
             [[site.route]]\npath = \"/udp\"\nrespond = \"x\"\n\
             log = {{ access = \"syslog:udp://127.0.0.1:{udp_port}\", format = \"json\" }}\n\
             [[site.route]]\npath = \"/tcp\"\nproxy = \"http://127.0.0.1:1\"\n\
             [[site.route]]\npath = \"/journal\"\nrespond = \"x\"\nname = \"j\"\n\
             log = {{ access = \"journald:unix:{{tmp}}/journal\" }}\n\
             [[site.route]]\nrespond = \"x\"\n"
        ),
    );
    forebay.ask(HOSTILE);
    let line = message(|buffer| local.recv(buffer));
    // Facility 23, severity 6.
    assert!(line.starts_with("<190>"), "{line}");
    assert!(line.contains(" shop["), "{line}");
    let request = "\"GET /%0d%0a<0>forged?q=%1b[31m HTTP/1.1\" 200 1 \
                   \"\\xc2\\x9b\" \"a\\\"\\xff\\x09PRIORITY=0\"";
    assert!(line.ends_with(request), "{line}");

    forebay.ask([b"GET /udp", HOSTILE.strip_prefix(b"GET /").unwrap()].concat());
    forebay.get("/udp");
    let line = message(|buffer| udp.recv(buffer));
    assert!(line.starts_with("<190>1 "), "{line}");
    let json = &line[line.find('{').unwrap()..];
    let json: serde_json::Value = serde_json::from_str(json).unwrap();
    assert_eq!((&json["status"], &json["target"]), (&200.into(), &"/udp".into()));
    assert!(json["bytes_in"].as_u64() > Some(20) && json["bytes_out"].as_u64() > Some(20));

    assert_eq!(forebay.get("/tcp").status, 502);
    let (stream, _) = tcp.accept().unwrap();
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    let mut stream = BufReader::new(stream);
    let errors = std::iter::repeat_with(|| framed(&mut stream));
    let error = errors.into_iter().find(|line| line.contains("502 ")).unwrap();
    assert!(error.starts_with("<187>1 ") && error.contains(" error - 502 "), "{error}");

    forebay.ask("GET /journal?a=%0aPRIORITY=0 HTTP/1.1\r\nHost: h\r\n\r\n");
    let fields = message(|buffer| journal.recv(buffer));
    let fields: BTreeMap<_, _> =
        fields.lines().map(|line| line.split_once('=').expect("a field")).collect();
    for (key, value) in [
        ("PRIORITY", "6"),
        ("SYSLOG_IDENTIFIER", "shop"),
        ("FOREBAY_STATUS", "200"),
        ("FOREBAY_ROUTE", "j"),
        ("FOREBAY_TARGET", "/journal?a=%0aPRIORITY=0"),
    ] {
        assert_eq!(fields.get(key), Some(&value), "{fields:?}");
    }
}

#[test]
fn lines_for_a_service_that_is_away_are_dropped_and_counted() {
    let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port();
    let forebay = serve(
        Folder::new(),
        &format!(
            "[server]\nadmin = \"127.0.0.1:{port}\"\n\
             [log]\naccess = \"syslog:unix:{{tmp}}/away\"\nformat = \"%U\"\n\
             [[site]]\nlisten = \"127.0.0.1:0\"\n[[site.route]]\nrespond = \"x\"\n"
        ),
    );
    let lost = || {
        let mut client = Client::connect(Address::Tcp(([127, 0, 0, 1], port).into()));
        client.send("GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n");
        let reply = client.reply();
        let key = "forebay_log_lines_lost_total{log=\"syslog\"} ";
        reply.text().lines().find_map(|line| line.strip_prefix(key)?.parse().ok()).unwrap_or(0_u64)
    };
    for round in 1..=3 {
        assert_eq!(forebay.get("/lost").status, 200);
        assert!(eventually(|| lost() == round), "{}", forebay.output());
    }
    let socket = datagrams(&forebay.folder.path().join("away"));
    forebay.get("/again");
    let line = message(|buffer| socket.recv(buffer));
    assert!(line.ends_with("]: /again"), "{line}");
    assert!(eventually(|| forebay.output().contains("takes log lines again; lines lost: up to 3")));
    let warnings = forebay.output().matches("does not take log lines, which are lost").count();
    assert_eq!(warnings, 1, "{}", forebay.output());
}

/// Returns the lines of the log and of all old files. An old file that is being compressed has one
/// copy.
fn all_lines(dir: &Path) -> BTreeMap<String, usize> {
    let mut lines = BTreeMap::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        if name.ends_with(".part") || path.with_file_name(format!("{name}.gz")).exists() {
            continue;
        }
        let file = fs::File::open(&path).unwrap();
        let mut text = String::new();
        if name.ends_with(".gz") {
            flate2::read::GzDecoder::new(file).read_to_string(&mut text).unwrap();
        } else {
            BufReader::new(file).read_to_string(&mut text).unwrap();
        }
        for line in text.lines() {
            *lines.entry(line.trim_end().to_owned()).or_default() += 1;
        }
    }
    lines
}

#[test]
fn each_line_is_in_one_file_if_the_log_is_rotated_under_load_and_during_an_upgrade() {
    const CLIENTS: usize = 4;
    const REQUESTS: usize = 400;
    let folder = Folder::new();
    folder.write("logs/x", "");
    let logs = folder.path().join("logs");
    fs::remove_file(logs.join("x")).unwrap();
    // The user of the server may not enter the directory, so that the process that stays root
    // rotates the log.
    fs::set_permissions(&logs, fs::Permissions::from_mode(0o700)).unwrap();
    let is_root = rustix::process::geteuid().is_root();
    let user = if is_root { "[server]\nuser = \"www-data\"\n" } else { "" };
    let mut forebay = serve(
        folder,
        &format!(
            "{user}[log]\naccess = \"logs/access.log\"\nformat = \"%U\"\n\
             rotate = {{ size = \"2k\", keep = 1000 }}\n\
             [[site]]\nlisten = \"127.0.0.1:0\"\n\
             [[site.route]]\npath = \"/0-*\"\nrespond = \"x\"\n\
             log = {{ format = \"%U \" }}\n\
             [[site.route]]\nrespond = \"x\"\n"
        ),
    );
    let address = forebay.address;
    let ask = move |client: usize, requests: std::ops::Range<usize>| {
        for number in requests {
            let mut connection = Client::connect(Address::Tcp(address));
            connection.send(format!("GET /{client}-{number} HTTP/1.1\r\nHost: h\r\n\r\n"));
            assert_eq!(connection.reply().status, 200);
        }
    };
    let half = REQUESTS / 2;
    let clients: Vec<_> =
        (0..CLIENTS).map(|client| thread::spawn(move || ask(client, 0..half))).collect();
    clients.into_iter().for_each(|client| client.join().unwrap());
    let later: Vec<_> =
        (0..CLIENTS).map(|client| thread::spawn(move || ask(client, half..REQUESTS))).collect();
    forebay.signal(Signal::USR2);
    let successor = || {
        let output = forebay.output();
        let (before, _) = output.split_once(" serves from now on")?;
        before.rsplit(' ').next()?.parse::<u32>().ok()
    };
    assert!(eventually(|| successor().is_some()), "{}", forebay.output());
    later.into_iter().for_each(|client| client.join().unwrap());
    let expected = CLIENTS * REQUESTS;
    let is_complete = eventually(|| all_lines(&logs).len() == expected);
    let lines = all_lines(&logs);
    proc::signal(successor().unwrap(), Signal::TERM);
    assert!(is_complete, "{} of {expected} lines; {}", lines.len(), forebay.output());
    assert!(lines.values().all(|&count| count == 1), "no line is written twice");
    let names: Vec<_> = fs::read_dir(&logs).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert!(names.len() > 3, "{names:?}");
    let current = fs::metadata(logs.join("access.log")).unwrap();
    assert!(current.len() <= 2048, "{current:?}");
    assert!(!forebay.output().contains("cannot rotate"), "{}", forebay.output());
}
