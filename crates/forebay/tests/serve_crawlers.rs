//! `verified` of `challenge`: crawlers of search engines, which a DNS server of the test verifies.

mod support;

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use forebay_testkit::folder::Folder;
use support::{Forebay, serve};

const GOOGLE: &str = "66.249.66.1";
const AGENT: &str = "Mozilla/5.0 (compatible; Googlebot/2.1; +http://www.google.com/bot.html)";

/// The name of an address.
const NAMES: &[(&str, &str)] = &[
    (GOOGLE, "crawl-66-249-66-1.googlebot.com"),
    // These owners choose names that are not theirs, or look alike.
    ("192.0.2.66", "crawl-66-249-66-1.googlebot.com"),
    ("192.0.2.67", "crawl-66-249-66-1.googlebot.com.evil.example"),
    ("192.0.2.68", "evilgooglebot.com"),
    ("192.0.2.69", "x.bc.googleusercontent.com"),
];
/// The address of a name.
const ADDRESSES: &[(&str, &str)] = &[
    ("crawl-66-249-66-1.googlebot.com", GOOGLE),
    ("crawl-66-249-66-1.googlebot.com.evil.example", "192.0.2.67"),
    ("evilgooglebot.com", "192.0.2.68"),
    ("x.bc.googleusercontent.com", "192.0.2.69"),
];

/// Starts a DNS server. Returns its address, and the number of its queries.
fn dns() -> (SocketAddr, Arc<AtomicUsize>) {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let (address, asked) = (socket.local_addr().unwrap(), Arc::<AtomicUsize>::default());
    let count = asked.clone();
    thread::spawn(move || {
        let mut bytes = [0; 1500];
        while let Ok((len, client)) = socket.recv_from(&mut bytes) {
            count.fetch_add(1, Ordering::SeqCst);
            if let Some(reply) = reply_to(&bytes[..len]) {
                let _ = socket.send_to(&reply, client);
            }
        }
    });
    (address, asked)
}

/// Returns the reply to a query of one question (RFC 1035 section 4).
fn reply_to(query: &[u8]) -> Option<Vec<u8>> {
    let (mut labels, mut at) = (Vec::new(), 12);
    while query[at] > 0 {
        let end = at + 1 + usize::from(query[at]);
        labels.push(str::from_utf8(&query[at + 1..end]).ok()?.to_ascii_lowercase());
        at = end;
    }
    let question = &query[12..at + 5];
    let data = match question[question.len() - 3] {
        1 => {
            let name = labels.join(".");
            let address = ADDRESSES.iter().find(|(known, _)| *known == name);
            address.map(|(_, address)| address.parse::<Ipv4Addr>().unwrap().octets().to_vec())
        }
        12 => {
            let address: Vec<_> = labels.iter().take(4).rev().map(String::as_str).collect();
            let name = NAMES.iter().find(|(known, _)| *known == address.join("."));
            name.map(|(_, name)| {
                let parts = name
                    .split('.')
                    .flat_map(|part| std::iter::once(part.len() as u8).chain(part.bytes()));
                parts.chain([0]).collect()
            })
        }
        _ => None,
    };
    let code = if data.is_some() { 0 } else { 3 };
    let mut reply = vec![query[0], query[1], 0x81, 0x80 | code, 0, 1, 0, u8::from(code == 0)];
    reply.extend([0; 4]);
    reply.extend(question);
    if let Some(data) = data {
        let kind = question[question.len() - 3];
        reply.extend([0xc0, 12, 0, kind, 0, 1, 0, 0, 0, 60, 0, data.len() as u8]);
        reply.extend(data);
    }
    Some(reply)
}

fn wiki(dns: SocketAddr) -> Forebay {
    let configuration = format!(
        "[server]\ndns_servers = \"{dns}\"\n\
         [[site]]\nlisten = \"127.0.0.1:0\"\ntrusted_proxies = [\"127.0.0.1\"]\n\
         [[site.route]]\nrespond = \"wiki\"\nchallenge = {{ verified = [\"googlebot\"] }}\n"
    );
    serve(Folder::new(), &configuration)
}

fn get(forebay: &Forebay, address: &str, agent: &str) -> bool {
    let reply = forebay.ask(format!(
        "GET / HTTP/1.1\r\nHost: h\r\nX-Forwarded-For: {address}\r\nUser-Agent: {agent}\r\n\r\n"
    ));
    assert_eq!(reply.status, 200);
    reply.text() == "wiki"
}

#[test]
fn only_crawlers_that_dns_verifies_pass() {
    let (address, asked) = dns();
    let forebay = wiki(address);
    assert!(!get(&forebay, GOOGLE, "Mozilla/5.0"), "it does not claim to be a crawler");
    assert_eq!(asked.load(Ordering::SeqCst), 0, "nobody is looked up without need");
    assert!(get(&forebay, GOOGLE, AGENT), "{}", forebay.output());
    for forger in ["192.0.2.66", "192.0.2.67", "192.0.2.68", "192.0.2.69", "192.0.2.70"] {
        assert!(!get(&forebay, forger, AGENT), "{forger}");
    }
    let before = asked.load(Ordering::SeqCst);
    for address in [GOOGLE, "192.0.2.66", "192.0.2.70"] {
        assert_eq!(get(&forebay, address, AGENT), address == GOOGLE);
    }
    assert_eq!(asked.load(Ordering::SeqCst), before, "the answers are remembered");
    forebay.stop();
}
