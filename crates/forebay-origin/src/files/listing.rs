//! A directory as a page of links.

use std::fmt::Write;
use std::fs::File;
use std::io;

use forebay_conf::Files;
use rustix::fs::{Dir, FileType};

use super::open::open_at;

/// Maximum number of listed entries.
const LISTED: usize = 10_000;

/// Returns the page for `directory`, whose URL has this `path`. Leaves out names with a leading dot
/// unless `settings` includes them, and links that may not be followed.
pub fn page(directory: &File, settings: &Files, path: &[u8]) -> io::Result<String> {
    let mut entries = Vec::new();
    for entry in Dir::read_from(directory)?.take(LISTED) {
        let entry = entry?;
        let mut name = entry.file_name().to_bytes().to_vec();
        let is_hidden = name.starts_with(b".") && !settings.hidden;
        if is_hidden || name == b"." || name == b".." {
            continue;
        }
        let is_directory = match entry.file_type() {
            FileType::Symlink | FileType::Unknown => {
                let opened = open_at(directory, &name, settings.follow_symlinks)
                    .and_then(|file| file.metadata());
                let Ok(metadata) = opened else { continue };
                metadata.is_dir()
            }
            found => found == FileType::Directory,
        };
        if is_directory {
            name.push(b'/');
        }
        entries.push(name);
    }
    entries.sort();
    let title = escape(&String::from_utf8_lossy(path));
    let mut page = format!(
        "<!DOCTYPE html>\n<title>Index of {title}</title>\n<h1>Index of {title}</h1>\n<ul>\n"
    );
    if path != b"/" {
        page.push_str("<li><a href=\"../\">../</a>\n");
    }
    for name in entries {
        let text = escape(&String::from_utf8_lossy(&name));
        let _ = writeln!(page, "<li><a href=\"./{}\">{text}</a>", percent_encode(&name));
    }
    page.push_str("</ul>\n");
    Ok(page)
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
