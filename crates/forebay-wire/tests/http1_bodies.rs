//! Tests of message bodies: payload is found and framing errors are rejected, in pieces of any
//! size.

use forebay_wire::http1::*;

/// Decodes a body that arrives in these pieces. Returns the payload, the remaining bytes, and true
/// if the body is complete.
fn decode(
    mut decoder: BodyDecoder,
    pieces: &[&[u8]],
) -> Result<(Vec<u8>, Vec<u8>, bool), HttpError> {
    let mut buffer = Vec::new();
    let mut payload = Vec::new();
    for piece in pieces {
        buffer.extend_from_slice(piece);
        loop {
            let step = decoder.decode(&buffer)?;
            payload.extend_from_slice(&buffer[step.data.clone()]);
            buffer.drain(..step.consumed);
            if step.done || (step.consumed == 0 && step.data.is_empty()) {
                break;
            }
        }
    }
    Ok((payload, buffer, decoder.is_done()))
}

fn chunked(raw: &[u8]) -> Result<(Vec<u8>, Vec<u8>, bool), HttpError> {
    decode(BodyDecoder::request(RequestFraming::Chunked), &[raw])
}

#[test]
fn chunked_bodies() {
    let whole = b"5\r\nhello\r\n1;a=b;c=\"d\\\"e\"\r\n \r\n5\r\nworld\r\n0\r\nX: y\r\n\r\nNEXT";
    let expected = (b"hello world".to_vec(), b"NEXT".to_vec(), true);
    assert_eq!(chunked(whole).unwrap(), expected);
    let bytes: Vec<&[u8]> = whole.chunks(1).collect();
    let decoder = BodyDecoder::request(RequestFraming::Chunked);
    assert_eq!(decode(decoder, &bytes).unwrap(), expected);
    assert_eq!(chunked(b"0\r\n\r\n").unwrap(), (vec![], vec![], true));
    assert_eq!(chunked(b"00a\r\n0123456789\r\n0\r\n\r\n").unwrap().0.len(), 10);
    assert!(!chunked(b"5\r\nhello\r\n").unwrap().2);
}

#[test]
fn broken_chunks_are_refused() {
    use HttpError::*;
    for (raw, error) in [
        (&b"0x5\r\nhello\r\n0\r\n\r\n"[..], ChunkExtension),
        (b" 5\r\nhello\r\n", ChunkSize),
        (b"-1\r\n", ChunkSize),
        (b"+1\r\n", ChunkSize),
        (b"\r\n", ChunkSize),
        (b"5\nhello\r\n", ChunkSize),
        (b"5 \r\nhello\r\n", ChunkExtension),
        (b"5_0\r\nhello\r\n", ChunkExtension),
        (b"5;\r\nhello\r\n", ChunkExtension),
        (b"5; a\r\nhello\r\n", ChunkExtension),
        (b"5;a=\r\nhello\r\n", ChunkExtension),
        (b"5;a=\"b\r\nhello\r\n", ChunkExtension),
        (b"5;\0ext\r\nhello\r\n", ChunkExtension),
        (b"5;a\rb\r\nhello\r\n", ChunkExtension),
        (b"FFFFFFFFFFFFFFFF0\r\n", ChunkSize),
        (b"5\r\nhello!!\r\n", ChunkEnd),
        (b"5\r\nhello\n0\r\n\r\n", ChunkEnd),
        (b"5\r\nhello\rX", ChunkEnd),
        (b"0\r\n\n", Trailer),
        (b"0\r\na b\r\n\r\n", Trailer),
        (b"0\r\nTransfer-Encoding: chunked\r\n\r\n", ForbiddenTrailer),
        (b"0\r\nHost: evil\r\n\r\n", ForbiddenTrailer),
        (b"0\r\nContent-Length: 1\r\n\r\n", ForbiddenTrailer),
        (b"g", ChunkSize),
    ] {
        assert_eq!(chunked(raw), Err(error), "{:?}", String::from_utf8_lossy(raw));
    }
    assert_eq!(chunked(&[b'1'; 300]), Err(ChunkExtension));
    let endless = [b"0\r\n".to_vec(), b"a: b\r\n".repeat(2000)].concat();
    assert_eq!(chunked(&endless), Err(Trailer));
}

#[test]
fn trailers_of_a_reply_do_not_change_its_framing() {
    for name in ["Transfer-Encoding", "Host", "content-length"] {
        let raw = format!("2\r\nok\r\n0\r\nX: 1\r\n{name}: 3\r\n\r\nNEXT");
        let mut decoder = BodyDecoder::response(ResponseFraming::Chunked).keeping_trailers();
        assert_eq!(decoder.decode(raw.as_bytes()).unwrap().data, 3..5);
        assert!(!decoder.has_forbidden_trailer());
        let step = decoder.decode(&raw.as_bytes()[5..]).unwrap();
        assert!(step.done && raw[5 + step.consumed..] == *"NEXT", "{name}");
        assert_eq!(decoder.trailers(), b"X: 1\r\n");
        assert!(decoder.has_forbidden_trailer());
    }
}

#[test]
fn lengths_and_closes() {
    let decoder = BodyDecoder::request(RequestFraming::Length(5));
    let expected = (b"hello".to_vec(), b"rest".to_vec(), true);
    assert_eq!(decode(decoder, &[b"he", b"llorest"]).unwrap(), expected);
    let decoder = BodyDecoder::response(ResponseFraming::Close);
    assert!(decoder.ends_at_close());
    assert_eq!(decode(decoder, &[b"abc", b"def"]).unwrap().0, b"abcdef");
    assert!(BodyDecoder::response(ResponseFraming::Length(0)).is_done());
    assert!(BodyDecoder::response(ResponseFraming::None).is_done());
}

proptest::proptest! {
    #[test]
    fn encoded_values_are_decoded_from_any_pieces(
        chunks in proptest::collection::vec(
            proptest::collection::vec(proptest::prelude::any::<u8>(), 1..50), 0..8),
        cuts in proptest::collection::vec(1usize..30, 1..40),
    ) {
        let mut raw = Vec::new();
        for chunk in &chunks {
            encode::chunk_size(&mut raw, chunk.len());
            raw.extend_from_slice(chunk);
            raw.extend_from_slice(encode::CHUNK_END);
        }
        raw.extend_from_slice(encode::LAST_CHUNK);
        let mut pieces = Vec::new();
        let mut rest = &raw[..];
        for cut in cuts.iter().cycle() {
            if rest.is_empty() { break; }
            let (piece, after) = rest.split_at((*cut).min(rest.len()));
            pieces.push(piece);
            rest = after;
        }
        let decoder = BodyDecoder::request(RequestFraming::Chunked);
        let (payload, left, done) = decode(decoder, &pieces).unwrap();
        proptest::prop_assert_eq!(payload, chunks.concat());
        proptest::prop_assert!(left.is_empty() && done);
    }

    #[test]
    fn nothing_panics(bytes in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..300)) {
        let _ = chunked(&bytes);
    }
}
