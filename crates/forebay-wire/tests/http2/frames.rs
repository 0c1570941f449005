//! Tests of frames: encoded frames are decoded again, and invalid frames are rejected as early as
//! possible.

use forebay_wire::http2::frame::{self, DEFAULT_FRAME, Frame, Kind, decode, flags, settings};
use forebay_wire::http2::{ErrorCode, Rule, Scope};

fn raw(len: usize, kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut out = (len as u32).to_be_bytes()[1..].to_vec();
    out.extend([kind, flags]);
    out.extend(stream.to_be_bytes());
    out.extend_from_slice(payload);
    out
}

#[test]
fn frames_that_are_written_are_read_again() {
    let mut out = Vec::new();
    frame::settings_frame(&mut out, &[(settings::ENABLE_PUSH, 0), (0xaaaa, 7)]);
    frame::settings_ack(&mut out);
    frame::ping(&mut out, *b"12345678", true);
    frame::goaway(&mut out, 7, ErrorCode::ENHANCE_YOUR_CALM, b"why");
    frame::window_update(&mut out, 3, 0x7fff_ffff);
    frame::reset(&mut out, 5, ErrorCode::CANCEL);
    frame::priority_update(&mut out, 9, b"u=1, i");
    frame::header(&mut out, 3, Kind::Data, flags::END_STREAM, 1);
    out.extend(b"abc");
    let mut seen = Vec::new();
    let mut rest = &out[..];
    while let Some((frame, len)) = decode(rest, DEFAULT_FRAME).unwrap() {
        seen.push(format!("{frame:?}"));
        for partial in 0..len {
            assert_eq!(decode(&rest[..partial], DEFAULT_FRAME), Ok(None));
        }
        if let Frame::Settings(settings) = frame {
            let pairs: Vec<_> = settings.iter().collect();
            assert_eq!(pairs, [(settings::ENABLE_PUSH, 0), (0xaaaa, 7)]);
        }
        rest = &rest[len..];
    }
    assert!(rest.is_empty());
    assert_eq!(
        seen[1..],
        [
            "SettingsAck",
            "Ping { payload: [49, 50, 51, 52, 53, 54, 55, 56], is_ack: true }",
            "Goaway { last: 7, code: ErrorCode(11), debug: [119, 104, 121] }",
            "WindowUpdate { stream: 3, increment: 2147483647 }",
            "Reset { stream: 5, code: ErrorCode(8) }",
            "PriorityUpdate { stream: 9, value: [117, 61, 49, 44, 32, 105] }",
            "Data { stream: 1, data: [97, 98, 99], end_stream: true }",
        ]
    );
}

#[test]
fn a_long_block_goes_on_in_continuation_frames() {
    for (len, frames) in [(0, 1), (10, 1), (11, 2), (30, 3), (31, 4)] {
        let mut out = b"before".to_vec();
        out.resize(6 + frame::HEADER_LEN, 0);
        out.extend((0..len).map(|at| at as u8));
        frame::finish_block(&mut out, 6, 3, true, 10);
        let mut block = Vec::new();
        let mut count = 0;
        let mut rest = &out[6..];
        while let Some((frame, used)) = decode(rest, DEFAULT_FRAME).unwrap() {
            count += 1;
            let is_last = used == rest.len();
            match frame {
                Frame::Headers { stream: 3, block: piece, end_stream: true, end_headers } => {
                    assert_eq!((count, end_headers), (1, is_last));
                    block.extend_from_slice(piece);
                }
                Frame::Continuation { stream: 3, block: piece, end_headers } => {
                    assert_eq!(end_headers, is_last);
                    block.extend_from_slice(piece);
                }
                other => panic!("{other:?}"),
            }
            rest = &rest[used..];
        }
        assert_eq!((count, block.len()), (frames, len));
        assert!(block.iter().enumerate().all(|(at, &byte)| byte == at as u8));
    }
}

#[test]
fn padding_and_priority_are_taken_off() {
    let padded = raw(6, 0, 0x8 | 0x40, 1, &[2, b'a', b'b', b'c', 0, 0]);
    let expected = Frame::Data { stream: 1, data: b"abc", end_stream: false };
    assert_eq!(decode(&padded, DEFAULT_FRAME), Ok(Some((expected, 15))));
    let headers = raw(9, 1, 0x8 | 0x20 | 0x4 | 0x1, 1, &[1, 0, 0, 0, 3, 255, 0x82, 0x84, 0]);
    let block = &[0x82, 0x84][..];
    let expected = Frame::Headers { stream: 1, block, end_stream: true, end_headers: true };
    assert_eq!(decode(&headers, DEFAULT_FRAME), Ok(Some((expected, 18))));
    // The reserved bit of the stream identifier is ignored.
    let unknown = raw(0, 0x42, 0xff, 0x8000_0000, b"");
    assert_eq!(decode(&unknown, DEFAULT_FRAME), Ok(Some((Frame::Unknown, 9))));
}

#[test]
fn frames_of_wrong_length_or_stream_are_refused_by_their_header() {
    for (frame, rule) in [
        (raw(16_385, 0, 0, 1, b""), Rule::FrameTooLarge),
        (raw(16_385, 0x42, 0, 1, b""), Rule::FrameTooLarge),
        (raw(0, 0, 0, 0, b""), Rule::StreamZero),
        (raw(0, 0, 8, 1, b""), Rule::FrameLength),
        (raw(0, 1, 0, 0, b""), Rule::StreamZero),
        (raw(4, 1, 0x20, 1, b""), Rule::FrameLength),
        (raw(5, 1, 0x28, 1, b""), Rule::FrameLength),
        (raw(4, 2, 0, 1, b""), Rule::FrameLength),
        (raw(5, 2, 0, 0, b""), Rule::StreamZero),
        (raw(3, 3, 0, 1, b""), Rule::FrameLength),
        (raw(4, 3, 0, 0, b""), Rule::StreamZero),
        (raw(5, 4, 0, 0, b""), Rule::FrameLength),
        (raw(6, 4, 1, 0, b""), Rule::FrameLength),
        (raw(0, 4, 0, 1, b""), Rule::StreamNotZero),
        (raw(7, 6, 0, 0, b""), Rule::FrameLength),
        (raw(8, 6, 0, 1, b""), Rule::StreamNotZero),
        (raw(7, 7, 0, 0, b""), Rule::FrameLength),
        (raw(8, 7, 0, 1, b""), Rule::StreamNotZero),
        (raw(5, 8, 0, 0, b""), Rule::FrameLength),
        (raw(0, 9, 4, 0, b""), Rule::StreamZero),
        (raw(3, 16, 0, 0, b""), Rule::FrameLength),
        (raw(4, 16, 0, 1, b""), Rule::StreamNotZero),
    ] {
        let error = decode(&frame, DEFAULT_FRAME).unwrap_err();
        assert_eq!((error.rule, error.scope), (rule, Scope::Connection), "{frame:x?}");
    }
}

#[test]
fn broken_payloads_are_refused() {
    for (frame, rule) in [
        (raw(2, 0, 8, 1, &[2, 0]), Rule::Padding),
        (raw(1, 0, 8, 1, &[1]), Rule::Padding),
        (raw(7, 1, 0x28, 1, &[2, 0, 0, 0, 3, 9, 0]), Rule::FrameLength),
        (raw(5, 1, 0x20, 3, &[0, 0, 0, 3, 9]), Rule::SelfDependency),
        (raw(5, 2, 0, 3, &[0x80, 0, 0, 3, 9]), Rule::SelfDependency),
    ] {
        assert_eq!(decode(&frame, DEFAULT_FRAME).unwrap_err().rule, rule, "{frame:x?}");
    }
}
