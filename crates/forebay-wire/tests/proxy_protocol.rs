//! Tests of PROXY headers: the forms of the specification, invalid headers, and headers that arrive
//! in pieces.

use forebay_wire::proxy_protocol::{
    Announced, LARGEST, ProxyError, decode, encode_local_v1, encode_local_v2, encode_v1, encode_v2,
};

const SIGNATURE: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";

/// Decodes `bytes`. Also checks every prefix, which must be incomplete or cause the same error.
fn decoded(bytes: &[u8]) -> Result<Option<(Announced, usize)>, ProxyError> {
    let whole = decode(bytes);
    for end in 0..bytes.len() {
        match (decode(&bytes[..end]), whole) {
            (Ok(None), _) => {}
            (Ok(Some(found)), whole) => {
                assert!(end >= found.1, "complete after {end} bytes of {:?}", bytes.escape_ascii());
                assert_eq!(whole, Ok(Some(found)));
            }
            (Err(error), whole) => assert_eq!(whole, Err(error), "{:?}", bytes.escape_ascii()),
        }
    }
    whole
}

fn client(source: &str, destination: &str) -> Announced {
    Announced::Client { source: source.parse().unwrap(), destination: destination.parse().unwrap() }
}

fn v2(command: u8, family: u8, content: &[u8]) -> Vec<u8> {
    let length = (content.len() as u16).to_be_bytes();
    [SIGNATURE, &[command, family], &length, content].concat()
}

#[test]
fn lines_of_version_1() {
    for (line, expected) in [
        (
            "PROXY TCP4 192.168.0.1 192.168.0.11 56324 443\r\n",
            client("192.168.0.1:56324", "192.168.0.11:443"),
        ),
        (
            "PROXY TCP4 255.255.255.255 255.255.255.255 65535 65535\r\n",
            client("255.255.255.255:65535", "255.255.255.255:65535"),
        ),
        ("PROXY TCP6 2001:db8::1 ::1 0 80\r\n", client("[2001:db8::1]:0", "[::1]:80")),
        (
            concat!(
                "PROXY TCP6 ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff ",
                "FFFF:ffff:ffff:ffff:ffff:ffff:ffff:ffff 65535 65535\r\n"
            ),
            client(
                "[ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff]:65535",
                "[ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff]:65535",
            ),
        ),
        ("PROXY UNKNOWN\r\n", Announced::Local),
        ("PROXY UNKNOWN whatever comes here\r\n", Announced::Local),
    ] {
        let followed = format!("{line}GET / HTTP/1.1\r\n");
        assert_eq!(decoded(followed.as_bytes()), Ok(Some((expected, line.len()))), "{line:?}");
    }
    let longest = format!("PROXY UNKNOWN {}\r\n", "x".repeat(107 - 16));
    assert_eq!(decoded(longest.as_bytes()), Ok(Some((Announced::Local, 107))));
}

#[test]
fn malformed_lines_are_refused() {
    for line in [
        "PROXY TCP4 192.168.0.1 192.168.0.11 56324 443\n",
        "PROXY TCP4 192.168.0.1 192.168.0.11 56324 443\rX",
        "PROXY TCP4 192.168.0.1 192.168.0.11 56324\r\n",
        "PROXY TCP4 192.168.0.1 192.168.0.11 56324 443 1\r\n",
        "PROXY TCP4  192.168.0.1 192.168.0.11 56324 443\r\n",
        "PROXY TCP4 192.168.0.1 192.168.0.11 56324 443 \r\n",
        "PROXY TCP4 192.168.0.1 192.168.0.11 56324 65536\r\n",
        "PROXY TCP4 192.168.0.1 192.168.0.11 +1 443\r\n",
        "PROXY TCP4 192.168.0.1 192.168.0.11 01 443\r\n",
        "PROXY TCP4 192.168.0.1 192.168.0.11 -1 443\r\n",
        "PROXY TCP4 192.168.0.1 192.168.0.11  443\r\n",
        "PROXY TCP4 192.168.0.256 192.168.0.11 1 443\r\n",
        "PROXY TCP4 192.168.0.01 192.168.0.11 1 443\r\n",
        "PROXY TCP4 ::1 ::1 1 443\r\n",
        "PROXY TCP6 192.168.0.1 192.168.0.11 1 443\r\n",
        "PROXY TCP6 [::1] ::1 1 443\r\n",
        "PROXY tcp4 192.168.0.1 192.168.0.11 1 443\r\n",
        "PROXY UDP4 192.168.0.1 192.168.0.11 1 443\r\n",
        "PROXY TCP4 localhost localhost 1 443\r\n",
        "PROXY \r\n",
        "PROXY TCP4 1.2.3.4 1.2.3.4 1 \u{0663}\r\n",
    ] {
        assert_eq!(decoded(line.as_bytes()), Err(ProxyError::Line), "{line:?}");
    }
    let too_long = format!("PROXY UNKNOWN {}\r\n", "x".repeat(107 - 15));
    assert_eq!(decoded(too_long.as_bytes()), Err(ProxyError::Line));
    for other in ["GET / HTTP/1.1\r\n", "proxy TCP4", "PROXYTCP4", "\r\n\r\nGET", "\n", "\0"] {
        assert_eq!(decoded(other.as_bytes()), Err(ProxyError::Missing), "{other:?}");
    }
}

#[test]
fn headers_of_version_2() {
    let v4 = [192, 0, 2, 1, 198, 51, 100, 2, 0xdc, 0x04, 0x01, 0xbb];
    let of_v4 = client("192.0.2.1:56324", "198.51.100.2:443");
    let mut v6 = [0; 36];
    v6[0..2].copy_from_slice(&[0x20, 0x01]);
    v6[31] = 1;
    v6[32..].copy_from_slice(&[0, 7, 0, 80]);
    let of_v6 = client("[2001::]:7", "[::1]:80");
    let tlvs = [&v4[..], &[0x04, 0, 2, 0, 0], &[0xee, 0, 0]].concat();
    for (bytes, expected) in [
        (v2(0x21, 0x11, &v4), of_v4),
        (v2(0x21, 0x11, &tlvs), of_v4),
        (v2(0x21, 0x21, &v6), of_v6),
        (v2(0x20, 0x00, &[]), Announced::Local),
        // The content of a LOCAL header must be ignored.
        (v2(0x20, 0x11, &v4), Announced::Local),
        (v2(0x20, 0x11, &[1, 2, 3]), Announced::Local),
        (v2(0x21, 0x00, &[]), Announced::Local),
        (v2(0x21, 0x00, &[9; 20]), Announced::Local),
        (v2(0x21, 0x31, &[0; 216]), Announced::Local),
        (v2(0x21, 0x12, &v4), Announced::Local),
    ] {
        let followed = [&bytes[..], b"GET"].concat();
        assert_eq!(decoded(&followed), Ok(Some((expected, bytes.len()))), "{bytes:?}");
    }
}

#[test]
fn malformed_headers_of_version_2_are_refused() {
    for (bytes, error) in [
        (v2(0x11, 0x11, &[0; 12]), ProxyError::Kind),
        (v2(0x31, 0x11, &[0; 12]), ProxyError::Kind),
        (v2(0x22, 0x11, &[0; 12]), ProxyError::Kind),
        (v2(0x21, 0x41, &[0; 12]), ProxyError::Kind),
        (v2(0x21, 0x13, &[0; 12]), ProxyError::Kind),
        (v2(0x21, 0x11, &[0; 11]), ProxyError::Length),
        (v2(0x21, 0x21, &[0; 12]), ProxyError::Length),
        (v2(0x21, 0x31, &[0; 215]), ProxyError::Length),
        (v2(0x21, 0x11, &[0; 13]), ProxyError::Length),
        (v2(0x21, 0x11, &[&[0; 12][..], &[1, 0, 5, 0]].concat()), ProxyError::Length),
        (v2(0x21, 0x11, &vec![0; LARGEST - 15]), ProxyError::TooLarge),
    ] {
        assert_eq!(decoded(&bytes), Err(error), "{bytes:?}");
    }
}

#[test]
fn written_values_are_read_back() {
    for (source, destination, expected) in [
        ("192.0.2.1:1", "192.0.2.2:65535", client("192.0.2.1:1", "192.0.2.2:65535")),
        ("[2001:db8::1]:0", "[::1]:80", client("[2001:db8::1]:0", "[::1]:80")),
        ("[::ffff:192.0.2.1]:1", "192.0.2.2:2", client("192.0.2.1:1", "192.0.2.2:2")),
        ("192.0.2.1:1", "[::1]:2", client("[::ffff:192.0.2.1]:1", "[::1]:2")),
    ] {
        for encode in [encode_v1, encode_v2] {
            let mut bytes = Vec::new();
            encode(&mut bytes, source.parse().unwrap(), destination.parse().unwrap());
            assert_eq!(decoded(&bytes), Ok(Some((expected, bytes.len()))), "{source}");
        }
    }
    for encode in [encode_local_v1, encode_local_v2] {
        let mut bytes = Vec::new();
        encode(&mut bytes);
        assert_eq!(decoded(&bytes), Ok(Some((Announced::Local, bytes.len()))));
    }
}
