//! Reads HAR files, which browsers save.

use std::io::Read;
use std::time::Duration;

use forebay_wire::http1::{is_field_value, is_token};
use jiff::Timestamp;
use serde_json::Value;

use super::{Reading, Skip, TARGET};
use crate::{Part, Url};

/// Maximum size of a file in bytes (256 MiB). It also contains the replies.
const LARGEST: u64 = 256 << 20;

/// Fields that belong to the recorded connection, or that the load generator computes.
const DROPPED: [&str; 10] = [
    "host",
    "content-length",
    "connection",
    "keep-alive",
    "proxy-connection",
    "transfer-encoding",
    "upgrade",
    "expect",
    "te",
    "http2-settings",
];

/// Reads all entries of a file.
pub(super) fn read(file: impl Read, base: &Url, reading: &mut Reading) -> Result<(), String> {
    let mut bytes = Vec::new();
    file.take(LARGEST + 1).read_to_end(&mut bytes).map_err(|error| error.to_string())?;
    if bytes.len() as u64 > LARGEST {
        return Err("it is larger than 256 MiB: save it without the replies' contents".to_owned());
    }
    let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&bytes);
    let wrong = |why: String| format!("it begins with {{, but it is no HAR file: {why}");
    let json: Value = serde_json::from_slice(bytes).map_err(|error| wrong(error.to_string()))?;
    let entries = json["log"]["entries"].as_array();
    let entries = entries.ok_or_else(|| wrong("log.entries is missing".to_owned()))?;
    let mut host = None;
    for (index, entry) in entries.iter().enumerate() {
        if let Err(why) = add(entry, &mut host, base, reading) {
            reading.skip(why, index as u64 + 1);
        }
    }
    Ok(())
}

/// Adds one entry. `host` is the host of the first entry. Entries for other hosts, such as
/// advertisements, are skipped. An error is the reason for a skipped entry.
fn add(
    entry: &Value,
    host: &mut Option<String>,
    base: &Url,
    reading: &mut Reading,
) -> Result<(), Skip> {
    let request = &entry["request"];
    let method = request["method"].as_str().ok_or("the entry has no method")?;
    if !is_token(method.as_bytes()) || method == "CONNECT" {
        return Err("its method cannot be sent");
    }
    let url = request["url"].as_str().ok_or("the entry has no URL")?;
    let (scheme, rest) = url.split_once("://").ok_or("its URL is not http or https")?;
    if scheme != "http" && scheme != "https" {
        return Err("its URL is not http or https");
    }
    let at = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    if host.get_or_insert_with(|| rest[..at].to_owned()) != &rest[..at] {
        return Err("it is for another host than the first entry");
    }
    let target = rest[at..].split('#').next().unwrap_or_default();
    let target = if target.starts_with('/') { target.to_owned() } else { format!("/{target}") };
    let time = entry["startedDateTime"].as_str().and_then(|text| text.parse::<Timestamp>().ok());
    let time = time.ok_or("its startedDateTime cannot be read")?;
    let ms = u64::try_from(time.as_millisecond()).map_err(|_| "it is from before 1970")?;
    let headers = fields(&request["headers"])?;
    let part = Part {
        url: base.with_target(&target).map_err(|_| TARGET)?,
        method: method.to_owned(),
        headers,
        body: body(&request["postData"])?,
        weight: 1,
    };
    let index = reading.add_part(part);
    reading.push(index, Duration::from_millis(ms))
}

/// Returns the fields of an entry, except pseudo-header fields and the fields in `DROPPED`. Fails
/// if one of the returned fields could not be sent.
fn fields(json: &Value) -> Result<Vec<(String, String)>, Skip> {
    let mut fields = Vec::new();
    for field in json.as_array().into_iter().flatten() {
        let (Some(name), Some(value)) = (field["name"].as_str(), field["value"].as_str()) else {
            return Err("a header field has no name or value");
        };
        // Names such as `:authority` belong to pseudo-header fields of HTTP/2.
        let is_dropped = DROPPED.iter().any(|dropped| dropped.eq_ignore_ascii_case(name));
        if name.starts_with(':') || is_dropped {
            continue;
        }
        if !is_token(name.as_bytes()) || !is_field_value(value.as_bytes()) {
            return Err("a header field cannot be sent");
        }
        fields.push((name.to_owned(), value.to_owned()));
    }
    Ok(fields)
}

fn body(post: &Value) -> Result<Vec<u8>, Skip> {
    match (&post["text"], post["params"].as_array()) {
        (Value::String(text), _) => Ok(text.clone().into_bytes()),
        (_, None) => Ok(Vec::new()),
        (_, Some(params)) if params.is_empty() => Ok(Vec::new()),
        _ => Err("the file has the form's fields, but not its body"),
    }
}
