//! Writes names for TOML, for a shell and for a terminal. Names may contain any byte.

use std::fmt::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Returns the text as a basic string of TOML, quotes included.
pub fn toml(text: &str) -> String {
    let mut quoted = String::from("\"");
    for c in text.chars() {
        match c {
            '"' => quoted.push_str("\\\""),
            '\\' => quoted.push_str("\\\\"),
            c if c.is_control() => {
                let _ = write!(quoted, "\\u{:04X}", u32::from(c));
            }
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}

/// Returns the text on one line: control characters, and characters that change the direction of
/// text, are escaped.
pub fn line(text: &str) -> String {
    let is_plain = |c: &char| *c == '"' || *c == '\'' || *c == '\\';
    text.chars().fold(String::new(), |mut line, c| {
        if is_plain(&c) {
            line.push(c);
        } else {
            line.extend(c.escape_debug());
        }
        line
    })
}

/// Returns the path as one word of a shell.
pub fn shell(path: &Path) -> String {
    let bytes = path.as_os_str().as_bytes();
    let is_plain = |b: &u8| b.is_ascii_alphanumeric() || b"/._-+,:@%".contains(b);
    let text = str::from_utf8(bytes).ok().filter(|text| line(text) == **text);
    match text {
        // Put `./` before a leading hyphen, so that no program takes the name for an option.
        _ if bytes.starts_with(b"-") => shell(&Path::new(".").join(path)),
        Some(text) if !text.is_empty() && bytes.iter().all(is_plain) => text.to_owned(),
        Some(text) => format!("'{}'", text.replace('\'', "'\\''")),
        None => {
            let mut word = String::from("$'");
            for &b in bytes {
                if is_plain(&b) {
                    word.push(char::from(b));
                } else {
                    let _ = write!(word, "\\{b:03o}");
                }
            }
            word.push('\'');
            word
        }
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::process::Command;

    use super::*;

    const NAMES: [&[u8]; 8] = [
        b"plain/site.toml",
        b"with space",
        b"it's \"quoted\" \\",
        b"two\nlines\x1b[31m",
        b"\xff\xfe",
        b"",
        b"$(id)`id`",
        b"-rf",
    ];

    #[test]
    fn a_shell_reads_each_name_back() {
        for name in NAMES {
            let word = shell(Path::new(OsStr::from_bytes(name)));
            let echo = format!("printf %s {word}");
            let output = Command::new("bash").args(["-c", &echo]).output().unwrap();
            let seen = output.stdout.strip_prefix(b"./").unwrap_or(&output.stdout);
            assert_eq!(seen, name, "{word}");
            assert!(!word.contains(char::is_control), "{word:?}");
        }
    }

    #[test]
    fn lines_stay_lines() {
        assert_eq!(line("a\nb\u{202e}\"é"), "a\\nb\\u{202e}\"é");
        assert_eq!(toml("a\nb\"c\\\u{7f}"), "\"a\\u000Ab\\\"c\\\\\\u007F\"");
    }
}
