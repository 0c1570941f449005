//! Applications that take every path below their route, as PSGI and WSGI ones do: what of a path is
//! the place where the application is mounted, and what it finds there.

use std::borrow::Cow;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use forebay_engine::Request;
use forebay_wire::cgi;
use forebay_wire::path::decode;

/// An application that routes by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// The directory it works in.
    pub dir: PathBuf,
    /// The file it is made from, for SCRIPT_FILENAME.
    pub file: PathBuf,
    /// Whether it may take connections over whose requests ask for an upgrade.
    pub takes_over: bool,
}

impl Mount {
    /// What the variables of `request` are made from. What the `*` at the end of the route's path
    /// matched is PATH_INFO, with the slash before it; what comes before is SCRIPT_NAME. Without
    /// such a `*` the whole path is PATH_INFO. `path` is what [`path_of`] gave for the request.
    pub fn describe<'a>(
        &'a self,
        request: &'a Request,
        path: &'a [u8],
        content_length: Option<u64>,
    ) -> cgi::Request<'a> {
        let (script_name, path_info) = split(path, request.rest.start);
        cgi::Request {
            head: &request.head,
            bytes: &request.bytes,
            script_name,
            script_filename: self.file.as_os_str().as_bytes(),
            path_info,
            document_root: self.dir.as_os_str().as_bytes(),
            document_uri: &request.path,
            content_length,
            client: request.client,
            server: request.server,
            https: request.https,
            connection: request.connection_variables(),
            claims: request.claims(),
            user: &request.user,
        }
    }
}

/// The path of `request` as the application gets it: the one that the route was found by, but with
/// repeated slashes kept where they come behind what the route's path takes and nothing else was
/// cleaned.
pub fn path_of(request: &Request) -> Cow<'_, [u8]> {
    let (clean, target) = (&request.path, request.original_target());
    let path = &target[..memchr::memchr(b'?', target).unwrap_or(target.len())];
    let kept = match memchr::memmem::find(path, b"//") {
        Some(_) => decode(path).ok().filter(|raw| is_same(raw, clean, request.rest.start)),
        None => None,
    };
    kept.map_or(Cow::Borrowed(clean), Cow::Owned)
}

/// Whether `raw` is `clean` but for slashes repeated behind the slash in front of `rest`.
fn is_same(raw: &[u8], clean: &[u8], rest: usize) -> bool {
    let taken = rest.saturating_sub(1);
    let mut merged = raw.to_vec();
    merged.dedup_by(|a, b| *a == b'/' && *b == b'/');
    merged == clean && raw.get(..taken) == clean.get(..taken)
}

/// `path` in two, before the slash in front of `rest`.
pub fn split(path: &[u8], rest: usize) -> (&[u8], &[u8]) {
    match rest.checked_sub(1) {
        Some(slash) if path.get(slash) == Some(&b'/') => path.split_at(slash),
        _ => path.split_at(0),
    }
}

#[cfg(test)]
mod tests {
    use super::{is_same, split};

    #[test]
    fn repeated_slashes_are_kept_behind_the_mount_alone() {
        assert!(is_same(b"//a///b", b"/a/b", 1));
        assert!(is_same(b"/shop//a", b"/shop/a", 6));
        assert!(!is_same(b"//shop/a", b"/shop/a", 6));
        assert!(!is_same(b"/x/..//shop/a", b"/shop/a", 6));
    }

    #[test]
    fn the_slash_belongs_to_what_the_application_finds() {
        let cut = |path: &'static str, rest| {
            let (name, info) = split(path.as_bytes(), rest);
            (str::from_utf8(name).unwrap(), str::from_utf8(info).unwrap())
        };
        assert_eq!(cut("/shop/a/b", 6), ("/shop", "/a/b"));
        assert_eq!(cut("/shop/", 6), ("/shop", "/"));
        assert_eq!(cut("/a/b", 1), ("", "/a/b"));
        assert_eq!(cut("/", 1), ("", "/"));
        assert_eq!(cut("/a/b", 0), ("", "/a/b"));
        assert_eq!(cut("*", 0), ("", "*"));
    }
}
