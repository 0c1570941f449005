//! Checks the paths that a configuration names, because `forebay check` refuses paths that do not
//! exist.

use std::path::Path;

pub fn is_directory(path: &str) -> bool {
    Path::new(path).is_dir()
}

/// Returns true if the path is a file that can be read.
pub fn is_readable(path: &str) -> bool {
    Path::new(path).is_file() && std::fs::File::open(path).is_ok()
}

/// Returns true if the path is a file that this user may read, and that is executable.
pub fn is_executable(path: &str) -> bool {
    use std::os::unix::fs::PermissionsExt;
    let mode = std::fs::metadata(path).map(|found| found.permissions().mode());
    is_readable(path) && mode.is_ok_and(|mode| mode & 0o111 != 0)
}

/// Returns the user of applications: `www-data` if this user exists and the import runs as root.
/// Only then can the application run as another user.
pub fn user_of_apps() -> Option<&'static str> {
    use std::os::unix::fs::MetadataExt;
    let is_root = std::fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0);
    (is_root && has_user("www-data")).then_some("www-data")
}

/// Returns true if the path is not a directory, and if its parent directory exists. The file itself
/// may be missing.
pub fn is_in_directory(path: &str) -> bool {
    let path = Path::new(path);
    !path.is_dir() && path.parent().is_some_and(Path::is_dir)
}

/// Returns true if the path is an htpasswd file with at least one user whose hash Forebay supports.
pub fn has_users(path: &str) -> bool {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let known = ["$2y$", "$2a$", "$2b$", "$apr1$", "$5$", "$6$"];
    text.lines().any(|line| {
        let hash = line.split_once(':').map_or("", |(_, hash)| hash);
        known.iter().any(|kind| hash.starts_with(kind)) && hash.len() > 30
    })
}

pub fn has_user(name: &str) -> bool {
    has_entry("/etc/passwd", name)
}

pub fn has_group(name: &str) -> bool {
    has_entry("/etc/group", name)
}

fn has_entry(file: &str, name: &str) -> bool {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    text.lines().any(|line| line.split(':').next() == Some(name))
}

/// Returns the path below a base, or the path itself if it is absolute.
pub fn below(base: &Path, path: &str) -> String {
    base.join(path).display().to_string()
}

/// Joins two parts of a path with one slash, and removes a slash at the end. Returns `/` if both
/// parts are empty.
pub fn joined(root: &str, below: &str) -> String {
    let path = format!("{}/{}", root.trim_end_matches('/'), below.trim_matches('/'));
    match path.trim_end_matches('/') {
        "" => "/".into(),
        path => path.to_owned(),
    }
}
