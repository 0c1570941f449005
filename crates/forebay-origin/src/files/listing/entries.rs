//! Reads and sorts the entries of a directory.

use std::fs::File;
use std::io;
use std::time::SystemTime;

use forebay_conf::{Files, Symlinks};
use rustix::fs::{Dir, FileType};

use crate::files::open::open_at;

/// Maximum number of listed entries.
const LISTED: usize = 10_000;

/// The entries of a directory, and what a page about them needs.
pub struct Entries<'a> {
    /// The decoded path of the directory.
    pub path: &'a [u8],
    pub entries: Vec<ListingEntry>,
    pub order: Order,
    /// True if the directory has more entries than a listing may have.
    pub is_incomplete: bool,
}

/// A file or directory of the page.
pub struct ListingEntry {
    /// The name; for a directory with a final slash.
    pub name: Vec<u8>,
    pub is_directory: bool,
    /// Bytes of a file.
    pub size: u64,
    pub modified: Option<SystemTime>,
}

impl ListingEntry {
    /// Returns `file` or `directory`.
    pub fn kind(&self) -> &'static str {
        if self.is_directory { "directory" } else { "file" }
    }
}

/// The order of the entries. Directories come before files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Order {
    pub by: Column,
    pub is_descending: bool,
}

/// A column of the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Column {
    Name,
    Size,
    Time,
}

impl Column {
    /// All columns with their names in queries and their titles.
    pub const ALL: [(Self, &'static str, &'static str); 3] = [
        (Self::Name, "name", "Name"),
        (Self::Size, "size", "Size"),
        (Self::Time, "time", "Modified (UTC)"),
    ];
}

impl Order {
    /// Parses a query such as `sort=size&order=desc`. Other parameters and values have no effect.
    pub fn of_query(query: &[u8]) -> Self {
        let mut order = Self { by: Column::Name, is_descending: false };
        for parameter in query.split(|&byte| byte == b'&') {
            if let Some(value) = parameter.strip_prefix(b"sort=") {
                let found = Column::ALL.iter().find(|(_, name, _)| name.as_bytes() == value);
                order.by = found.map_or(order.by, |(column, ..)| *column);
            }
            if let Some(value) = parameter.strip_prefix(b"order=") {
                order.is_descending = value == b"desc";
            }
        }
        order
    }

    /// Returns the order after a click on the title of a column: `asc` or `desc`.
    pub fn next(self, column: Column) -> &'static str {
        if column == self.by && !self.is_descending { "desc" } else { "asc" }
    }

    fn sort(self, entries: &mut [ListingEntry]) {
        entries.sort_by(|a, b| {
            let by_column = match self.by {
                Column::Name => a.name.cmp(&b.name),
                Column::Size => a.size.cmp(&b.size).then_with(|| a.name.cmp(&b.name)),
                Column::Time => a.modified.cmp(&b.modified).then_with(|| a.name.cmp(&b.name)),
            };
            let by_column = if self.is_descending { by_column.reverse() } else { by_column };
            b.is_directory.cmp(&a.is_directory).then(by_column)
        });
    }
}

impl<'a> Entries<'a> {
    /// Reads `directory`, whose URL has this `path`. `query` selects the order. Leaves out names
    /// with a leading dot unless `settings` includes them, and links that may not be followed.
    pub fn read(
        directory: &File,
        settings: &Files,
        path: &'a [u8],
        query: &[u8],
    ) -> io::Result<Self> {
        let mut entries = Vec::new();
        let mut dir = Dir::read_from(directory)?;
        for entry in dir.by_ref().take(LISTED) {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            let is_hidden = name.starts_with(b".") && !settings.hidden;
            if !is_hidden && name != b"." && name != b".." {
                entries.extend(examine(
                    directory,
                    name,
                    entry.file_type(),
                    settings.follow_symlinks,
                ));
            }
        }
        let is_incomplete = dir.next().is_some();
        let order = Order::of_query(query);
        order.sort(&mut entries);
        Ok(Self { path, entries, order, is_incomplete })
    }
}

/// Returns the data of an entry. Returns `None` for a link that may not be followed, and for a file
/// that was removed meanwhile.
fn examine(directory: &File, name: &[u8], kind: FileType, links: Symlinks) -> Option<ListingEntry> {
    let (is_directory, size, modified) = match kind {
        FileType::Symlink | FileType::Unknown => {
            let metadata = open_at(directory, name, links).ok()?.metadata().ok()?;
            (metadata.is_dir(), metadata.len(), metadata.modified().ok())
        }
        kind => {
            let found = rustix::fs::statat(directory, name, rustix::fs::AtFlags::SYMLINK_NOFOLLOW);
            let found = found.ok()?;
            let nanos = u32::try_from(found.st_mtime_nsec).unwrap_or(0);
            let modified = u64::try_from(found.st_mtime)
                .ok()
                .map(|seconds| SystemTime::UNIX_EPOCH + std::time::Duration::new(seconds, nanos));
            (kind == FileType::Directory, u64::try_from(found.st_size).unwrap_or(0), modified)
        }
    };
    let mut name = name.to_vec();
    if is_directory {
        name.push(b'/');
    }
    Some(ListingEntry { name, is_directory, size: if is_directory { 0 } else { size }, modified })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_sorted_by_the_column_of_the_query() {
        let entry = |name: &str, size, seconds| ListingEntry {
            name: name.as_bytes().to_vec(),
            is_directory: name.ends_with('/'),
            size,
            modified: Some(SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(seconds)),
        };
        let names = |query: &str| {
            let mut entries =
                [entry("b", 10, 3), entry("a", 30, 1), entry("z/", 0, 2), entry("c", 20, 2)];
            Order::of_query(query.as_bytes()).sort(&mut entries);
            entries.map(|entry| String::from_utf8(entry.name).unwrap()).join(" ")
        };
        assert_eq!(names(""), "z/ a b c");
        assert_eq!(names("sort=name&order=desc"), "z/ c b a");
        assert_eq!(names("sort=size"), "z/ b c a");
        assert_eq!(names("order=desc&sort=time"), "z/ b c a");
        assert_eq!(names("sort=owner&order=up&x"), "z/ a b c");
    }
}
