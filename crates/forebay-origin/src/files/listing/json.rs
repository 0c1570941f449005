//! A listing as JSON, for programs.

use forebay_net::head::Request;
use forebay_wire::accept::weighted;
use forebay_wire::http1::KnownField;
use jiff::Timestamp;
use serde_json::{Value, json};

use super::entries::Entries;

/// Returns true if the client names `application/json`, and does not prefer `text/html`. Wildcards
/// have no effect, because browsers send them.
pub fn is_preferred(request: &Request) -> bool {
    let fields = request.head.fields.iter().filter(|field| field.known == KnownField::Accept);
    let (mut json, mut html) = (0, 0);
    for (name, weight) in fields.flat_map(|field| weighted(field.value.of(&request.bytes))) {
        if name.eq_ignore_ascii_case(b"application/json") {
            json = weight;
        } else if name.eq_ignore_ascii_case(b"text/html") {
            html = weight;
        }
    }
    json > html
}

/// Returns the listing as JSON.
pub fn json(found: &Entries<'_>) -> String {
    let entries = found.entries.iter().map(|entry| {
        let time = entry.modified.and_then(|time| Timestamp::try_from(time).ok());
        let time = time.map(|time| time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string());
        json!({
            "name": String::from_utf8_lossy(&entry.name),
            "href": entry.link(),
            "kind": entry.kind(),
            "bytes": if entry.is_directory { Value::Null } else { entry.size.into() },
            "modified": time,
        })
    });
    let entries: Vec<_> = entries.collect();
    let path = String::from_utf8_lossy(found.path);
    json!({ "path": path, "entries": entries, "incomplete": found.is_incomplete }).to_string()
}
