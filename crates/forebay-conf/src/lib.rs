//! Reads a configuration file and resolves it into a plan that is valid by construction.
//!
//! [`load`] reads a file into a [`Plan`]. A [`ConfError`] says what is wrong, where, and what to do
//! next. A file passes through these modules: `include` (all files as one text), `whole` (one tree,
//! with defaults and sets), `file` (the typed keys), `resolve` (paths and names), `plan` (the
//! result). This crate starts no process, binds no socket and resolves no host name.
#![forbid(unsafe_code)]

mod duration;
mod error;
mod explain;
mod file;
pub mod files;
mod finding;
mod foreign;
mod hosts;
mod include;
mod inputs;
mod key;
mod left_out;
mod merge;
mod outside;
mod plan;
mod preset;
mod resolve;
mod settings;
mod size;
mod source;
mod suggest;
mod tree;
mod whole;

use std::path::Path;
use std::sync::Arc;

pub use duration::{LONGEST, parse_duration};
pub use error::{ConfError, Label, advice};
pub use file::schema;
pub use finding::Finding;
pub use inputs::{certificate_files, host_directories, inputs};
pub use left_out::{LeftOut, LeftOutRow};
pub use plan::*;
pub use settings::Setting;
pub use size::parse_size;
pub use source::SourceFile;

use outside::Outside;
use source::Sources;

/// Reads a configuration file and the files that it includes. Relative paths start at the directory
/// of the file that contains them.
pub fn load(path: &Path) -> Result<Plan, ConfError> {
    plan(include::main_file(path)?)
}

/// Reads a configuration from a text. `name` is the name of the text in errors. Relative paths in
/// the text start at the directory `base`.
pub fn parse(text: &str, name: &str, base: &Path) -> Result<Plan, ConfError> {
    let base = std::path::absolute(base).unwrap_or_else(|_| base.to_owned());
    plan(Sources::one(name, text, &base))
}

fn plan(mut sources: Sources) -> Result<Plan, ConfError> {
    include::follow(&mut sources)?;
    plan_without(sources, LeftOut::default())
}

/// Makes a plan that leaves out these directories, and those in which it finds problems.
fn plan_without(mut sources: Sources, mut left_out: LeftOut) -> Result<Plan, ConfError> {
    loop {
        let mut outside = Outside::default();
        let plan = whole::read(&sources, &mut outside, &mut left_out)
            .and_then(|whole| resolve::resolve(&whole, &sources, &left_out));
        // Messages must not show the values of `{env.NAME}` and `{file.PATH}`, so hide these values
        // before the first message is made.
        outside.hide_in(&mut sources);
        match plan {
            Ok(mut plan) => {
                plan.file = SourceFile(Arc::new(sources));
                plan.left_out = left_out;
                return Ok(plan);
            }
            Err(problems) => left_out
                .add(problems, &sources)
                .map_err(|problems| ConfError::in_sources(&sources, problems))?,
        }
    }
}
