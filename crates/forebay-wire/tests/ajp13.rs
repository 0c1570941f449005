//! Tests of AJP packets. Each role reads the packets that the other role writes, in pieces of any
//! size, and rejects invalid packets.

use forebay_wire::ajp13::*;
use proptest::prelude::*;

const LINE: RequestLine<'_> = RequestLine {
    method: b"GET",
    protocol: b"HTTP/1.1",
    uri: b"/a%20b",
    remote_addr: b"192.0.2.1",
    remote_host: b"192.0.2.1",
    server_name: b"example.org",
    server_port: 443,
    is_ssl: true,
};

type Pairs<'a> = &'a [(&'a [u8], &'a [u8])];

fn request(method: &[u8], fields: Pairs<'_>, attributes: &[(Attribute, &[u8])]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut forward = Forward::new(&mut out, &RequestLine { method, ..LINE });
    for (name, value) in fields {
        forward.field(name, value);
    }
    let mut written = forward.attributes();
    for (attribute, value) in attributes {
        written.attribute(*attribute, value);
    }
    written.finish(LEAST_PACKET).unwrap();
    out
}

/// Returns a packet of the web server with this payload.
fn packet(payload: &[u8]) -> Vec<u8> {
    [&[0x12, 0x34], &(payload.len() as u16).to_be_bytes()[..], payload].concat()
}

/// Returns a packet of the container with this payload.
fn reply_packet(payload: &[u8]) -> Vec<u8> {
    [&b"AB"[..], &(payload.len() as u16).to_be_bytes(), payload].concat()
}

fn parsed(bytes: &[u8]) -> RequestHead {
    let mut head = RequestHead::default();
    assert_eq!(
        parse_request(bytes, LEAST_PACKET, &mut head),
        Ok(Some((Incoming::Request, bytes.len())))
    );
    head
}

#[test]
fn a_request_is_written_as_the_documentation_has_it() {
    let mut out = Vec::new();
    let line =
        RequestLine { uri: b"/", server_name: b"h", remote_addr: b"1", remote_host: b"2", ..LINE };
    let mut forward = Forward::new(&mut out, &line);
    forward.field(b"hOST", b"h");
    forward.field(b"X", b"");
    let mut attributes = forward.attributes();
    attributes.attribute(Attribute::Secret, b"s");
    attributes.ssl_key_size(256);
    attributes.request_attribute(b"AJP_REMOTE_PORT", b"7");
    attributes.finish(LEAST_PACKET).unwrap();
    let payload = [
        &b"\x02\x02\0\x08HTTP/1.1\0\0\x01/\0\0\x011\0\0\x012\0\0\x01h\0\x01\xbb\x01\0\x02"[..],
        b"\xa0\x0b\0\x01h\0\0\x01X\0\0\0\0",
        b"\x0c\0\x01s\0\x0b\x01\0\x0a\0\x0fAJP_REMOTE_PORT\0\0\x017\0\xff",
    ];
    assert_eq!(out, packet(&payload.concat()));
}

#[test]
fn the_container_reads_packets_of_the_web_server() {
    let fields: Pairs<'_> = &[(b"User-Agent", b"x"), (b"content-length", b"3"), (b"X-A", b"")];
    let all = [
        (Attribute::Secret, &b"s3cret"[..]),
        (Attribute::RemoteUser, b"alice"),
        (Attribute::AuthType, b"Basic"),
        (Attribute::QueryString, b"a=b"),
        (Attribute::Route, b"t1"),
        (Attribute::SslCert, b"-----BEGIN\n"),
        (Attribute::SslCipher, b"TLS_AES"),
        (Attribute::SslSession, b"0a"),
        (Attribute::Context, b""),
        (Attribute::ServletPath, b"x"),
    ];
    let head = parsed(&request(b"POST", fields, &all));
    let bytes = head.fields.bytes();
    assert_eq!(head.method.of(bytes), b"POST");
    assert_eq!(head.protocol.of(bytes), b"HTTP/1.1");
    assert_eq!(head.uri.of(bytes), b"/a%20b");
    assert_eq!(head.remote_addr.of(bytes), b"192.0.2.1");
    assert_eq!(head.remote_host.of(bytes), b"192.0.2.1");
    assert_eq!(head.server_name.of(bytes), b"example.org");
    assert_eq!((head.server_port, head.is_ssl), (443, true));
    assert_eq!(head.content_length, Some(3));
    let read: Vec<_> = head.fields.iter().map(|field| (field.name, field.value)).collect();
    assert_eq!(read, [(&b"User-Agent"[..], &b"x"[..]), (b"Content-Length", b"3"), (b"X-A", b"")]);
    for (attribute, value) in all {
        assert_eq!(head.attribute(attribute), Some(value), "{attribute:?}");
    }
    assert_eq!(head.attribute(Attribute::StoredMethod), None);
}

#[test]
fn a_method_without_number_is_stored() {
    for method in [&b"GET"[..], b"MKACTIVITY", b"PATCH", b"get"] {
        let head = parsed(&request(method, &[], &[]));
        assert_eq!(head.method.of(head.fields.bytes()), method);
        let stored = head.attribute(Attribute::StoredMethod);
        assert_eq!(stored, matches!(method, b"PATCH" | b"get").then_some(method));
    }
}

#[test]
fn a_head_that_does_not_fit_is_taken_back() {
    let long = vec![b'a'; LEAST_PACKET];
    let mut out = b"kept".to_vec();
    let mut forward = Forward::new(&mut out, &LINE);
    forward.field(b"X", &long);
    let refused = forward.attributes().finish(LEAST_PACKET);
    assert!(matches!(refused, Err(AjpError::TooLarge(_, LEAST_PACKET))), "{refused:?}");
    assert_eq!(out, b"kept");
    let mut forward = Forward::new(&mut out, &LINE);
    forward.field(b"X", &long);
    forward.attributes().finish(MOST_PACKET).unwrap();
    let mut head = RequestHead::default();
    let read = parse_request(&out[4..], LEAST_PACKET, &mut head);
    assert!(matches!(read, Err(AjpError::TooLarge(..))), "{read:?}");
    assert!(matches!(parse_request(&out[4..], MOST_PACKET, &mut head), Ok(Some(_))));
    let mut many = Forward::new(&mut out, &LINE);
    (0..=MOST_FIELDS).for_each(|_| many.field(b"X", b""));
    assert_eq!(
        many.attributes().finish(MOST_PACKET),
        Err(AjpError::Fields(MOST_FIELDS + 1, MOST_FIELDS))
    );
    // The name is longer than its length field can express. The length must not wrap.
    let endless = vec![b'a'; 70_000];
    let mut forward = Forward::new(&mut out, &LINE);
    forward.field(&endless, b"");
    assert!(forward.attributes().finish(MOST_PACKET).is_err());
}

#[test]
fn pings_are_answered_and_a_shutdown_is_refused() {
    let mut head = RequestHead::default();
    assert_eq!(parse_request(PING, LEAST_PACKET, &mut head), Ok(Some((Incoming::Ping, 5))));
    assert_eq!(parse_pong(PONG), Ok(Some(5)));
    for end in 0..5 {
        assert_eq!(parse_request(&PING[..end], LEAST_PACKET, &mut head), Ok(None));
        assert_eq!(parse_pong(&PONG[..end]), Ok(None));
    }
    for (payload, error) in [
        (&b"\x07"[..], AjpError::Shutdown),
        (b"\x08", AjpError::Kind(8)),
        (b"\x03", AjpError::Kind(3)),
        (b"", AjpError::Length),
        (b"\x0a\0", AjpError::Length),
    ] {
        let read = parse_request(&packet(payload), LEAST_PACKET, &mut head);
        assert_eq!(read, Err(error), "{payload:?}");
    }
    assert_eq!(parse_pong(&reply_packet(b"\x05\x01")), Err(AjpError::Kind(5)));
    assert_eq!(parse_pong(b"H"), Err(AjpError::Magic(b'H')));
}

#[test]
fn malformed_requests_are_refused() {
    let good = request(b"GET", &[(b"X", b"1")], &[(Attribute::QueryString, b"q")]);
    let mut head = RequestHead::default();
    // Every truncated payload is rejected, even if the length of the packet is correct.
    for end in 5..good.len() {
        let cut = packet(&good[4..end]);
        assert!(parse_request(&cut, LEAST_PACKET, &mut head).is_err(), "{end}");
    }
    let line = |uri: &[u8]| {
        let length = (uri.len() as u16).to_be_bytes();
        [b"\x02\x02\0\x01P\0", &length[..], uri, b"\0\0\x01a\0\xff\xff\0\x01s\0\0\x50\0"].concat()
    };
    let refused = |payload: Vec<u8>, head: &mut RequestHead| {
        parse_request(&packet(&payload), LEAST_PACKET, head).unwrap_err()
    };
    let with = |rest: &[u8]| [&line(b"/")[..], rest].concat();
    assert_eq!(
        parse_request(&packet(&with(b"\0\0\xff")), 8192, &mut head).map(|r| r.is_some()),
        Ok(true)
    );
    for (payload, error) in [
        ([&line(b"/ ")[..], b"\0\0\xff"].concat(), AjpError::Target),
        ([&line(b"")[..], b"\0\0\xff"].concat(), AjpError::Target),
        (with(b"\0\x65"), AjpError::Fields(101, 100)),
        (with(b"\0\x01\xa0\x0f\0\x01a\0\xff"), AjpError::FieldCode(0xa00f)),
        (with(b"\0\x01\xa0\0\0\x01a\0\xff"), AjpError::FieldCode(0xa000)),
        (with(b"\0\x01\0\x02a \0\0\x01a\0\xff"), AjpError::Field),
        (with(b"\0\x01\0\x01a\0\0\x03a\r\n\0\xff"), AjpError::Field),
        (with(b"\0\x01\0\x01a\0\0\x02a\0\0\xff"), AjpError::Text),
        (with(b"\0\x01\0\x01a\0\0\x01aX\xff"), AjpError::Text),
        (with(b"\0\x01\xa0\x08\0\x02+1\0\xff"), AjpError::ContentLength),
        (with(b"\0\x02\xa0\x08\0\x011\0\xa0\x08\0\x012\0\xff"), AjpError::ContentLength),
        (with(b"\0\0\x0e\0\x01a\0\xff"), AjpError::Attribute(0x0e)),
        (with(b"\0\0\x0c\0\x01a\0\x0c\0\x01b\0\xff"), AjpError::Attribute(0x0c)),
        (with(b"\0\0\x0d\0\x01P\0\xff"), AjpError::Method),
        (with(b"\0\0\x05\0\x01 \0\xff"), AjpError::Target),
        (with(b"\0\0\xff\0"), AjpError::Length),
    ] {
        assert_eq!(refused(payload.clone(), &mut head), error, "{payload:02x?}");
    }
    for code in [0, 28, 0xfe, 0xff] {
        let mut payload = with(b"\0\0\xff");
        payload[1] = code;
        assert_eq!(refused(payload, &mut head), AjpError::Method, "{code}");
    }
}

#[test]
fn both_ends_of_a_body_and_pieces_of_any_size_are_read() {
    for end in [END_OF_BODY, b"\x12\x34\0\x02\0\0"] {
        let data = parse_data(end, LEAST_PACKET).unwrap().unwrap();
        assert!(data.range.is_empty());
        assert_eq!(data.len, end.len());
    }
    for size in [1, 8184, 8185, 8186] {
        let mut bytes = data_header(size).to_vec();
        bytes.extend(vec![b'x'; size]);
        bytes.extend(b"behind");
        let data = parse_data(&bytes, LEAST_PACKET).unwrap().unwrap();
        assert_eq!((data.range, data.len), (6..6 + size, 6 + size));
    }
    let bytes = data_header(most_data(LEAST_PACKET) + 1);
    assert_eq!(parse_data(&bytes, LEAST_PACKET), Err(AjpError::TooLarge(8193, 8192)));
    for wrong in [&b"\x12\x34\0\x01\0"[..], b"\x12\x34\0\x03\0\x02a", b"\x12\x34\0\x03\0\0a"] {
        assert_eq!(parse_data(wrong, LEAST_PACKET), Err(AjpError::Length), "{wrong:?}");
    }
    assert_eq!(parse_data(b"AB", LEAST_PACKET), Err(AjpError::Magic(b'A')));
}

#[derive(Clone, Debug, Default, PartialEq)]
struct Seen {
    status: u16,
    reason: Vec<u8>,
    fields: Vec<(Vec<u8>, Vec<u8>)>,
    body: Vec<u8>,
    flushes: usize,
    wanted: Vec<usize>,
    end: Option<bool>,
    /// Number of bytes after the end of the reply.
    left: usize,
}

/// Reads a reply that arrives in these pieces.
fn read<'a>(pieces: impl Iterator<Item = &'a [u8]>, packet_size: usize) -> Result<Seen, AjpError> {
    let mut decoder = ReplyDecoder::new(packet_size);
    let (mut inbox, mut head, mut seen) = (Vec::new(), ReplyHead::default(), Seen::default());
    for piece in pieces {
        inbox.extend_from_slice(piece);
        loop {
            let step = decoder.decode(&inbox, &mut head)?;
            match step.event {
                None => break,
                Some(PacketEvent::Head) => {
                    seen.status = head.status;
                    seen.reason = head.reason().to_vec();
                    let fields = head.fields.iter();
                    let owned = fields.map(|field| (field.name.to_vec(), field.value.to_vec()));
                    seen.fields = owned.collect();
                }
                Some(PacketEvent::Body(range)) => seen.body.extend_from_slice(&inbox[range]),
                Some(PacketEvent::Flush) => seen.flushes += 1,
                Some(PacketEvent::WantsBody(length)) => seen.wanted.push(length),
                Some(PacketEvent::End { reuse }) => seen.end = Some(reuse),
            }
            inbox.drain(..step.consumed);
        }
    }
    seen.left = inbox.len();
    Ok(seen)
}

fn whole(bytes: &[u8]) -> Result<Seen, AjpError> {
    read(std::iter::once(bytes), LEAST_PACKET)
}

fn sample(body: &[u8], packet_size: usize) -> Vec<u8> {
    let mut out = Vec::new();
    append_body_chunk(&mut out, b"", packet_size);
    append_get_body_chunk(&mut out, most_data(packet_size));
    let mut head = SendHeaders::new(&mut out, 404, b"Not Found");
    head.field(b"content-type", b"text/plain");
    head.field(b"Set-Cookie", b"a=b");
    head.field(b"X-A", b"");
    head.finish(packet_size).unwrap();
    append_body_chunk(&mut out, body, packet_size);
    append_body_chunk(&mut out, b"", packet_size);
    append_end(&mut out, true);
    out
}

#[test]
fn a_reply_is_written_as_the_documentation_has_it() {
    let mut out = Vec::new();
    let mut head = SendHeaders::new(&mut out, 200, b"200");
    head.field(b"Content-Length", b"2");
    head.field(b"X", b"y");
    head.finish(LEAST_PACKET).unwrap();
    append_body_chunk(&mut out, b"hi", LEAST_PACKET);
    append_get_body_chunk(&mut out, 8186);
    append_end(&mut out, false);
    let expected = [
        &b"AB\0\x19\x04\0\xc8\0\x03200\0\0\x02\xa0\x03\0\x012\0\0\x01X\0\0\x01y\0"[..],
        b"AB\0\x06\x03\0\x02hi\0",
        b"AB\0\x03\x06\x1f\xfa",
        b"AB\0\x02\x05\0",
    ];
    assert_eq!(out, expected.concat());
    let seen = whole(&out).unwrap();
    assert_eq!((seen.status, &seen.reason[..], &seen.body[..]), (200, &b""[..], &b"hi"[..]));
    assert_eq!((seen.wanted, seen.end), (vec![8186], Some(false)));
}

#[test]
fn the_web_server_reads_packets_of_the_container() {
    for (size, packet_size) in
        [(0, 8192), (1, 8192), (8184, 8192), (8185, 8192), (70_000, 8192), (70_000, 65_536)]
    {
        let body = vec![b'x'; size];
        let mut bytes = sample(&body, packet_size);
        bytes.extend_from_slice(b"AB");
        let seen = read(std::iter::once(&bytes[..]), packet_size).unwrap();
        assert_eq!((seen.status, &seen.reason[..]), (404, &b"Not Found"[..]));
        assert_eq!(seen.fields[0], (b"Content-Type".to_vec(), b"text/plain".to_vec()));
        assert_eq!(seen.fields.len(), 3);
        assert_eq!((seen.body.len(), seen.end, seen.left), (size, Some(true), 2));
        assert_eq!(seen.flushes, if size == 0 { 3 } else { 2 });
    }
}

#[test]
fn replies_that_break_a_rule_are_refused() {
    let head = &b"\x04\0\xc8\xff\xff\0\0"[..];
    for (packets, error) in [
        (vec![&b"\x05\x01"[..]], AjpError::NoHead),
        (vec![b"\x03\0\x01a\0"], AjpError::NoHead),
        (vec![head, head], AjpError::SecondHead),
        (vec![head, b"\x03\0\x03a\0"], AjpError::Length),
        (vec![head, b"\x03\0\x01a\0\0"], AjpError::Length),
        (vec![head, b"\x03\0"], AjpError::Length),
        (vec![head, b"\x05"], AjpError::Length),
        (vec![head, b"\x05\x01\x01"], AjpError::Length),
        (vec![head, b"\x09"], AjpError::Kind(9)),
        (vec![head, b""], AjpError::Length),
        (vec![b"\x02"], AjpError::Kind(2)),
        (vec![b"\x04\0\x64\0\x01a\0\0\0"], AjpError::Status(100)),
        (vec![b"\x04\x03\xe8\0\x01a\0\0\0"], AjpError::Status(1000)),
        (vec![b"\x04\0\xc8\0\x03a\r\n\0\0\0"], AjpError::Text),
        (vec![b"\x04\0\xc8\0\x01a\0\0\x01\0\x01X\0\0\x03a\nb\0"], AjpError::Field),
        (vec![b"\x04\0\xc8\0\x01a\0\0\x01\0\0\0\0\0\0"], AjpError::Field),
        (vec![b"\x04\0\xc8\0\x01a\0\0\x01\xa0\x0c\0\0\0"], AjpError::FieldCode(0xa00c)),
        (vec![b"\x04\0\xc8\0\x01a\0\x03\xe9"], AjpError::Fields(1001, 1000)),
    ] {
        let bytes: Vec<u8> = packets.iter().flat_map(|payload| reply_packet(payload)).collect();
        assert_eq!(whole(&bytes), Err(error), "{packets:02x?}");
    }
    assert_eq!(whole(b"HTTP/1.1"), Err(AjpError::Magic(b'H')));
    assert_eq!(whole(b"AB\xff\xff"), Err(AjpError::TooLarge(65_539, 8192)));
    // Some containers omit the NUL after a piece of the body.
    let seen = whole(&[reply_packet(head), reply_packet(b"\x03\0\x01a")].concat()).unwrap();
    assert_eq!(seen.body, b"a");
}

proptest! {
    #[test]
    fn a_reply_reads_the_same_however_it_is_split(
        body in proptest::collection::vec(any::<u8>(), 0..20_000),
        cuts in proptest::collection::vec(any::<proptest::sample::Index>(), 0..8),
        noise in proptest::collection::vec((any::<proptest::sample::Index>(), any::<u8>()), 0..3),
    ) {
        let mut bytes = sample(&body, LEAST_PACKET);
        for (at, byte) in noise {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        let expected = whole(&bytes);
        prop_assert_eq!(&expected, &read(bytes.chunks(1), LEAST_PACKET));
        let mut ends: Vec<_> = cuts.iter().map(|cut| cut.index(bytes.len())).collect();
        ends.extend([0, bytes.len()]);
        ends.sort_unstable();
        let pieces = ends.windows(2).map(|pair| &bytes[pair[0]..pair[1]]);
        prop_assert_eq!(&expected, &read(pieces, LEAST_PACKET));
    }

    #[test]
    fn a_request_reads_the_same_however_much_has_come(
        noise in proptest::collection::vec((any::<proptest::sample::Index>(), any::<u8>()), 0..3),
    ) {
        let mut bytes = request(
            b"PATCH",
            &[(b"Host", b"h"), (b"X-A", b"b")],
            &[(Attribute::Secret, b"s"), (Attribute::QueryString, b"")],
        );
        for (at, byte) in noise {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        let mut head = RequestHead::default();
        let expected = parse_request(&bytes, LEAST_PACKET, &mut head);
        let mut found = Ok(None);
        for end in 0..=bytes.len() {
            found = parse_request(&bytes[..end], LEAST_PACKET, &mut head);
            if found != Ok(None) {
                break;
            }
        }
        prop_assert_eq!(found, expected);
    }

    #[test]
    fn nothing_panics(payload in proptest::collection::vec(any::<u8>(), 0..300)) {
        let mut head = RequestHead::default();
        let _ = parse_request(&packet(&payload), LEAST_PACKET, &mut head);
        let _ = parse_data(&packet(&payload), LEAST_PACKET);
        let _ = whole(&reply_packet(&payload));
        let mut reply = reply_packet(b"\x04\0\xc8\xff\xff\0\0");
        reply.extend(reply_packet(&payload));
        let _ = whole(&reply);
    }
}
