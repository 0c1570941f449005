//! Whose address counts behind a CDN: a field of its own in each protocol, and lists of its networks that change while
//! the server runs.

mod support;

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::sync::{Arc, Mutex};

use forebay_testkit::folder::Folder;
use forebay_testkit::http::Client;
use forebay_testkit::peer::installed;
use forebay_testkit::port::free_port;
use forebay_testkit::process::eventually;
use forebay_testkit::tls::Authority;
use rustix::process::Signal;
use support::{Forebay, http3, serve};

const WHO: &str = "#!/bin/sh\nprintf 'Content-Type: text/plain\\n\\n%s %s' \"$REMOTE_ADDR\" \"$HTTP_CF_CONNECTING_IP\"\n";
const ROUTE: &str = "[[site.route]]\npath = \"/*\"\ncgi = \"cgi\"\n";

fn folder() -> Folder {
    let folder = Folder::new();
    folder.script("cgi/who.sh", WHO);
    folder
}

/// Returns the client's address that a script sees, and the field that it gets.
fn who(address: SocketAddr, field: &str) -> String {
    let mut client = Client::connect(address);
    client.send(format!("GET /who.sh HTTP/1.1\r\nHost: h\r\nCF-Connecting-IP: {field}\r\n\r\n"));
    client.reply().text().to_owned()
}

/// Sends a GET of /who.sh over AJP, from a client at `remote`, and returns the bytes of the answer.
fn over_ajp(port: u16, remote: &str, field: &str) -> String {
    fn string(out: &mut Vec<u8>, text: &str) {
        out.extend_from_slice(&(text.len() as u16).to_be_bytes());
        out.extend_from_slice(text.as_bytes());
        out.push(0);
    }
    let mut data = vec![2, 2];
    for text in ["HTTP/1.1", "/who.sh", remote, remote, "h"] {
        string(&mut data, text);
    }
    data.extend_from_slice(&[0, 80, 0, 0, 2]);
    for (name, value) in [("Host", "h"), ("CF-Connecting-IP", field)] {
        string(&mut data, name);
        string(&mut data, value);
    }
    data.push(0xff);
    let mut packet = vec![0x12, 0x34];
    packet.extend_from_slice(&(data.len() as u16).to_be_bytes());
    packet.extend_from_slice(&data);
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
    stream.write_all(&packet).unwrap();
    let mut all = String::new();
    loop {
        let mut head = [0; 4];
        stream.read_exact(&mut head).unwrap();
        let mut body = vec![0; usize::from(u16::from_be_bytes([head[2], head[3]]))];
        stream.read_exact(&mut body).unwrap();
        match body[0] {
            3 => all.push_str(&String::from_utf8_lossy(&body[3..body.len() - 1])),
            5 => return all,
            _ => {}
        }
    }
}

#[test]
fn each_protocol_finds_the_client_in_the_named_field() {
    let Some(curl) = installed("curl") else { return };
    let folder = folder();
    let authority = Authority::new("of the test");
    http3::write_identity(&folder, &authority.issue(&["localhost"]));
    folder.write("proxies.txt", "# ours\n127.0.0.0/8\n198.51.100.0/24\n");
    let (plain, ajp) = (free_port(), free_port());
    let keys = "trusted_proxies = \"./proxies.txt\"\nforwarded = \"CF-Connecting-IP\"\n";
    let secure = http3::SITE;
    let forebay = serve(
        folder,
        &format!(
            "{secure}{keys}{ROUTE}[[site]]\nlisten = [\"127.0.0.1:{plain}\", \"ajp://127.0.0.1:{ajp}\"]\n{keys}{ROUTE}"
        ),
    );
    let plain = SocketAddr::from((Ipv4Addr::LOCALHOST, plain));
    assert_eq!(who(plain, "203.0.113.5"), "203.0.113.5 203.0.113.5");
    assert_eq!(over_ajp(ajp, "198.51.100.7", "203.0.113.5"), "203.0.113.5 203.0.113.5");
    // This client came past the proxies, so its field is gone.
    assert_eq!(over_ajp(ajp, "192.0.2.9", "203.0.113.5"), "192.0.2.9 ");
    let port = forebay.address.port();
    for version in ["--http1.1", "--http2"] {
        let mut command = Command::new(&curl);
        command.args(["-sk", version, "-H", "CF-Connecting-IP: 2001:db8::5"]);
        command.arg(format!("https://localhost:{port}/who.sh"));
        command.args(["--resolve", &format!("localhost:{port}:127.0.0.1")]);
        let text = String::from_utf8(command.output().unwrap().stdout).unwrap();
        assert_eq!(text, "2001:db8::5 2001:db8::5", "{version}");
    }
    http3::run(async {
        let client = http3::Client::connect(forebay.address, &authority).await;
        let request = client.request(http::Method::GET, "/who.sh");
        let request = request.header("cf-connecting-ip", "203.0.113.6").body(()).unwrap();
        let mut exchange = client.requests.clone().send_request(request).await.unwrap();
        exchange.finish().await.unwrap();
        let reply = http3::reply_to(&mut exchange).await;
        assert_eq!(reply.text(), "203.0.113.6 203.0.113.6");
    });
    // `explain` and `check` read the same list.
    let file = forebay.folder.path().join("site.toml");
    let explained = |list: &str| {
        forebay.folder.write("proxies.txt", list);
        let mut command = Command::new(env!("CARGO_BIN_EXE_forebay"));
        command.arg("explain").arg(&file).arg(format!("http://127.0.0.1:{}/who.sh", plain.port()));
        let output = command.args(["-H", "CF-Connecting-IP: 203.0.113.5"]).output().unwrap();
        String::from_utf8([output.stdout, output.stderr].concat()).unwrap()
    };
    let text = explained("127.0.0.0/8");
    assert!(text.contains("203.0.113.5"), "{text}");
    let text = explained("198.51.100.0/24");
    assert!(!text.contains("203.0.113.5"), "{text}");
    let check = |list: &str| {
        forebay.folder.write("proxies.txt", list);
        let output = Command::new(env!("CARGO_BIN_EXE_forebay")).arg("check").arg(&file).output();
        let output = output.unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    assert_eq!(check("127.0.0.1").0, Some(0));
    let (code, error) = check("127.0.0.1\n0.0.0.0/0\n");
    assert!(code == Some(2) && error.contains("line 2"), "{error}");
    forebay.stop();
}

#[test]
fn a_list_in_a_file_is_read_again_and_the_last_good_one_stays() {
    let folder = folder();
    let list = folder.write("proxies.txt", "198.51.100.0/24\n");
    let forebay = serve(
        folder,
        &format!(
            "[[site]]\nlisten = \"127.0.0.1:0\"\ntrusted_proxies = \"./proxies.txt\"\n\
             forwarded = \"CF-Connecting-IP\"\n{ROUTE}"
        ),
    );
    let client = || who(forebay.address, "203.0.113.5");
    let (own, named) = ("127.0.0.1 ", "203.0.113.5 203.0.113.5");
    assert_eq!(client(), own);
    fs::write(&list, "198.51.100.0/24\n127.0.0.1\n").unwrap();
    assert!(eventually(|| client() == named), "{}", forebay.process.output());
    let refused = || forebay.process.output().matches("is refused").count();
    for (at, bad) in ["127.0.0.1\nrubbish\n", "0.0.0.0/0\n::/0\n", "", "\u{0}\n"].iter().enumerate()
    {
        fs::write(&list, bad).unwrap();
        assert!(eventually(|| refused() == at + 1), "{bad}: {}", forebay.process.output());
        assert_eq!(client(), named, "{bad}");
    }
    fs::remove_file(&list).unwrap();
    assert!(eventually(|| refused() == 5));
    assert_eq!(client(), named);
    fs::write(&list, "198.51.100.0/24\n").unwrap();
    assert!(eventually(|| client() == own), "{}", forebay.process.output());
    forebay.stop();
}

/// A server of a list. Its answer is what the test has set; `None` hangs.
struct ListServer {
    address: SocketAddr,
    answer: Arc<Mutex<Option<String>>>,
    asked: Arc<Mutex<Vec<String>>>,
}

impl ListServer {
    fn start(first: &str) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let server = Self {
            address: listener.local_addr().unwrap(),
            answer: Arc::new(Mutex::new(Some(first.to_owned()))),
            asked: Arc::default(),
        };
        let (answer, asked) = (server.answer.clone(), server.asked.clone());
        std::thread::spawn(move || {
            let mut held = Vec::new();
            for stream in listener.incoming() {
                let mut stream = BufReader::new(stream.unwrap());
                let mut head = String::new();
                while !head.ends_with("\r\n\r\n") && stream.read_line(&mut head).unwrap() > 0 {}
                let answer = answer.lock().unwrap().clone();
                asked.lock().unwrap().push(head);
                match answer {
                    Some(text) => drop(stream.get_mut().write_all(text.as_bytes())),
                    None => held.push(stream),
                }
            }
        });
        server
    }

    fn answers(&self, text: Option<&str>) {
        *self.answer.lock().unwrap() = text.map(str::to_owned);
    }

    fn asked(&self) -> usize {
        self.asked.lock().unwrap().len()
    }
}

fn reply(list: &str) -> String {
    format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{list}", list.len())
}

#[test]
fn a_list_at_a_url_that_fails_hangs_or_is_rubbish_leaves_the_last_good_one() {
    let server = ListServer::start(&reply("127.0.0.0/8\n"));
    let mut forebay: Forebay = serve(
        folder(),
        &format!(
            "[[site]]\nlisten = \"127.0.0.1:0\"\ntrusted_proxies = [\"198.51.100.1\", \"http://{}/ips?v=4\"]\n\
             forwarded = \"CF-Connecting-IP\"\n{ROUTE}",
            server.address
        ),
    );
    let address = forebay.address;
    let named = "203.0.113.5 203.0.113.5";
    assert!(eventually(|| who(address, "203.0.113.5") == named), "{}", forebay.process.output());
    let head = server.asked.lock().unwrap()[0].clone();
    assert!(head.starts_with("GET /ips?v=4 HTTP/1.0\r\nHost: 127.0.0.1:"), "{head}");
    let huge = format!("127.0.0.0/8\n#{}\n", "x".repeat(2 << 20));
    let bad = [
        "HTTP/1.1 500 no\r\n\r\n127.0.0.1\n".to_owned(),
        reply("<html>502</html>"),
        reply("0.0.0.0/0\n"),
        reply(""),
        reply(&huge),
        "HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n192.0.2.0/24\n".to_owned(),
        "\u{7f}\u{0}rubbish".to_owned(),
        String::new(),
    ];
    for (at, text) in bad.iter().enumerate() {
        server.answers(Some(text));
        // A reload asks again, and begins with the networks that it had.
        forebay.process.signal(Signal::HUP);
        let refused = || forebay.process.output().matches("is refused").count();
        assert!(eventually(|| refused() == at + 1), "{at}: {}", forebay.process.output());
        assert_eq!(who(address, "203.0.113.5"), named, "{at}");
    }
    // A server that never answers delays neither a reload nor a request.
    server.answers(None);
    let asked = server.asked();
    forebay.process.signal(Signal::HUP);
    assert!(eventually(|| server.asked() == asked + 1));
    assert_eq!(who(address, "203.0.113.5"), named);
    server.answers(Some(&reply("192.0.2.0/24\n")));
    forebay.process.signal(Signal::HUP);
    assert!(eventually(|| who(address, "203.0.113.5") == "127.0.0.1 "));
    forebay.stop();
}

#[test]
fn lists_of_the_packages_are_accepted() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging/networks");
    let lists: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert!(lists.len() >= 2);
    for path in lists {
        let list = forebay_conf::NetworkList::new(forebay_conf::NetworkSource::File(path.clone()));
        list.replace(&fs::read_to_string(&path).unwrap())
            .unwrap_or_else(|why| panic!("{}: {why}", path.display()));
        assert!(!list.contains("127.0.0.1".parse().unwrap()));
    }
}
