//! Replies that ask the gateway to send a file. nginx uses `X-Accel-Redirect` for this purpose, and
//! lighttpd and Apache's mod_xsendfile use `X-Sendfile`.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::path;

/// File that a field of a reply names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NamedFile {
    /// File of `X-Accel-Redirect`: a percent-encoded path, always relative to the configured
    /// directory.
    Uri(Vec<u8>),
    /// File of `X-Sendfile`: a file name, absolute or relative to the configured directory.
    File(Vec<u8>),
}

/// The file that a reply's field lines name.
pub fn named_file(lines: &[u8]) -> Option<NamedFile> {
    let mut place = None;
    for line in lines.split(|&b| b == b'\n').filter(|line| is_for_gateway(line)) {
        let Some(colon) = memchr::memchr(b':', line) else { continue };
        let value = line[colon + 1..].trim_ascii();
        match &line[..colon].to_ascii_lowercase()[..] {
            b"x-accel-redirect" => place = Some(NamedFile::Uri(escape_unencoded(value))),
            b"x-sendfile" => place = place.or_else(|| Some(NamedFile::File(value.to_vec()))),
            _ => {}
        }
    }
    place
}

/// The lines that remain valid if a file replaces the reply's body.
pub fn lines_for_file(lines: &[u8]) -> Vec<u8> {
    let lines = lines.split_inclusive(|&b| b == b'\n');
    let is_kept = |line: &&[u8]| {
        let colon = memchr::memchr(b':', line);
        colon.is_some_and(|colon| !is_of_the_body(&line[..colon].to_ascii_lowercase()))
    };
    lines.filter(is_kept).flatten().copied().collect()
}

/// Percent-encodes the bytes of `path` that cannot stand in a request target. Applications name
/// files as in `/files/a b.txt`, without an encoding, and nginx takes such names. A `%` that begins
/// no escape and a `#` are part of the name, because a path in a field has no fragment.
pub fn escape_unencoded(path: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(path.len());
    for (at, &byte) in path.iter().enumerate() {
        let begins_escape =
            || path.get(at + 1..at + 3).is_some_and(|two| two.iter().all(u8::is_ascii_hexdigit));
        match byte {
            b'%' if begins_escape() => out.push(byte),
            b'%' | b'#' => out.extend_from_slice(format!("%{byte:02X}").as_bytes()),
            _ if byte.is_ascii_graphic() => out.push(byte),
            _ => out.extend_from_slice(format!("%{byte:02X}").as_bytes()),
        }
    }
    out
}

/// Removes the fields that only concern a gateway, `X-Accel-*` and `X-Sendfile`, from the lines
/// that start at position `start` of `out`. These fields contain file names and other details that
/// clients must not see.
pub fn strip(out: &mut Vec<u8>, start: usize) {
    let lines = &out[start..];
    let mut starts = std::iter::once(0).chain(memchr::memchr_iter(b'\n', lines).map(|at| at + 1));
    if !starts.any(|at| is_for_gateway(&lines[at..])) {
        return;
    }
    let lines = out.split_off(start);
    let kept = lines.split_inclusive(|&b| b == b'\n').filter(|line| !is_for_gateway(line));
    kept.for_each(|line| out.extend_from_slice(line));
}

/// Returns true if `line` starts with the name of a field that only concerns a gateway.
pub fn is_for_gateway(line: &[u8]) -> bool {
    let starts_with =
        |name: &[u8]| line.get(..name.len()).is_some_and(|start| start.eq_ignore_ascii_case(name));
    matches!(line.first(), Some(b'x' | b'X'))
        && (starts_with(b"x-accel-") || starts_with(b"x-sendfile"))
}

/// Returns true if the field `name` describes the body that the file replaces.
fn is_of_the_body(name: &[u8]) -> bool {
    const NAMES: [&[u8]; 9] = [
        b"content-digest",
        b"content-encoding",
        b"content-md5",
        b"content-range",
        b"date",
        b"digest",
        b"etag",
        b"last-modified",
        b"repr-digest",
    ];
    NAMES.contains(&name)
}

impl NamedFile {
    /// Returns the path of the file below `root`, with a leading slash. Returns `None` if the file
    /// is outside `root`.
    pub fn below(&self, root: &Path) -> Option<Vec<u8>> {
        let found = match self {
            Self::Uri(uri) => {
                let mut found = Vec::with_capacity(uri.len());
                path::normalize(uri, &mut found).ok()?;
                found
            }
            Self::File(name) if name.starts_with(b"/") => {
                let root = root.as_os_str().as_bytes();
                let rest = name.strip_prefix(root.strip_suffix(b"/").unwrap_or(root))?;
                rest.starts_with(b"/").then(|| rest.to_vec())?
            }
            Self::File(name) => [b"/", &name[..]].concat(),
        };
        let leads_up = found.split(|&b| b == b'/').any(|segment| segment == b"..");
        (!leads_up && !found.contains(&0)).then_some(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_of_the_dropped_body_do_not_go_with_the_file() {
        let lines = b"Content-Type: text/x\r\nETag: \"a\"\r\nSet-Cookie: a=b\r\n";
        assert_eq!(lines_for_file(lines), b"Content-Type: text/x\r\nSet-Cookie: a=b\r\n");
        let named = |lines: &[u8]| named_file(lines);
        assert_eq!(
            named(b"A: b\r\nX-Sendfile: /srv/a\r\n"),
            Some(NamedFile::File(b"/srv/a".into()))
        );
        assert_eq!(named(b"Content-Type: text/x\r\nX-Accel-Buffering: no\r\n"), None);
    }

    #[test]
    fn unencoded_names_are_encoded() {
        for (name, target) in [
            ("/a b.txt", "/a%20b.txt"),
            ("/\u{fc}.txt", "/%C3%BC.txt"),
            ("/a%20b", "/a%20b"),
            ("/100%", "/100%25"),
            ("/100% x#1", "/100%25%20x%231"),
            ("/a?b=c d", "/a?b=c%20d"),
        ] {
            assert_eq!(escape_unencoded(name.as_bytes()), target.as_bytes(), "{name}");
        }
    }

    #[test]
    fn places_stay_below_the_root() {
        let root = Path::new("/srv/files");
        let file = |name: &str| NamedFile::File(name.into()).below(root);
        let uri = |uri: &str| NamedFile::Uri(uri.into()).below(root);
        assert_eq!(file("/srv/files/a b").as_deref(), Some(&b"/a b"[..]));
        assert_eq!(file("a/%41").as_deref(), Some(&b"/a/%41"[..]));
        assert_eq!(uri("/a/%41?b").as_deref(), Some(&b"/a/A"[..]));
        assert_eq!(uri("/x/../a").as_deref(), Some(&b"/a"[..]));
        for bad in
            ["/etc/passwd", "/srv/files-2/a", "/srv/files/../a", "../a", "a/..", "/srv/files"]
        {
            assert_eq!(file(bad), None, "{bad}");
        }
        for bad in ["/../a", "/%2e%2e/a", "a", "/a%00", "http://h/a"] {
            assert_eq!(uri(bad), None, "{bad}");
        }
    }
}
