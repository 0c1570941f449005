//! Variables of CGI-like applications. The path is split into the mount point and the application's
//! part: PSGI and WSGI applications, for example, take every path below their route.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use forebay_net::head::Request;
use forebay_wire::cgi::{self, Sink};
use forebay_wire::path::{decode, merge_slashes};

/// An application that takes every path below its mount point.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// Working directory.
    pub dir: PathBuf,
    /// File of the application, for SCRIPT_FILENAME.
    pub file: PathBuf,
    /// True if the application may take over the connection of an upgrade request.
    pub takes_over: bool,
    /// The configured mount point; see [`parts`].
    pub point: Option<String>,
}

/// SCRIPT_NAME and PATH_INFO of a request.
#[derive(Debug, PartialEq, Eq)]
pub struct Parts<'a> {
    /// The mount point.
    pub script_name: &'a [u8],
    /// The application's part of the path.
    pub path_info: Cow<'a, [u8]>,
}

impl Mount {
    /// Splits the path of `request` into SCRIPT_NAME and PATH_INFO.
    pub fn parts<'a>(&self, request: &'a Request) -> Parts<'a> {
        parts(request, self.point.as_deref())
    }

    /// Returns the data for the CGI variables of `request`. `parts` is the result of
    /// [`Mount::parts`].
    pub fn describe<'a>(
        &'a self,
        request: &'a Request,
        parts: &'a Parts<'_>,
        content_length: Option<u64>,
    ) -> cgi::Request<'a> {
        cgi::Request {
            script_name: parts.script_name,
            script_filename: self.file.as_os_str().as_bytes(),
            path_info: &parts.path_info,
            document_root: self.dir.as_os_str().as_bytes(),
            ..request_data(request, content_length)
        }
    }
}

/// Splits the request's path after the mount point. `point` is the configured mount point. If it is
/// `None`, the part before the final `/*` of the route's path is the mount point. PATH_INFO keeps
/// repeated slashes of the client's target.
pub fn parts<'a>(request: &'a Request, point: Option<&str>) -> Parts<'a> {
    let clean = split(&request.path, request.rest.start, point);
    if let Some(original) = request.original
        && let Some(path_info) = as_it_came(original.of(&request.bytes), &request.path, clean.0)
    {
        return Parts { script_name: clean.0, path_info: Cow::Owned(path_info) };
    }
    Parts { script_name: clean.0, path_info: Cow::Borrowed(clean.1) }
}

/// Returns the decoded part of the client's `target` after the mount point `name`. Keeps repeated
/// slashes, which are merged in the normalized path `clean`. Returns `None` if `target` has
/// repeated slashes within the mount point. Also returns `None` if `target` and `clean` differ in
/// more than repeated slashes.
fn as_it_came(target: &[u8], clean: &[u8], name: &[u8]) -> Option<Vec<u8>> {
    let path = &target[..memchr::memchr(b'?', target).unwrap_or(target.len())];
    let mut raw = decode(path).ok()?;
    let mut merged = raw.clone();
    merge_slashes(&mut merged);
    let is_below = raw.starts_with(name) && raw.get(name.len()).is_none_or(|&b| b == b'/');
    (merged == clean && is_below).then(|| raw.split_off(name.len()))
}

/// Splits `path` after the mount point. `rest` is the start of the part that the `*` of the route's
/// path matched.
pub fn split<'a>(path: &'a [u8], rest: usize, point: Option<&str>) -> (&'a [u8], &'a [u8]) {
    let end = match point {
        Some(point) => match path.strip_prefix(point.as_bytes()) {
            Some(below) if below.is_empty() || below.starts_with(b"/") => point.len(),
            _ => 0,
        },
        None => before(path, rest),
    };
    path.split_at(end)
}

/// Returns the end of the mount point. `rest` is the start of the part that the `*` of the route's
/// path matched.
pub fn before(path: &[u8], rest: usize) -> usize {
    let taken = &path[..rest];
    let slashes = taken.iter().rev().take_while(|&&b| b == b'/').count();
    match slashes {
        // No slash precedes `rest`. Either the route's path is `/app/*` and `path` is `/app`, or
        // the `*` begins within a segment.
        0 if rest == path.len() => rest,
        0 => 0,
        _ => rest - slashes,
    }
}

// CGI variables of a request, and variables of a route's `params` that replace them.

/// Returns the data for the CGI variables of `request`. The caller adds the names and paths of the
/// script.
pub fn request_data(request: &Request, content_length: Option<u64>) -> cgi::Request<'_> {
    cgi::Request {
        head: &request.head,
        bytes: &request.bytes,
        request_uri: request.original_target(),
        script_name: b"",
        script_filename: b"",
        path_info: b"",
        document_root: b"",
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

/// Passes the variables of `append` to `sink`, except variables whose name occurs in `params`. Then
/// passes the variables of `params`.
pub fn with_params<S: Sink>(
    params: &BTreeMap<String, String>,
    sink: &mut S,
    append: impl FnOnce(&mut Replaced<'_, S>),
) {
    // Pass each name only once. SCGI forbids repeated names. Of two values, some applications would
    // use the first, and others the second.
    append(&mut Replaced { sink, by: params });
    for (name, value) in params {
        sink.variable(name.as_bytes(), value.as_bytes());
    }
}

/// A sink that drops variables whose names are in `by`.
pub struct Replaced<'a, S> {
    sink: &'a mut S,
    by: &'a BTreeMap<String, String>,
}

impl<S: Sink> Sink for Replaced<'_, S> {
    fn variable(&mut self, name: &[u8], value: &[u8]) {
        let is_replaced = !self.by.is_empty()
            && str::from_utf8(name).is_ok_and(|name| self.by.contains_key(name));
        if !is_replaced {
            self.sink.variable(name, value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{as_it_came, split};

    fn raw(target: &str, clean: &str, name: &str) -> Option<String> {
        let found = as_it_came(target.as_bytes(), clean.as_bytes(), name.as_bytes())?;
        Some(String::from_utf8(found).unwrap())
    }

    #[test]
    fn repeated_slashes_are_kept_after_the_mount_point_alone() {
        assert_eq!(raw("//a///b?c//d", "/a/b", "").as_deref(), Some("//a///b"));
        assert_eq!(raw("/shop//a%20b", "/shop/a b", "/shop").as_deref(), Some("//a b"));
        for target in ["//shop/a", "/x/..//shop/a", "/shop/./a", "/shopping//a"] {
            assert_eq!(raw(target, "/shop/a", "/shop"), None, "{target}");
        }
    }

    #[test]
    fn the_slash_belongs_to_what_the_application_finds() {
        let cut = |path: &'static str, rest, point| {
            let (name, info) = split(path.as_bytes(), rest, point);
            (str::from_utf8(name).unwrap(), str::from_utf8(info).unwrap())
        };
        for (path, rest, parts) in [
            ("/shop/a/b", 6, ("/shop", "/a/b")),
            ("/shop/", 6, ("/shop", "/")),
            ("/shop", 5, ("/shop", "")),
            ("/shop//a", 7, ("/shop", "//a")),
            ("/shopping", 5, ("", "/shopping")),
            ("/a/b", 1, ("", "/a/b")),
            ("/", 1, ("", "/")),
            ("//a", 2, ("", "//a")),
            ("/a/b", 0, ("", "/a/b")),
            ("*", 0, ("", "*")),
        ] {
            assert_eq!(cut(path, rest, None), parts, "{path}");
            assert_eq!(cut(path, rest, Some("")), ("", path));
        }
        assert_eq!(cut("/shop/a/b", 9, Some("/shop")), ("/shop", "/a/b"));
        assert_eq!(cut("/shop", 1, Some("/shop")), ("/shop", ""));
        assert_eq!(cut("/shopping", 1, Some("/shop")), ("", "/shopping"));
    }
}
