//! Tests with the labelled requests of `http_desync_guardian` (see
//! `../corpora/http_desync_guardian/ORIGIN.md`). Requests with the label severe or ambiguous must
//! be rejected, for a reason that matches the label.
//!
//! The files contain requests that another program has already parsed: a method, a target, a
//! version, and names and values of fields. The test writes them as a client would send them:
//! `METHOD SP target SP version CRLF`, then `name ":" SP value CRLF` for each field. Nothing is
//! escaped or repaired. If the version is empty, the space before it is omitted, as in HTTP/0.9.
//!
//! The test makes two additions. A request of version 1.1 without `Host` gets one, because it would
//! otherwise be rejected for this reason alone. `\xNN` above ASCII is sent both as the byte NN and
//! as the UTF-8 encoding of the character. The files do not define which one is meant.

use std::path::Path;

use crate::reading::{End, check, requests};
use forebay_wire::http1::HeadError::{self, *};

/// Number of cases in the files for each label. The test fails if a case is not read.
const COUNTS: [(&str, usize); 4] =
    [("Severe", 58), ("Ambiguous", 57), ("Acceptable", 15), ("Compliant", 28)];

#[test]
fn every_request_is_refused_or_taken_as_its_label_asks() {
    let mut counts = COUNTS.map(|(tier, _)| (tier, 0));
    for as_bytes in [true, false] {
        for case in read_cases(as_bytes) {
            judge(&case);
            let count = counts.iter_mut().find(|(tier, _)| *tier == case.tier);
            count.unwrap_or_else(|| panic!("{}: tier {:?}", case.name, case.tier)).1 += 1;
        }
    }
    assert_eq!(counts.map(|(tier, count)| (tier, count / 2)), COUNTS);
}

/// One labelled request.
#[derive(Default)]
struct Case {
    name: String,
    uri: Vec<u8>,
    method: Vec<u8>,
    version: Vec<u8>,
    fields: Vec<(Vec<u8>, Vec<u8>)>,
    tier: String,
    reason: String,
}

impl Case {
    fn bytes(&self) -> Vec<u8> {
        let mut out = [&self.method[..], b" ", &self.uri].concat();
        if !self.version.is_empty() {
            out.push(b' ');
        }
        out.extend_from_slice(&self.version);
        out.extend_from_slice(b"\r\n");
        let has_host = self.fields.iter().any(|(name, _)| name.eq_ignore_ascii_case(b"host"));
        let is_1_1 = matches!(
            &self.version[..],
            [b'H', b'T', b'T', b'P', b'/', b'1', b'.', b'1'..=b'9', ..]
        );
        if !has_host && is_1_1 {
            out.extend_from_slice(b"Host: example.org\r\n");
        }
        for (name, value) in &self.fields {
            out.extend_from_slice(&[name, &b": "[..], value, b"\r\n"].concat());
        }
        out.extend_from_slice(b"\r\n");
        out
    }

    /// Returns the body that the fields announce.
    fn body(&self) -> Vec<u8> {
        let value = |wanted: &[u8]| {
            let mut fields = self.fields.iter();
            fields.find(|(name, _)| name.eq_ignore_ascii_case(wanted)).map(|(_, value)| value)
        };
        if value(b"transfer-encoding").is_some() {
            return b"3\r\nabc\r\n0\r\n\r\n".to_vec();
        }
        let length = value(b"content-length").map_or("0", |value| str::from_utf8(value).unwrap());
        vec![b'x'; length.trim().parse().expect("a length that was taken")]
    }
}

/// Checks that the request is rejected for a correct reason, or is read as one request that ends
/// where its body ends.
fn judge(case: &Case) {
    let bytes = case.bytes();
    let outcome = requests(&[&bytes]);
    match (&case.tier[..], outcome.1) {
        ("Severe" | "Ambiguous", End::Head(error)) => {
            let fitting = errors_for(&case.reason);
            assert!(fitting.contains(&error), "{} ({}): {error:?}", case.name, case.reason);
        }
        ("Severe" | "Ambiguous", _) => {
            panic!("{} ({}) is taken: {outcome:?}", case.name, case.reason);
        }
        (_, End::Head(error)) => {
            assert!(may_refuse(case, error), "{} ({}): {error:?}", case.name, case.reason);
        }
        _ => {}
    }
    check(&case.name, &bytes, &outcome, requests);
    if !matches!(outcome.1, End::Head(_)) {
        let (messages, end) = requests(&[&bytes, &case.body()]);
        assert_eq!((messages.len(), end), (1, End::Clean), "{}: one request", case.name);
    }
}

/// Returns the errors that are correct for `reason`. If a request violates two rules, the rule that
/// is checked first determines the error.
fn errors_for(reason: &str) -> &'static [HeadError] {
    match reason {
        "BadMethod" => &[Method],
        "BadUri" | "AmbiguousUri" => &[Target, StartLine, BareLineEnd],
        "BadVersion" => &[Target, StartLine, Version],
        "MultipleContentLength" => &[ContentLength, FieldName, ObsFold],
        "DuplicateContentLength" => &[ContentLength],
        "BadContentLength" => &[ContentLength, FieldValue],
        "BadTransferEncoding" | "MultipleTransferEncodingChunked" => {
            &[TransferEncoding, FieldName, FieldValue]
        }
        "BothTeClPresent" => &[AmbiguousLength, TransferEncoding],
        "BadHeader" => &[FieldName, FieldValue, ObsFold, BareLineEnd],
        "SuspiciousHeader" | "EmptyHeader" => &[FieldName, ObsFold],
        // These requests have a version that does not define the field. One of them also contains a
        // control byte.
        "UndefinedTransferEncodingSemantics" => {
            &[TransferEncoding, Version, StartLine, FieldValue, GetBody]
        }
        "UndefinedContentLengthSemantics" => &[Version, StartLine, FieldValue, GetBody],
        _ => &[],
    }
}

/// Returns true if we may reject a request although the corpus accepts it.
fn may_refuse(case: &Case, error: HeadError) -> bool {
    match error {
        // A space before the colon must be rejected (RFC 9112 section 5.1). Other invalid bytes
        // make the name no token.
        FieldName => case.reason == "NonCompliantHeader",
        // A control byte in a value may be rejected (RFC 9110 section 5.5).
        FieldValue => case.reason == "NonCompliantHeader",
        // These are HTTP/0.9 and a space after the version. No current client sends them, and
        // backends treat them differently.
        Version | StartLine => case.reason == "NonCompliantVersion",
        // A bare space, `#`, bytes above 127 and an empty target are outside the grammar of RFC 9112
        // section 3.2.
        Target => {
            let is_outside = |&byte: &u8| byte == b'#' || byte > 0x7f;
            case.reason == "SpaceInUri" || case.uri.is_empty() || case.uri.iter().any(is_outside)
        }
        // Any coding besides `chunked` may be rejected (RFC 9112 section 6.1). This includes
        // `identity`, which is obsolete. Parameters may also be rejected, because `chunked` has
        // none.
        TransferEncoding => {
            let is_coding =
                |(name, _): &&(Vec<u8>, Vec<u8>)| name.eq_ignore_ascii_case(b"transfer-encoding");
            let codings: Vec<_> = case.fields.iter().filter(is_coding).collect();
            codings.len() > 1 || codings.iter().any(|(_, value)| value.trim_ascii() != b"chunked")
        }
        _ => false,
    }
}

fn read_cases(as_bytes: bool) -> Vec<Case> {
    let directory =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpora/http_desync_guardian");
    let mut files: Vec<_> = std::fs::read_dir(&directory)
        .unwrap_or_else(|error| panic!("{}: {error}", directory.display()))
        .map(|entry| entry.expect("a readable folder").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "yaml"))
        .collect();
    files.sort();
    let mut cases = Vec::new();
    for file in files {
        let text = std::fs::read_to_string(&file).expect("a readable file");
        for (number, line) in text.lines().enumerate() {
            read_line(line, as_bytes, &mut cases)
                .unwrap_or_else(|| panic!("{}:{}: {line}", file.display(), number + 1));
        }
    }
    cases
}

/// Reads a line of the YAML subset that the files use: a list of maps, with levels of indentation.
fn read_line(line: &str, as_bytes: bool, cases: &mut Vec<Case>) -> Option<()> {
    let content = line.trim();
    if content.is_empty() || content.starts_with('#') {
        return Some(());
    }
    if let Some(name) = line.strip_prefix("- name:") {
        let name = String::from_utf8_lossy(&scalar(name, false)?).into_owned();
        cases.push(Case { name, ..Case::default() });
        return Some(());
    }
    let case = cases.last_mut()?;
    let indent = line.len() - line.trim_start().len();
    if content.starts_with("- ") && !content.starts_with("- name:") {
        return Some(());
    }
    let (key, value) = content.split_once(':')?;
    match (indent, key) {
        (2, "uri") => case.uri = scalar(value, as_bytes)?,
        (2, "method") => case.method = scalar(value, as_bytes)?,
        (2, "version") => case.version = scalar(value, as_bytes)?,
        (2, "headers" | "expected") | (4, "required_message_items") | (6, "tier") => {}
        (4, "- name") => case.fields.push((scalar(value, as_bytes)?, Vec::new())),
        (6, "value") => case.fields.last_mut()?.1 = scalar(value, as_bytes)?,
        (4, "tier") => case.tier = value.trim().to_owned(),
        (4, "reason") => case.reason = value.trim().to_owned(),
        _ => return None,
    }
    Some(())
}

/// Parses a plain, single-quoted or double-quoted scalar.
fn scalar(text: &str, as_bytes: bool) -> Option<Vec<u8>> {
    let text = text.trim();
    if let Some(inner) = text.strip_prefix('\'') {
        return Some(inner.strip_suffix('\'')?.replace("''", "'").into_bytes());
    }
    let Some(inner) = text.strip_prefix('"') else { return Some(text.as_bytes().to_vec()) };
    let mut rest = inner.strip_suffix('"')?.chars();
    let mut out = Vec::new();
    while let Some(character) = rest.next() {
        if character != '\\' {
            out.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
            continue;
        }
        match rest.next()? {
            'x' => {
                let byte = u8::from_str_radix(rest.as_str().get(..2)?, 16).ok()?;
                rest = rest.as_str()[2..].chars();
                if as_bytes {
                    out.push(byte);
                } else {
                    out.extend_from_slice(char::from(byte).to_string().as_bytes());
                }
            }
            'r' => out.push(b'\r'),
            'n' => out.push(b'\n'),
            't' => out.push(b'\t'),
            same @ ('"' | '\\') => out.push(same as u8),
            _ => return None,
        }
    }
    Some(out)
}
