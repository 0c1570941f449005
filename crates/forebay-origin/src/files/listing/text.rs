//! The texts of sizes, times, names and links in a listing.

use std::fmt::Write;
use std::time::SystemTime;

use jiff::Timestamp;

use super::entries::{Column, Entries, ListingEntry};

/// The sentence in an incomplete listing.
const INCOMPLETE: &str = "This directory has more entries than a listing may have.";

impl Entries<'_> {
    /// Returns the sentence that a page shows if the listing is incomplete; empty otherwise.
    pub fn note(&self) -> &'static str {
        if self.is_incomplete { INCOMPLETE } else { "" }
    }

    /// Returns a link to this listing, sorted by a column, for HTML.
    pub fn sort_link(&self, column: Column) -> String {
        let found = Column::ALL.iter().find(|(known, ..)| *known == column);
        let name = found.map_or("name", |(_, name, _)| name);
        format!("?sort={name}&amp;order={}", self.order.next(column))
    }

    /// Returns a link to the parent directory.
    pub fn parent(&self) -> &'static str {
        if self.path == b"/" { "./" } else { "../" }
    }
}

impl ListingEntry {
    /// Returns a link to the entry. The dot prevents browsers from reading a name such as
    /// `javascript:x` as a URL.
    pub fn link(&self) -> String {
        format!("./{}", percent_encode(&self.name))
    }
}

/// Returns a number of bytes with a unit, such as `1.5 MiB`.
pub fn shown_size(bytes: u64) -> String {
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

/// Returns a time in UTC, such as `2026-11-24 09:30`.
pub fn shown_time(time: SystemTime) -> String {
    let time = Timestamp::try_from(time);
    time.map(|time| time.strftime("%Y-%m-%d %H:%M").to_string()).unwrap_or_default()
}

/// Returns text that is safe in HTML and in quoted attributes. Bytes that are not UTF-8 become
/// U+FFFD.
pub fn escape(text: &[u8]) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in String::from_utf8_lossy(text).chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            c => escaped.push(c),
        }
    }
    escaped
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
