//! Reads access logs in the common and combined formats of Apache and nginx.

use std::io::{BufRead, Read};
use std::time::Duration;

use jiff::fmt::strtime;

use super::{MOST_ENTRIES, Reading, Skip, TARGET, TOO_MANY};
use crate::Url;

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
pub(super) fn read(
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
        match parse(&line) {
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
fn parse(line: &[u8]) -> Result<LoggedRequest, Skip> {
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
