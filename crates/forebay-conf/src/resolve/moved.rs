//! Reads the file of `redirect = { file = "moved.map" }`, with a pair of old and new address on
//! each line.

use std::collections::btree_map::Entry;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use super::{Context, Resolution};
use crate::error::{Problem, advice, reason};
use crate::file::{self, At};
use crate::files;
use crate::key::paths;
use crate::plan::{Moved, MovedEntries, MovedPages};

/// The largest file, in bytes: enough for about 200,000 addresses.
const LARGEST: u64 = 16 * 1024 * 1024;

/// The form of a line, for help in messages.
const FORM: &str = "write \"/old /new\" or \"/old https://example.org/new 302\" on each line";

/// Reads the file that `redirect` names. Returns `None` if `redirect` names no file.
pub(super) fn moved(
    context: &Context<'_>,
    table: &file::Redirect,
) -> Resolution<Option<MovedPages>> {
    let Some(at) = &table.file else { return Ok(None) };
    if let Some(to) = &table.to {
        return Err(Problem::new(&to.span, "both `to` and `file`")
            .also(&at.span, "the file")
            .help("keep one; a second [[site.route]] can hold the other"));
    }
    let status = match &table.status {
        None => 301,
        Some(status) if is_redirect(status.value) => status.value,
        Some(status) => {
            let message = format!("status {} is not a redirect", status.value);
            return Err(Problem::new(&status.span, message).help(STATUSES));
        }
    };
    let file = paths::file(context.sources, at)?;
    let text = read(&file, at)?;
    let mut entries = MovedEntries::default();
    let mut start = 0;
    for line in text.split_inclusive('\n') {
        let span = start..start + line.trim_end().len();
        start += line.len();
        let refuse = |what: String, help: &str| {
            let problem = Problem::new(&span, what).help(help).about_disk();
            problem.in_other(&file.display().to_string(), &text)
        };
        let Some(pair) = pair(line, status).map_err(|(what, help)| refuse(what, help))? else {
            continue;
        };
        if !insert(&mut entries, pair) {
            return Err(refuse(
                "this old address is given twice".into(),
                "remove one of the lines",
            ));
        }
    }
    Ok(Some(MovedPages { file, entries: Arc::new(entries) }))
}

const STATUSES: &str = "write 301 or 308 (permanent), 302 or 307 (temporary), or 303 (see other)";

fn is_redirect(status: u16) -> bool {
    matches!(status, 301 | 302 | 303 | 307 | 308)
}

fn read(file: &Path, typed: &At<String>) -> Resolution<String> {
    let problem =
        |why: &str| Problem::new(&typed.span, format!("cannot read {}: {why}", file.display()));
    let bytes = files::read(file, LARGEST)
        .map_err(|error| problem(&reason(&error)).help(advice(&error)))?;
    if bytes.len() as u64 > LARGEST {
        return Err(problem("it is larger than 16 MiB").help(FORM));
    }
    String::from_utf8(bytes).map_err(|_| problem("it is not text in UTF-8").help(FORM))
}

/// The decoded path and the query of an old address, and the new address.
type Pair = (Vec<u8>, Option<Vec<u8>>, Moved);

/// Parses a line. Returns `None` for an empty line or a comment. The error consists of a message
/// and its help.
fn pair(line: &str, status: u16) -> Result<Option<Pair>, (String, &'static str)> {
    let line = line.trim();
    if line.is_empty() || line.starts_with('#') {
        return Ok(None);
    }
    // Lines of nginx's maps end in a semicolon, which is ignored.
    let mut words = line.strip_suffix(';').unwrap_or(line).split_whitespace();
    let (Some(old), Some(new), third, None) =
        (words.next(), words.next(), words.next(), words.next())
    else {
        return Err(("this line is not an old and a new address".into(), FORM));
    };
    let status = match third {
        None => status,
        Some(text) => match text.parse() {
            Ok(status) if is_redirect(status) => status,
            _ => return Err((format!("\"{text}\" is not the status of a redirect"), STATUSES)),
        },
    };
    if !old.starts_with('/') || old.contains('#') {
        let message = format!("\"{old}\" is not the path of an old page");
        return Err((
            message,
            "an old address begins with a slash; patterns are for `path` of a route",
        ));
    }
    let (path, query) = match old.split_once('?') {
        Some((path, query)) => (path, Some(query.as_bytes().to_vec())),
        None => (old, None),
    };
    let is_url = new.starts_with("http://") || new.starts_with("https://");
    let is_path = new.starts_with('/') && !new.starts_with("//");
    let is_plain = |byte: u8| byte.is_ascii_graphic() && !b"\"<>\\^`{|}".contains(&byte);
    if !(is_url || is_path) || !new.bytes().all(is_plain) {
        let help = "give a URL (https://...) or a path that begins with one slash, percent-encoded";
        return Err((format!("cannot redirect to \"{new}\""), help));
    }
    let keeps_query = query.is_none() && !new.contains(['?', '#']);
    Ok(Some((decoded(path), query, Moved { to: new.to_owned(), status, keeps_query })))
}

/// Adds a pair. Returns false if the old address is already present.
fn insert(entries: &mut MovedEntries, (path, query, moved): Pair) -> bool {
    let entry = match query {
        None => entries.by_path.entry(path),
        Some(query) => entries.by_query.entry(path).or_default().entry(query),
    };
    match entry {
        Entry::Vacant(entry) => {
            entry.insert(moved);
            true
        }
        Entry::Occupied(_) => false,
    }
}

/// Decodes percent-encoded bytes such as `%41`, because the paths of requests are also compared
/// decoded.
fn decoded(path: &str) -> Vec<u8> {
    let bytes = path.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        match escaped(bytes, at..at + 3) {
            Some(byte) => {
                out.push(byte);
                at += 3;
            }
            None => {
                out.push(bytes[at]);
                at += 1;
            }
        }
    }
    out
}

fn escaped(bytes: &[u8], at: Range<usize>) -> Option<u8> {
    let [b'%', high, low] = bytes.get(at)? else { return None };
    let digit = |byte: &u8| char::from(*byte).to_digit(16);
    Some((digit(high)? * 16 + digit(low)?) as u8)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<MovedPages, String> {
        let mut entries = MovedEntries::default();
        for line in text.lines() {
            if let Some(pair) = pair(line, 301).map_err(|(what, _)| what)?
                && !insert(&mut entries, pair)
            {
                return Err("twice".into());
            }
        }
        Ok(MovedPages { file: "x".into(), entries: Arc::new(entries) })
    }

    #[test]
    fn each_form_of_a_line() {
        let pages = read(
            "# comment\n\n/a /b\n  /c\t/d;\n/e https://example.org/f 302\n/caf%C3%A9 /g\n\
             /i?id=1 /one\n/i?id=2 /two?x\n/i /all",
        )
        .unwrap();
        assert_eq!(pages.entries.len(), 7);
        for (path, query, to, status, keeps) in [
            ("/a", "", "/b", 301, true),
            ("/c", "q=1", "/d", 301, true),
            ("/e", "", "https://example.org/f", 302, true),
            ("/caf\u{e9}", "", "/g", 301, true),
            ("/i", "id=1", "/one", 301, false),
            ("/i", "id=2", "/two?x", 301, false),
            ("/i", "id=3", "/all", 301, true),
        ] {
            let found = pages.find(path.as_bytes(), query.as_bytes()).unwrap();
            assert_eq!(
                (&*found.to, found.status, found.keeps_query),
                (to, status, keeps),
                "{path}"
            );
        }
        // A question mark in the path is no query.
        assert_eq!(pages.find(b"/i?id=1", b""), None);
    }

    #[test]
    fn lines_that_are_no_pair_are_refused() {
        for line in [
            "/a",
            "/a /b 200",
            "/a /b 301 x",
            "~^/a /b",
            "default /b",
            "/a //evil.example/",
            "/a javascript:alert(1)",
            "/a /b\\c",
            "/a /caf\u{e9}",
            "/a#b /c",
            "/a /b\n/a /c",
        ] {
            read(line).unwrap_err();
        }
    }
}
