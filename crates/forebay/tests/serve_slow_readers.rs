//! Clients that read slowly, or not at all. The application or backend serves other clients
//! meanwhile.

mod support;

use std::io::Read;
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use forebay_testkit::folder::Folder;
use forebay_testkit::http::Client;
use forebay_testkit::port::free_port;
use forebay_testkit::process::eventually;
use rustix::net::sockopt;
use support::{Forebay, serve};

/// More than the sockets between Forebay and a client that does not read hold.
const LARGE: usize = 24 << 20;

/// A PSGI application that answers `/large` with [`LARGE`] bytes in pieces, `/pid` with its process
/// id, and other paths with a short text.
const APPLICATION: &str = "my $piece = join '', map { chr($_ * 7 % 256) } 0 .. 65535;\n\
    sub { my $path = $_[0]{PATH_INFO};\n\
      return [200, [], [$$]] if $path eq '/pid';\n\
      return [200, [], ['short']] if $path ne '/large';\n\
      return sub { my $out = $_[0]->([200, ['X-Pid' => $$]]);\n\
        $out->write($piece) for 1 .. COUNT; $out->close } }\n";

fn pieces() -> usize {
    LARGE / 65536
}

fn large_body() -> Vec<u8> {
    let piece: Vec<u8> = (0..65536).map(|at| (at * 7 % 256) as u8).collect();
    piece.repeat(pieces())
}

/// Serves [`APPLICATION`] with these keys.
struct Served {
    forebay: Forebay,
    admin: SocketAddr,
}

fn served(server: &str, route: &str, app: &str) -> Served {
    let folder = Folder::new();
    folder.write("app.psgi", APPLICATION.replace("COUNT", &pieces().to_string()));
    let admin = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let configuration = format!(
        "[server]\nadmin = \"{admin}\"\n{server}\n[[site]]\nlisten = \"127.0.0.1:0\"\n\
         [[site.route]]\napp = \"own\"\n{route}\n\
         [app.own]\nkind = \"psgi\"\nfile = \"app.psgi\"\n{app}\n"
    );
    Served { forebay: serve(folder, &configuration), admin }
}

impl Served {
    /// Returns the value of a line of /metrics.
    fn metric(&self, name: &str) -> u64 {
        let metrics = Client::connect(self.admin).get("/metrics").text().to_owned();
        let line = metrics.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("no {name} in {metrics}")).parse().unwrap()
    }

    fn buffered(&self) -> u64 {
        self.metric("forebay_buffered_bytes")
    }

    fn idle_workers(&self) -> u64 {
        self.metric("forebay_workers{app=\"own\",state=\"idle\"}")
    }

    /// A client that has requested `target` and reads nothing.
    fn ask(&self, target: &str) -> TcpStream {
        ask(self.forebay.address, target)
    }
}

fn ask(address: SocketAddr, target: &str) -> TcpStream {
    let mut stream = TcpStream::connect(address).unwrap();
    // The server accepts less while it does not read.
    sockopt::set_socket_recv_buffer_size(&stream, 64 << 10).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let request = format!("GET {target} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n");
    std::io::Write::write_all(&mut stream, request.as_bytes()).unwrap();
    stream
}

/// Reads a chunked reply to its end. Returns its payload.
fn payload(mut stream: TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).unwrap();
    let at = bytes.windows(4).position(|four| four == b"\r\n\r\n").expect("a whole head");
    let mut rest = &bytes[at + 4..];
    let mut payload = Vec::new();
    loop {
        let end = rest.windows(2).position(|two| two == b"\r\n").expect("a whole size line");
        let size = usize::from_str_radix(std::str::from_utf8(&rest[..end]).unwrap(), 16).unwrap();
        if size == 0 {
            assert_eq!(&rest[end..], b"\r\n\r\n");
            return payload;
        }
        payload.extend_from_slice(&rest[end + 2..end + 2 + size]);
        rest = &rest[end + 4 + size..];
    }
}

#[test]
fn clients_that_do_not_read_hold_no_worker() {
    let served = served("", "", "workers = 4");
    let slow: Vec<_> = (0..4).map(|_| served.ask("/large")).collect();
    assert!(eventually(|| served.buffered() > 0));
    assert!(eventually(|| served.idle_workers() == 4), "each reply is made to its end");
    assert_eq!(served.forebay.get("/short").text(), "short");
    assert!(served.buffered() > LARGE as u64, "nothing was read meanwhile");
    assert_eq!(served.metric("forebay_limit_reached_total{limit=\"buffer_file\"}"), 0);
    let whole = large_body();
    for stream in slow {
        assert!(payload(stream) == whole, "the reply arrives unchanged");
    }
    assert!(eventually(|| served.buffered() == 0), "and is forgotten");
    served.forebay.stop();
}

#[test]
fn a_reply_in_the_buffer_goes_with_its_client() {
    let served = served("", "", "workers = 1");
    let slow = served.ask("/large");
    assert!(eventually(|| served.idle_workers() == 1 && served.buffered() > 0));
    let pid = served.forebay.get("/pid").text().to_owned();
    drop(slow);
    assert!(eventually(|| served.buffered() == 0), "its file is freed");
    assert_eq!(served.forebay.get("/pid").text(), pid, "the worker is the same");
    served.forebay.stop();
}

#[test]
fn a_full_buffer_holds_the_reply_back() {
    for (keys, limit) in [
        ("limits = { buffer_file = \"1MiB\" }", "buffer_file"),
        ("limits = { buffer_file = 0 }", "buffer_file"),
        ("limits = { buffer_total = \"1MiB\" }", "buffer_total"),
        ("limits = { buffer_total = 0 }", "buffer_total"),
    ] {
        let served = served(keys, "", "workers = 1");
        let slow = served.ask("/large");
        let counted = format!("forebay_limit_reached_total{{limit=\"{limit}\"}}");
        assert!(eventually(|| served.metric(&counted) == 1), "{keys}");
        assert_eq!(served.idle_workers(), 0, "{keys}: the worker waits");
        assert!(served.buffered() <= (1 << 20) + (64 << 10), "{keys}: {}", served.buffered());
        assert!(payload(slow) == large_body(), "{keys}");
        assert!(eventually(|| served.buffered() == 0), "{keys}");
        served.forebay.stop();
    }
}

#[test]
fn a_reader_that_keeps_up_with_its_reply_costs_no_buffer() {
    let served = served("limits = { buffer_total = 0 }", "", "workers = 1");
    for _ in 0..20 {
        assert_eq!(served.forebay.get("/short").text(), "short");
    }
    assert_eq!(served.metric("forebay_limit_reached_total{limit=\"buffer_total\"}"), 0);
    served.forebay.stop();
}

/// A program with one connection at a time that reads the whole request before it answers.
const PROGRAM: &str = r#"
use strict; use IO::Socket::UNIX; $SIG{PIPE} = 'IGNORE';
my $listen = IO::Socket::UNIX->new(Local => $ARGV[0], Listen => 10) or die;
while (my $client = $listen->accept) {
    my ($head, $length) = ('', 0);
    while (defined(my $line = <$client>) ) { last if $line !~ /\S/; $head .= $line }
    $length = $1 if $head =~ /^content-length: *(\d+)/im;
    read $client, my $body, $length;
    my $text = length($body) . ($head =~ /chunked/i ? ' chunked' : '');
    print $client "HTTP/1.0 200 OK\r\nContent-Length: " . length($text) . "\r\n\r\n$text";
    close $client;
}
"#;

#[test]
fn a_slow_upload_does_not_hold_a_program_that_speaks_http() {
    let folder = Folder::new();
    folder.write("program.pl", PROGRAM);
    let configuration = "[[site]]\nlisten = \"127.0.0.1:0\"\n[[site.route]]\napp = \"own\"\n\
        [app.own]\nkind = \"command\"\nspeaks = \"http\"\nconnections = 1\n\
        run = [\"perl\", \"program.pl\", \"{socket}\"]\n";
    let forebay = serve(folder, configuration);
    let mut slow = forebay.connect();
    slow.send("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 300000\r\n\r\n");
    slow.send(vec![b'x'; 200_000]);
    let mut chunked = forebay.connect();
    chunked.send("POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n");
    assert_eq!(forebay.get("/").text(), "0", "another request is answered meanwhile");
    slow.send(vec![b'x'; 100_000]);
    assert_eq!(slow.reply().text(), "300000");
    chunked.send("0\r\n\r\n");
    assert_eq!(chunked.reply().text(), "3", "it is sent with its length");
    forebay.stop();
}
