//! Request paths (RFC 3986 sections 2.1 and 5.2.4). Paths are decoded once, and dot segments are
//! removed.

use std::fmt;

/// Reason why a path is rejected. The client is at fault. [`PathError::status`] returns the status
/// of the reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathError {
    /// `%` without two hexadecimal digits after it.
    Escape,
    /// A NUL byte, bare or escaped.
    Nul,
    /// `..` that leads above the root.
    AboveRoot,
    /// Path that is not empty and does not start with a slash.
    Relative,
    /// Dot segment with parameters (`..;x`). Some servers ignore the parameters.
    Parameters,
    /// Dot segment next to a disguised slash, such as `/..%2f`.
    HiddenDots,
    /// Disguised slash (`%2F`, `%5C` or a backslash), if the configuration rejects it.
    EncodedSlash,
}

impl PathError {
    /// Returns the status of the reply: 404 for a disguised slash, as in Apache, and 400 for all
    /// other errors.
    pub fn status(self) -> u16 {
        if self == Self::EncodedSlash { 404 } else { 400 }
    }
}

impl fmt::Display for PathError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Escape => "malformed percent escape in the path",
            Self::Nul => "NUL in the path",
            Self::AboveRoot => "the path leads above the root",
            Self::Relative => "the path does not start with a slash",
            Self::Parameters => "a dot segment with parameters in the path",
            Self::HiddenDots => "a dot segment next to an encoded slash or a backslash in the path",
            Self::EncodedSlash => "an encoded slash or a backslash in the path",
        })
    }
}

impl std::error::Error for PathError {}

/// Rule for repeated slashes in a path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Slashes {
    /// Repeated slashes become one slash.
    #[default]
    Merge,
    /// Repeated slashes stay. The segments between them are empty (RFC 3986 section 3.3).
    Keep,
}

/// Appends the normalized path of `target` to `out`. Repeated slashes are merged. See
/// [`normalize_with`].
pub fn normalize(target: &[u8], out: &mut Vec<u8>) -> Result<(), PathError> {
    normalize_with(target, Slashes::Merge, out)
}

/// Appends the normalized path of `target` to `out`, for the lookup of routes and files. Removes
/// the query, decodes percent escapes once, and removes dot segments. `slashes` decides if repeated
/// slashes are merged. Returns an error if the path cannot be normalized, for example because of a
/// malformed escape, or because it leads above the root.
///
/// An escaped slash stays `%2F`, because it is data within a segment. No file name can contain a
/// slash.
pub fn normalize_with(target: &[u8], slashes: Slashes, out: &mut Vec<u8>) -> Result<(), PathError> {
    let path = without_query(target);
    let start = out.len();
    if path.first().is_some_and(|&first| first != b'/') {
        return Err(PathError::Relative);
    }
    if is_plain(path) {
        out.extend_from_slice(path);
    } else {
        decode_onto(path, out)?;
        remove_dot_segments(out, start, slashes)?;
    }
    if out.len() == start {
        out.push(b'/');
    }
    Ok(())
}

/// Returns the path of `target` if it is plain: [`normalize`] and [`canonical`] would not change
/// it, and it contains no disguised slash. Returns `None` for any other path, and also for a path
/// with `/.`, such as `/.a`.
pub fn as_plain(target: &[u8]) -> Option<&[u8]> {
    let mut after_slash = false;
    if target.first() != Some(&b'/') {
        return None;
    }
    for (at, &byte) in target.iter().enumerate() {
        match SPECIAL[byte as usize] {
            b'?' => return Some(&target[..at]),
            b'/' | b'.' if after_slash => return None,
            b'%' => return None,
            _ => {}
        }
        after_slash = byte == b'/';
    }
    Some(target)
}

/// Bytes that [`as_plain`] examines. The value `%` represents all bytes that no plain path
/// contains.
const SPECIAL: [u8; 256] = {
    let mut table = [0; 256];
    table[b'?' as usize] = b'?';
    table[b'/' as usize] = b'/';
    table[b'.' as usize] = b'.';
    table[b'%' as usize] = b'%';
    table[b'\\' as usize] = b'%';
    table[0] = b'%';
    table
};

/// Returns true if the path of `target` contains a disguised slash: `%2F`, `%5C` or a backslash.
/// Some servers read these as slashes.
pub fn has_hidden_slash(target: &[u8]) -> bool {
    let path = without_query(target);
    memchr::memchr2_iter(b'\\', b'%', path).any(|at| hidden_slash(&path[at..]).is_some())
}

/// Normalizes `target` as [`normalize_with`] does, but keeps its escapes and its query:
/// `/a/../%41?b` becomes `/%41?b`. Returns `None` if nothing changes.
///
/// The path of the result, decoded once, equals the path that [`normalize_with`] returns. The
/// caller must pass a target that [`normalize_with`] accepts.
pub fn canonical(target: &[u8], slashes: Slashes) -> Option<Vec<u8>> {
    let path = without_query(target);
    if is_plain(path) {
        return None;
    }
    let mut kept: Vec<&[u8]> = Vec::new();
    let mut is_open = false;
    for segment in path.split(|&b| b == b'/').skip(1) {
        let kind = dots(segment);
        let is_kept = slashes == Slashes::Keep || !segment.is_empty();
        is_open = kind > 0 || !is_kept;
        match kind {
            2 => drop(kept.pop()),
            0 if is_kept => kept.push(segment),
            _ => {}
        }
    }
    let mut out = Vec::with_capacity(target.len());
    for segment in &kept {
        out.push(b'/');
        out.extend_from_slice(segment);
    }
    if is_open || kept.is_empty() {
        out.push(b'/');
    }
    out.extend_from_slice(&target[path.len()..]);
    (out != target).then_some(out)
}

/// Appends the path that a server reads in `target` if it treats disguised slashes as slashes:
/// `/a%2Fb` becomes `/a/b`.
///
/// Fails as [`normalize`] does. Also fails if the resulting path has a dot segment, plain or
/// escaped, because servers decode and resolve such a path in different orders. They would
/// therefore reach different files.
pub fn unmask(target: &[u8], out: &mut Vec<u8>) -> Result<(), PathError> {
    let start = out.len();
    let mut rest = without_query(target);
    while let Some(&first) = rest.first() {
        match hidden_slash(rest) {
            Some(length) => {
                out.push(b'/');
                rest = &rest[length..];
            }
            None => {
                out.push(first);
                rest = &rest[1..];
            }
        }
    }
    let plain = out.split_off(start);
    let is_hidden_dot =
        |segment: &[u8]| dots(segment.split(|&b| b == b';').next().unwrap_or(segment)) > 0;
    if plain.split(|&b| b == b'/').any(is_hidden_dot) {
        return Err(PathError::HiddenDots);
    }
    normalize(&plain, out)
}

/// Returns `path` without the parameters of its segments (`;x`), as Java servers read it. Returns
/// `None` if `path` has no parameters. `path` must be decoded and contain no dot segments. Segments
/// that become empty are left out.
pub fn without_parameters(path: &[u8]) -> Option<Vec<u8>> {
    memchr::memchr(b';', path)?;
    let mut out = Vec::with_capacity(path.len());
    for segment in path.split(|&b| b == b'/') {
        let name = segment.split(|&b| b == b';').next().unwrap_or_default();
        if !name.is_empty() {
            out.push(b'/');
            out.extend_from_slice(name);
        }
    }
    let last = path.rsplit(|&b| b == b'/').next().unwrap_or_default();
    if last.is_empty() || last.starts_with(b";") {
        out.push(b'/');
    }
    Some(out)
}

/// Returns `target` with its path decoded once and encoded again, as nginx sends it if `proxy_pass`
/// has a path: `/a%2Fb%41` becomes `/a/bA`. Repeated slashes are merged. The query stays.
pub fn reencode(target: &[u8]) -> Vec<u8> {
    let (mut rest, query) = target.split_at(without_query(target).len());
    let mut path = Vec::with_capacity(target.len());
    let is_escaped = rest.contains(&b'%');
    while let Some((&byte, after)) = rest.split_first() {
        let decoded = if byte == b'%' { escape(rest) } else { None };
        path.push(decoded.unwrap_or(byte));
        rest = if decoded.is_some() { &rest[3..] } else { after };
    }
    merge_slashes(&mut path);
    let mut out = Vec::with_capacity(target.len());
    for byte in path {
        // nginx leaves a path without escapes as it is.
        if is_escaped && (!byte.is_ascii_graphic() || b"\"#%<>?\\^`{|}".contains(&byte)) {
            out.extend_from_slice(format!("%{byte:02X}").as_bytes());
        } else {
            out.push(byte);
        }
    }
    out.extend_from_slice(query);
    out
}

/// Returns the path of `target` as seen by a server that decodes escapes and merges slashes, but
/// does not resolve dot segments. Returns `None` if the path has a malformed escape.
pub fn unresolved(target: &[u8]) -> Option<Vec<u8>> {
    let mut path = decode(without_query(target)).ok()?;
    merge_slashes(&mut path);
    Some(path)
}

/// Merges repeated slashes.
pub fn merge_slashes(path: &mut Vec<u8>) {
    path.dedup_by(|a, b| *a == b'/' && *b == b'/');
}

/// Returns the part of `target` after `prefix`, or `None` if `target` has another prefix. Escapes
/// of `target` are decoded for the comparison.
pub fn strip_prefix<'a>(target: &'a [u8], prefix: &[u8]) -> Option<&'a [u8]> {
    let mut rest = target;
    for &wanted in prefix {
        let (byte, length) = match (rest.first()?, escape(rest)) {
            (b'%', Some(byte)) => (byte, 3),
            (&byte, _) => (byte, 1),
        };
        rest = (byte == wanted).then(|| &rest[length..])?;
    }
    Some(rest)
}

fn without_query(target: &[u8]) -> &[u8] {
    &target[..memchr::memchr(b'?', target).unwrap_or(target.len())]
}

/// Returns the number of dots of a dot segment, which may be escaped. Returns 0 for any other
/// segment.
fn dots(mut segment: &[u8]) -> usize {
    for count in 0..=2 {
        segment = match segment {
            [] => return count,
            [b'.', rest @ ..] | [b'%', b'2', b'e' | b'E', rest @ ..] => rest,
            _ => return 0,
        };
    }
    0
}

/// Returns the length of the disguised slash at the start of `rest`, or `None` without one.
fn hidden_slash(rest: &[u8]) -> Option<usize> {
    match rest {
        [b'\\', ..] => Some(1),
        [b'%', b'2', b'f' | b'F', ..] | [b'%', b'5', b'c' | b'C', ..] => Some(3),
        _ => None,
    }
}

/// Returns the byte that the escape at the start of `rest` represents, or `None` if the escape is
/// malformed. The caller has found the `%`.
fn escape(rest: &[u8]) -> Option<u8> {
    Some(hex_digit(rest.get(1)?)? << 4 | hex_digit(rest.get(2)?)?)
}

/// Decodes the percent escapes of `path` once. `%2F` stays. Returns an error for a malformed
/// escape.
pub fn decode(path: &[u8]) -> Result<Vec<u8>, PathError> {
    let mut out = Vec::with_capacity(path.len());
    decode_onto(path, &mut out)?;
    Ok(out)
}

/// Returns true if `path` contains nothing to decode, merge or remove.
fn is_plain(path: &[u8]) -> bool {
    let mut after_slash = false;
    path.iter().all(|&byte| {
        let plain = byte != b'%' && byte != 0 && !(after_slash && (byte == b'.' || byte == b'/'));
        after_slash = byte == b'/';
        plain
    })
}

fn decode_onto(path: &[u8], out: &mut Vec<u8>) -> Result<(), PathError> {
    let mut rest = path;
    while let Some(at) = memchr::memchr(b'%', rest) {
        out.extend_from_slice(&rest[..at]);
        match escape(&rest[at..]).ok_or(PathError::Escape)? {
            b'/' => out.extend_from_slice(b"%2F"),
            byte => out.push(byte),
        }
        rest = &rest[at + 3..];
    }
    out.extend_from_slice(rest);
    Ok(())
}

fn hex_digit(byte: &u8) -> Option<u8> {
    (*byte as char).to_digit(16).map(|digit| digit as u8)
}

/// Removes dot segments from `out` in place, from position `start`. With [`Slashes::Merge`], also
/// merges repeated slashes. Segments move towards the start and never overwrite unread bytes.
/// Returns an error for a NUL, for a path that leads above the root, and for a dot segment with
/// parameters.
fn remove_dot_segments(out: &mut Vec<u8>, start: usize, slashes: Slashes) -> Result<(), PathError> {
    if out[start..].contains(&0) {
        return Err(PathError::Nul);
    }
    let mut read = start;
    let mut write = start;
    while read < out.len() {
        let from = read + usize::from(out[read] == b'/');
        let length = memchr::memchr(b'/', &out[from..]).unwrap_or(out.len() - from);
        let is_last = from + length == out.len();
        match &out[from..from + length] {
            b"" if !is_last && slashes == Slashes::Merge => {}
            b"." if !is_last => {}
            [b'.', b';', ..] | [b'.', b'.', b';', ..] => return Err(PathError::Parameters),
            b".." => {
                if write == start {
                    return Err(PathError::AboveRoot);
                }
                write = start + memchr::memrchr(b'/', &out[start..write]).unwrap_or(0);
                if is_last {
                    out[write] = b'/';
                    write += 1;
                }
            }
            segment => {
                let kept = if segment == b"." { 0 } else { length };
                out[write] = b'/';
                out.copy_within(from..from + kept, write + 1);
                write += 1 + kept;
            }
        }
        read = from + length;
    }
    out.truncate(write);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn normal(path: &str) -> Result<String, PathError> {
        let mut out = Vec::new();
        normalize(path.as_bytes(), &mut out)?;
        Ok(String::from_utf8_lossy(&out).into_owned())
    }

    #[test]
    fn an_encoded_path_is_decoded_once_and_encoded_again() {
        for (target, expected) in [
            ("/a%2Fb%41?c=%2F", "/a/bA?c=%2F"),
            ("/a%252F%2f%2Fb", "/a%252F/b"),
            ("/%C3%a4%20%3F%23%5c%7E", "/%C3%A4%20%3F%23%5C~"),
            ("/a\\\"b//c", "/a\\\"b/c"),
            ("/%4", "/%254"),
            ("*", "*"),
            ("", ""),
        ] {
            assert_eq!(String::from_utf8(reencode(target.as_bytes())).unwrap(), expected);
        }
    }

    #[test]
    fn paths_are_decoded_once_and_cleaned() {
        for (path, expected) in [
            ("/", "/"),
            ("", "/"),
            ("/a?b=/../c", "/a"),
            ("/a/b/", "/a/b/"),
            ("/a%20b", "/a b"),
            ("/%2541", "/%41"),
            ("/a%2Fb", "/a%2Fb"),
            ("/a%2fb", "/a%2Fb"),
            ("//a///b", "/a/b"),
            ("/a//", "/a/"),
            ("/a/./b", "/a/b"),
            ("/a/.", "/a/"),
            ("/.", "/"),
            ("/a/b/../c", "/a/c"),
            ("/a/b/..", "/a/"),
            ("/a/%2e%2E/b", "/b"),
            ("/a/..", "/"),
            ("/.hidden", "/.hidden"),
            ("/a/...", "/a/..."),
            ("/%e2%82%ac", "/\u{20ac}"),
        ] {
            assert_eq!(normal(path).as_deref(), Ok(expected), "{path}");
        }
    }

    #[test]
    fn repeated_slashes_are_kept_on_request() {
        for (path, expected) in [
            ("/img/https://host/a", "/img/https://host/a"),
            ("//a///b", "//a///b"),
            ("/a//", "/a//"),
            ("/a//../b", "/a/b"),
            ("/a//..", "/a/"),
            ("//..", "/"),
            ("/a//./b", "/a//b"),
            ("//.", "//"),
            ("/a%20b//c?//", "/a b//c"),
            ("/", "/"),
            ("", "/"),
        ] {
            let mut out = Vec::new();
            normalize_with(path.as_bytes(), Slashes::Keep, &mut out).unwrap();
            assert_eq!(String::from_utf8(out).unwrap(), expected, "{path}");
        }
        let mut out = Vec::new();
        let above = normalize_with(b"//../..", Slashes::Keep, &mut out);
        assert_eq!(above, Err(PathError::AboveRoot));
    }

    #[test]
    fn hostile_input_is_refused() {
        for (path, error) in [
            ("/..", PathError::AboveRoot),
            ("/a/../../b", PathError::AboveRoot),
            ("/%2e%2e/etc/passwd", PathError::AboveRoot),
            ("/.%2e/", PathError::AboveRoot),
            ("/%00", PathError::Nul),
            ("a/b", PathError::Relative),
            ("/%", PathError::Escape),
            ("/%4", PathError::Escape),
            ("/%zz", PathError::Escape),
            ("/%+1", PathError::Escape),
            ("/x/..;/admin", PathError::Parameters),
            ("/x/%2e.;a=b/admin", PathError::Parameters),
            ("/x/.%3b/admin", PathError::Parameters),
        ] {
            assert_eq!(normal(path), Err(error), "{path}");
        }
    }

    #[test]
    fn sent_paths_are_cleaned_with_their_own_escapes() {
        for (target, sent) in [
            ("/a%20b?c=/../d", None),
            ("/%61/%252f", None),
            ("/a%2fb", None),
            ("/a/.b", None),
            ("//a?//", Some("/a?//")),
            ("/a//b%20c", Some("/a/b%20c")),
            ("/x/%2e%2E/%61", Some("/%61")),
            ("/a/./b/.", Some("/a/b/")),
            ("/a/b/..", Some("/a/")),
            ("/..?q", Some("/?q")),
            ("/a/...", None),
            ("", None),
        ] {
            let found = canonical(target.as_bytes(), Slashes::Merge);
            assert_eq!(found.as_deref(), sent.map(str::as_bytes), "{target}");
        }
    }

    #[test]
    fn slashes_in_disguise_are_seen_through() {
        let read = |target: &str| {
            let mut out = Vec::new();
            unmask(target.as_bytes(), &mut out)?;
            Ok(String::from_utf8(out).unwrap())
        };
        assert_eq!(read("/a%2Fb\\c%5cd?x%2f").as_deref(), Ok("/a/b/c/d"));
        assert_eq!(read("/a%2f/%252fb").as_deref(), Ok("/a/%2fb"));
        for hidden in ["/..%2fa", "/a%2f..", "/a%2f%2e/b", "/%2e.%5Cb", "/a\\.", "/a%2f..;x/b"] {
            assert_eq!(read(hidden), Err(PathError::HiddenDots), "{hidden}");
        }
        for hidden in ["/%2f", "/a%2Fb", "/\\", "/%5c"] {
            assert!(has_hidden_slash(hidden.as_bytes()), "{hidden}");
        }
        for plain in ["/a", "/a?%2f\\", "/%252f", "/%255c", "/%"] {
            assert!(!has_hidden_slash(plain.as_bytes()), "{plain}");
        }
    }

    #[test]
    fn parameters_are_dropped_as_java_servers_drop_them() {
        for (path, read) in [
            ("/a;x/b", Some("/a/b")),
            ("/;/a;b=c;d/", Some("/a/")),
            ("/a/;x", Some("/a/")),
            ("/;", Some("/")),
            ("/a.jsp;jsessionid=1", Some("/a.jsp")),
            ("/a/b", None),
        ] {
            let found = without_parameters(path.as_bytes());
            assert_eq!(found.as_deref(), read.map(str::as_bytes), "{path}");
        }
    }

    #[test]
    fn a_prefix_is_found_however_it_is_escaped() {
        let left = |target: &'static str| strip_prefix(target.as_bytes(), b"/a b");
        assert_eq!(left("/a%20b/c?d"), Some(&b"/c?d"[..]));
        assert_eq!(left("/%61%20%62"), Some(&b""[..]));
        assert_eq!(left("/a%20"), None);
        assert_eq!(left("/a%2"), None);
    }

    proptest::proptest! {
        #[test]
        fn plain_paths_need_no_cleaning(target in "/?([/.a?%\\\\\x00]|%2f|bc){0,12}") {
            let path = without_query(target.as_bytes());
            match as_plain(target.as_bytes()) {
                Some(plain) => {
                    proptest::prop_assert_eq!(plain, path);
                    proptest::prop_assert_eq!(normal(&target), Ok(String::from_utf8_lossy(plain).into()));
                    proptest::prop_assert_eq!(canonical(target.as_bytes(), Slashes::Merge), None);
                    proptest::prop_assert!(!has_hidden_slash(target.as_bytes()));
                }
                None => proptest::prop_assert!(
                    path.is_empty() || !path.starts_with(b"/") || !is_plain(path)
                        || path.contains(&b'\\')
                ),
            }
        }

        #[test]
        fn the_sent_path_is_the_matched_one(path in "/(/|/[./a]{0,4}|%2e|%2f|%41|%252e|\\\\|a){0,12}") {
            for slashes in [Slashes::Merge, Slashes::Keep] {
                let sent = canonical(path.as_bytes(), slashes);
                let sent = sent.as_deref().unwrap_or(path.as_bytes());
                let mut clean = Vec::new();
                if normalize_with(path.as_bytes(), slashes, &mut clean).is_ok() {
                    proptest::prop_assert_eq!(decode(sent).unwrap(), clean);
                    proptest::prop_assert_eq!(canonical(sent, slashes), None);
                }
            }
        }

        #[test]
        fn no_dot_segment_survives(path in "/(/|/[./a]{0,4}|%2e|%2f|%41|a){0,12}") {
            if let Ok(clean) = normal(&path) {
                proptest::prop_assert!(clean.starts_with('/'));
                proptest::prop_assert!(!clean.contains("//"), "{clean}");
                for segment in clean.split('/') {
                    proptest::prop_assert!(segment != "." && segment != "..", "{clean}");
                }
            }
        }
    }
}
