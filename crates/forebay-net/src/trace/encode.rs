//! Writes spans as a request of OTLP in JSON.

use std::io::Write;

use forebay_wire::trace_context::append_hex;

use super::{RequestSpans, random};
use crate::collector::{Collector, append_number, append_text};
use crate::log::append_json_text;
use crate::timing::Step;

/// Kinds of spans.
const INTERNAL: u8 = 1;
const SERVER: u8 = 2;
/// Status of a span whose request failed.
const ERROR: u8 = 2;

/// Returns the body of a request to the collector.
pub(super) fn encode(collector: &Collector, requests: &[Box<RequestSpans>]) -> Vec<u8> {
    let mut out = b"{\"resourceSpans\":[{".to_vec();
    collector.append_resource(&mut out);
    out.extend_from_slice(b",\"scopeSpans\":[{\"scope\":{\"name\":\"forebay\"},\"spans\":[");
    for (number, request) in requests.iter().enumerate() {
        if number > 0 {
            out.push(b',');
        }
        append_request(request, &mut out);
    }
    out.extend_from_slice(b"]}]}]}");
    out
}

fn append_request(request: &RequestSpans, out: &mut Vec<u8>) {
    let own = request.trace.own;
    let ids = (&own.trace_id[..], &own.span_id[..], request.trace.parent);
    begin_span(ids, &request.name, SERVER, (request.start, request.end), out);
    for (number, (key, value)) in request.texts.iter().enumerate() {
        append_text(key, value, number == 0, out);
    }
    for (key, value) in &request.numbers {
        append_number(key, *value, out);
    }
    out.push(b']');
    if request.status >= 500 {
        let _ = write!(out, ",\"status\":{{\"code\":{ERROR}}}");
    }
    out.push(b'}');
    for (step, start, end) in &request.steps {
        out.push(b',');
        let span_id = random().to_be_bytes();
        let ids = (&own.trace_id[..], &span_id[..], Some(own.span_id));
        begin_span(ids, step.name(), INTERNAL, (*start, *end), out);
        let upstream = request.upstream.as_deref();
        if let Some(upstream) = upstream.filter(|_| matches!(step, Step::Connect | Step::Origin)) {
            append_text("forebay.upstream", upstream, true, out);
        }
        out.extend_from_slice(b"]}");
    }
}

/// Appends a span up to the start of its attributes.
fn begin_span(
    (trace_id, span_id, parent): (&[u8], &[u8], Option<[u8; 8]>),
    name: &str,
    kind: u8,
    (start, end): (u64, u64),
    out: &mut Vec<u8>,
) {
    out.extend_from_slice(b"{\"traceId\":\"");
    append_hex(trace_id, out);
    out.extend_from_slice(b"\",\"spanId\":\"");
    append_hex(span_id, out);
    if let Some(parent) = parent {
        out.extend_from_slice(b"\",\"parentSpanId\":\"");
        append_hex(&parent, out);
    }
    out.extend_from_slice(b"\",\"name\":\"");
    append_json_text(name.as_bytes(), out);
    let _ = write!(
        out,
        "\",\"kind\":{kind},\"startTimeUnixNano\":\"{start}\",\"endTimeUnixNano\":\"{end}\",\
         \"attributes\":["
    );
}
