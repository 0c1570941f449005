//! Sends errors to gRPC clients: as a gRPC status in the head of a reply without a body
//! ("Trailers-Only" in the protocol). A gRPC client that receives an HTTP error page reports only
//! the content type of the page.
//!
//! Protocol: <https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md>

use forebay_net::fault::Fault;
use forebay_net::head::Request;
use forebay_net::limit::Limit;
use forebay_wire::http1::{KnownField, encode};
use forebay_wire::http2;

use super::{Length, Reply};

/// Content type of gRPC. Variants continue with `+` or `;`.
const CONTENT_TYPE: &[u8] = b"application/grpc";

const UNKNOWN: u8 = 2;
const DEADLINE_EXCEEDED: u8 = 4;
const PERMISSION_DENIED: u8 = 7;
const RESOURCE_EXHAUSTED: u8 = 8;
const UNIMPLEMENTED: u8 = 12;
const INTERNAL: u8 = 13;
const UNAVAILABLE: u8 = 14;
const UNAUTHENTICATED: u8 = 16;

/// Returns true if the request is a gRPC call. gRPC-Web does not count, because its clients accept
/// HTTP errors.
pub(crate) fn is_call(request: &Request) -> bool {
    let content_type = || request.head.value(KnownField::ContentType, &request.bytes);
    request.method() == b"POST" && content_type().is_some_and(is_grpc)
}

/// Returns true if a refused request's head belongs to a gRPC call.
pub(crate) fn is_head_of_grpc(head: &http2::Head) -> bool {
    let mut fields = head.fields.iter();
    fields.any(|field| field.known == KnownField::ContentType && is_grpc(field.value))
}

fn is_grpc(content_type: &[u8]) -> bool {
    let Some((start, rest)) = content_type.split_at_checked(CONTENT_TYPE.len()) else {
        return false;
    };
    start.eq_ignore_ascii_case(CONTENT_TYPE)
        && matches!(rest.first(), None | Some(b'+' | b';' | b' '))
}

/// Returns the gRPC code for an HTTP status, by
/// <https://github.com/grpc/grpc/blob/master/doc/http-grpc-status-mapping.md>. Only 413 is an
/// addition to that list.
fn code_of(status: u16) -> u8 {
    match status {
        400 => INTERNAL,
        401 => UNAUTHENTICATED,
        403 => PERMISSION_DENIED,
        404 => UNIMPLEMENTED,
        413 => RESOURCE_EXHAUSTED,
        429 | 502..=504 => UNAVAILABLE,
        _ => UNKNOWN,
    }
}

/// Returns the gRPC code for a fault.
fn code_of_fault(fault: &Fault) -> u8 {
    match fault.limit {
        // The backend may have acted on the call, so the client must not retry. With UNAVAILABLE,
        // the client would retry.
        Some(Limit::ReplyIdle | Limit::RequestTimeout) if fault.status == 504 => DEADLINE_EXCEEDED,
        _ => code_of(fault.status),
    }
}

impl Reply {
    /// Records that the client speaks gRPC. Errors then become a gRPC status.
    pub(crate) fn set_to_grpc(&mut self, to_grpc: bool) {
        self.to_grpc = to_grpc;
    }

    /// Returns true if the client speaks gRPC.
    pub fn is_to_grpc(&self) -> bool {
        self.to_grpc
    }

    /// Sends an error page, or the gRPC status for the fault.
    pub(crate) async fn respond_fault(&mut self, fault: &Fault) -> Result<(), Fault> {
        if self.to_grpc {
            return self.respond_grpc(fault.status, code_of_fault(fault), b"").await;
        }
        self.respond_error(fault.status).await
    }

    /// Sends the gRPC status for this HTTP status, with additional field lines.
    pub(super) async fn respond_grpc_error(
        &mut self,
        status: u16,
        lines: &[u8],
    ) -> Result<(), Fault> {
        self.respond_grpc(status, code_of(status), lines).await
    }

    async fn respond_grpc(&mut self, status: u16, code: u8, lines: &[u8]) -> Result<(), Fault> {
        self.begin(200, b"");
        self.field("Content-Type", CONTENT_TYPE);
        encode::field_number(&mut self.out, "Grpc-Status", code.into());
        // Visible ASCII without `%` needs no escaping.
        let message = format!("{status} {}", encode::reason_phrase(status));
        self.field("Grpc-Message", message.trim_end().as_bytes());
        self.out.extend_from_slice(lines);
        self.end_head(Length::None, false);
        self.finish().await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grpc_is_told_from_grpc_web_and_from_what_is_neither() {
        for content_type in [
            "application/grpc",
            "Application/gRPC",
            "application/grpc+proto",
            "application/grpc;a=b",
        ] {
            assert!(is_grpc(content_type.as_bytes()), "{content_type}");
        }
        for content_type in ["", "text/html", "application/grpc-web", "application/grpcs"] {
            assert!(!is_grpc(content_type.as_bytes()), "{content_type}");
        }
    }

    #[test]
    fn a_reply_that_did_not_come_in_time_is_no_reason_to_retry() {
        let silent = Fault::backend(504, "silent").limited_by(Limit::ReplyIdle);
        let unreachable = Fault::backend(504, "unreachable").limited_by(Limit::Connect);
        assert_eq!(code_of_fault(&silent), DEADLINE_EXCEEDED);
        assert_eq!(code_of_fault(&unreachable), UNAVAILABLE);
    }
}
