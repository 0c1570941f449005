//! Workloads of the HTTP/2 codec for instruction counts. Each run of the program runs one workload:
//!
//! ```text
//! cargo build --release -p forebay-wire --example http2_cost
//! valgrind --tool=callgrind --toggle-collect='http2_cost::measured*' \
//!     target/release/examples/http2_cost decode-head|decode-first|encode-head|exchange
//! ```
//!
//! Each workload runs about 1,000 times. `decode-head` first decodes three other heads, which fill
//! the HPACK table as on a connection of a client.

use std::hint::black_box;
use std::time::Instant;

use forebay_wire::fields::Fields;
use forebay_wire::http2::hpack::{Decoder, Encoder, ListLimits};
use forebay_wire::http2::{Config, Connection, Event, Head, HeadLimits, RequestPseudo};

const ROUNDS: usize = 1_000;
const LIMITS: ListLimits = ListLimits { size: 32 * 1024, fields: 100 };
const HEAD: HeadLimits = HeadLimits { target: 8 * 1024, get_body: false, extended_connect: true };

/// Request of a browser for an image in a page: four pseudo-fields and eight fields.
const REQUEST: &[(&str, &str)] = &[
    (":method", "GET"),
    (":scheme", "https"),
    (":authority", "www.example.org"),
    (":path", "/images/photo-0001.jpg"),
    ("user-agent", "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0"),
    ("accept", "image/avif,image/webp,image/png,image/svg+xml,image/*;q=0.8,*/*;q=0.5"),
    ("accept-language", "de,en-US;q=0.7,en;q=0.3"),
    ("accept-encoding", "gzip, deflate, br, zstd"),
    ("referer", "https://www.example.org/"),
    ("cookie", "session=0123456789abcdef0123456789abcdef"),
    ("sec-fetch-dest", "image"),
    ("priority", "u=5, i"),
];

const REPLY: &[(&str, &str)] = &[
    ("server", "Forebay"),
    ("date", "Sun, 22 Nov 2026 12:00:00 GMT"),
    ("content-type", "image/jpeg"),
    ("last-modified", "Sat, 21 Nov 2026 08:00:00 GMT"),
    ("etag", "\"65f1c2a0-1b3d\""),
    ("accept-ranges", "bytes"),
    ("cache-control", "max-age=86400"),
    ("content-length", "64"),
];

fn fields(list: &[(&str, &str)]) -> Fields {
    let mut fields = Fields::new();
    fields.extend(list.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes())));
    fields
}

fn main() {
    let kind = std::env::args().nth(1).unwrap_or_default();
    let start = Instant::now();
    match kind.as_str() {
        "decode-head" => decode_head(),
        "decode-first" => decode_first(),
        "encode-head" => encode_head(),
        "exchange" => exchange(),
        _ => {
            eprintln!("name one of decode-head, decode-first, encode-head, exchange");
            std::process::exit(2);
        }
    }
    println!("{:.0} ns each, warm-up included", start.elapsed().as_nanos() as f64 / ROUNDS as f64);
}

/// Returns the header blocks of a client's requests. The path differs in each, and the other fields
/// repeat.
fn blocks() -> Vec<Vec<u8>> {
    let mut encoder = Encoder::default();
    let block = |at: usize| {
        let mut out = Vec::new();
        encoder.begin(&mut out);
        for (name, value) in REQUEST {
            let value = if *name == ":path" {
                format!("/images/photo-{at:04}.jpg")
            } else {
                (*value).into()
            };
            encoder.pair(&mut out, name.as_bytes(), value.as_bytes());
        }
        out
    };
    (0..ROUNDS + 3).map(block).collect()
}

fn decode_head() {
    let blocks = blocks();
    let (warm, rest) = blocks.split_at(3);
    let (mut decoder, mut head) = (Decoder::default(), Head::default());
    for block in warm {
        measured_decode(&mut decoder, block, &mut head);
    }
    for block in rest {
        measured_decode(&mut decoder, block, &mut head);
    }
}

/// Decodes the first request of a connection. All its fields are literals in Huffman code.
fn decode_first() {
    let block = &blocks()[0];
    let mut head = Head::default();
    for _ in 0..ROUNDS {
        measured_decode(&mut Decoder::default(), block, &mut head);
    }
}

#[inline(never)]
fn measured_decode(decoder: &mut Decoder, block: &[u8], head: &mut Head) {
    head.clear();
    let decoded = decoder.decode(block, LIMITS, &mut head.fields).expect("our own block");
    head.finish_request(decoded, &HEAD).expect("a request by the rules");
    black_box(&head);
}

fn encode_head() {
    let fields = fields(REPLY);
    let (mut encoder, mut out) = (Encoder::default(), Vec::new());
    for _ in 0..ROUNDS {
        out.clear();
        measured_encode(&mut encoder, &fields, &mut out);
    }
}

#[inline(never)]
fn measured_encode(encoder: &mut Encoder, fields: &Fields, out: &mut Vec<u8>) {
    encoder.begin(out);
    encoder.status(out, 200);
    for field in fields {
        encoder.field(out, field);
    }
    black_box(&out);
}

/// Exchanges 32 requests at a time, as the load generator and the server do.
fn exchange() {
    let mut server = Connection::server(Config::default());
    let mut client = Connection::client(Config::default());
    let (request, reply) = (fields(&REQUEST[4..]), fields(REPLY));
    for _ in 0..ROUNDS / 32 + 1 {
        for at in 0..32 {
            let path = format!("/images/photo-{at:04}.jpg");
            send_request(&mut client, &path, &request);
        }
        move_bytes(&mut client, &mut server, |to, from, now| {
            measured_server(to, from, &reply, now);
        });
        move_bytes(&mut server, &mut client, measured_client);
    }
}

#[inline(never)]
fn send_request(client: &mut Connection, path: &str, fields: &Fields) {
    let pseudo = RequestPseudo {
        method: b"GET",
        scheme: b"https",
        authority: b"www.example.org",
        path: path.as_bytes(),
        protocol: b"",
    };
    client.send_request(&pseudo, fields, true).expect("32 streams are allowed");
}

fn move_bytes(
    from: &mut Connection,
    to: &mut Connection,
    receive: impl Fn(&mut Connection, &[u8], Instant),
) {
    let now = Instant::now();
    receive(to, from.output(), now);
    let len = from.output().len();
    from.wrote(len);
}

#[inline(never)]
fn measured_server(server: &mut Connection, mut input: &[u8], reply: &Fields, now: Instant) {
    loop {
        let step = server.receive(input, now).expect("our own frames");
        input = &input[step.consumed..];
        match step.event {
            Some(Event::Head { stream, head, .. }) => {
                black_box(&head);
                server.recycle(head);
                server.send_reply(stream, 200, reply, false).expect("the stream is open");
                server.send_data(stream, &[b'x'; 64], true, now).expect("the stream is open");
            }
            Some(_) => {}
            None => return,
        }
    }
}

#[inline(never)]
fn measured_client(client: &mut Connection, mut input: &[u8], now: Instant) {
    loop {
        let step = client.receive(input, now).expect("our own frames");
        input = &input[step.consumed..];
        match step.event {
            Some(Event::Head { head, .. }) => client.recycle(head),
            Some(Event::Data { stream, data, .. }) => client.consume(stream, data.len(), now),
            Some(_) => {}
            None => return,
        }
    }
}
