//! Makes paths absolute. Checks that a path exists if its key needs an existing file or directory.

use std::io::ErrorKind;
use std::path::{Component, Path, PathBuf};

use super::value::text;
use super::{Context, Resolution};
use crate::error::{Problem, reason};
use crate::file::{self, At};
use crate::files::{self, Kind};
use crate::suggest;

/// Returns an absolute path. The path need not exist.
pub(super) fn path(context: &Context<'_>, typed: &At<impl AsRef<str>>) -> Resolution<PathBuf> {
    Ok(without_parents(context.base(&typed.span).join(text(typed)?).components().collect()))
}

/// Returns a path to the same file without `..`, because other code compares paths part by part.
/// Resolves the symbolic links before the last `..`. Keeps the links after it, because an
/// administrator may replace such a link at each release. Returns `path` unchanged if the part up
/// to the last `..` does not exist.
fn without_parents(path: PathBuf) -> PathBuf {
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
pub(crate) fn directory(context: &Context<'_>, typed: &At<impl AsRef<str>>) -> Resolution<PathBuf> {
    let path = path(context, typed)?;
    match files::kind(&path) {
        Ok(Kind::Directory) => Ok(path),
        Ok(_) => Err(Problem::new(&typed.span, format!("{} is not a directory", path.display()))
            .help("give the directory it is in")),
        Err(error) => Err(absent(context, typed, &path, "directory", &error)),
    }
}

/// Returns the absolute path of an existing regular file.
pub(super) fn file(context: &Context<'_>, typed: &At<impl AsRef<str>>) -> Resolution<PathBuf> {
    existing_file(context, typed, path(context, typed)?)
}

fn existing_file(
    context: &Context<'_>,
    typed: &At<impl AsRef<str>>,
    path: PathBuf,
) -> Resolution<PathBuf> {
    match files::kind(&path) {
        Ok(Kind::File) => Ok(path),
        Ok(_) => Err(Problem::new(&typed.span, format!("{} is not a file", path.display()))
            .help("give the path of a file")),
        Err(error) => Err(absent(context, typed, &path, "file", &error)),
    }
}

/// Returns the path of a program of an application. A relative one starts at the application's
/// `dir`; if nothing is there, at the directory of the configuration file, where other paths start.
pub(super) fn program_path(
    context: &Context<'_>,
    app: &At<file::App>,
    typed: &At<String>,
) -> Resolution<PathBuf> {
    let base = path(context, typed)?;
    let Some(dir) = app.dir.as_ref().filter(|_| Path::new(&typed.value).is_relative()) else {
        return Ok(base);
    };
    let below = directory(context, dir)?.join(&typed.value).components().collect();
    let below = without_parents(below);
    Ok(if files::kind(&below).is_err() && files::kind(&base).is_ok() { base } else { below })
}

/// The path of an application's interpreter. Symbolic links are not resolved, because Python finds
/// its virtual environment by the directory of the link.
pub(super) fn interpreter(
    context: &Context<'_>,
    app: &At<file::App>,
    typed: &At<String>,
) -> Resolution<PathBuf> {
    existing_file(context, typed, program_path(context, app, typed)?)
}

/// Returns the absolute path of a file that Forebay can create in an existing directory.
pub(super) fn in_directory(
    context: &Context<'_>,
    typed: &At<impl AsRef<str>>,
) -> Resolution<PathBuf> {
    let path = path(context, typed)?;
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
        Err(error) => Err(absent(context, typed, parent, "directory", &error)),
    }
}

/// Returns the absolute path of a Unix socket, if the path is short enough for the kernel.
pub(super) fn socket(context: &Context<'_>, typed: &At<&str>) -> Resolution<PathBuf> {
    let path = path(context, typed)?;
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
    context: &Context<'_>,
    typed: &At<impl AsRef<str>>,
    path: &Path,
    what: &str,
    error: &std::io::Error,
) -> Problem {
    if error.kind() != ErrorKind::NotFound {
        let message = format!("cannot look at {}: {}", path.display(), reason(error));
        return Problem::new(&typed.span, message)
            .help("check the permissions of every directory on the way");
    }
    let problem = Problem::new(&typed.span, format!("no such {what}: {}", path.display()));
    let problem = if Path::new(typed.value.as_ref()).is_absolute() {
        problem.label("does not exist")
    } else {
        problem.label(format!("relative to {}", context.base(&typed.span).display()))
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
pub(super) fn file_name(typed: &At<&String>) -> Resolution<String> {
    let name = text(typed)?;
    if name.contains('/') || name == "." || name == ".." {
        return Err(Problem::new(&typed.span, format!("\"{name}\" is not the name of a file"))
            .help("give a name without a directory, such as \"index.html\""));
    }
    Ok(name.to_owned())
}
