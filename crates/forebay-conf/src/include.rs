//! Reads a configuration file and the files that it includes.

use std::collections::HashMap;
use std::ops::Range;
use std::path::{Path, PathBuf};

use glob::Pattern;

use crate::error::{ConfError, Problem, reason};
use crate::files;
use crate::outside::Outside;
use crate::source::Sources;
use crate::tree::{self, Tree};

/// The largest file in bytes. Larger files are refused before they are parsed.
const LARGEST_FILE: u64 = 4 * 1024 * 1024;

/// The largest size of all files together in bytes.
const LARGEST_TOTAL: usize = 32 * 1024 * 1024;

/// The largest number of files in one configuration.
const MOST_FILES: usize = 10_000;

/// The largest number of includes in a chain that starts at the configuration file.
const DEEPEST: usize = 10;

/// Reads a configuration file, without the files that it includes. Returns an error for a file that
/// cannot be read, is larger than 4 MiB, or is not UTF-8.
pub(crate) fn main_file(path: &Path) -> Result<Sources, ConfError> {
    let name = path.display().to_string();
    let refuse = |why: String| {
        let problem = Problem::nowhere(format!("cannot read {name}: {why}"));
        ConfError::elsewhere(problem.help("give the path of a configuration file in TOML"))
    };
    let absolute = std::path::absolute(path).map_err(|error| refuse(reason(&error)))?;
    match text_of(files::read_main(path, LARGEST_FILE)) {
        Ok(text) => Ok(Sources::one(&name, &text, absolute.parent().unwrap_or(Path::new("/")))),
        Err(Unreadable::Io(error)) => Err(refuse(reason(&error))),
        Err(Unreadable::TooLarge) => {
            let problem = Problem::nowhere(format!("{name} is larger than 4 MiB"));
            Err(ConfError::elsewhere(problem.help("is this a configuration file?")))
        }
        Err(Unreadable::NotUtf8(bytes)) => Err(ConfError::elsewhere(not_utf8(&name, &bytes))),
    }
}

/// Adds the files that the configuration file includes, directly or through other files. Returns an
/// error for a file that cannot be read, or that is included twice.
pub(crate) fn follow(sources: &mut Sources) -> Result<(), ConfError> {
    let canonical = |source: &crate::source::Source| {
        let path = Path::new(&source.name);
        let path = path.file_name().map_or(PathBuf::new(), |name| source.base.join(name));
        files::canonicalize(&path).unwrap_or(path)
    };
    let first = canonical(&sources.files()[0]);
    let total = sources.files()[0].text.len();
    let mut reader = Reader { sources, seen: HashMap::new(), total };
    reader.seen.insert(first.clone(), None);
    match reader.includes_of(0, &mut vec![first]) {
        Ok(()) => Ok(()),
        Err(problem) => Err(ConfError::in_sources(reader.sources, vec![problem])),
    }
}

struct Reader<'a> {
    sources: &'a mut Sources,
    /// The files that were read, by real path. Each has the position of the value that included the
    /// file.
    seen: HashMap<PathBuf, Option<Range<usize>>>,
    total: usize,
}

impl Reader<'_> {
    /// Reads the files that source number `number` includes. `way` begins with the configuration
    /// file and ends with this source. Each file in `way` includes the next one. A file that
    /// includes a file of `way` is an error.
    fn includes_of(&mut self, number: usize, way: &mut Vec<PathBuf>) -> Result<(), Problem> {
        for (span, pattern) in self.patterns(number)? {
            let base = &self.sources.files()[number].base;
            let directory = directory_of(&pattern).map(|directory| base.join(directory));
            self.sources.directories.extend(directory);
            for path in self.matches(number, &span, &pattern)? {
                let real = files::canonicalize(&path).unwrap_or_else(|_| path.clone());
                if way.contains(&real) {
                    let message = format!("{} includes itself", path.display());
                    return Err(Problem::new(&span, message)
                        .help("leave this file out: it is being read already"));
                }
                if let Some(first) = self.seen.get(&real) {
                    let problem =
                        Problem::new(&span, format!("{} is included twice", path.display()));
                    let problem = problem.help("include each file once, from one place");
                    return Err(match first {
                        Some(first) if *first != span => problem.also(first, "first included here"),
                        _ => problem,
                    });
                }
                if way.len() > DEEPEST {
                    let message = format!("includes are nested more than {DEEPEST} files deep");
                    return Err(Problem::new(&span, message)
                        .help("include the files from the configuration file itself"));
                }
                self.seen.insert(real.clone(), Some(span.clone()));
                let next = self.read(number, &span, &path)?;
                way.push(real);
                self.includes_of(next, way)?;
                way.pop();
            }
        }
        Ok(())
    }

    /// Returns the values of `include` in a source. If the source has a syntax error, the list is
    /// empty, because the error is reported later, when all sources are parsed.
    fn patterns(&self, number: usize) -> Result<Vec<(Range<usize>, String)>, Problem> {
        let source = &self.sources.files()[number];
        if !source.text.contains("include") {
            return Ok(Vec::new());
        }
        let Ok(mut table) = tree::parse_one(source) else { return Ok(Vec::new()) };
        let Some((key, node)) = table.remove_entry("include") else { return Ok(Vec::new()) };
        let mut include = Tree::new();
        include.insert(key, node);
        let mut outside = Outside::default();
        outside.fill(self.sources, &mut include).map_err(|mut problems| problems.swap_remove(0))?;
        let Some(node) = include.get("include") else { return Ok(Vec::new()) };
        match tree::texts(node) {
            Some(texts) => Ok(texts.into_iter().map(|(span, text)| (span, text.into())).collect()),
            None => Err(Problem::new(&node.span(), "expected a path or a list of paths")
                .label("wrong type")
                .help("write include = \"conf.d/*.toml\"")),
        }
    }

    /// Returns the files that a value of `include` names. The matches of a pattern are in
    /// alphabetical order. A path without a wildcard is returned even if the file does not exist. A
    /// pattern with `**` is an error.
    fn matches(
        &self,
        number: usize,
        span: &Range<usize>,
        pattern: &str,
    ) -> Result<Vec<PathBuf>, Problem> {
        let base = &self.sources.files()[number].base;
        if pattern.is_empty() || pattern.contains('\0') {
            return Err(Problem::new(span, "this is not the path of a file")
                .help("write a path, or a pattern such as \"conf.d/*.toml\""));
        }
        if !pattern.contains(['*', '?', '[']) {
            return Ok(vec![base.join(pattern)]);
        }
        if pattern.contains("**") {
            return Err(Problem::new(span, "`**` in a path would search whole directory trees")
                .help("name each directory, as in [\"a/*.toml\", \"b/*.toml\"]"));
        }
        let whole = if pattern.starts_with('/') {
            pattern.to_owned()
        } else {
            format!("{}/{pattern}", Pattern::escape(&base.to_string_lossy()))
        };
        if let Err(error) = Pattern::new(&whole) {
            let message = format!("\"{pattern}\" is not a pattern: {}", error.msg);
            return Err(
                Problem::new(span, message).help("write a pattern such as \"conf.d/*.toml\"")
            );
        }
        files::matches(&whole, MOST_FILES).map_err(|error| {
            Problem::new(span, reason(&error))
                .help("check the permissions of every directory on the way")
        })
    }

    /// Reads an included file, and returns its number. Returns an error if the file cannot be read,
    /// or if the configuration becomes too large.
    fn read(&mut self, number: usize, span: &Range<usize>, path: &Path) -> Result<usize, Problem> {
        let including = &self.sources.files()[number];
        let name = match path.strip_prefix(&including.base) {
            Ok(below) => Path::new(&including.name).with_file_name("").join(below),
            Err(_) => path.to_owned(),
        };
        let name = name.display().to_string();
        let problem = |why: &str| Problem::new(span, format!("cannot read {name}: {why}"));
        let help = "give the path of a file, or a pattern such as \"conf.d/*.toml\"";
        let text = match text_of(files::read(path, LARGEST_FILE)) {
            Ok(text) => text,
            Err(Unreadable::Io(error)) => return Err(problem(&reason(&error)).help(help)),
            Err(Unreadable::TooLarge) => {
                return Err(
                    problem("it is larger than 4 MiB").help("is this a configuration file?")
                );
            }
            Err(Unreadable::NotUtf8(bytes)) => return Err(not_utf8(&name, &bytes)),
        };
        self.total += text.len();
        if self.total > LARGEST_TOTAL || self.sources.files().len() >= MOST_FILES {
            let most = format!("the most are {MOST_FILES} files and 32 MiB");
            return Err(Problem::new(span, "too much is included").help(most));
        }
        let base = path.parent().unwrap_or(Path::new("/")).to_owned();
        Ok(self.sources.add(name, text, base))
    }
}

/// Returns the directory of a pattern, up to the first component with a wildcard. Returns `None` for
/// a path without wildcards.
fn directory_of(pattern: &str) -> Option<&str> {
    let wildcard = pattern.find(['*', '?', '['])?;
    Some(pattern[..wildcard].rfind('/').map_or("", |slash| &pattern[..=slash]))
}

enum Unreadable {
    Io(std::io::Error),
    TooLarge,
    NotUtf8(Vec<u8>),
}

fn text_of(read: std::io::Result<Vec<u8>>) -> Result<String, Unreadable> {
    let bytes = read.map_err(Unreadable::Io)?;
    if bytes.len() as u64 > LARGEST_FILE {
        return Err(Unreadable::TooLarge);
    }
    String::from_utf8(bytes).map_err(|error| Unreadable::NotUtf8(error.into_bytes()))
}

fn not_utf8(name: &str, bytes: &[u8]) -> Problem {
    let at = std::str::from_utf8(bytes).map_or_else(|error| error.valid_up_to(), str::len);
    let span = at..at + char::REPLACEMENT_CHARACTER.len_utf8();
    Problem::new(&span, "this is not text in UTF-8")
        .label("not UTF-8 from here")
        .help("save the file as UTF-8; other encodings are not TOML")
        .in_other(name, &String::from_utf8_lossy(bytes))
}
