//! Compares the time in which forebay-wire reads forms with `form_urlencoded` and `multer`, and with
//! `WWW::Form::UrlEncoded` and `HTTP::Entity::Parser` if this machine has them:
//!
//!     cargo run --release --manifest-path examples/forms/Cargo.toml [ROUNDS]
//!
//! In each round every reader has its turn with every form, so that other load on the machine
//! affects all of them. The time is processor time, not clock time. The program prints the median
//! of the rounds and the bounds of the middle half.

use std::borrow::Cow;
use std::hint::black_box;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use forebay_wire::forms::{Dialect, decode, pairs, text};
use forebay_wire::multipart::{Boundary, Decoder, Event, Limits};
use rustix::time::{ClockId, clock_gettime};

/// Processor time of a reader in a round for one form.
const TURN: Duration = Duration::from_millis(50);

/// Bytes that arrive at once, as from a socket.
const PIECE: usize = 64 * 1024;

const BOUNDARY: &str = "----WebKitFormBoundaryA1b2C3d4E5f6G7h8";

fn main() {
    let rounds = std::env::args().nth(1).map_or(15, |text| text.parse().expect("rounds, a number"));
    let directory = std::env::temp_dir().join(format!("forebay-forms-{}", std::process::id()));
    std::fs::create_dir_all(&directory).expect("a directory for the forms");
    let forms = forms();
    for form in &forms {
        std::fs::write(directory.join(form.name), &form.bytes).expect("a form written");
    }
    let mut results: Vec<(&str, String, Vec<f64>)> = Vec::new();
    for _ in 0..rounds {
        for form in &forms {
            for (reader, seconds) in turn(form) {
                record(&mut results, form.name, reader, seconds);
            }
            for (reader, seconds) in perl(&directory, form) {
                record(&mut results, form.name, &reader, seconds);
            }
        }
    }
    std::fs::remove_dir_all(&directory).expect("the directory removed");
    report(&forms, &mut results);
}

/// A form to be read.
struct Form {
    name: &'static str,
    bytes: Vec<u8>,
    is_multipart: bool,
}

fn forms() -> Vec<Form> {
    let sign_in = b"csrf=8f14e45fceea167a5a36dedd4bea2543&user=ann%40example.org&password=\
        correct+horse+battery+staple&remember=1&next=%2Faccount%2Forders%3Fpage%3D2&lang=en-GB";
    let one_field = [b"foo=", "a".repeat(3_996).as_bytes()].concat();
    let mut escaped = Vec::new();
    for number in 0..20 {
        let name = format!("field{number}");
        let value = "\u{65e5}\u{672c}\u{8a9e} text ".repeat(6);
        forebay_wire::forms::encode(&mut escaped, name.as_bytes(), value.as_bytes());
    }
    let urlencoded = |name, bytes| Form { name, bytes, is_multipart: false };
    let multipart = |name, bytes| Form { name, bytes, is_multipart: true };
    vec![
        urlencoded("sign-in", sign_in.to_vec()),
        urlencoded("one-field", one_field),
        urlencoded("escaped", escaped),
        multipart("fields", parts(&[("csrf", 32), ("user", 15), ("text", 300), ("next", 20)], 0)),
        multipart("file", parts(&[("csrf", 32), ("title", 40)], 1 << 20)),
    ]
}

/// Returns a form of fields, and a file of noise if `file` is not zero bytes.
fn parts(fields: &[(&str, usize)], file: usize) -> Vec<u8> {
    let mut form = Vec::new();
    let mut part = |head: String, content: &[u8]| {
        let head = format!("--{BOUNDARY}\r\nContent-Disposition: form-data; {head}\r\n\r\n");
        form.extend_from_slice(&[head.as_bytes(), content, b"\r\n"].concat());
    };
    for (name, length) in fields {
        part(format!("name=\"{name}\""), "x".repeat(*length).as_bytes());
    }
    if file > 0 {
        let mut state = 1u64;
        let mut noise = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 56) as u8
        };
        let content: Vec<u8> = (0..file).map(|_| noise()).collect();
        part("name=\"file\"; filename=\"a.bin\"\r\nContent-Type: application/x".into(), &content);
    }
    form.extend_from_slice(format!("--{BOUNDARY}--\r\n").as_bytes());
    form
}

/// Runs each reader of this process with one form; returns the seconds for reading it once.
fn turn(form: &Form) -> Vec<(&'static str, f64)> {
    let bytes = &form.bytes[..];
    if form.is_multipart {
        return vec![
            ("forebay-wire", time(|| ours_in_parts(bytes))),
            ("multer", time(|| multer_in_parts(bytes))),
        ];
    }
    type Texts<'a> = Vec<(Cow<'a, str>, Cow<'a, str>)>;
    type Bytes<'a> = Vec<(Cow<'a, [u8]>, Cow<'a, [u8]>)>;
    vec![
        (
            "forebay-wire, text",
            time(|| {
                let pairs = pairs(bytes, Dialect::Whatwg);
                pairs.map(|pair| (text(pair.name), text(pair.value))).collect::<Texts>()
            }),
        ),
        ("form_urlencoded", time(|| form_urlencoded::parse(bytes).collect::<Texts>())),
        (
            "forebay-wire, bytes as Plack",
            time(|| {
                let pairs = pairs(bytes, Dialect::Plack);
                pairs.map(|pair| (decode(pair.name), decode(pair.value))).collect::<Bytes>()
            }),
        ),
    ]
}

/// Returns the names of the parts and the length of their contents. Puts the pieces into a buffer
/// as a server would read them.
fn ours_in_parts(form: &[u8]) -> (Vec<Vec<u8>>, usize) {
    let boundary = Boundary::new(BOUNDARY.as_bytes()).expect("a boundary");
    let mut decoder = Decoder::new(&boundary, Limits::default());
    let mut buffer = Vec::with_capacity(PIECE + 4096);
    let (mut names, mut length) = (Vec::new(), 0);
    for piece in form.chunks(PIECE) {
        buffer.extend_from_slice(piece);
        let mut start = 0;
        loop {
            let step = decoder.decode(&buffer[start..]).expect("a good form");
            match step.event {
                Event::More | Event::End => break,
                Event::Part(part) => names.push(part.name.of(&buffer[start..]).to_vec()),
                Event::Content(range) => {
                    length += black_box(&buffer[start + range.start..start + range.end]).len();
                }
                Event::PartEnd => {}
            }
            start += step.consumed;
        }
        buffer.drain(..start);
    }
    decoder.finish().expect("a whole form");
    (names, length)
}

fn multer_in_parts(form: &[u8]) -> (Vec<Vec<u8>>, usize) {
    // Copies the pieces, as a read from a socket would.
    let pieces = form
        .chunks(PIECE)
        .map(|piece| Ok::<_, std::io::Error>(bytes::Bytes::copy_from_slice(piece)));
    let mut multipart = multer::Multipart::new(futures::stream::iter(pieces), BOUNDARY);
    let (mut names, mut length) = (Vec::new(), 0);
    futures::executor::block_on(async {
        while let Some(mut field) = multipart.next_field().await.expect("a good form") {
            names.push(field.name().expect("a name").as_bytes().to_vec());
            while let Some(chunk) = field.chunk().await.expect("a good form") {
                length += black_box(chunk).len();
            }
        }
    });
    (names, length)
}

/// Returns the seconds of processor time of one call, from as many calls as fit into a turn.
fn time<T>(mut read: impl FnMut() -> T) -> f64 {
    let start = processor_time();
    let mut calls = 0u32;
    loop {
        for _ in 0..(1 + calls / 10) {
            black_box(read());
            calls += 1;
        }
        let spent = processor_time() - start;
        if spent >= TURN {
            return spent.as_secs_f64() / f64::from(calls);
        }
    }
}

fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Runs the readers of Perl with one form; returns none if Perl or the modules are missing.
fn perl(directory: &Path, form: &Form) -> Vec<(String, f64)> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("timing.pl");
    let kind = match form.is_multipart {
        true => format!("multipart/form-data; boundary={BOUNDARY}"),
        false => "application/x-www-form-urlencoded".to_owned(),
    };
    let mut command = Command::new("perl");
    command
        .arg(script)
        .arg(directory.join(form.name))
        .arg(kind)
        .arg(TURN.as_secs_f64().to_string());
    let Ok(output) = command.output() else { return Vec::new() };
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    let lines = stdout.lines().filter_map(|line| line.split_once('\t'));
    lines.filter_map(|(reader, time)| Some((reader.to_owned(), time.parse().ok()?))).collect()
}

fn record(
    results: &mut Vec<(&'static str, String, Vec<f64>)>,
    form: &'static str,
    reader: &str,
    seconds: f64,
) {
    match results.iter_mut().find(|(name, known, _)| *name == form && known == reader) {
        Some((_, _, all)) => all.push(seconds),
        None => results.push((form, reader.to_owned(), vec![seconds])),
    }
}

fn report(forms: &[Form], results: &mut [(&'static str, String, Vec<f64>)]) {
    println!("| form | bytes | reader | us, median | half between | MB/s |");
    println!("|---|---:|---|---:|---|---:|");
    for (name, reader, all) in results {
        let length =
            forms.iter().find(|form| form.name == *name).map_or(0, |form| form.bytes.len());
        all.sort_by(f64::total_cmp);
        let at = |share: f64| all[((all.len() - 1) as f64 * share).round() as usize] * 1e6;
        let rate = length as f64 / at(0.5);
        println!(
            "| {name} | {length} | {reader} | {:.2} | {:.2} to {:.2} | {rate:.0} |",
            at(0.5),
            at(0.25),
            at(0.75),
        );
    }
}
