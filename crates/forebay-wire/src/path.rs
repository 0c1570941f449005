//! Request paths (RFC 3986 sections 2.1 and 5.2.4): decoded once, without dot segments.

use std::fmt;

/// Why a path is refused. The client is at fault; the answer is 400.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathError {
    /// `%` without two hexadecimal digits behind it.
    Escape,
    /// A NUL byte, bare or escaped.
    Nul,
    /// `..` above the root.
    AboveRoot,
    /// Not empty and not starting with a slash.
    Relative,
}

impl fmt::Display for PathError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Escape => "malformed percent escape in the path",
            Self::Nul => "NUL in the path",
            Self::AboveRoot => "the path leads above the root",
            Self::Relative => "the path does not start with a slash",
        })
    }
}

impl std::error::Error for PathError {}

/// Appends to `out` the path of `target` (its query is cut off) that routes and files are looked
/// up by: percent-decoded once, repeated slashes merged, dot segments removed.
///
/// An escaped slash stays `%2F`: it is data within a segment, and no file name can hold it.
pub fn normalize(target: &[u8], out: &mut Vec<u8>) -> Result<(), PathError> {
    let end = memchr::memchr(b'?', target).unwrap_or(target.len());
    let path = &target[..end];
    let start = out.len();
    if path.first().is_some_and(|&first| first != b'/') {
        return Err(PathError::Relative);
    }
    if is_plain(path) {
        out.extend_from_slice(path);
    } else {
        decode_onto(path, out)?;
        remove_dot_segments(out, start)?;
    }
    if out.len() == start {
        out.push(b'/');
    }
    Ok(())
}

/// `path` percent-decoded once, but for `%2F`, and otherwise as it came.
pub fn decode(path: &[u8]) -> Result<Vec<u8>, PathError> {
    let mut out = Vec::with_capacity(path.len());
    decode_onto(path, &mut out)?;
    Ok(out)
}

/// Whether there is nothing to decode, merge or remove.
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
        let (Some(high), Some(low)) =
            (rest.get(at + 1).and_then(hex_digit), rest.get(at + 2).and_then(hex_digit))
        else {
            return Err(PathError::Escape);
        };
        match high << 4 | low {
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

/// In place, from `start` on: segments move towards the front, never past what is read next.
fn remove_dot_segments(out: &mut Vec<u8>, start: usize) -> Result<(), PathError> {
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
            b"" if !is_last => {}
            b"." if !is_last => {}
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
    fn what_is_hostile_is_refused() {
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
        ] {
            assert_eq!(normal(path), Err(error), "{path}");
        }
    }

    proptest::proptest! {
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
