//! Requests of an access log or a HAR file, to be sent again in their order.

use std::collections::HashMap;
use std::io::{BufRead, Read};
use std::time::Duration;

use forebay_wire::http1::{is_field_value, is_token};
use jiff::Timestamp;
use jiff::fmt::strtime;
use serde_json::Value;

use crate::{Part, Replay, Url};

/// Requests that are read from a file.
#[derive(Debug, Default)]
struct Reading {
    parts: Vec<Part>,
    replay: Replay,
    indices: HashMap<(String, String), u32>,
}

/// Reason why a line or entry cannot be sent.
type Skip = &'static str;

/// Maximum number of requests. Each takes 24 bytes.
const MOST_ENTRIES: usize = 20_000_000;

const TOO_MANY: Skip = "it is after the first 20 million requests";
const TARGET: Skip = "its target cannot be sent in a request";

/// Reads an access log in the common or combined format, or a HAR file. Returns the different
/// requests, on the server of `base`, and their order.
///
/// # Errors
/// Returns an error message if the file cannot be read, or has no request that can be sent.
pub fn read_replay(mut file: impl BufRead, base: &Url) -> Result<(Vec<Part>, Replay), String> {
    let start = file.fill_buf().map_err(|error| error.to_string())?;
    if start.starts_with(&[0x1f, 0x8b]) || start.starts_with(&[0x28, 0xb5, 0x2f, 0xfd]) {
        return Err("it is compressed: decompress it first, for example with zcat".to_owned());
    }
    let is_har = start.iter().find(|b| !b.is_ascii_whitespace() && !b"\xef\xbb\xbf".contains(b));
    let mut reading = Reading::default();
    if is_har == Some(&b'{') {
        read_har(file, base, &mut reading)?;
    } else {
        read_access_log(file, base, &mut reading)?;
    }
    reading.finish()
}

impl Reading {
    /// Adds a request without fields and body. `time` is the time since an instant that is the same
    /// for all requests of the file. Fails if the request cannot be sent.
    fn add_plain(
        &mut self,
        (method, target): (String, String),
        time: Duration,
        base: &Url,
    ) -> Result<(), Skip> {
        if let Some(&index) = self.indices.get(&(method.clone(), target.clone())) {
            return self.push(index, time);
        }
        let url = base.with_target(&target).map_err(|_| TARGET)?;
        let part =
            Part { url, method: method.clone(), headers: Vec::new(), body: Vec::new(), weight: 1 };
        let index = self.add_part(part);
        self.indices.insert((method, target), index);
        self.push(index, time)
    }

    fn add_part(&mut self, part: Part) -> u32 {
        self.parts.push(part);
        (self.parts.len() - 1) as u32
    }

    fn push(&mut self, index: u32, time: Duration) -> Result<(), Skip> {
        if self.replay.entries.len() == MOST_ENTRIES {
            return Err(TOO_MANY);
        }
        self.replay.entries.push((index, time));
        Ok(())
    }

    /// Counts a line or entry that cannot be sent. `number` is its number in the file.
    fn skip(&mut self, why: Skip, number: u64) {
        self.replay.skipped.entry(why).or_insert((0, number)).0 += 1;
    }

    /// Sorts the requests by time, and makes their times relative to the first one. Fails if there
    /// is no request.
    fn finish(mut self) -> Result<(Vec<Part>, Replay), String> {
        let entries = &mut self.replay.entries;
        // A log is sorted by the ends of requests, not by their starts.
        entries.sort_by_key(|(_, time)| *time);
        let Some(&(_, first)) = entries.first() else {
            let skipped = self.replay.skipped_text().unwrap_or_default();
            return Err(format!("it has no request that can be sent {skipped}").trim().to_owned());
        };
        entries.iter_mut().for_each(|(_, time)| *time -= first);
        Ok((self.parts, self.replay))
    }
}

// Reads access logs in the common and combined formats of Apache and nginx.

/// Maximum length of a line in bytes.
const LONGEST_LINE: usize = 64 * 1024;

/// Methods whose requests have no body.
const METHODS: [&str; 4] = ["GET", "HEAD", "OPTIONS", "DELETE"];

const FORMAT: Skip = "the line is not in the common or combined format";

/// Request of a line.
struct LoggedRequest {
    /// Time in seconds since 1970.
    second: i64,
    method: String,
    target: String,
}

/// Reads a whole log.
fn read_access_log(
    mut file: impl BufRead,
    base: &Url,
    reading: &mut Reading,
) -> Result<(), String> {
    let mut line = Vec::new();
    let mut entries = Vec::new();
    for number in 1.. {
        line.clear();
        let mut limited = (&mut file).take(LONGEST_LINE as u64);
        let read = limited.read_until(b'\n', &mut line).map_err(|error| error.to_string())?;
        if read == 0 {
            break;
        }
        if read == LONGEST_LINE && !line.ends_with(b"\n") {
            skip_rest(&mut file)?;
            reading.skip("the line is longer than 64 KiB", number);
            continue;
        }
        if line.trim_ascii().is_empty() {
            continue;
        }
        match parse_access_line(&line) {
            Ok(_) if entries.len() == MOST_ENTRIES => reading.skip(TOO_MANY, number),
            Ok(entry) => entries.push((number, entry)),
            Err(why) => reading.skip(why, number),
        }
    }
    // The times in a log are whole seconds. Requests with the same time would be a burst, so spread
    // them evenly over the second.
    entries.sort_by_key(|(_, entry)| entry.second);
    let first = entries.first().map_or(0, |(_, entry)| entry.second);
    for second in entries.chunk_by(|(_, left), (_, right)| left.second == right.second) {
        for (index, (number, LoggedRequest { second: at, method, target })) in
            second.iter().enumerate()
        {
            let whole = Duration::from_secs(at.abs_diff(first));
            let time = whole + Duration::from_secs(1).mul_f64(index as f64 / second.len() as f64);
            let request = (method.clone(), target.clone());
            if let Err(why) = reading.add_plain(request, time, base) {
                reading.skip(why, *number);
            }
        }
    }
    Ok(())
}

/// Reads and drops the rest of a line.
fn skip_rest(file: &mut impl BufRead) -> Result<(), String> {
    loop {
        let buffer = file.fill_buf().map_err(|error| error.to_string())?;
        let end = memchr::memchr(b'\n', buffer);
        let length = end.map_or(buffer.len(), |end| end + 1);
        file.consume(length);
        if end.is_some() || length == 0 {
            return Ok(());
        }
    }
}

/// Parses `... [TIME] "METHOD TARGET HTTP/1.1" ...`. Fields before the time differ between formats.
/// The error says why the request cannot be sent.
fn parse_access_line(line: &[u8]) -> Result<LoggedRequest, Skip> {
    let text = std::str::from_utf8(line).map_err(|_| "the line is not UTF-8")?;
    let (_, rest) = text.split_once('[').ok_or(FORMAT)?;
    let (time, rest) = rest.split_once("] \"").ok_or(FORMAT)?;
    let time = strtime::parse("%d/%b/%Y:%H:%M:%S %z", time).and_then(|time| time.to_timestamp());
    let second = time.map_err(|_| "its time cannot be read")?.as_second();
    let request = unescape(rest).ok_or(FORMAT)?;
    let mut words = request.split(' ');
    let (Some(method), Some(target), Some(version), None) =
        (words.next(), words.next(), words.next(), words.next())
    else {
        return Err("its request line has no method, target and version");
    };
    if !version.starts_with("HTTP/") {
        return Err("its request line has no method, target and version");
    }
    if !METHODS.contains(&method) {
        return Err("a log has no bodies, so only GET, HEAD, OPTIONS and DELETE are sent");
    }
    // The target of a request to a proxy is a whole URL.
    let target = match target.split_once("://") {
        Some((scheme, rest)) if scheme == "http" || scheme == "https" => {
            rest.find('/').map_or("/", |at| &rest[at..])
        }
        _ => target,
    };
    if !target.starts_with('/') {
        return Err(TARGET);
    }
    Ok(LoggedRequest { second, method: method.to_owned(), target: target.to_owned() })
}

/// Returns the text up to the closing quote, and decodes the escapes of Apache and nginx. Returns
/// `None` if the closing quote is missing or an escape is invalid.
fn unescape(text: &str) -> Option<String> {
    let mut out = Vec::new();
    let mut bytes = text.bytes();
    loop {
        match bytes.next()? {
            b'"' => return Some(String::from_utf8_lossy(&out).into_owned()),
            b'\\' => match bytes.next()? {
                b'x' => {
                    let digits = [bytes.next()?, bytes.next()?];
                    let digits = std::str::from_utf8(&digits).ok()?;
                    out.push(u8::from_str_radix(digits, 16).ok()?);
                }
                b'n' => out.push(b'\n'),
                b't' => out.push(b'\t'),
                b'r' => out.push(b'\r'),
                other => out.push(other),
            },
            byte => out.push(byte),
        }
    }
}

// Reads HAR files, which browsers save.

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
fn read_har(file: impl Read, base: &Url, reading: &mut Reading) -> Result<(), String> {
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
        if let Err(why) = add_har_entry(entry, &mut host, base, reading) {
            reading.skip(why, index as u64 + 1);
        }
    }
    Ok(())
}

/// Adds one entry. `host` is the host of the first entry. Entries for other hosts, such as
/// advertisements, are skipped. An error is the reason for a skipped entry.
fn add_har_entry(
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
    let headers = har_fields(&request["headers"])?;
    let part = Part {
        url: base.with_target(&target).map_err(|_| TARGET)?,
        method: method.to_owned(),
        headers,
        body: har_body(&request["postData"])?,
        weight: 1,
    };
    let index = reading.add_part(part);
    reading.push(index, Duration::from_millis(ms))
}

/// Returns the fields of an entry, except pseudo-header fields and the fields in `DROPPED`. Fails
/// if one of the returned fields could not be sent.
fn har_fields(json: &Value) -> Result<Vec<(String, String)>, Skip> {
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

fn har_body(post: &Value) -> Result<Vec<u8>, Skip> {
    match (&post["text"], post["params"].as_array()) {
        (Value::String(text), _) => Ok(text.clone().into_bytes()),
        (_, None) => Ok(Vec::new()),
        (_, Some(params)) if params.is_empty() => Ok(Vec::new()),
        _ => Err("the file has the form's fields, but not its body"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &[u8]) -> Result<(Vec<Part>, Replay), String> {
        read_replay(text, &Url::parse("http://h:1/").unwrap())
    }

    fn sent((parts, replay): &(Vec<Part>, Replay)) -> Vec<(String, u64)> {
        let text = |(index, time): &(u32, Duration)| {
            let part = &parts[*index as usize];
            (format!("{} {}", part.method, part.url.target()), time.as_millis() as u64)
        };
        replay.entries.iter().map(text).collect()
    }

    #[test]
    fn logs_of_nginx_and_apache_are_read() {
        let log =
            br#"1.2.3.4 - - [10/Oct/2026:13:55:36 +0000] "GET /a?b=c HTTP/1.1" 200 12 "-" "curl/8"
::1 - u [10/Oct/2026:15:55:38 +0200] "HEAD /b HTTP/2.0" 200 0
site:80 ::1 - - [10/Oct/2026:13:55:37 +0000] "GET /a?b=c HTTP/1.1" 200 12
1.2.3.4 - - [10/Oct/2026:13:55:38 +0000] "GET /q\"\x22\x01 HTTP/1.0" 400 0
1.2.3.4 - - [10/Oct/2026:13:55:38 +0000] "GET http://other/x HTTP/1.1" 200 0
"#;
        let read_back = read(log).unwrap();
        let (parts, replay) = &read_back;
        assert_eq!(replay.skipped.len(), 1, "{replay:?}");
        assert_eq!(replay.skipped[TARGET], (1, 4));
        // Requests of the same second are spread evenly over this second.
        let expected =
            [("GET /a?b=c", 0), ("GET /a?b=c", 1000), ("HEAD /b", 2000), ("GET /x", 2666)];
        assert_eq!(sent(&read_back), expected.map(|(text, ms)| (text.to_owned(), ms)));
        assert_eq!(parts.len(), 3);
    }

    #[test]
    fn lines_that_cannot_be_sent_are_counted_by_reason() {
        let line =
            |request: &str| format!("h - - [10/Oct/2026:13:55:36 +0000] \"{request}\" 200 1\n");
        let mut log = line("GET / HTTP/1.1");
        for request in
            ["POST /a HTTP/1.1", "PUT /a HTTP/1.1", "-", "\\x16\\x03", "OPTIONS * HTTP/1.1"]
        {
            log += &line(request);
        }
        log += "no log line\nh - - [99/Foo/2026:13:55:36 +0000] \"GET / HTTP/1.1\" 200 1\n\n";
        let mut log = log.into_bytes();
        log.extend_from_slice(
            b"h - - [10/Oct/2026:13:55:36 +0000] \"GET /\xff\xfe HTTP/1.1\" 200 1\n",
        );
        log.extend_from_slice(&vec![b'x'; 200_000]);
        log.extend_from_slice(b"\nh - - [10/Oct/2026:13:55:36 +0000] \"GET /last HTTP/1.1\" 200 1");
        let (_, replay) = read(&log).unwrap();
        assert_eq!(replay.entries.len(), 2, "{replay:?}");
        let count: u64 = replay.skipped.values().map(|(count, _)| count).sum();
        assert_eq!(count, 9, "{replay:?}");
        let text = replay.skipped_text().unwrap();
        assert!(text.contains("2 and 1 more: a log has no bodies"), "{text}");
        assert!(text.contains("11: the line is longer than 64 KiB"), "{text}");
    }

    #[test]
    fn a_har_file_has_fields_and_bodies() {
        let har = br#"{"log": {"entries": [
            {"startedDateTime": "2026-10-10T13:55:36.250Z", "request": {"method": "POST",
             "url": "https://shop.example/cart?x=1", "headers": [
                {"name": ":authority", "value": "shop.example"}, {"name": "Host", "value": "s"},
                {"name": "Content-Length", "value": "3"}, {"name": "X-A", "value": "b"}],
             "postData": {"mimeType": "text/plain", "text": "a=b"}}},
            {"startedDateTime": "2026-10-10T15:55:36+02:00", "request": {"method": "GET",
             "url": "https://shop.example", "headers": []}},
            {"startedDateTime": "2026-10-10T13:55:37Z", "request": {"method": "GET",
             "url": "https://cdn.example/x.js", "headers": []}},
            {"startedDateTime": "soon", "request": {"method": "GET", "url": "https://shop.example/"}},
            {"request": {"method": "G T", "url": "https://shop.example/"}},
            7
        ]}}"#;
        let read_back = read(har).unwrap();
        assert_eq!(sent(&read_back), [("GET /".to_owned(), 0), ("POST /cart?x=1".to_owned(), 250)]);
        let (parts, replay) = &read_back;
        let post = &parts[0];
        assert_eq!(post.headers, [("X-A".to_owned(), "b".to_owned())]);
        assert_eq!(post.body, b"a=b");
        assert_eq!(replay.skipped.values().map(|(count, _)| count).sum::<u64>(), 4);
        assert_eq!(replay.skipped["it is for another host than the first entry"], (1, 3));
    }

    #[test]
    fn other_files_are_refused_with_a_reason() {
        for (text, why) in [
            (&b""[..], "no request"),
            (b"hello\n", "no request that can be sent (not sent: 1; number 1: "),
            (b"{", "no HAR"),
            (b"{}", "no HAR"),
            (b"{\"log\": {\"entries\": 5}}", "no HAR"),
            (b"{\"log\": {\"entries\": []}}", "no request"),
            (b"\x1f\x8b\x08", "zcat"),
            (&[0; 300_000], "no request"),
            (&b"[".repeat(100_000), "no request"),
            (&b"{\"a\":".repeat(100_000), "no HAR"),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.contains(why), "{why}: {error}");
        }
    }
}
