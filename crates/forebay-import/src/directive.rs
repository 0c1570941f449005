//! Directives of nginx and Apache, and lines of a Caddyfile.

use crate::draft::SourceLine;

/// A directive, with its block if it has one.
#[derive(Clone, Debug)]
pub struct Directive {
    pub name: String,
    pub args: Vec<String>,
    pub block: Option<Vec<Directive>>,
    pub place: SourceLine,
}

impl Directive {
    /// Returns the argument with this index, or an empty text if there is none.
    pub fn arg(&self, at: usize) -> &str {
        self.args.get(at).map_or("", String::as_str)
    }

    /// Returns the directive as one line.
    pub fn line(&self) -> String {
        let mut line = self.name.clone();
        self.args.iter().for_each(|arg| {
            line.push(' ');
            line.push_str(arg);
        });
        line + if self.block.is_some() { " { ... }" } else { ";" }
    }

    /// Returns the directives of the block.
    pub fn inside(&self) -> &[Directive] {
        self.block.as_deref().unwrap_or_default()
    }
}
