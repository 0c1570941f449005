//! Selects the content coding that a client prefers (RFC 9110 section 12.5.3).

use forebay_conf::ContentCoding;
use forebay_net::head::Request;
use forebay_server::compress::accepted_codings;

/// Returns the codings of `offered` that the client accepts, the best first.
pub fn codings(request: &Request, offered: &[ContentCoding]) -> Vec<ContentCoding> {
    let names: Vec<_> = offered.iter().map(|coding| coding.coding()).collect();
    accepted_codings(request, &names).into_iter().map(|index| offered[index]).collect()
}
