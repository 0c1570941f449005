//! Which script a path names, and the parameters that it gets: those that nginx sends.

use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use forebay_conf as conf;
use forebay_engine::{Fault, Request};
use forebay_wire::cgi::{self, Sink};
use forebay_wire::http1::KnownField;

use crate::mount;
use crate::params::with_params;

/// What a path names, as nginx splits it.
pub struct Script {
    /// The file, the name and the path behind it, one after the other.
    bytes: Vec<u8>,
    /// Where the file ends in `bytes`.
    file_end: usize,
    /// Where the name ends in there.
    name_end: usize,
}

/// Scripts that were there a moment ago, of one thread: to ask the kernel takes a microsecond or two of
/// the thirty that a request takes. Of what was not there nothing is kept.
#[derive(Default)]
pub struct FoundScripts {
    found: RefCell<HashSet<Vec<u8>>>,
    /// The second in which they were looked for.
    second: Cell<u64>,
}

/// Scripts remembered at the most.
const MOST: usize = 1024;

impl FoundScripts {
    /// Whether the script was there at some time in this second: so long may it be gone before it is
    /// missed. nginx asks for no script, and has the application say that it is not there.
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
    /// Splits the path behind its first segment that ends as scripts do, or else as the index does.
    /// A script that should be on this machine and is not there is not asked for: PHP would look for
    /// others. (One that has gone is asked for up to a second longer.) Nor is a file whose name does not end as scripts do: PHP would run it.
    pub fn find(
        request: &Request,
        settings: &conf::Fastcgi,
        (found, second): (&FoundScripts, u64),
    ) -> Result<Self, Fault> {
        let path = &request.path;
        if path.iter().any(|b| b.is_ascii_control()) {
            return Err(Fault::client(400, "control byte in the path of a script"));
        }
        let end = script_end(path, settings);
        let (name, path_info) = path.split_at(end.unwrap_or(path.len()));
        let is_of_index = end.is_none() && path.ends_with(b"/");
        let index = if is_of_index { settings.index.as_bytes() } else { b"" };
        let root = settings.root.as_os_str().as_bytes();
        let script = Self::new([root, name, index], [name, index], path_info);
        if !found.has(script.file(), second) && settings.root.is_dir() {
            return Err(Fault::client(404, "no such script").not_mine());
        }
        let ends = &settings.scripts;
        if !ends.is_empty() && !ends.iter().any(|end| script.name().ends_with(end.as_bytes())) {
            let message = format!(
                "{:?} is not run: the end of its name is none of `scripts` ({})",
                String::from_utf8_lossy(script.name()),
                ends.join(", ")
            );
            return Err(Fault::client(403, message).not_mine());
        }
        Ok(script)
    }

    /// What a path names below `root` for an application that looks for itself: the whole path.
    pub fn whole(request: &Request, root: &Path) -> Self {
        let path = &request.path;
        Self::new([root.as_os_str().as_bytes(), path, b""], [path, b""], b"")
    }

    /// What a path names for an application that takes all paths below its route: what the `*` of
    /// the route matched is PATH_INFO.
    pub fn mounted(request: &Request, dir: &Path) -> Self {
        let (name, path_info) = mount::split(&request.path, request.rest.start);
        Self::new([dir.as_os_str().as_bytes(), b"", b""], [name, b""], path_info)
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

    /// The script's file, as the application sees it.
    pub fn file(&self) -> &[u8] {
        &self.bytes[..self.file_end]
    }

    /// The path of the script.
    fn name(&self) -> &[u8] {
        &self.bytes[self.file_end..self.name_end]
    }

    /// What is left of the path behind it.
    fn path_info(&self) -> &[u8] {
        &self.bytes[self.name_end..]
    }

    /// Passes the variables of `request` for this script to `sink`, and those of the route.
    pub fn append_variables(
        &self,
        request: &Request,
        settings: &conf::Fastcgi,
        content_length: Option<u64>,
        sink: &mut impl Sink,
    ) {
        let variables = cgi::Request {
            head: &request.head,
            bytes: &request.bytes,
            script_name: self.name(),
            script_filename: self.file(),
            path_info: self.path_info(),
            document_root: settings.root.as_os_str().as_bytes(),
            document_uri: &request.path,
            content_length,
            client: request.client,
            server: request.server,
            https: request.https,
            connection: request.connection_variables(),
            claims: request.claims(),
            user: &request.user,
        };
        with_params(&settings.params, sink, |sink| {
            cgi::variables(&variables, sink);
            append_as_nginx(request, self, content_length, sink);
        });
    }
}

/// Where the first segment that ends in one of `scripts`, or as the index does, ends.
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

/// What nginx sends beside the variables of CGI, and what scripts may take for granted: the fields
/// about the body under a second name, and names with nothing in them.
fn append_as_nginx(
    request: &Request,
    script: &Script,
    content_length: Option<u64>,
    params: &mut impl Sink,
) {
    if script.path_info().is_empty() {
        params.variable(b"PATH_INFO", b"");
    }
    if content_length.is_none() {
        params.variable(b"CONTENT_LENGTH", b"");
    }
    if let Some(length) = request.head.value(KnownField::ContentLength, &request.bytes) {
        params.variable(b"HTTP_CONTENT_LENGTH", length);
    }
    match request.head.value(KnownField::ContentType, &request.bytes) {
        Some(content_type) => params.variable(b"HTTP_CONTENT_TYPE", content_type),
        None => params.variable(b"CONTENT_TYPE", b""),
    }
    // Who the user is nobody has checked. (nginx passes on what the client claims.)
    if request.user.is_empty() {
        params.variable(b"REMOTE_USER", b"");
    }
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
