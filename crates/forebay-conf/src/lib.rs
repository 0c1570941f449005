//! Reads a configuration file and resolves it into a plan that is valid by construction.
//!
//! [`load`] reads a file into a [`Plan`]. A [`ConfError`] says what is wrong, where, and what to do
//! next. Three modules follow each other: `file` (the text as typed), `resolve` (defaults, paths,
//! names) and `plan` (the input of the rest of Forebay). This crate starts no process, binds no
//! socket and resolves no host name.
#![forbid(unsafe_code)]

mod duration;
mod error;
mod explain;
mod file;
mod finding;
mod plan;
mod resolve;
mod size;
mod source;
mod suggest;

use std::io::Read;
use std::path::Path;

pub use duration::{LONGEST, parse_duration};
pub use error::ConfError;
pub use file::schema;
pub use finding::Finding;
pub use plan::*;
pub use size::parse_size;
pub use source::SourceFile;

use error::{Problem, reason};

/// Reads a configuration file. Paths in it are relative to the file.
pub fn load(path: &Path) -> Result<Plan, ConfError> {
    let name = path.display().to_string();
    let refuse = |error: std::io::Error| {
        let problem = Problem::nowhere(format!("cannot read {name}: {}", reason(&error)));
        ConfError::elsewhere(problem.help("give the path of a configuration file in TOML"))
    };
    let file = std::fs::File::open(path).map_err(refuse)?;
    let mut bytes = Vec::new();
    file.take(LARGEST_FILE + 1).read_to_end(&mut bytes).map_err(refuse)?;
    if bytes.len() as u64 > LARGEST_FILE {
        let problem = Problem::nowhere(format!("{name} is larger than 4 MiB"));
        return Err(ConfError::elsewhere(problem.help("is this a configuration file?")));
    }
    let text = match String::from_utf8(bytes) {
        Ok(text) => text,
        Err(error) => return Err(not_utf8(&name, &error)),
    };
    let absolute = std::path::absolute(path).map_err(refuse)?;
    parse(&text, &name, absolute.parent().unwrap_or(Path::new("/")))
}

/// Reads a configuration from a text. `name` is its name in errors. Paths in it are relative to
/// `base`.
pub fn parse(text: &str, name: &str, base: &Path) -> Result<Plan, ConfError> {
    let fail = |problems| ConfError::in_text(text, name, problems);
    let table =
        toml::de::DeTable::parse(text).map_err(|e| fail(vec![explain::explain(&e, text)]))?;
    let file = serde::Deserialize::deserialize(toml::Deserializer::from(table))
        .map_err(|e| fail(vec![explain::explain(&e, text)]))?;
    let mut plan = resolve::resolve(&file, text, base).map_err(fail)?;
    plan.file = SourceFile::new(name, text);
    Ok(plan)
}

/// The largest file in bytes. Larger files are refused before they are parsed.
const LARGEST_FILE: u64 = 4 * 1024 * 1024;

fn not_utf8(name: &str, error: &std::string::FromUtf8Error) -> ConfError {
    let at = error.utf8_error().valid_up_to();
    let text = String::from_utf8_lossy(error.as_bytes());
    let span = at..at + char::REPLACEMENT_CHARACTER.len_utf8();
    let problem = Problem::new(&span, "this is not text in UTF-8")
        .label("not UTF-8 from here")
        .help("save the file as UTF-8; other encodings are not TOML");
    ConfError::in_text(&text, name, vec![problem])
}
