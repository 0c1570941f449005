//! Bodies in very small chunks: what comes in one read goes out as one chunk.

mod support;

use forebay_testkit::folder::Folder;
use forebay_testkit::scripted::{Backend, Step};
use support::{chunked, pattern, site};

/// One-byte chunks in a body.
const CHUNKS: usize = 300_000;

/// The payload of a chunked body, and how many chunks it came in.
fn decode(mut body: &[u8]) -> (Vec<u8>, usize) {
    let (mut payload, mut chunks) = (Vec::new(), 0);
    loop {
        let end = body.windows(2).position(|two| two == b"\r\n").expect("a whole size line");
        let size = usize::from_str_radix(std::str::from_utf8(&body[..end]).unwrap(), 16).unwrap();
        assert!(!body[..end].starts_with(b"0") || size == 0, "sizes are in their shortest form");
        if size == 0 {
            assert_eq!(&body[end..], b"\r\n\r\n");
            return (payload, chunks);
        }
        payload.extend_from_slice(&body[end + 2..end + 2 + size]);
        assert_eq!(&body[end + 2 + size..end + 4 + size], b"\r\n");
        body = &body[end + 4 + size..];
        chunks += 1;
    }
}

fn in_single_bytes(payload: &[u8]) -> Vec<u8> {
    chunked(&payload.chunks(1).collect::<Vec<_>>())
}

/// What follows the first empty line.
fn body_of(message: &[u8]) -> &[u8] {
    let at = message.windows(4).position(|four| four == b"\r\n\r\n").expect("a whole head");
    &message[at + 4..]
}

#[test]
fn a_reply_in_tiny_chunks_reaches_the_client_in_large_ones() {
    let payload = pattern(CHUNKS);
    let mut reply = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec();
    reply.extend_from_slice(&in_single_bytes(&payload));
    let backend = Backend::tcp([vec![Step::ReadHead, Step::send(reply)]]);
    let route = format!("[[site.route]]\nproxy = \"http://127.0.0.1:{}\"\n", backend.port());
    let forebay = site(Folder::new(), &route);
    let mut client = forebay.connect();
    client.send("GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n");
    let received = client.rest();
    let (received, chunks) = decode(body_of(&received));
    assert!(received == payload, "the payload is changed");
    assert!(chunks < CHUNKS / 100, "{chunks} chunks for {CHUNKS}");
    backend.finish();
    forebay.stop();
}
