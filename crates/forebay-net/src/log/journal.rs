//! Fields of access log lines in the journal of systemd.

use forebay_conf::LogValue;
use forebay_wire::http1::encode;

use super::message::FIELD;
use super::pattern::{LogEntry, append_escaped, append_value};

/// Fields that are omitted from a line if they have no value.
const OPTIONAL: [(&str, LogValue); 8] = [
    ("FOREBAY_SITE", LogValue::Site),
    ("FOREBAY_ROUTE", LogValue::Route),
    ("FOREBAY_UPSTREAM", LogValue::Upstream),
    ("FOREBAY_UPSTREAM_US", LogValue::UpstreamTime),
    ("FOREBAY_CACHE", LogValue::Cache),
    ("FOREBAY_REQUEST_ID", LogValue::RequestId),
    ("FOREBAY_TRACE_ID", LogValue::TraceId),
    ("FOREBAY_SPAN_ID", LogValue::SpanId),
];

/// Appends the fields of a request after its line.
pub(super) fn append_fields(entry: &LogEntry<'_>, out: &mut Vec<u8>) {
    let request = entry.request;
    let mut client = Vec::new();
    request.client.append(&mut client);
    let host = request.head.authority.map(|span| span.of(&request.bytes)).unwrap_or_default();
    for (key, value) in [
        ("FOREBAY_CLIENT", &client[..]),
        ("FOREBAY_METHOD", request.method()),
        ("FOREBAY_HOST", host),
        ("FOREBAY_TARGET", request.original_target()),
    ] {
        begin(key, out);
        append_escaped(value, out);
    }
    for (key, value) in [
        ("FOREBAY_STATUS", u64::from(entry.status)),
        ("FOREBAY_BODY_BYTES", entry.body_bytes),
        ("FOREBAY_DURATION_US", entry.took.as_micros() as u64),
    ] {
        begin(key, out);
        encode::decimal(out, value);
    }
    for (key, value) in &OPTIONAL {
        let start = out.len();
        begin(key, out);
        if !append_value(value, entry, append_escaped, out) {
            out.truncate(start);
        }
    }
}

fn begin(key: &str, out: &mut Vec<u8>) {
    out.push(FIELD);
    out.extend_from_slice(key.as_bytes());
    out.push(b'=');
}
