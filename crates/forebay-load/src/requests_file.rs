//! Parser of files with the requests of a mixed load.
//!
//! Each request starts with a line that contains its URL or path, in one of the forms below. The
//! forms are those of siege and vegeta, so that most of their files can be used unchanged.
//!
//! ```text
//! # a comment
//! /a?b=c
//! POST /form weight=3
//! Content-Type: application/x-www-form-urlencoded
//! @body.txt
//!
//! http://127.0.0.1:8080/x POST a=1&b=2
//! ```
//!
//! After this line, lines of the form `name: value` are header fields, and `@FILE` names the file
//! with the body. An empty line ends the request.

use std::path::{Path, PathBuf};

use crate::{Part, Protocol, Url};

/// Line of the file, with its number for error messages.
struct Line<'a> {
    number: usize,
    text: &'a str,
}

/// Maximum size of a body file in bytes (64 MiB).
const LARGEST_BODY: u64 = 64 << 20;

/// Parses a file of requests. A request with only a path goes to the server of `base`. The names of
/// body files are relative to `directory`.
///
/// # Errors
/// Returns an error message that contains the line number.
pub fn parse_requests(text: &str, base: &Url, directory: &Path) -> Result<Vec<Part>, String> {
    let mut parts: Vec<Part> = Vec::new();
    let mut is_open = false;
    for (index, text) in text.lines().enumerate() {
        let line = Line { number: index + 1, text: text.trim() };
        if line.text.starts_with('#') {
            continue;
        }
        if line.text.is_empty() {
            is_open = false;
            continue;
        }
        match parts.last_mut().filter(|_| is_open) {
            Some(part) if line.text.starts_with('@') => {
                part.body = line.read_body(&line.text[1..], directory)?;
            }
            Some(part) if line.field().is_some() => part.headers.extend(line.field()),
            _ => {
                parts.push(line.request(base, directory)?);
                is_open = true;
            }
        }
    }
    if parts.is_empty() {
        return Err("it has no request: write one URL or path on each line".to_owned());
    }
    Ok(parts)
}

impl Line<'_> {
    fn wrong(&self, why: &str) -> String {
        format!("line {}: {why}", self.number)
    }

    /// Parses the line as a header field. Returns `None` for a line with a path or URL, which may
    /// also contain a colon. In a path, the colon follows a `/`. In a URL, the colon precedes `//`.
    fn field(&self) -> Option<(String, String)> {
        let (name, value) = self.text.split_once(':')?;
        let is_name = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'_';
        let is_field = !name.is_empty() && name.bytes().all(is_name) && !value.starts_with("//");
        is_field.then(|| (name.to_owned(), value.trim().to_owned()))
    }

    /// Parses `[METHOD] TARGET [weight=N]`, or `TARGET METHOD [BODY]`.
    fn request(&self, base: &Url, directory: &Path) -> Result<Part, String> {
        let (first, rest) = split_word(self.text);
        let is_method = |word: &str| {
            !word.is_empty() && word.bytes().all(|b| b.is_ascii_uppercase() || b == b'-')
        };
        let (method, target, rest) = if is_method(first) {
            let (target, rest) = split_word(rest);
            (first, target, rest)
        } else {
            let (word, after) = split_word(rest);
            if is_method(word) { (word, first, after) } else { ("GET", first, rest) }
        };
        let url =
            if target.starts_with('/') { base.with_target(target) } else { Url::parse(target) };
        // The options `--http2` and `--http3` select the protocol of all URLs.
        let url = match url {
            Ok(url) if base.protocol().is_http2() => url.over_http2(),
            Ok(url) if base.protocol() == Protocol::Http3 => url.over_http3(),
            url => url,
        };
        let url = url.map_err(|error| self.wrong(&error.to_string()))?;
        let (rest, weight) = self.weight(rest)?;
        let body = match rest.strip_prefix('<') {
            Some(file) => self.read_body(file, directory)?,
            None => rest.as_bytes().to_vec(),
        };
        Ok(Part { url, method: method.to_owned(), headers: Vec::new(), body, weight })
    }

    /// Removes `weight=N` from the end of a line, and returns the rest and the weight. Without
    /// `weight=N`, the weight is 1.
    fn weight<'a>(&self, rest: &'a str) -> Result<(&'a str, u32), String> {
        let (before, last) = rest.rsplit_once(char::is_whitespace).unwrap_or(("", rest));
        let Some(weight) = last.strip_prefix("weight=") else { return Ok((rest, 1)) };
        match weight.parse() {
            Ok(weight @ 1..) => Ok((before.trim_end(), weight)),
            _ => Err(self.wrong("write a weight above 0, such as weight=3")),
        }
    }

    fn read_body(&self, name: &str, directory: &Path) -> Result<Vec<u8>, String> {
        let path: PathBuf = directory.join(name.trim());
        let unreadable =
            |error: std::io::Error| self.wrong(&format!("{}: {error}", path.display()));
        let length = std::fs::metadata(&path).map_err(unreadable)?.len();
        if length > LARGEST_BODY {
            return Err(self.wrong(&format!("{} is larger than 64 MiB", path.display())));
        }
        std::fs::read(&path).map_err(unreadable)
    }
}

fn split_word(text: &str) -> (&str, &str) {
    let (word, rest) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
    (word, rest.trim_start())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Vec<Part>, String> {
        parse_requests(text, &Url::parse("http://h:1/").unwrap(), Path::new("/nonexistent"))
    }

    #[test]
    fn requests_have_methods_weights_fields_and_bodies() {
        let text = "# all forms\n/a?b\nPOST /c weight=3\nX-A: b\nX-C:d\n\n\
                    http://h:1/x POST a=1&b=2 weight=2\nDELETE http://h:1/y\n/z PUT\n";
        let parts = parse(text).unwrap();
        let short = |part: &Part| {
            let body = String::from_utf8(part.body.clone()).unwrap();
            (part.method.clone(), part.url.target().to_owned(), body, part.weight)
        };
        let of = |method: &str, target: &str, body: &str, weight| {
            (method.to_owned(), target.to_owned(), body.to_owned(), weight)
        };
        let expected = [
            of("GET", "/a?b", "", 1),
            of("POST", "/c", "", 3),
            of("POST", "/x", "a=1&b=2", 2),
            of("DELETE", "/y", "", 1),
            of("PUT", "/z", "", 1),
        ];
        assert_eq!(parts.iter().map(short).collect::<Vec<_>>(), expected);
        let fields = [("X-A", "b"), ("X-C", "d")].map(|(n, v)| (n.to_owned(), v.to_owned()));
        assert_eq!(parts[1].headers, fields);
    }

    #[test]
    fn bodies_are_read_beside_the_file() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("b"), "from a file").unwrap();
        let base = Url::parse("h2c://h:1/").unwrap();
        let parts = parse_requests("POST /1\n@b\n/2 POST <b\n", &base, dir.path()).unwrap();
        assert!(parts.iter().all(|part| part.body == b"from a file"));
        assert!(parts[1].url.protocol().is_http2());
    }

    #[test]
    fn a_mistake_is_named_with_its_line() {
        for (text, why) in [
            ("", "no request"),
            ("/a\nhttp//x", "line 2"),
            ("\nPOST /x weight=0", "line 2: write a weight"),
            ("POST /x\n@none", "line 2: /nonexistent/none"),
            ("GET", "line 1"),
        ] {
            let wrong = parse(text).unwrap_err();
            assert!(wrong.contains(why), "{text:?}: {wrong}");
        }
    }
}
