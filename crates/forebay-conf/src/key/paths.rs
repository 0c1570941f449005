//! Makes paths absolute. Checks that a path exists if its key needs an existing file or directory.

use std::io::ErrorKind;
use std::path::{Component, Path, PathBuf};

use schemars::{Schema, SchemaGenerator};

use super::{At, Cx, Form, Node, Resolution, plain, text};
use crate::error::{Problem, reason};
use crate::files::{self, Kind};
use crate::source::Sources;
use crate::suggest;

/// The path of an existing regular file.
pub(crate) struct ExistingFile;

impl Form<PathBuf> for ExistingFile {
    fn schema(generator: &mut SchemaGenerator) -> Schema {
        String::schema(generator)
    }

    fn read(node: &Node<'_>, cx: &Cx<'_>) -> Resolution<PathBuf> {
        let typed = At { value: text(node)?, span: node.span() };
        if cx.is_partial.get() {
            return Err(Problem::not_whole());
        }
        file(cx.sources, &typed)
    }
}

/// Returns an absolute path. The path need not exist.
pub(crate) fn path(sources: &Sources, typed: &At<impl AsRef<str>>) -> Resolution<PathBuf> {
    Ok(without_parents(
        sources
            .base(&typed.span)
            .join(plain(typed.value.as_ref(), &typed.span)?)
            .components()
            .collect(),
    ))
}

/// Returns a path to the same file without `..`, because other code compares paths part by part.
/// Resolves the symbolic links before the last `..`. Keeps the links after it, because an
/// administrator may replace such a link at each release. Returns `path` unchanged if the part up
/// to the last `..` does not exist.
pub(crate) fn without_parents(path: PathBuf) -> PathBuf {
    let parts: Vec<_> = path.components().collect();
    let Some(last) = parts.iter().rposition(|part| *part == Component::ParentDir) else {
        return path;
    };
    let (before, behind) = parts.split_at(last + 1);
    let before: PathBuf = before.iter().collect();
    match files::canonicalize(&before) {
        Ok(real) => real.join(behind.iter().collect::<PathBuf>()).components().collect(),
        Err(_) => path,
    }
}

/// Returns the absolute path of an existing directory.
pub(crate) fn directory(sources: &Sources, typed: &At<impl AsRef<str>>) -> Resolution<PathBuf> {
    existing(sources, typed, path(sources, typed)?, Kind::Directory)
}

/// Returns the absolute path of an existing regular file.
pub(crate) fn file(sources: &Sources, typed: &At<impl AsRef<str>>) -> Resolution<PathBuf> {
    existing(sources, typed, path(sources, typed)?, Kind::File)
}

/// Returns `path`, which was typed as `typed`, if something of this kind is there.
pub(crate) fn existing(
    sources: &Sources,
    typed: &At<impl AsRef<str>>,
    path: PathBuf,
    wanted: Kind,
) -> Resolution<PathBuf> {
    let (what, help) = match wanted {
        Kind::Directory => ("directory", "give the directory it is in"),
        Kind::File | Kind::Other => ("file", "give the path of a file"),
    };
    match files::kind(&path) {
        Ok(kind) if kind == wanted => Ok(path),
        Ok(_) => {
            let message = format!("{} is not a {what}", path.display());
            Err(Problem::new(&typed.span, message).help(help).about_disk())
        }
        Err(error) => Err(absent(sources, typed, &path, what, &error)),
    }
}

/// Returns the absolute path of a file that Forebay can create in an existing directory.
pub(crate) fn in_directory(sources: &Sources, typed: &At<impl AsRef<str>>) -> Resolution<PathBuf> {
    let path = path(sources, typed)?;
    let parent = path.parent().unwrap_or(Path::new("/"));
    match files::kind(parent) {
        Ok(Kind::File | Kind::Other) => {
            let message = format!("{} is not a directory", parent.display());
            Err(Problem::new(&typed.span, message).help("give a path inside a directory"))
        }
        Ok(Kind::Directory) if files::kind(&path).is_ok_and(|kind| kind == Kind::Directory) => {
            let message = format!("{} is a directory", path.display());
            Err(Problem::new(&typed.span, message).help("add the name of a file"))
        }
        Ok(_) => Ok(path),
        Err(error) => Err(absent(sources, typed, parent, "directory", &error)),
    }
}

/// Returns the absolute path of a Unix socket, if the path is short enough for the kernel.
pub(crate) fn socket(sources: &Sources, typed: &At<&str>) -> Resolution<PathBuf> {
    let path = path(sources, typed)?;
    let length = path.as_os_str().len();
    if length <= LONGEST_SOCKET {
        return Ok(path);
    }
    let message = format!("the socket's path has {length} bytes: {}", path.display());
    Err(Problem::new(&typed.span, message)
        .label(format!("longer than {LONGEST_SOCKET} bytes"))
        .help("the kernel takes no longer path: choose a shorter one, such as in /run"))
}

/// The size in bytes of Linux's `sun_path`, without its final zero.
const LONGEST_SOCKET: usize = 107;

/// Explains why a path cannot be used: a missing permission, or a name that does not exist.
fn absent(
    sources: &Sources,
    typed: &At<impl AsRef<str>>,
    path: &Path,
    what: &str,
    error: &std::io::Error,
) -> Problem {
    if error.kind() != ErrorKind::NotFound {
        let message = format!("cannot look at {}: {}", path.display(), reason(error));
        return Problem::new(&typed.span, message)
            .help("check the permissions of every directory on the way")
            .about_disk();
    }
    let problem = Problem::new(&typed.span, format!("no such {what}: {}", path.display()));
    let problem = problem.about_disk();
    let problem = if Path::new(typed.value.as_ref()).is_absolute() {
        problem.label("does not exist")
    } else {
        problem.label(format!("relative to {}", sources.base(&typed.span).display()))
    };
    match neighbour(path) {
        Some(name) => problem.help(format!("did you mean \"{name}\"? It is in the same directory")),
        None => problem.help(format!("create it, or give the path of a {what} that exists")),
    }
}

/// Returns the name in the same directory that is most similar to the last name of the path.
/// Returns `None` if no name is similar enough.
fn neighbour(path: &Path) -> Option<String> {
    let name = path.file_name()?.to_str()?;
    let entries = std::fs::read_dir(path.parent()?).ok()?;
    let names: Vec<String> =
        entries.take(1000).filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect();
    suggest::nearest(name, names.iter().map(String::as_str)).map(str::to_owned)
}

/// Returns the name of an index file. The name must not contain a directory.
pub(crate) fn file_name(typed: &At<&String>) -> Resolution<String> {
    let name = plain(typed.value, &typed.span)?;
    if name.contains('/') || name == "." || name == ".." {
        return Err(Problem::new(&typed.span, format!("\"{name}\" is not the name of a file"))
            .help("give a name without a directory, such as \"index.html\""));
    }
    Ok(name.to_owned())
}
