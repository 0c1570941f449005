//! The trace of a request, as the request carries it.

use forebay_wire::trace_context::{TraceParent, append_hex};

/// The trace of a request.
#[derive(Clone, Copy, Debug)]
pub struct RequestTrace {
    /// The trace and the server's span. `is_sampled` is false if the span is not recorded.
    pub(crate) own: TraceParent,
    /// Identifier of the client's span, if the client has sent one.
    pub(crate) parent: Option<[u8; 8]>,
}

impl RequestTrace {
    /// Appends the identifier of the trace.
    pub(crate) fn append_trace_id(&self, out: &mut Vec<u8>) {
        append_hex(&self.own.trace_id, out);
    }

    /// Appends the identifier of the server's span.
    pub(crate) fn append_span_id(&self, out: &mut Vec<u8>) {
        append_hex(&self.own.span_id, out);
    }
}
