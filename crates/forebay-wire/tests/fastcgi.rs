//! Tests of FastCGI records: encoded records are well-formed, and records are decoded from pieces
//! of any size.

use forebay_wire::cgi::Sink;
use forebay_wire::fastcgi::*;

fn record(kind: u8, id: u16, content: &[u8], padding: u8) -> Vec<u8> {
    let id = id.to_be_bytes();
    let length = (content.len() as u16).to_be_bytes();
    let mut out = vec![1, kind, id[0], id[1], length[0], length[1], padding, 0];
    out.extend_from_slice(content);
    out.extend(std::iter::repeat_n(0xee, padding.into()));
    out
}

/// Output, error output, status of the request, and true if the decoder is done.
type Seen = (Vec<u8>, Vec<u8>, Option<ProtocolStatus>, bool);

/// Decodes a reply that arrives in these pieces.
fn read(pieces: &[&[u8]]) -> Result<Seen, FastcgiError> {
    let mut decoder = Decoder::new(1);
    let (mut stdout, mut stderr, mut end) = (Vec::new(), Vec::new(), None);
    let mut buffer = Vec::new();
    for piece in pieces {
        buffer.extend_from_slice(piece);
        loop {
            let step = decoder.decode(&buffer)?;
            match &step.event {
                Some(RecordEvent::Stdout(range)) => {
                    stdout.extend_from_slice(&buffer[range.clone()]);
                }
                Some(RecordEvent::Stderr(range)) => {
                    stderr.extend_from_slice(&buffer[range.clone()]);
                }
                Some(RecordEvent::End { status, .. }) => end = Some(*status),
                Some(RecordEvent::Values(_)) | None => {}
            }
            buffer.drain(..step.consumed);
            if step.event.is_none() {
                break;
            }
        }
    }
    Ok((stdout, stderr, end, decoder.is_done()))
}

#[test]
fn a_reply_is_read_however_it_is_split() {
    let mut raw = record(6, 1, b"hello ", 2);
    raw.extend(record(7, 1, b"oops", 0));
    raw.extend(record(10, 0, b"\x01\x00a", 1));
    raw.extend(record(6, 1, b"world", 3));
    raw.extend(record(6, 1, b"", 0));
    raw.extend(record(3, 1, &[0, 0, 0, 7, 0, 0, 0, 0], 5));
    let whole = read(&[&raw]).unwrap();
    assert_eq!(whole.0, b"hello world");
    assert_eq!(whole.1, b"oops");
    assert_eq!((whole.2, whole.3), (Some(ProtocolStatus::Complete), true));
    for size in 1..raw.len() {
        let pieces: Vec<&[u8]> = raw.chunks(size).collect();
        assert_eq!(read(&pieces).unwrap(), whole, "pieces of {size}");
    }
}

#[test]
fn broken_replies_are_refused() {
    assert_eq!(read(&[b"HTTP/1.1 200 OK\r\n"]), Err(FastcgiError::Version(b'H')));
    assert_eq!(read(&[&record(6, 2, b"x", 0)]), Err(FastcgiError::RequestId(2)));
    assert_eq!(read(&[&record(1, 1, b"x", 0)]), Err(FastcgiError::Kind(1)));
    assert_eq!(read(&[&record(3, 1, b"x", 0)]), Err(FastcgiError::EndLength(1)));
}

#[test]
fn parameters_of_any_length_make_whole_records() {
    let long = vec![b'v'; 70_000];
    let mut out = Vec::new();
    let mut params = Params::new(&mut out, 1);
    params.variable(b"SHORT", b"1");
    params.variable(b"LONG", &long);
    params.variable(b"EMPTY", b"");
    params.finish();
    let mut content = Vec::new();
    let mut rest = &out[..];
    let mut lengths = Vec::new();
    while !rest.is_empty() {
        assert_eq!((rest[0], rest[1], rest[3]), (1, 4, 1));
        let length = usize::from(u16::from_be_bytes([rest[4], rest[5]]));
        lengths.push(length);
        content.extend_from_slice(&rest[8..8 + length]);
        rest = &rest[8 + length..];
    }
    assert_eq!(lengths.last(), Some(&0));
    assert_eq!(lengths[0], 65_535);
    let mut expected = b"\x05\x01SHORT1\x04\x80\x01\x11\x70LONG".to_vec();
    expected.extend_from_slice(&long);
    expected.extend_from_slice(b"\x05\x00EMPTY");
    assert_eq!(content, expected);
}

#[test]
fn no_parameters_are_one_empty_record() {
    let mut out = Vec::new();
    Params::new(&mut out, 1).finish();
    assert_eq!(out, record(4, 1, b"", 0));
}

/// Decodes records that arrive in pieces of `size` bytes. Returns the output of each request in the
/// order of arrival.
fn read_many(raw: &[u8], size: usize) -> Result<Vec<(u16, String)>, FastcgiError> {
    let mut decoder = Decoder::multiplexed();
    let mut seen: Vec<(u16, String)> = Vec::new();
    let mut buffer = Vec::new();
    for piece in raw.chunks(size) {
        buffer.extend_from_slice(piece);
        loop {
            let step = decoder.decode(&buffer)?;
            let text = |range: &std::ops::Range<usize>| {
                String::from_utf8_lossy(&buffer[range.clone()]).into_owned()
            };
            match &step.event {
                Some(RecordEvent::Stdout(range)) => match seen.last_mut() {
                    Some((id, said)) if *id == step.id => said.push_str(&text(range)),
                    _ => seen.push((step.id, text(range))),
                },
                Some(RecordEvent::Stderr(_)) => {}
                Some(RecordEvent::End { status, .. }) => {
                    seen.push((step.id, format!("{status:?}")));
                }
                Some(RecordEvent::Values(range)) => seen.push((step.id, text(range))),
                None => {}
            }
            buffer.drain(..step.consumed);
            if step.event.is_none() {
                break;
            }
        }
    }
    Ok(seen)
}

#[test]
fn replies_of_many_requests_are_told_apart() {
    let mut raw = record(6, 1, b"one", 1);
    raw.extend(record(6, 500, b"other", 0));
    raw.extend(record(3, 1, &[0; 8], 0));
    raw.extend(record(10, 0, b"\x01\x01ab", 3));
    raw.extend(record(6, 500, b" more", 0));
    raw.extend(record(3, 500, &[0, 0, 0, 0, 1, 0, 0, 0], 0));
    let whole = read_many(&raw, raw.len()).unwrap();
    let expected = [
        (1, "one"),
        (500, "other"),
        (1, "Complete"),
        (0, "\x01\x01ab"),
        (500, " more"),
        (500, "CantMultiplex"),
    ];
    assert_eq!(whole, expected.map(|(id, text)| (id, text.to_owned())));
    for size in 1..raw.len() {
        let seen = read_many(&raw, size).unwrap();
        assert_eq!(seen, whole, "pieces of {size}");
    }
    assert_eq!(read_many(&record(6, 0, b"x", 0), 100), Err(FastcgiError::RequestId(0)));
}

#[test]
fn values_are_asked_for_and_read() {
    let mut out = Vec::new();
    get_values(&mut out, &["FCGI_MPXS_CONNS", "A"]);
    assert_eq!(out, record(9, 0, b"\x0f\0FCGI_MPXS_CONNS\x01\0A", 0));
    let content = b"\x01\x02Abc\x80\0\0\x01\0B";
    assert_eq!(pairs(content), Some(vec![(2..3, 3..5), (10..11, 11..11)]));
    for broken in [&b"\x01"[..], b"\x01\x02Ab", b"\x80\0\0", b"\xff\xff\xff\xff\xff\xff\xff\xff"] {
        assert_eq!(pairs(broken), None, "{broken:?}");
    }
}

proptest::proptest! {
    #[test]
    fn nothing_panics(bytes in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..300)) {
        let _ = pairs(&bytes);
        let _ = read_many(&bytes, 7);
        let _ = read(&[&bytes]);
        let with_version: Vec<u8> = std::iter::once(1).chain(bytes).collect();
        let _ = read(&[&with_version]);
        let _ = read_many(&with_version, 7);
    }
}

#[test]
fn the_request_id_of_whole_records_is_replaced() {
    let mut records = Vec::new();
    begin(&mut records, 1, true);
    stdin(&mut records, 1, &[7; 70_000]);
    end_of_stdin(&mut records, 1);
    let mut expected = Vec::new();
    begin(&mut expected, 513, true);
    stdin(&mut expected, 513, &[7; 70_000]);
    end_of_stdin(&mut expected, 513);
    set_request_id(&mut records, 513);
    assert_eq!(records, expected);
    let mut cut = [record(5, 1, b"abc", 4), vec![1, 5, 0, 1, 0]].concat();
    set_request_id(&mut cut, 2);
    assert_eq!(cut, [record(5, 2, b"abc", 4), vec![1, 5, 0, 1, 0]].concat());
    let mut short = vec![1, 5, 0, 1, 255, 255, 255, 0, 9];
    set_request_id(&mut short, 2);
    assert_eq!(short, [1, 5, 0, 2, 255, 255, 255, 0, 9]);
}

#[test]
fn a_farewell_ends_what_runs_then_a_request_that_does_not_keep_the_connection() {
    let mut records = Vec::new();
    abort(&mut records, 1);
    begin(&mut records, 0xffff, false);
    abort(&mut records, 0xffff);
    assert_eq!(FAREWELL[..], records);
}
