//! Finds the interpreter of a CGI script from its first line (`#!`) or magic number, like the
//! kernel.
//!
//! Forebay reads the first 256 bytes once for each version of the file. A worker must not get a
//! script in another language, because Perl compiles and runs some Python. Scripts without a worker
//! run as plain CGI.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fs::Metadata;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use forebay_workers::beginning;

/// Bytes that the kernel reads (BINPRM_BUF_SIZE).
const LOOKED_AT: u64 = 256;
/// Maximum number of remembered scripts. At this number, all scripts are forgotten.
const REMEMBERED: usize = 10_000;
/// Maximum number of files and directories in a survey.
const SURVEYED: usize = 5_000;
/// Maximum depth of the directories in a survey.
const DEEPEST: usize = 8;

/// Language of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Language {
    /// Perl 5.
    Perl,
    /// Python 3.
    Python {
        /// Interpreter of a virtual environment, if the first line names one.
        environment: Option<PathBuf>,
    },
    /// Another interpreter, a binary program, or an unreadable file.
    Program,
    /// The file has neither a `#!` line nor a magic number, so the kernel cannot run it.
    Unmarked,
}

/// Languages of scripts, read once for each version of a file.
#[derive(Default)]
pub struct Languages(RefCell<HashMap<PathBuf, (Version, Language)>>);

/// Device, inode, size, and times of modification and status change in nanoseconds.
type Version = (u64, u64, u64, [i64; 4]);

/// Languages of the scripts in a directory.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Survey {
    pub perl: bool,
    pub python: bool,
    /// The virtual environment, if all Python scripts name the same one.
    pub environment: Option<PathBuf>,
}

impl Languages {
    /// Returns the language of the current version of `file`.
    pub fn of(&self, file: &Path) -> Language {
        let Ok(version) = std::fs::metadata(file).map(|found| version(&found)) else {
            return Language::Program;
        };
        if let Some((known, language)) = self.0.borrow().get(file)
            && *known == version
        {
            return language.clone();
        }
        let language = language_of(file);
        let mut known = self.0.borrow_mut();
        if known.len() >= REMEMBERED {
            known.clear();
        }
        known.insert(file.to_owned(), (version, language.clone()));
        language
    }
}

/// Returns the languages of the scripts below `dir`, up to a maximum number of files.
pub fn survey(dir: &Path) -> Survey {
    let mut found = Survey::default();
    let mut environments = Vec::new();
    let mut left = SURVEYED;
    look_below(dir, DEEPEST, &mut left, &mut |file| match language_of(file) {
        Language::Perl => found.perl = true,
        Language::Python { environment } => {
            found.python = true;
            environments.push(environment);
        }
        Language::Program | Language::Unmarked => {}
    });
    environments.sort();
    environments.dedup();
    if let [Some(_)] = environments[..] {
        found.environment = environments.pop().flatten();
    }
    found
}

/// Returns the first line of a script for messages. Returns `None` if the script is unreadable, or
/// does not begin with `#!`.
pub fn first_line(file: &Path) -> Option<String> {
    let start = beginning(file, LOOKED_AT).ok()?;
    let line = marked_line(&start)?;
    Some(String::from_utf8_lossy(line).into_owned())
}

/// Returns the program that the first line names, as the kernel reads it.
pub fn named_program(line: &str) -> &str {
    let rest = line.trim_start_matches("#!").trim_start_matches([' ', '\t']);
    rest.split([' ', '\t']).next().unwrap_or_default()
}

/// Calls `found` for the files below `dir`, down to `depth` levels, until `left` entries were seen.
fn look_below(dir: &Path, depth: usize, left: &mut usize, found: &mut impl FnMut(&Path)) {
    let Ok(entries) = std::fs::read_dir(dir) else { return };
    for entry in entries.flatten() {
        if *left == 0 {
            return;
        }
        *left -= 1;
        match entry.file_type() {
            Ok(kind) if kind.is_dir() && depth > 0 => {
                look_below(&entry.path(), depth - 1, left, found);
            }
            Ok(kind) if kind.is_dir() => {}
            _ if entry.path().is_file() => found(&entry.path()),
            _ => {}
        }
    }
}

fn version(found: &Metadata) -> Version {
    let times = [found.mtime(), found.mtime_nsec(), found.ctime(), found.ctime_nsec()];
    (found.dev(), found.ino(), found.size(), times)
}

fn language_of(file: &Path) -> Language {
    beginning(file, LOOKED_AT).map_or(Language::Program, |start| parse(&start))
}

/// Returns the first line without its end, if it begins with `#!`.
fn marked_line(start: &[u8]) -> Option<&[u8]> {
    if !start.starts_with(b"#!") {
        return None;
    }
    start.split(|&b| b == b'\n').next()
}

/// Returns the language of a script from the beginning of its file.
fn parse(start: &[u8]) -> Language {
    if start.starts_with(b"\x7fELF") {
        return Language::Program;
    }
    let Some(line) = marked_line(start) else { return Language::Unmarked };
    let words = line[2..].split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
    let mut words = words.peekable();
    let Some(mut program) = words.next() else { return Language::Unmarked };
    if name_of(program) == b"env" {
        let Some(word) = words.find(|word| is_program_of_env(word)) else {
            return Language::Program;
        };
        program = word;
    }
    let name = name_of(program).to_ascii_lowercase();
    if is_perl(&name) {
        return Language::Perl;
    }
    if is_python(&name) {
        return Language::Python { environment: environment(program) };
    }
    Language::Program
}

/// Returns true if `env` reads the word as the program: not an option and not an assignment.
fn is_program_of_env(word: &[u8]) -> bool {
    !word.starts_with(b"-") && !word.contains(&b'=')
}

/// Returns the last part of a path. Handles Windows paths, too, which many Perl scripts contain.
fn name_of(path: &[u8]) -> &[u8] {
    let name = path.rsplit(|&b| b == b'/' || b == b'\\').next().unwrap_or_default();
    match name.len().checked_sub(4).map(|at| name.split_at(at)) {
        Some((before, end)) if end.eq_ignore_ascii_case(b".exe") => before,
        _ => name,
    }
}

/// Returns true for `perl`, `perl5`, `perl5.36.0`, but not `perl6`.
fn is_perl(name: &[u8]) -> bool {
    match name.strip_prefix(b"perl") {
        Some([]) => true,
        Some([b'5', rest @ ..]) => rest.iter().all(|&b| b.is_ascii_digit() || b == b'.'),
        _ => false,
    }
}

/// Returns true for `python`, `python3`, `python3.11`, but not `python2`.
fn is_python(name: &[u8]) -> bool {
    match name.strip_prefix(b"python") {
        Some([]) => true,
        Some([b'3']) => true,
        Some([b'3', b'.', rest @ ..]) => rest.iter().all(u8::is_ascii_digit),
        _ => false,
    }
}

/// Returns the interpreter if it belongs to a virtual environment.
fn environment(program: &[u8]) -> Option<PathBuf> {
    let program = Path::new(std::ffi::OsStr::from_bytes(program));
    let home = program.parent()?.parent()?;
    let is_one = program.is_absolute() && program.is_file() && home.join("pyvenv.cfg").is_file();
    is_one.then(|| program.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const PYTHON: Language = Language::Python { environment: None };

    #[test]
    fn the_first_line_decides() {
        for line in [
            "#!/usr/bin/perl\n",
            "#!/usr/bin/perl -w\nuse strict;\n",
            "#! /usr/bin/perl -wT\n",
            "#!/usr/bin/perl\r\n",
            "#!\t/usr/local/bin/perl5.8.8\n",
            "#!/usr/bin/env perl\n",
            "#!/usr/bin/env -S perl -w\n",
            "#!/usr/bin/env -S LC_ALL=C perl\n",
            "#!C:\\Perl\\bin\\perl.exe -w\n",
            "#!perl",
        ] {
            assert_eq!(parse(line.as_bytes()), Language::Perl, "{line}");
        }
        for line in ["#!/usr/bin/python3\n", "#!/usr/bin/env python\n", "#!/opt/bin/python3.11 -u"]
        {
            assert_eq!(parse(line.as_bytes()), PYTHON, "{line}");
        }
        for line in [
            "#!/bin/sh\n# perl\n",
            "#!/usr/bin/python2\n",
            "#!/usr/bin/python2.7\n",
            "#!/usr/bin/perl6\n",
            "#!/usr/bin/suidperl\n",
            "#!/usr/bin/env\n",
            "#!/usr/bin/ruby -w perl\n",
            "\x7fELF\x02",
        ] {
            assert_eq!(parse(line.as_bytes()), Language::Program, "{line}");
        }
        for text in
            ["", "#", "#!", "#!  \n/usr/bin/perl", "print 1;\n", "\u{feff}#!/usr/bin/perl\n"]
        {
            assert_eq!(parse(text.as_bytes()), Language::Unmarked, "{text:?}");
        }
    }

    #[test]
    fn a_language_is_that_of_the_file_as_it_is_now() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("x");
        let languages = Languages::default();
        assert_eq!(languages.of(&file), Language::Program, "whoever runs it says that it is gone");
        for (text, expected) in
            [("#!/usr/bin/perl\n", Language::Perl), ("#!/bin/env python3", PYTHON)]
        {
            std::fs::write(&file, text).unwrap();
            assert_eq!(languages.of(&file), expected);
            assert_eq!(languages.of(&file), expected);
        }
    }

    #[test]
    fn a_survey_finds_languages_and_the_environment_that_all_name() {
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().display();
        std::fs::create_dir_all(dir.path().join("venv/bin")).unwrap();
        std::fs::write(dir.path().join("venv/pyvenv.cfg"), "").unwrap();
        std::fs::write(dir.path().join("venv/bin/python3"), "").unwrap();
        let cgi = dir.path().join("cgi/deep");
        std::fs::create_dir_all(&cgi).unwrap();
        let look = || survey(&dir.path().join("cgi"));
        assert_eq!(look(), Survey::default());
        std::fs::write(cgi.join("a"), format!("#!{place}/venv/bin/python3\n")).unwrap();
        let own = dir.path().join("venv/bin/python3");
        assert_eq!(look(), Survey { perl: false, python: true, environment: Some(own) });
        std::fs::write(cgi.join("b"), "#!/usr/bin/python3\n").unwrap();
        std::fs::write(cgi.join("c"), "#!/usr/bin/perl\n").unwrap();
        assert_eq!(look(), Survey { perl: true, python: true, environment: None });
    }
}
