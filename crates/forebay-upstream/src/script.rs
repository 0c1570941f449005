//! Finds the script file that a path names, and the rest of the path after it.

use std::cell::RefCell;
use std::collections::HashMap;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use forebay_conf::{Matcher, PathPattern, Route};
use forebay_net::head::Request;
use forebay_wire::cgi;

use crate::mount::{self, request_data};

/// Maximum number of remembered scripts. At this number, all scripts are forgotten.
const REMEMBERED: usize = 10_000;

/// The script file that a path names, and the rest of the path.
#[derive(Debug, PartialEq, Eq)]
pub struct Script {
    /// The file.
    pub file: PathBuf,
    /// Number of bytes at the end of the path that are PATH_INFO.
    pub path_info: usize,
}

impl Script {
    /// Returns the script of a route that runs one program for all paths. PATH_INFO is the path
    /// after the mount point, with its leading slash. For a path in `exact`, PATH_INFO is empty.
    pub fn one_for_all(program: &Path, request: &Request, exact: &[Vec<u8>]) -> Self {
        let path_info = if exact.contains(&request.path) {
            0
        } else {
            request.path.len() - mount::before(&request.path, request.rest.start)
        };
        Self { file: program.to_owned(), path_info }
    }

    /// Returns the data for the CGI variables of `request` for this script, which was found below
    /// `dir`.
    pub fn describe<'a>(
        &'a self,
        request: &'a Request,
        dir: &'a Path,
        content_length: Option<u64>,
    ) -> cgi::Request<'a> {
        let (script_name, path_info) = request.path.split_at(request.path.len() - self.path_info);
        cgi::Request {
            script_name,
            script_filename: self.file.as_os_str().as_bytes(),
            path_info,
            document_root: dir.as_os_str().as_bytes(),
            ..request_data(request, content_length)
        }
    }
}

/// Reason why a path names no script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoScript {
    /// There is no such file.
    NotFound,
    /// A directory, or another object that is not a file.
    NotAFile,
    /// A file that is not a script.
    Data,
}

/// Finds scripts below a directory, and remembers them for a second.
pub struct Scripts {
    dir: PathBuf,
    /// True if a file must look like a script.
    only_scripts: bool,
    /// Permitted endings of a script's name (`suffixes`). If there are none, a name may have any
    /// ending.
    ends: Matcher,
    known: RefCell<HashMap<Vec<u8>, Cached>>,
}

/// A script, with the second in which it was found.
type Cached = (u64, Rc<Script>);

impl Scripts {
    /// Creates the finder for scripts below `dir`.
    pub fn new(dir: PathBuf) -> Self {
        Self { dir, only_scripts: false, ends: Matcher::default(), known: RefCell::default() }
    }

    /// Returns a finder that refuses data files if `only_scripts` is true.
    pub fn only_scripts(self, only_scripts: bool) -> Self {
        Self { only_scripts, ..self }
    }

    /// Returns a finder that accepts only scripts whose name has one of the suffixes of `ends`.
    /// Without suffixes, accepts all names. The route has only checked that some segment of the
    /// path has a suffix, so the script's name must be checked again.
    fn ending_in(self, ends: Matcher) -> Self {
        Self { ends, ..self }
    }

    /// Returns the directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Returns the script that `path` names: the first prefix of `path` that is a file. `path` has
    /// no dot segments. Returns an error if there is no such file, or if the rules of this finder
    /// exclude the file. `second` is the current time in seconds: results are stored for this
    /// second.
    pub fn find(&self, path: &[u8], second: u64) -> Result<Rc<Script>, NoScript> {
        let mut known = self.known.borrow_mut();
        if let Some((at, script)) = known.get(path)
            && *at == second
        {
            return Ok(script.clone());
        }
        let script = Rc::new(find(&self.dir, path)?);
        if self.only_scripts && !is_script(&script.file) {
            return Err(NoScript::Data);
        }
        let name = script.file.file_name().unwrap_or_default().as_bytes();
        if !self.ends.suffixes.is_empty() && !self.ends.ends(name) {
            return Err(NoScript::NotFound);
        }
        if known.len() >= REMEMBERED {
            known.clear();
        }
        known.insert(path.to_vec(), (second, script.clone()));
        Ok(script)
    }
}

/// Returns true if a file with this name and beginning is a script or program, not data. The file
/// counts as a script if the kernel can run it, or if its name has the ending of a script language.
pub fn looks_like_script(name: &[u8], start: &[u8]) -> bool {
    let end = name.rsplit(|&b| b == b'.').next().unwrap_or_default();
    let ends: [&[u8]; 8] = [b"cgi", b"fcgi", b"pl", b"plx", b"perl", b"py", b"php", b"rb"];
    start.starts_with(b"#!")
        || start.starts_with(b"\x7fELF")
        || (end.len() < name.len() && ends.iter().any(|one| end.eq_ignore_ascii_case(one)))
}

/// Reads the beginning of a file. Returns true if [`looks_like_script`] does. An unreadable file
/// counts as a script.
pub fn is_script(file: &Path) -> bool {
    let mut start = [0; 4];
    let read = std::fs::File::open(file).and_then(|mut file| file.read(&mut start));
    read.is_err() || looks_like_script(file.as_os_str().as_bytes(), &start)
}

/// Returns true if `route` leaves files that are not scripts to other routes. This requires
/// `fallback` or `fallback_to`. If the route requires endings, returns false, because all files
/// with these endings count as scripts.
fn skips_non_scripts(route: &Route) -> bool {
    route.passes_on() && route.matcher.suffixes.is_empty()
}

/// Returns the route's paths that have no `*`.
pub fn exact_paths(route: &Route) -> Vec<Vec<u8>> {
    let exact = route.matcher.paths.iter().filter_map(|pattern| match pattern {
        PathPattern::Exact(path) => Some(path.clone().into_bytes()),
        PathPattern::Prefix(_) => None,
    });
    exact.collect()
}

/// Returns the finder for the scripts in `dir`, with the rules of `route`.
pub fn scripts_of(dir: &Path, route: &Route) -> Scripts {
    let Matcher { suffixes, suffix_ignores_case, .. } = route.matcher.clone();
    let ends = Matcher { suffixes, suffix_ignores_case, ..Matcher::default() };
    Scripts::new(dir.to_owned()).only_scripts(skips_non_scripts(route)).ending_in(ends)
}

/// Returns the script that `path` names below `dir`: the first prefix of `path` that is a file.
pub fn find(dir: &Path, path: &[u8]) -> Result<Script, NoScript> {
    let path = path.strip_prefix(b"/").unwrap_or(path);
    let mut file = dir.to_path_buf();
    let mut end = 0;
    for segment in path.split(|&b| b == b'/') {
        end += segment.len();
        if !segment.is_empty() {
            file.push(std::ffi::OsStr::from_bytes(segment));
            let metadata = std::fs::metadata(&file).map_err(|_| NoScript::NotFound)?;
            if metadata.is_file() {
                return Ok(Script { file, path_info: path.len() - end });
            }
            if !metadata.is_dir() {
                return Err(NoScript::NotAFile);
            }
        }
        end += 1;
    }
    Err(NoScript::NotAFile)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_beginning_that_is_a_file_is_the_script() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("sub")).unwrap();
        std::fs::write(dir.path().join("sub/x.pl"), "").unwrap();
        let look = |path: &str| find(dir.path(), path.as_bytes());
        let file = dir.path().join("sub/x.pl");
        assert_eq!(look("sub/x.pl"), Ok(Script { file: file.clone(), path_info: 0 }));
        assert_eq!(look("sub/x.pl/a/b"), Ok(Script { file: file.clone(), path_info: 4 }));
        assert_eq!(look("/sub/x.pl/"), Ok(Script { file, path_info: 1 }));
        assert_eq!(look("sub"), Err(NoScript::NotAFile));
        assert_eq!(look(""), Err(NoScript::NotAFile));
        assert_eq!(look("sub/y.pl"), Err(NoScript::NotFound));
    }
}
