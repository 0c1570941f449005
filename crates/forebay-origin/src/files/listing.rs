//! A directory as a page of links with sizes and dates, or as JSON.

mod entries;
mod json;
mod page;
mod template;
mod text;

use std::fs::File;
use std::io;

use forebay_conf::{Files, Listing};
use forebay_net::head::Request;

use entries::Entries;

pub use text::percent_encode;

/// A listing and its media type.
pub struct ListingReply {
    pub content_type: &'static str,
    pub body: String,
}

/// Returns the listing of `directory`, which the path of the request names. The query of the
/// request selects the order, and `Accept` selects JSON.
pub fn list(directory: &File, settings: &Files, request: &Request) -> io::Result<ListingReply> {
    let query = request.query().unwrap_or_default();
    let mut found = Entries::read(directory, settings, &request.path, query)?;
    if json::is_preferred(request) {
        return Ok(ListingReply { content_type: "application/json", body: json::json(&found) });
    }
    let body = match &settings.listing {
        Listing::Template(template) => template::fill(template, &mut found),
        Listing::BuiltIn | Listing::Never => page::html(&found),
    };
    Ok(ListingReply { content_type: "text/html; charset=utf-8", body })
}
