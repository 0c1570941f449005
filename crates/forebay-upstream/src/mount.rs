//! Applications that take every path below their route, such as PSGI and WSGI applications: splits
//! a path into the mount point and the application's part.

use std::borrow::Cow;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use forebay_net::head::Request;
use forebay_wire::cgi;
use forebay_wire::path::decode;

/// An application that does its own routing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// Working directory.
    pub dir: PathBuf,
    /// File of the application, for SCRIPT_FILENAME.
    pub file: PathBuf,
    /// True if it may take over connections with upgrade requests.
    pub takes_over: bool,
}

impl Mount {
    /// Returns the script that the variables of `request` describe. The part that the final `*` of
    /// the route's path matched is PATH_INFO, with the slash before it. The part before that is
    /// SCRIPT_NAME. Without such a `*`, the whole path is PATH_INFO. `path` is the result of
    /// [`path_of`].
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

/// Returns the path of `request` for the application: the path that selected the route. Repeated
/// slashes after the route's part are kept if the path is otherwise unchanged.
pub fn path_of(request: &Request) -> Cow<'_, [u8]> {
    let (clean, target) = (&request.path, request.original_target());
    let path = &target[..memchr::memchr(b'?', target).unwrap_or(target.len())];
    let kept = match memchr::memmem::find(path, b"//") {
        Some(_) => decode(path).ok().filter(|raw| is_same(raw, clean, request.rest.start)),
        None => None,
    };
    kept.map_or(Cow::Borrowed(clean), Cow::Owned)
}

/// Returns true if `raw` equals `clean`, except for repeated slashes from the one before `rest` on.
fn is_same(raw: &[u8], clean: &[u8], rest: usize) -> bool {
    let taken = rest.saturating_sub(1);
    let mut merged = raw.to_vec();
    merged.dedup_by(|a, b| *a == b'/' && *b == b'/');
    merged == clean && raw.get(..taken) == clean.get(..taken)
}

/// Splits `path` before the slash that precedes `rest`.
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
