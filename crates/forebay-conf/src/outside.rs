//! `{env.NAME}` and `{file.PATH}`: values from the environment and from files.
//!
//! The values replace the placeholders in every text of the tree, after TOML is parsed and before
//! types are checked. So a value with quotes or line breaks cannot change the TOML, and each key
//! still checks its value.
//!
//! A doubled brace, as in `{{env.NAME}`, stands for the text `{env.NAME}`. Importers need this: a
//! page of another server may have such a text, and must not show a file of this machine.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Range;
use std::path::{Path, PathBuf};

use crate::error::{Problem, advice, reason};
use crate::files;
use crate::source::{Secret, Sources};
use crate::tree::{self, Tree};

/// The largest value of a placeholder, in bytes.
const LARGEST: u64 = 64 * 1024;

/// The largest size of all values together, in bytes.
const LARGEST_TOTAL: usize = 16 * 1024 * 1024;

/// The values of the placeholders `{env.NAME}` and `{file.PATH}`.
#[derive(Default)]
pub(crate) struct Outside {
    /// The value of each placeholder. The key also has the directory that a relative file path
    /// starts at.
    values: HashMap<(String, PathBuf), String>,
    /// The values of texts that consist of one placeholder, by position. Such a value may be meant
    /// as a number or a boolean.
    pub alone: BTreeMap<usize, String>,
    /// The start of each text with a placeholder.
    spans: HashSet<usize>,
    total: usize,
}

impl Outside {
    /// Replaces the placeholders in all texts of a tree. Returns one problem for each text with a
    /// placeholder that has no value.
    pub fn fill<'s>(&mut self, sources: &Sources, tree: &mut Tree<'s>) -> Result<(), Vec<Problem>> {
        let mut problems = Vec::new();
        tree::each_text(tree, &mut |span, text| {
            if !text.contains("{env.") && !text.contains("{file.") {
                return;
            }
            self.spans.insert(span.start);
            match self.replaced(sources, span, text) {
                Ok(replaced) => *text = Cow::Owned(replaced),
                Err(problem) => problems.push(problem),
            }
        });
        if problems.is_empty() { Ok(()) } else { Err(problems) }
    }

    /// Passes the values to the sources, so that messages hide them.
    pub fn hide_in(self, sources: &mut Sources) {
        sources.secrets = self.secrets();
        sources.from_outside = self.spans;
    }

    /// Returns the values that messages must not show. The longest value comes first, because it
    /// may contain a shorter one.
    fn secrets(&self) -> Vec<Secret> {
        let secret = |((placeholder, _), value): (&(String, _), &String)| Secret {
            placeholder: placeholder.clone(),
            value: value.clone(),
        };
        let mut secrets: Vec<_> = self.values.iter().map(secret).collect();
        secrets.sort_by(|a, b| (b.value.len(), &b.value).cmp(&(a.value.len(), &a.value)));
        secrets
    }

    /// Returns `text` after replacing each `{env.NAME}` and `{file.PATH}` by its value.
    fn replaced(
        &mut self,
        sources: &Sources,
        span: &Range<usize>,
        text: &str,
    ) -> Result<String, Problem> {
        let mut out = String::with_capacity(text.len());
        let mut rest = text;
        while let Some(start) = next(rest) {
            if let Some(before) = rest[..start].strip_suffix('{') {
                let after = start + "{env.".len();
                out.push_str(before);
                out.push_str(&rest[start..after]);
                rest = &rest[after..];
                continue;
            }
            out.push_str(&rest[..start]);
            let Some(end) = rest[start..].find('}') else {
                let message = format!("\"{}\" has no end", &rest[start..]);
                return Err(Problem::new(span, message).help("close it with `}`"));
            };
            let placeholder = &rest[start..start + end + 1];
            let value = self.value(sources, span, placeholder)?;
            out.push_str(value);
            self.total += value.len();
            if placeholder.len() == text.len() {
                self.alone.insert(span.start, out.clone());
            }
            rest = &rest[start + end + 1..];
            if self.total > LARGEST_TOTAL {
                return Err(Problem::new(span, "the placeholders have more than 16 MiB of values")
                    .help("use smaller files, or fewer placeholders"));
            }
        }
        out.push_str(rest);
        Ok(out)
    }

    /// Returns the value of a placeholder. Each value is read once, and then remembered. A value
    /// that is missing, too large or not UTF-8 is a problem.
    fn value(
        &mut self,
        sources: &Sources,
        span: &Range<usize>,
        placeholder: &str,
    ) -> Result<&str, Problem> {
        let base = &sources.at(span.start).base;
        let inner = &placeholder[1..placeholder.len() - 1];
        let key = match inner.strip_prefix("env.") {
            Some(_) => (placeholder.to_owned(), PathBuf::new()),
            None => (placeholder.to_owned(), base.clone()),
        };
        if !self.values.contains_key(&key) {
            let value = match (inner.strip_prefix("env."), inner.strip_prefix("file.")) {
                (Some(name), _) => variable(span, name)?,
                (None, Some(path)) => content(span, &base.join(path), path)?,
                (None, None) => unreachable!("`next` finds only these two"),
            };
            self.values.insert(key.clone(), value);
        }
        Ok(&self.values[&key])
    }
}

/// Returns the start of the first placeholder. Returns `None` if the text has no placeholder.
fn next(text: &str) -> Option<usize> {
    match (text.find("{env."), text.find("{file.")) {
        (Some(env), Some(file)) => Some(env.min(file)),
        (env, file) => env.or(file),
    }
}

/// Returns the value of an environment variable, which must exist and be valid UTF-8.
fn variable(span: &Range<usize>, name: &str) -> Result<String, Problem> {
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    if name.is_empty() || !name.bytes().all(is_name) {
        return Err(Problem::new(span, format!("\"{name}\" cannot name a variable"))
            .help("write a name of letters, digits and underscores, as in {env.TOKEN}"));
    }
    match std::env::var(name) {
        Ok(value) if value.len() as u64 <= LARGEST => Ok(value),
        Ok(_) => Err(Problem::new(span, format!("the variable {name} is larger than 64 KiB"))
            .help("use a smaller value")),
        Err(std::env::VarError::NotPresent) => {
            Err(Problem::new(span, format!("the environment has no variable {name}"))
                .help(format!("set it for Forebay, as in {name}=... forebay serve FILE")))
        }
        Err(std::env::VarError::NotUnicode(_)) => {
            Err(Problem::new(span, format!("the variable {name} is not UTF-8"))
                .help("set it to a text in UTF-8"))
        }
    }
}

/// Returns the content of a file without its final line break.
fn content(span: &Range<usize>, path: &Path, typed: &str) -> Result<String, Problem> {
    let problem = |why: &str| Problem::new(span, format!("cannot read {}: {why}", path.display()));
    let help = "give the path of a small file, as in {file.secrets/token}";
    if typed.is_empty() || typed.contains('\0') {
        return Err(Problem::new(span, "{file.PATH} has no path").help(help));
    }
    let read = files::read(path, LARGEST);
    let bytes = read.map_err(|error| problem(&reason(&error)).help(advice(&error)))?;
    if bytes.len() as u64 > LARGEST {
        return Err(problem("it is larger than 64 KiB").help(help));
    }
    let mut text = String::from_utf8(bytes)
        .map_err(|_| problem("it is not text in UTF-8").help("save it as UTF-8"))?;
    if text.ends_with('\n') {
        text.pop();
        if text.ends_with('\r') {
            text.pop();
        }
    }
    Ok(text)
}
