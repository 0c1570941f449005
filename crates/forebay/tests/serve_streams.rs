//! `[[stream]]`: TCP connections and UDP datagrams that `forebay serve` passes on.

mod support;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::Path;
use std::process::Command;
use std::thread;

use forebay_testkit::folder::Folder;
use forebay_testkit::port::free_port;
use forebay_testkit::process::{Process, eventually};
use forebay_testkit::stream::{Address, TestStream};
use forebay_testkit::tls::{Authority, connect};
use forebay_testkit::{DEADLINE, peer};
use rustix::process::Signal;
use support::{Forebay, proc, serve, write_configuration};

const SITE: &str =
    "[[site]]\nlisten = \"127.0.0.1:0\"\n[[site.route]]\npath = \"/*\"\nrespond = \"ok\"\n";

/// Starts a server that greets with its name and sends back what it gets.
fn echo(name: &'static str) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            thread::spawn(move || {
                let (mut from, mut to) = (stream.try_clone()?, stream);
                to.write_all(name.as_bytes())?;
                std::io::copy(&mut from, &mut to)?;
                to.shutdown(std::net::Shutdown::Write)
            });
        }
    });
    address
}

/// Returns the addresses of the streams in the order of the file.
fn streams(forebay: &mut Forebay, count: usize) -> Vec<SocketAddr> {
    let lines = |output: String| {
        let lines = output.lines().filter_map(|line| line.strip_prefix("forebay: serving tcp://"));
        lines.map(|address| address.parse().unwrap()).collect::<Vec<SocketAddr>>()
    };
    assert!(eventually(|| lines(forebay.output()).len() == count), "{}", forebay.output());
    lines(forebay.output())
}

fn client(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    stream
}

fn exactly(stream: &mut impl Read, length: usize) -> String {
    let mut bytes = vec![0; length];
    stream.read_exact(&mut bytes).unwrap();
    String::from_utf8(bytes).unwrap()
}

/// Sends bytes, and returns everything that comes back.
fn whole(mut stream: TestStream, bytes: &[u8]) -> Vec<u8> {
    stream.write_all(bytes).unwrap();
    stream.finish_sending().unwrap();
    let mut reply = Vec::new();
    stream.read_to_end(&mut reply).unwrap();
    reply
}

#[test]
fn postgresql_is_reached_by_its_own_client() {
    if !peer::has(&["postgresql"]) {
        return;
    }
    let database = Folder::new();
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/database");
    let mut command = Command::new("sh");
    command.arg(example.join("start-postgres.sh")).arg(database.path());
    let mut postgres = Process::start(command);
    let socket = database.path().join(".s.PGSQL.5432");
    let address = Address::Unix(socket.clone());
    postgres
        .wait_until("listened", |_| TestStream::connect(&address, DEADLINE).is_ok())
        .unwrap_or_else(|error| panic!("{error}"));
    // The first server is dead, so each connection goes to the second.
    let stream = format!(
        "{SITE}[[stream]]\nlisten = \"127.0.0.1:0\"\nto = [\"unix:{}\", \"unix:{}\"]\n",
        database.path().join("absent").display(),
        socket.display()
    );
    let mut forebay = serve(Folder::new(), &stream);
    let port = streams(&mut forebay, 1)[0].port().to_string();
    let psql = |sql: &str| {
        let mut command = Command::new("psql");
        command.args(["-h", "127.0.0.1", "-p", &port, "-U", "postgres", "-AtX", "-c", sql]);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    assert_eq!(psql("select 6 * 7"), "42\n");
    let rows = psql("select repeat('x', 100) from generate_series(1, 20000)");
    assert_eq!(rows.len(), 20_000 * 101);
    forebay.stop();
}

#[test]
fn names_on_one_port_end_tls_here_or_at_the_server() {
    let authority = Authority::new("streams");
    let folder = Folder::new();
    for name in ["a", "b", "c"] {
        let identity = authority.issue(&[&format!("{name}.example")]);
        folder.write(&format!("{name}.pem"), identity.certificate);
        folder.write(&format!("{name}.key"), identity.key);
    }
    let [a, b, c] = ["a says ", "b says ", "c says "].map(echo);
    let tls =
        |name: &str| format!("tls = {{ certificate = \"{name}.pem\", key = \"{name}.key\" }}\n");
    // The server behind the third name is a Forebay that has the certificate.
    let inner =
        format!("{SITE}[[stream]]\nlisten = \"127.0.0.1:0\"\nto = \"{c}\"\n{}", tls("{tmp}/c"));
    let inner_folder = Folder::new();
    for file in ["c.pem", "c.key"] {
        let content = std::fs::read(folder.path().join(file)).unwrap();
        inner_folder.write(file, content);
    }
    let mut inner = serve(inner_folder, &inner);
    let c = streams(&mut inner, 1)[0];
    let port = free_port();
    let stream = |name: &str, to: SocketAddr, rest: &str| {
        format!(
            "[[stream]]\nlisten = \"127.0.0.1:{port}\"\nsni = \"{name}.example\"\nto = \"{to}\"\n{rest}"
        )
    };
    let all = [
        SITE.to_owned(),
        stream("a", a, &tls("{tmp}/a")),
        stream("b", b, &tls("{tmp}/b")),
        stream("c", c, ""),
    ];
    let mut forebay = serve(folder, &all.concat());
    let address = streams(&mut forebay, 1)[0];
    let long = support::pattern(100_000);
    for name in ["a", "b", "c"] {
        let mut config = authority.client();
        // An unknown application protocol is no reason to refuse.
        config.alpn_protocols = vec![b"postgresql".to_vec()];
        let client = connect(address, &format!("{name}.example"), config).unwrap();
        let mut stream = client.into_stream();
        stream.write_all(b"hello").unwrap();
        assert_eq!(exactly(&mut stream, 12), format!("{name} says hello"));
        let reader = connect(address, &format!("{name}.example"), authority.client()).unwrap();
        let reply = whole(reader.into_stream(), &long);
        assert_eq!(reply[7..], long[..], "{name}");
    }
    let unknown = connect(address, "d.example", authority.client());
    let Err(error) = unknown.map(drop) else { panic!("no stream has this name") };
    let error = error.to_string();
    assert!(error.contains("UnrecognisedName"), "{error}");
    let mut plain = client(address);
    plain.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    let mut reply = Vec::new();
    let _ = plain.read_to_end(&mut reply);
    assert_eq!(reply, b"");
    forebay.stop();
    inner.stop();
}

#[test]
fn a_reload_and_a_stop_leave_connections_their_time() {
    let [old, new] = ["old: ", "new: "].map(echo);
    let server = "[server]\ngrace = \"2s\"\n[log]\naccess = \"{tmp}/access.log\"\n";
    let configuration = |to: SocketAddr, more: &str| {
        format!("{server}{SITE}[[stream]]\nlisten = \"127.0.0.1:0\"\nto = \"{to}\"\n{more}")
    };
    let mut forebay = serve(Folder::new(), &configuration(old, ""));
    let address = streams(&mut forebay, 1)[0];
    let mut early = client(address);
    assert_eq!(exactly(&mut early, 5), "old: ");
    write_configuration(&forebay.folder, &configuration(new, ""));
    forebay.signal(Signal::HUP);
    forebay.wait_for_output("serving by the configuration as it is now");
    early.write_all(b"still").unwrap();
    assert_eq!(exactly(&mut early, 5), "still");
    let mut late = client(address);
    assert_eq!(exactly(&mut late, 5), "new: ");
    late.shutdown(std::net::Shutdown::Write).unwrap();
    assert_eq!(late.read(&mut [0; 1]).unwrap(), 0);
    // A listener that is no longer configured closes; its connections stay.
    write_configuration(&forebay.folder, &format!("{server}{SITE}"));
    forebay.signal(Signal::HUP);
    assert!(eventually(|| TcpStream::connect(address).is_err()), "{}", forebay.output());
    early.write_all(b"there").unwrap();
    assert_eq!(exactly(&mut early, 5), "there");
    forebay.signal(Signal::TERM);
    assert!(eventually(|| TcpStream::connect(forebay.address).is_err()));
    early.write_all(b"again").unwrap();
    assert_eq!(exactly(&mut early, 5), "again");
    // The grace ends while the connection is silent.
    assert!(early.read(&mut [0; 1]).is_err(), "a reset");
    let (_, folder) = forebay.stop();
    let log = std::fs::read_to_string(folder.path().join("access.log")).unwrap();
    // The lines of connections that searched for the listener are between the two.
    let (first, last) = (log.lines().next().unwrap(), log.lines().last().unwrap());
    assert!(first.contains(" closed 5 0 ") && first.ends_with(&format!("\"{new}\"")), "{log}");
    assert!(last.contains(" stopped 20 15 "), "{log}");
    assert!(last.ends_with(&format!("\"{old}\"")), "{log}");
}

#[test]
fn a_health_check_finds_servers_that_accept_no_connection() {
    let alive = echo("alive");
    let dead = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let admin = free_port();
    let configuration = format!(
        "[server]\nadmin = \"127.0.0.1:{admin}\"\n{SITE}[[stream]]\nlisten = \"127.0.0.1:0\"\n\
         to = [\"{dead}\", \"{alive}\"]\nhealth = {{ interval = \"20ms\", falls = 1 }}\n"
    );
    let mut forebay = serve(Folder::new(), &configuration);
    forebay.wait_for_output(&format!("{dead} is down"));
    let address = streams(&mut forebay, 1)[0];
    let mut open: Vec<_> = (0..4).map(|_| client(address)).collect();
    for stream in &mut open {
        assert_eq!(exactly(stream, 5), "alive");
    }
    let mut page =
        forebay_testkit::http::Client::connect(SocketAddr::from(([127, 0, 0, 1], admin)));
    let metrics = page.get("/metrics").text().to_owned();
    let labels = |server: usize, address| {
        format!("{{stream=\"1\",server=\"{server}\",address=\"{address}\"}}")
    };
    for line in [
        format!("forebay_backend_up{} 0", labels(1, dead)),
        format!("forebay_backend_up{} 1", labels(2, alive)),
        format!("forebay_backend_active_requests{} 4", labels(2, alive)),
        format!("forebay_backend_failures_total{} 0", labels(1, dead)),
    ] {
        assert!(metrics.lines().any(|found| found == line), "{line}\n{metrics}");
    }
    drop(open);
    forebay.stop();
}

#[test]
fn check_and_explain_know_streams() {
    let folder = Folder::new();
    let streams = "[[stream]]\nlisten = \"127.0.0.1:5433\"\nsni = \"db.example.org\"\nto = \
                   [\"10.0.0.1:5432\", \"10.0.0.2:5432\"]\nsend_proxy = \"v2\"\n[[stream]]\nlisten \
                   = \"127.0.0.1:5433\"\nsni = \"*.example.org\"\nto = \"10.0.0.3:1\"\ndeny = \
                   \"127.0.0.1\"\n[[stream]]\nlisten = \"127.0.0.1:25\"\nto = \"10.0.0.4:25\"\n\
                   [[stream]]\nlisten = \"udp://127.0.0.1:53\"\nto = \"10.0.0.5:53\"\n";
    let file = folder.write("streams.toml", streams);
    let run = |arguments: &[&str]| {
        let mut command = Command::new(support::program());
        let output = command.arg(arguments[0]).arg(&file).args(&arguments[1..]).output().unwrap();
        let text = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8(text).unwrap())
    };
    let (code, text) = run(&["check"]);
    assert!(code == Some(0) && text.contains("0 sites, 0 routes, 0 apps, 4 streams"), "{text}");
    for (url, expected) in [
        ("tcp://DB.example.org:5433", &["line 1:", "10.0.0.1:5432 or 10.0.0.2:5432"][..]),
        ("tcp://DB.example.org:5433", &["is passed on unread", "PROXY header of version 2"]),
        ("tcp://www.example.org:5433", &["line 6:", "closed: `allow` or `deny` refuses 127.0.0.1"]),
        ("tcp://example.com:5433", &["no stream here has this server name"]),
        ("udp://127.0.0.1:53", &["line 14: all connections of the listener", "10.0.0.5:53"]),
        ("tcp://127.0.0.1:25", &["line 11: all connections of the listener", "10.0.0.4:25"]),
    ] {
        let (code, text) = run(&["explain", url]);
        assert_eq!(code, Some(0), "{text}");
        for expected in expected {
            assert!(text.contains(expected), "{url}: {expected}: {text}");
        }
    }
    for (url, expected) in [
        ("tcp://127.0.0.1:26", "no stream listens on port 26"),
        ("tcp://127.0.0.1:53", "no stream listens on port 53"),
        ("udp://127.0.0.1:25", "no stream listens on UDP port 25"),
        ("tcp://127.0.0.1", "is not a host and a port"),
        ("http://127.0.0.1/", "there is no site; ask for a stream"),
    ] {
        let (code, text) = run(&["explain", url]);
        assert!(code == Some(2) && text.contains(expected), "{url}: {text}");
    }
}

/// Starts a UDP server that answers with its name and what it got.
fn datagram_echo(name: &'static str) -> SocketAddr {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = socket.local_addr().unwrap();
    thread::spawn(move || {
        let mut buffer = [0; 65_535];
        while let Ok((length, from)) = socket.recv_from(&mut buffer) {
            let reply = [name.as_bytes(), &buffer[..length]].concat();
            let _ = socket.send_to(&reply, from);
        }
    });
    address
}

fn datagram_client(to: SocketAddr) -> UdpSocket {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.connect(to).unwrap();
    socket.set_read_timeout(Some(std::time::Duration::from_millis(200))).unwrap();
    socket
}

/// Sends a datagram until an answer comes, as clients of DNS do.
fn asked(client: &UdpSocket, question: &[u8]) -> Vec<u8> {
    let mut buffer = vec![0; 65_535];
    let mut length = 0;
    let is_answered = eventually(|| {
        client.send(question).unwrap();
        client.recv(&mut buffer).map(|received| length = received).is_ok()
    });
    assert!(is_answered, "no answer");
    buffer.truncate(length);
    buffer
}

#[test]
fn datagrams_pass_both_ways_and_dead_servers_are_left_out() {
    let alive = datagram_echo("here: ");
    let dead = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let other = datagram_echo("other: ");
    let (port, second, admin) = (free_port(), free_port(), free_port());
    let address = SocketAddr::from(([127, 0, 0, 1], port));
    let configuration = |to: SocketAddr| {
        format!(
            "[server]\nadmin = \"127.0.0.1:{admin}\"\n[log]\naccess = \"{{tmp}}/access.log\"\n{SITE}\
             [[stream]]\nlisten = [\"udp://{address}\", \"127.0.0.1:{port}\"]\nto = [\"{dead}\", \
             \"{to}\"]\nidle_timeout = \"1s\"\n[[stream]]\nlisten = \"udp://127.0.0.1:{second}\"\nto \
             = \"{to}\"\ndeny = \"127.0.0.1\"\n"
        )
    };
    let mut forebay = serve(Folder::new(), &configuration(alive));
    let clients: Vec<_> = (0..20).map(|_| datagram_client(address)).collect();
    for round in 0..3 {
        for (number, client) in clients.iter().enumerate() {
            let question = format!("question {number} of round {round}");
            let answer = asked(client, question.as_bytes());
            // A repeated question may still be answered in a later round.
            let answer = String::from_utf8(answer).unwrap();
            assert!(answer.starts_with(&format!("here: question {number} of")), "{answer}");
        }
    }
    forebay.wait_for_output(&format!("{dead} is left out for 10s"));
    let mut page =
        forebay_testkit::http::Client::connect(SocketAddr::from(([127, 0, 0, 1], admin)));
    let metrics = page.get("/metrics").text().to_owned();
    let line = format!("forebay_backend_up{{stream=\"1\",server=\"1\",address=\"{dead}\"}} 0");
    assert!(metrics.lines().any(|found| found == line), "{metrics}");
    let large = support::pattern(20_000);
    let client = datagram_client(address);
    assert_eq!(asked(&client, &large)[6..], large);
    assert_eq!(asked(&datagram_client(address), b""), b"here: ");
    let denied = datagram_client(SocketAddr::from(([127, 0, 0, 1], second)));
    denied.send(b"no").unwrap();
    assert!(denied.recv(&mut [0; 9]).is_err());
    // New sessions use the new servers.
    write_configuration(&forebay.folder, &configuration(other));
    forebay.signal(Signal::HUP);
    forebay.wait_for_output("serving by the configuration as it is now");
    assert_eq!(asked(&datagram_client(address), b"x"), b"other: x");
    let log = forebay.folder.path().join("access.log");
    let log = || std::fs::read_to_string(&log).unwrap_or_default();
    let is_idle =
        |line: &str| line.contains("\"UDP -\" idle ") && line.ends_with(&format!("\"{alive}\""));
    assert!(eventually(|| log().lines().filter(|line| is_idle(line)).count() >= 20), "{}", log());
    forebay.stop();
}

#[test]
fn a_datagram_listener_that_a_reload_removes_is_free_soon_even_if_its_server_keeps_sending() {
    let server = UdpSocket::bind("127.0.0.1:0").unwrap();
    let to = server.local_addr().unwrap();
    let sending = thread::spawn(move || {
        let (_, client) = server.recv_from(&mut [0; 9]).unwrap();
        // Forebay's end of the session closes, and the kernel reports this here.
        while server.send_to(b"more", client).is_ok() {
            thread::sleep(std::time::Duration::from_millis(5));
        }
    });
    let address = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let stream = format!("[[stream]]\nlisten = \"udp://{address}\"\nto = \"{to}\"\n");
    let mut forebay = serve(Folder::new(), &format!("{SITE}{stream}"));
    let client = datagram_client(address);
    assert_eq!(asked(&client, b"begin"), b"more");
    write_configuration(&forebay.folder, SITE);
    forebay.signal(Signal::HUP);
    forebay.wait_for_output("serving by the configuration as it is now");
    assert!(eventually(|| UdpSocket::bind(address).is_ok()), "{}", forebay.output());
    forebay.stop();
    drop(sending);
}

#[test]
fn no_free_descriptor_is_no_failure_of_a_udp_server() {
    let alive = datagram_echo("here: ");
    let (port, admin) = (free_port(), free_port());
    let address = SocketAddr::from(([127, 0, 0, 1], port));
    let configuration = format!(
        "[server]\nadmin = \"127.0.0.1:{admin}\"\n{SITE}[[stream]]\nlisten = \
         \"udp://{address}\"\nto = [\"{alive}\", \"localhost:{}\"]\n",
        alive.port()
    );
    let mut forebay = serve(Folder::new(), &configuration);
    let client = datagram_client(address);
    assert_eq!(asked(&client, b"before"), b"here: before");
    let pid = forebay.process.id();
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).maximum;
    proc::limit_descriptors(pid, 0);
    for _ in 0..4 {
        datagram_client(address).send(b"lost").unwrap();
    }
    forebay.wait_for_output("raise the limit on open files");
    // A session that has its socket continues.
    assert_eq!(asked(&client, b"meanwhile"), b"here: meanwhile");
    proc::limit_descriptors(pid, limit.unwrap_or(1024));
    assert_eq!(asked(&datagram_client(address), b"after"), b"here: after");
    let mut page =
        forebay_testkit::http::Client::connect(SocketAddr::from(([127, 0, 0, 1], admin)));
    let metrics = page.get("/metrics").text().to_owned();
    let failures =
        metrics.lines().filter(|line| line.starts_with("forebay_backend_failures_total"));
    assert!(
        failures.clone().count() == 2 && failures.clone().all(|line| line.ends_with(" 0")),
        "{metrics}"
    );
    forebay.stop();
}

#[test]
fn servers_are_reached_over_tls_and_verified() {
    let authority = Authority::new("servers");
    let folder = Folder::new();
    let identity = authority.issue(&["localhost"]);
    folder.write("a.pem", identity.certificate);
    folder.write("a.key", identity.key);
    folder.write("ca.pem", &authority.pem);
    let plain = echo("plain: ");
    let own = folder.path().display().to_string();
    let inner = format!(
        "{SITE}[[stream]]\nlisten = \"127.0.0.1:0\"\nto = \"{plain}\"\ntls = {{ certificate = \
         \"{own}/a.pem\", key = \"{own}/a.key\" }}\n"
    );
    let mut inner = serve(Folder::new(), &inner);
    let port = streams(&mut inner, 1)[0].port();
    let stream = |number: u8, settings: &str| {
        let listen = format!("[[stream]]\nlisten = \"127.0.0.{number}:0\"\n");
        format!("{listen}to = \"tls://localhost:{port}\"\n{settings}")
    };
    let all = [
        SITE.to_owned(),
        stream(1, &format!("server_tls = {{ ca = \"{own}/ca.pem\" }}\n")),
        // The system does not trust this authority.
        stream(2, ""),
        stream(
            3,
            &format!("server_tls = {{ ca = \"{own}/ca.pem\", server_name = \"x.example\" }}\n"),
        ),
        stream(4, "server_tls = { verify = false }\n"),
    ];
    let mut forebay = serve(Folder::new(), &all.concat());
    let addresses = streams(&mut forebay, 4);
    let long = support::pattern(100_000);
    for (at, is_trusted) in [(0, true), (1, false), (2, false), (3, true)] {
        let address = Address::from(addresses[at]);
        let mut stream = TestStream::connect(&address, DEADLINE).unwrap();
        if is_trusted {
            assert_eq!(whole(stream, &long)[7..], long[..], "{at}");
        } else {
            let _ = stream.write_all(b"secret");
            let mut reply = Vec::new();
            let _ = stream.read_to_end(&mut reply);
            assert_eq!(reply, b"", "{at}");
        }
    }
    forebay.wait_for_output("cannot connect to localhost");
    forebay.stop();
    inner.stop();
}
