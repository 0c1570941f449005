//! The argument of `forebay serve`: a configuration file or a directory. While Forebay runs, a user
//! may replace one by the other, or by a pipe. Reloads and upgrades (SIGUSR2) refuse such a source.

use std::path::Path;

/// Kind of the argument of `forebay serve` when Forebay started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SourceKind {
    /// A configuration file, or a backend (`--to`).
    Configuration,
    /// A directory whose files are served.
    Directory,
}

impl SourceKind {
    pub(super) fn of(source: Option<&Path>) -> Self {
        match source {
            Some(source) if source.is_dir() => Self::Directory,
            _ => Self::Configuration,
        }
    }

    /// Returns the word for this kind. In an upgrade, the old process sends this word to the new
    /// process.
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Configuration => "configuration",
            Self::Directory => "directory",
        }
    }

    /// Returns the kind for the word that the old process sent. Returns `None` for an unknown word,
    /// because an older version of Forebay may send other text.
    pub(super) fn parse(word: &str) -> Option<Self> {
        [Self::Configuration, Self::Directory].into_iter().find(|kind| kind.word() == word)
    }
}

/// Checks that `source` still has the kind `at_start`. If `at_start` is `None`, accepts a file and
/// a directory. Also accepts a missing source, because reading it reports the error.
pub(super) fn check(source: &Path, at_start: Option<SourceKind>) -> Result<(), String> {
    let Ok(found) = std::fs::metadata(source) else { return Ok(()) };
    let refuse = |why: &str| Err(format!("{} {why}", source.display()));
    match at_start {
        // Refuse a pipe: opening a pipe blocks until a writer opens it, and meanwhile no other
        // reload could begin.
        _ if !found.is_file() && !found.is_dir() => {
            refuse("is a pipe or a device, which is read only at the start")
        }
        // Refuse a directory in place of the configuration file. Forebay would serve the files of
        // the directory instead of the configured sites.
        Some(SourceKind::Configuration) if found.is_dir() => {
            refuse("is a directory, not a configuration file")
        }
        Some(SourceKind::Directory) if found.is_file() => {
            refuse("is a file, but Forebay was started for a directory; restart it")
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use forebay_testkit::folder::Folder;

    use super::*;

    #[test]
    fn a_source_of_another_kind_is_refused() {
        let folder = Folder::new();
        folder.write("site.toml", "");
        let (file, directory) = (folder.path().join("site.toml"), folder.path());
        for kind in [SourceKind::Configuration, SourceKind::Directory] {
            assert_eq!(SourceKind::parse(kind.word()), Some(kind));
        }
        assert_eq!(SourceKind::parse("1"), None);
        let of_file = SourceKind::of(Some(&file));
        let of_directory = SourceKind::of(Some(directory));
        assert!(check(&file, Some(of_file)).is_ok());
        assert!(check(directory, Some(of_directory)).is_ok());
        assert!(check(directory, Some(of_file)).unwrap_err().ends_with("not a configuration file"));
        assert!(check(&file, Some(of_directory)).is_err());
        for known in [None, Some(of_file), Some(of_directory)] {
            assert!(check(Path::new("/dev/null"), known).is_err());
            assert!(check(&folder.path().join("missing"), known).is_ok());
        }
        assert!(check(&file, None).is_ok());
        assert!(check(directory, None).is_ok());
    }
}
