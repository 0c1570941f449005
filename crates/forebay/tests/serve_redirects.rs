//! Redirections and cookies of an HTTP backend that does not know the address that clients use.

mod support;

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use forebay_testkit::DEADLINE;
use forebay_testkit::folder::Folder;
use forebay_testkit::http::{Client, Reply};
use forebay_testkit::peer;
use forebay_testkit::stream::Address;
use support::{Forebay, site};

/// A backend that answers each request with the field lines in its `X-Reply`. In these, `{own}` is
/// its own authority, `{host}` is the Host that it gets, and `|` is a line break.
struct Backend {
    address: SocketAddr,
    stopping: Arc<AtomicBool>,
    acceptor: Option<JoinHandle<()>>,
}

impl Backend {
    fn start() -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let stopping = Arc::new(AtomicBool::new(false));
        let flag = stopping.clone();
        let acceptor = thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                if flag.load(Ordering::SeqCst) {
                    return;
                }
                let _ = answer(stream, address);
            }
        });
        Self { address, stopping, acceptor: Some(acceptor) }
    }
}

impl Drop for Backend {
    fn drop(&mut self) {
        self.stopping.store(true, Ordering::SeqCst);
        let _wake = TcpStream::connect(self.address);
        if let Some(acceptor) = self.acceptor.take() {
            let _ = acceptor.join();
        }
    }
}

/// Answers one request, then closes the connection.
fn answer(mut stream: TcpStream, own: SocketAddr) -> std::io::Result<()> {
    stream.set_read_timeout(Some(DEADLINE))?;
    let mut head = Vec::new();
    let mut piece = [0; 4096];
    while !head.windows(4).any(|four| four == b"\r\n\r\n") {
        match stream.read(&mut piece)? {
            0 => return Ok(()),
            count => head.extend_from_slice(&piece[..count]),
        }
    }
    let head = String::from_utf8_lossy(&head).into_owned();
    let field = |name: &str| {
        let mut lines = head.lines().filter_map(|line| line.split_once(": "));
        lines.find(|(n, _)| n.eq_ignore_ascii_case(name)).map_or("", |(_, value)| value)
    };
    let lines = field("X-Reply").replace("{own}", &own.to_string());
    let lines = lines.replace("{host}", field("Host")).replace('|', "\r\n");
    let head = "HTTP/1.1 302 Found\r\nConnection: close\r\nContent-Length: 0\r\n";
    stream.write_all(format!("{head}{lines}\r\n\r\n").as_bytes())
}

fn front(backend: &Backend, keys: &str) -> Forebay {
    let to = backend.address;
    let route = format!("path = \"/shop/*\"\nproxy = {{ to = \"http://{to}\"{keys} }}\n");
    site(Folder::new(), &format!("[[site.route]]\n{route}"))
}

fn ask(address: impl Into<Address>, lines: &str) -> Reply {
    let mut client = Client::connect(address);
    client.send(format!("GET /shop/x HTTP/1.1\r\nHost: www.example\r\nX-Reply: {lines}\r\n\r\n"));
    client.reply()
}

fn headers(reply: &Reply, name: &str) -> Vec<String> {
    let fields = reply.headers.iter().filter(|(n, _)| n.eq_ignore_ascii_case(name));
    fields.map(|(_, value)| value.clone()).collect()
}

#[test]
fn nginx_rewrites_what_points_at_the_backend_in_the_same_way() {
    let backend = Backend::start();
    let to = backend.address;
    let Some(nginx) = peer::nginx(&format!(
        "server {{ listen 127.0.0.1:{{port}}; absolute_redirect off;\n location /shop/ {{ proxy_pass http://{to}/;\n\
         proxy_cookie_path ~^/(?!shop)(.*)$ /shop/$1; }} }}"
    )) else {
        return;
    };
    let forebay = front(&backend, ", strip_prefix = \"/shop\", host = \"backend\"");
    for lines in [
        "Location: http://{own}/a?b=/c",
        "Location: http://{own}/",
        "Location: http://elsewhere.example/a",
        "Location: http://{own}.elsewhere.example/a",
        "Location: https://{own}/a",
        "Location: a/b",
        "Refresh: 0; url=http://{own}/a",
        "Set-Cookie: a=b; Path=/x; Secure",
    ] {
        let (ours, theirs) = (ask(forebay.address, lines), ask(nginx.address().clone(), lines));
        for name in ["Location", "Refresh", "Set-Cookie"] {
            assert_eq!(headers(&ours, name), headers(&theirs, name), "{lines}");
        }
    }
}
