//! Answers requests from web pages of other origins (CORS,
//! <https://fetch.spec.whatwg.org/#http-cors-protocol>).

use forebay_conf::Cors;
use forebay_net::fault::Fault;
use forebay_net::head::Request;
use forebay_wire::http1::encode;

use super::changes::FieldChanges;
use super::{Length, Reply};

/// Fields of CORS in replies. Forebay removes them from the application's reply.
const FIELDS: [&str; 3] = [
    "access-control-allow-origin",
    "access-control-allow-credentials",
    "access-control-expose-headers",
];

/// Returns true for a preflight request. A browser sends it to ask for permission before the
/// request itself.
pub(crate) fn is_preflight(request: &Request) -> bool {
    request.method() == b"OPTIONS"
        && !request.joined_field("Origin").is_empty()
        && !request.joined_field("Access-Control-Request-Method").is_empty()
}

/// Adds to `changes` the CORS fields for the reply to `request`.
pub(super) fn change_reply(cors: &Cors, request: &Request, changes: &mut FieldChanges) {
    changes.remove.extend(FIELDS.map(str::to_owned));
    append_origin(cors, request, &mut changes.add);
    if !cors.expose.is_empty() && is_allowed(cors, request) {
        let names = cors.expose.join(", ");
        encode::field(&mut changes.add, "Access-Control-Expose-Headers", names.as_bytes());
    }
}

impl Reply {
    /// Answers a preflight request. A web page gets no permission if its origin is not allowed.
    pub(crate) async fn answer_preflight(
        &mut self,
        cors: &Cors,
        request: &Request,
    ) -> Result<(), Fault> {
        // Remove the route's rules, because they would add the CORS fields a second time.
        self.set_rules(None);
        self.begin(204, b"");
        let lines = self.field_lines();
        append_origin(cors, request, lines);
        if is_allowed(cors, request) {
            let methods = cors.methods.join(", ");
            encode::field(lines, "Access-Control-Allow-Methods", methods.as_bytes());
            let headers = match &cors.headers {
                Some(headers) => headers.join(", ").into_bytes(),
                None => request.joined_field("Access-Control-Request-Headers").into_owned(),
            };
            if !headers.is_empty() {
                encode::field(lines, "Access-Control-Allow-Headers", &headers);
            }
            encode::field_number(lines, "Access-Control-Max-Age", cors.max_age.as_secs());
        }
        let asked = b"Access-Control-Request-Method, Access-Control-Request-Headers";
        encode::field(lines, "Vary", asked);
        self.end_head(Length::None, false);
        self.finish().await
    }
}

fn is_allowed(cors: &Cors, request: &Request) -> bool {
    let origin = request.joined_field("Origin");
    !origin.is_empty() && cors.allows(&origin)
}

fn append_origin(cors: &Cors, request: &Request, lines: &mut Vec<u8>) {
    if cors.any() {
        return encode::field(lines, "Access-Control-Allow-Origin", b"*");
    }
    if is_allowed(cors, request) {
        let origin = request.joined_field("Origin");
        encode::field(lines, "Access-Control-Allow-Origin", &origin);
        if cors.credentials {
            encode::field(lines, "Access-Control-Allow-Credentials", b"true");
        }
    }
    // A cache must not send the reply for one web origin to pages of another web origin.
    encode::field(lines, "Vary", b"Origin");
}
