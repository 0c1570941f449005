//! A directory as a page of links.

use std::fmt::Write;
use std::fs::File;
use std::io;

use forebay_conf::Files;
use rustix::fs::{Dir, FileType};

use super::open::open_at;

/// Entries listed at the most.
const LISTED: usize = 10_000;

/// The page for `directory`, which clients know as `path`. Names with a dot in front are left
/// out unless `settings` say otherwise, and links that may not be followed.
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

/// `name` as part of a path in a URL: only slashes and unreserved characters stay as they are.
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
