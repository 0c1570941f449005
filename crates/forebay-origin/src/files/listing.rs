//! A directory as a page of links, with sizes and dates.

use std::fmt::Write;
use std::fs::File;
use std::io;
use std::time::SystemTime;

use forebay_conf::{Files, Symlinks};
use jiff::Timestamp;
use rustix::fs::{Dir, FileType};

use super::open::open_at;

/// Maximum number of listed entries.
const LISTED: usize = 10_000;

/// A file or directory of the page.
struct ListingEntry {
    /// The name; for a directory with a final slash.
    name: Vec<u8>,
    is_directory: bool,
    /// Bytes of a file.
    size: u64,
    modified: Option<SystemTime>,
}

/// The order of the entries. Directories come before files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Order {
    by: Column,
    is_descending: bool,
}

/// A column of the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Column {
    Name,
    Size,
    Time,
}

impl Column {
    const ALL: [(Self, &'static str, &'static str); 3] = [
        (Self::Name, "name", "Name"),
        (Self::Size, "size", "Size"),
        (Self::Time, "time", "Modified (UTC)"),
    ];
}

impl Order {
    /// Parses a query such as `sort=size&order=desc`. Other parameters and values have no effect.
    fn of_query(query: &[u8]) -> Self {
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

/// Returns the page for `directory`, whose URL has this `path`. `query` selects the order. Leaves out
/// names with a leading dot unless `settings` includes them, and links that may not be followed.
pub fn page(directory: &File, settings: &Files, path: &[u8], query: &[u8]) -> io::Result<String> {
    let mut entries = Vec::new();
    for entry in Dir::read_from(directory)?.take(LISTED) {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        let is_hidden = name.starts_with(b".") && !settings.hidden;
        if !is_hidden && name != b"." && name != b".." {
            entries.extend(examine(directory, name, entry.file_type(), settings.follow_symlinks));
        }
    }
    let order = Order::of_query(query);
    order.sort(&mut entries);
    Ok(html(&entries, path, order))
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

fn html(entries: &[ListingEntry], path: &[u8], order: Order) -> String {
    let title = escape(&String::from_utf8_lossy(path));
    let mut page = format!(
        "<!DOCTYPE html>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width\">\n<title>Index of {title}</title>\n\
         <style>:root{{color-scheme:light dark}}body{{font-family:sans-serif}}\
         td,th{{padding:0 1em 0 0;text-align:left}}td+td,th+th{{text-align:right}}</style>\n\
         <h1>Index of {title}</h1>\n<table>\n<tr>"
    );
    for (column, name, text) in Column::ALL {
        let is_own = column == order.by;
        let next = if is_own && !order.is_descending { "desc" } else { "asc" };
        let mark = match (is_own, order.is_descending) {
            (false, _) => "",
            (true, false) => " ↑",
            (true, true) => " ↓",
        };
        let _ = write!(page, "<th><a href=\"?sort={name}&amp;order={next}\">{text}</a>{mark}</th>");
    }
    page.push_str("</tr>\n");
    if path != b"/" {
        page.push_str("<tr><td><a href=\"../\">../</a></td><td></td><td></td></tr>\n");
    }
    for entry in entries {
        let text = escape(&String::from_utf8_lossy(&entry.name));
        let size = if entry.is_directory { String::new() } else { shown_size(entry.size) };
        let _ = writeln!(
            page,
            "<tr><td><a href=\"./{}\">{text}</a></td><td>{size}</td><td>{}</td></tr>",
            percent_encode(&entry.name),
            entry.modified.map(shown_time).unwrap_or_default(),
        );
    }
    page.push_str("</table>\n");
    page
}

/// Returns a number of bytes with a unit, such as `1.5 MiB`.
fn shown_size(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut size = bytes as f64 / 1024.0;
    let mut unit = 0;
    // 1023.95 would be shown as 1024.0.
    while size >= 1023.95 && unit + 1 < UNITS.len() {
        (size, unit) = (size / 1024.0, unit + 1);
    }
    format!("{size:.1} {}", UNITS[unit])
}

fn shown_time(time: SystemTime) -> String {
    let time = Timestamp::try_from(time);
    time.map(|time| time.strftime("%Y-%m-%d %H:%M").to_string()).unwrap_or_default()
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// Returns `name` percent-encoded for a URL path. Only slashes and unreserved characters stay
/// unchanged.
pub fn percent_encode(name: &[u8]) -> String {
    let mut encoded = String::new();
    for &byte in name {
        if byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte) {
            encoded.push(byte as char);
        } else {
            let _ = write!(encoded, "%{byte:02X}");
        }
    }
    encoded
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

    #[test]
    fn sizes_have_a_unit() {
        let almost = (1 << 20) - 1;
        for (bytes, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1536, "1.5 KiB"),
            (almost, "1.0 MiB"),
            (5 << 30, "5.0 GiB"),
        ] {
            assert_eq!(shown_size(bytes), text);
        }
        assert_eq!(shown_time(SystemTime::UNIX_EPOCH), "1970-01-01 00:00");
    }
}
