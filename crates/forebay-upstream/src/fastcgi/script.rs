//! Finds the script that a path names, and computes the parameters that nginx would send for it.

use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use forebay_conf as conf;
use forebay_net::fault::{Decline, Fault};
use forebay_net::head::Request;
use forebay_wire::cgi::{self, Sink};
use forebay_wire::http1::KnownField;

use crate::mount::{self, request_data, with_params};

/// A script file, with its script name and path info. These parts are the same as in nginx.
pub struct Script {
    /// The file, the script name and the path info, one after the other.
    bytes: Vec<u8>,
    /// End of the file in `bytes`.
    file_end: usize,
    /// End of the script name in `bytes`.
    name_end: usize,
}

/// Scripts that one thread has found in the current second. Missing scripts are not stored.
// For a script in the set, no system call is needed. The call takes 1 to 2 µs, and a request takes
// 30 µs.
#[derive(Default)]
pub struct FoundScripts {
    found: RefCell<HashSet<Vec<u8>>>,
    /// Second in which the scripts in `found` were checked.
    second: Cell<u64>,
}

/// Maximum number of stored scripts.
const MOST: usize = 1024;

impl FoundScripts {
    /// Returns true if the file exists, or if an earlier check in the same second found it. So a
    /// deleted script may be found for up to a second.
    fn has(&self, file: &[u8], second: u64) -> bool {
        let mut found = self.found.borrow_mut();
        if self.second.replace(second) != second {
            found.clear();
        }
        if found.contains(file) {
            return true;
        }
        let is_there = Path::new(OsStr::from_bytes(file)).is_file();
        if is_there && found.len() < MOST {
            found.insert(file.to_vec());
        }
        is_there
    }
}

impl Script {
    /// Returns the script that a request names. If the route has `mount`, the application itself is
    /// the script for every path.
    pub fn of_route(
        request: &Request,
        settings: &conf::Fastcgi,
        found: (&FoundScripts, u64),
    ) -> Result<Self, Fault> {
        match settings.mount {
            Some(_) => Ok(Self::mounted(request, settings, None)),
            None if !settings.must_exist => Self::whole(request, settings, &settings.index),
            None => Self::find(request, settings, found),
        }
    }

    /// Finds the script that a path names. The first segment that [`script_end`] accepts ends the
    /// script's path, and the rest is PATH_INFO.
    ///
    /// Returns a fault for a missing script, if the root is a directory on this machine. Without
    /// this check, PHP may run a file at the beginning of the path (`cgi.fix_pathinfo`). Also
    /// returns a fault for a name without an ending in `scripts`. Otherwise PHP would run any file
    /// that the path names, such as an uploaded image.
    pub fn find(
        request: &Request,
        settings: &conf::Fastcgi,
        (found, second): (&FoundScripts, u64),
    ) -> Result<Self, Fault> {
        let path = &request.path;
        if path.iter().any(u8::is_ascii_control) {
            return Err(Fault::client(400, "control byte in the path of a script"));
        }
        let below = below_root(path, settings)?;
        let end = script_end(below, settings).map(|end| path.len() - below.len() + end);
        let (name, path_info) = path.split_at(end.unwrap_or(path.len()));
        let is_of_index = end.is_none() && path.ends_with(b"/");
        let index = if is_of_index { settings.index.as_bytes() } else { b"" };
        let root = settings.root.as_deref().unwrap_or(Path::new(""));
        let below = &name[path.len() - below.len()..];
        let script =
            Self::new([root.as_os_str().as_bytes(), below, index], [name, index], path_info);
        if !found.has(script.file(), second) && root.is_dir() {
            let file = String::from_utf8_lossy(script.file());
            let message = format!("no such script: {file}");
            return Err(Fault::client(404, message).decline(Decline::IfFallback));
        }
        let ends = &settings.scripts;
        if !ends.is_empty() && !ends.iter().any(|end| script.name().ends_with(end.as_bytes())) {
            let message = format!(
                "{:?} is not run: its name has none of the endings in `scripts` ({})",
                String::from_utf8_lossy(script.name()),
                ends.join(", ")
            );
            return Err(Fault::client(403, message).decline(Decline::IfFallback));
        }
        Ok(script)
    }

    /// Returns a script for the whole path, without PATH_INFO, for an application that looks for
    /// the script itself. `index` follows a path that ends in a slash.
    pub fn whole(request: &Request, settings: &conf::Fastcgi, index: &str) -> Result<Self, Fault> {
        let path = &request.path;
        let below = below_root(path, settings)?;
        let root = settings.root.as_deref().unwrap_or(Path::new(""));
        let index = if path.ends_with(b"/") { index.as_bytes() } else { b"" };
        Ok(Self::new([root.as_os_str().as_bytes(), below, index], [path, index], b""))
    }

    /// Returns the script of an application that takes every path. `file` is the script's file, if
    /// any.
    pub fn mounted(request: &Request, settings: &conf::Fastcgi, file: Option<&Path>) -> Self {
        let parts = mount::parts(request, settings.mount.as_deref());
        let file = file.map(|file| file.as_os_str().as_bytes()).unwrap_or_default();
        Self::new([file, b"", b""], [parts.script_name, b""], &parts.path_info)
    }

    fn new(file: [&[u8]; 3], name: [&[u8]; 2], path_info: &[u8]) -> Self {
        let [root, below, index] = file;
        let file_end = root.len() + below.len() + index.len();
        let name_end = file_end + name[0].len() + name[1].len();
        let mut bytes = Vec::with_capacity(name_end + path_info.len());
        for part in [root, below, index, name[0], name[1], path_info] {
            bytes.extend_from_slice(part);
        }
        Self { bytes, file_end, name_end }
    }

    /// Returns the script's file in the application's file system.
    pub fn file(&self) -> &[u8] {
        &self.bytes[..self.file_end]
    }

    /// Returns the path of the script.
    fn name(&self) -> &[u8] {
        &self.bytes[self.file_end..self.name_end]
    }

    /// Returns the rest of the path after the script.
    fn path_info(&self) -> &[u8] {
        &self.bytes[self.name_end..]
    }

    /// Passes the variables of `request` for this script, and the configured variables of the
    /// route, to `sink`.
    pub fn append_variables(
        &self,
        request: &Request,
        settings: &conf::Fastcgi,
        content_length: Option<u64>,
        sink: &mut impl Sink,
    ) {
        let root = settings.root.as_ref().map(|root| root.as_os_str().as_bytes());
        let variables = cgi::Request {
            script_name: self.name(),
            script_filename: self.file(),
            path_info: self.path_info(),
            document_root: root.unwrap_or_default(),
            ..request_data(request, content_length)
        };
        // Most routes have no `params`, and looking each name up costs 600 instructions.
        let params = request.params.as_deref().unwrap_or(&settings.params);
        if params.is_empty() {
            cgi::variables(&variables, sink);
            self.append_as_nginx(request, settings, content_length, sink);
            return;
        }
        with_params(params, sink, |sink| {
            cgi::variables(&variables, sink);
            self.append_as_nginx(request, settings, content_length, sink);
        });
    }

    /// Adds variables that CGI does not require, but nginx sends, because scripts may rely on them.
    /// PATH_INFO, CONTENT_LENGTH, CONTENT_TYPE and REMOTE_USER are sent even if they are empty.
    /// HTTP_CONTENT_LENGTH and HTTP_CONTENT_TYPE are copies of the request's fields.
    fn append_as_nginx(
        &self,
        request: &Request,
        settings: &conf::Fastcgi,
        content_length: Option<u64>,
        params: &mut impl Sink,
    ) {
        if self.path_info().is_empty() {
            params.variable(b"PATH_INFO", b"");
        }
        if content_length.is_none() {
            params.variable(b"CONTENT_LENGTH", b"");
        }
        let length = request.head.value(KnownField::ContentLength, &request.bytes);
        let content_type = request.head.value(KnownField::ContentType, &request.bytes);
        if content_type.is_none() {
            params.variable(b"CONTENT_TYPE", b"");
        }
        // Rack, WSGI and PSGI forbid these names, so an application with `mount` does not get them.
        if settings.mount.is_none() {
            for (name, value) in
                [(&b"HTTP_CONTENT_LENGTH"[..], length), (b"HTTP_CONTENT_TYPE", content_type)]
            {
                if let Some(value) = value {
                    params.variable(name, value);
                }
            }
        }
        // If Forebay has checked no password, pass no user name. nginx differs: it passes the name
        // that the client claims.
        if request.user.is_empty() {
            params.variable(b"REMOTE_USER", b"");
        }
    }
}

/// Returns the part of `path` after `strip_prefix`, which is looked up below the root. Returns
/// `None` for a path outside that prefix. The route then declines the request. So each script has
/// only one path, and access rules for this path protect the script.
pub fn below_prefix<'a>(path: &'a [u8], strip_prefix: Option<&str>) -> Option<&'a [u8]> {
    let below = path.strip_prefix(strip_prefix.unwrap_or_default().as_bytes())?;
    (below.is_empty() || below.starts_with(b"/")).then_some(below)
}

/// Returns the result of [`below_prefix`], or a fault for a path outside the prefix.
fn below_root<'a>(path: &'a [u8], settings: &conf::Fastcgi) -> Result<&'a [u8], Fault> {
    let below = below_prefix(path, settings.strip_prefix.as_deref());
    below.ok_or_else(|| {
        Fault::client(404, "the path does not begin with `strip_prefix`")
            .decline(Decline::IfFallback)
    })
}

/// Returns the end of the first segment that ends in one of `scripts`, or in the extension of
/// `index` if `scripts` is empty. Returns `None` if there is no such segment.
pub fn script_end(path: &[u8], settings: &conf::Fastcgi) -> Option<usize> {
    let index = settings.index.as_bytes();
    let of_index = index.iter().rposition(|&b| b == b'.').map(|at| &index[at..]);
    let is_script = |segment: &[u8]| {
        if settings.scripts.is_empty() {
            return of_index.is_some_and(|end| segment.ends_with(end));
        }
        settings.scripts.iter().any(|end| segment.ends_with(end.as_bytes()))
    };
    let mut end = 0;
    for segment in path.split(|&b| b == b'/') {
        end += segment.len();
        if is_script(segment) {
            return Some(end);
        }
        end += 1;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_script_is_there_at_once_and_one_that_is_gone_is_missed_in_the_next_second() {
        let file = std::env::temp_dir().join(format!("forebay-script-{}", std::process::id()));
        let found = FoundScripts::default();
        let has = |second| found.has(file.as_os_str().as_bytes(), second);
        assert!(!has(7));
        std::fs::write(&file, b"<?php").unwrap();
        assert!(has(7));
        std::fs::remove_file(&file).unwrap();
        assert!(has(7));
        assert!(!has(8));
    }
}
