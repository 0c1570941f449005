//! The search path for programs.

use std::ffi::OsString;
use std::path::PathBuf;

/// Directories of servers that an ordinary user's `PATH` leaves out on Debian.
const SYSTEM_DIRECTORIES: [&str; 3] = ["/usr/local/sbin", "/usr/sbin", "/sbin"];

/// Returns `PATH` with the system directories added, for the environment of servers.
pub fn search_path() -> OsString {
    let given = std::env::var_os("PATH").unwrap_or_else(|| "/usr/bin:/bin".into());
    let mut directories: Vec<PathBuf> = std::env::split_paths(&given).collect();
    for extra in SYSTEM_DIRECTORIES.map(PathBuf::from) {
        if !directories.contains(&extra) {
            directories.push(extra);
        }
    }
    std::env::join_paths(directories).unwrap_or(given)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn the_search_path_reaches_servers() {
        let path = search_path();
        assert!(std::env::split_paths(&path).any(|directory| directory == Path::new("/usr/sbin")));
    }
}
