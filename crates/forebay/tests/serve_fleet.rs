//! Several `forebay serve` with one store: keys of TLS tickets, rate limits and purges. Certificates are
//! in `serve_acme.rs`.

mod support;

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::sync::Arc;

use forebay_testkit::folder::Folder;
use forebay_testkit::http::Client;
use forebay_testkit::peer::Redis;
use forebay_testkit::process::eventually;
use forebay_testkit::stream::TestStream;
use forebay_testkit::tls::{Authority, Identity, connect};
use rustls::{ClientConfig, HandshakeKind};
use support::echo::Echo;
use support::{Forebay, program, serve, write_configuration};

const KEY: &str = "0123456789abcdef0123456789abcdef";
const NAME: &str = "h.example";

/// A machine of the fleet, with its administrator's address.
struct Node {
    forebay: Forebay,
    admin: SocketAddr,
}

impl Node {
    fn start(store: &str, authority: &Identity, backend: &Echo) -> Self {
        let folder = Folder::new();
        folder.write("c.pem", &authority.certificate);
        folder.write("k.pem", &authority.key);
        let admin = forebay_testkit::port::free_port();
        let forebay = serve(
            folder,
            &format!(
                "[server]\nadmin = \"127.0.0.1:{admin}\"\nadmin_token = \"{KEY}\"\n{store}\n\
                 [[site]]\nlisten = \"https://127.0.0.1:0\"\n\
                 tls = {{ certificate = \"c.pem\", key = \"k.pem\" }}\n\
                 [[site.route]]\npath = \"/limited\"\nrespond = \"admitted\"\n\
                 rate_limit = {{ rate = \"100/h\", burst = 100000, key = \"{{client}}\" }}\n\
                 [[site.route]]\ncache = {{ valid = \"1h\" }}\nproxy = \"{}\"\n",
                backend.url()
            ),
        );
        Self { forebay, admin: ([127, 0, 0, 1], admin).into() }
    }

    fn connect(&self, config: &Arc<ClientConfig>) -> Client {
        connect(self.forebay.address, NAME, config.clone()).unwrap()
    }

    fn is_resumed(&self, config: &Arc<ClientConfig>) -> bool {
        let mut client = self.connect(config);
        // The ticket comes with the reply.
        assert_eq!(client.get("/limited").status, 200);
        let TestStream::Tls(stream) = client.stream() else { unreachable!() };
        stream.conn.handshake_kind() == Some(HandshakeKind::Resumed)
    }

    fn stop(self) {
        self.forebay.stop();
    }
}

/// Checks what two machines with this store share. `limit` changes the counts in the store, so that the
/// rate limit is exhausted.
fn check(store: &str, limit: impl FnOnce()) {
    let authority = Authority::new("x");
    let identity = authority.issue(&[NAME]);
    let backend = Echo::start();
    let one = Node::start(store, &identity, &backend);
    let other = Node::start(store, &identity, &backend);
    let config = Arc::new(authority.client());
    // A session of one machine resumes on the other, and the other way around.
    for (first, second) in [(&one, &other), (&other, &one)] {
        let resumed = || {
            let fresh = Arc::new(authority.client());
            first.is_resumed(&fresh);
            second.is_resumed(&fresh)
        };
        assert!(eventually(resumed), "{}", first.forebay.process.output());
    }
    // A purge reaches the other machine.
    let get = |node: &Node| {
        let reply = node.connect(&config).get("/cached");
        reply.header("X-Request").unwrap().to_owned()
    };
    let kept = get(&other);
    get(&one);
    assert_eq!(get(&other), kept);
    let purge = || {
        let mut admin = Client::connect(one.admin);
        admin.send(format!(
            "POST /cache/purge?all=1 HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {KEY}\r\n\
             Content-Length: 0\r\n\r\n"
        ));
        admin.reply().status
    };
    assert_eq!(purge(), 200);
    assert!(eventually(|| get(&other) != kept), "{}", other.forebay.process.output());
    // The counts of a rate limit add up.
    limit();
    let refused = |node: &Node| node.connect(&config).get("/limited").status == 429;
    assert!(eventually(|| refused(&one)) && eventually(|| refused(&other)));
    for node in [one, other] {
        let output = node.forebay.process.output();
        assert!(!output.contains("store"), "{output}");
        node.stop();
    }
}

#[test]
fn machines_share_a_directory() {
    let root = tempfile::tempdir().unwrap();
    let rates = root.path().join("rates");
    let limit = || {
        // Both machines use one key of one limit.
        let file = || {
            fs::read_dir(&rates).ok()?.find_map(|entry| {
                let entry = entry.ok()?;
                (!entry.file_name().to_str()?.starts_with('.')).then(|| entry.path())
            })
        };
        assert!(eventually(|| file().is_some()));
        let mut bytes = fs::read(file().unwrap()).unwrap();
        let records = bytes.chunks_exact_mut(16);
        // The other records are numbers of batches. Their highest bit is set.
        let mut due: Vec<_> = records.filter(|record| record[8] & 0x80 == 0).collect();
        let [record] = &mut due[..] else { panic!("{due:?}") };
        let time = u64::from_be_bytes(record[8..].try_into().unwrap());
        record[8..].copy_from_slice(&(time + 100_000 * 3600 * 1_000_000).to_be_bytes());
        fs::write(file().unwrap(), bytes).unwrap();
    };
    check(&format!("store = \"{}\"", root.path().display()), limit);
    let tickets = fs::metadata(root.path().join("entries/tls/tickets")).unwrap();
    assert_eq!(tickets.permissions().mode() & 0o777, 0o600);
}

#[test]
fn machines_share_redis_and_serve_without_it() {
    let Some(mut server) = Redis::start(None) else { return };
    let store = format!("store = \"{}\"\nstore_key = \"{KEY}\"", server.url(0));
    let script = b"local keys = redis.call('KEYS', 'forebay:rate:*') \
        for _, key in ipairs(keys) do \
        redis.call('SET', key, string.format('%.0f', redis.call('GET', key) + 36e13)) end \
        return #keys";
    check(&store, || {
        // Both machines use one key of one limit.
        let late = || server.send(&[&[b"EVAL", script, b"0"]]) == ":1";
        assert!(eventually(late));
    });
    // The store goes, a machine starts without it, and the store returns empty.
    let authority = Authority::new("x");
    let (identity, backend) = (authority.issue(&[NAME]), Echo::start());
    let config = Arc::new(authority.client());
    let mut node = Node::start(&store, &identity, &backend);
    server.kill();
    node.forebay.process.wait_for_output("this machine serves on");
    assert_eq!(node.connect(&config).get("/limited").status, 200);
    let mut late = Node::start(&store, &identity, &backend);
    late.forebay.process.wait_for_output("this machine serves on");
    assert_eq!(late.connect(&config).get("/limited").status, 200);
    server.restart();
    for node in [&mut node, &mut late] {
        node.forebay.process.wait_for_output("it can be reached again");
    }
    let resumed = || {
        let fresh = Arc::new(authority.client());
        node.is_resumed(&fresh);
        late.is_resumed(&fresh)
    };
    assert!(eventually(resumed));
    for node in [node, late] {
        let output = node.forebay.process.output();
        assert!(!output.contains(Redis::PASSWORD) && !output.contains(KEY), "{output}");
        assert_eq!(output.matches("this machine serves on").count(), 1, "{output}");
        node.stop();
    }
}

#[test]
fn check_warns_of_a_store_that_is_away() {
    let port = forebay_testkit::port::free_port();
    let folder = Folder::new();
    let file = write_configuration(
        &folder,
        &format!(
            "[server]\nstore = \"redis://:{{env.STORE_PASSWORD}}@127.0.0.1:{port}/0\"\nstore_key = \"{KEY}\"\n\
             [[site]]\nlisten = \"127.0.0.1:0\"\n[[site.route]]\nrespond = \"x\"\n"
        ),
    );
    let output = Command::new(program())
        .arg("check")
        .arg(file)
        .env("STORE_PASSWORD", "sesame")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{text}");
    assert!(text.contains(&format!("redis://127.0.0.1:{port}/0")), "{text}");
    assert!(text.contains("WARNING") && !text.contains("sesame"), "{text}");
}
