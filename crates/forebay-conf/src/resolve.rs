//! Resolves the configuration as typed into a plan: fills in defaults, makes paths absolute and
//! looks names up.
//!
//! Each table reports its first problem. The problems of all tables are reported together.

mod action;
mod ajp;
mod app;
mod app_server;
mod compress;
mod effect;
mod path;
mod peer;
mod process;
mod program;
mod proxy;
mod ready;
mod route;
mod server;
mod site;
mod socket;
mod tls;
mod upstream;
mod value;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use crate::error::Problem;
use crate::file::File;
use crate::plan::{Listen, Plan, Upstream};
use crate::source::SourceFile;

use path::directory;
use peer::{backend, listen};

/// A value, or the problem with the typed one.
pub(crate) type Outcome<T> = Result<T, Problem>;

/// The input that every step needs.
pub(crate) struct Context<'a> {
    /// The base directory of relative paths; absolute.
    base: &'a Path,
    /// The end of each line of the file, in bytes.
    line_ends: Vec<usize>,
    /// The groups [upstream.NAME] by name.
    groups: BTreeMap<String, Arc<Upstream>>,
}

impl<'a> Context<'a> {
    /// Returns the context for a text. Its paths are relative to an absolute directory.
    pub fn new(text: &str, base: &'a Path) -> Self {
        let line_ends = text.match_indices('\n').map(|(at, _)| at).collect();
        Self { base, line_ends, groups: BTreeMap::new() }
    }

    /// Returns the line of a byte of the file, from 1.
    fn line(&self, offset: usize) -> usize {
        self.line_ends.partition_point(|&end| end < offset) + 1
    }
}

/// Resolves a whole file. Without a plan there is at least one problem.
pub(crate) fn resolve(file: &File, text: &str, base: &Path) -> Result<Plan, Vec<Problem>> {
    let base = std::path::absolute(base).unwrap_or_else(|_| base.to_owned());
    let mut context = Context::new(text, &base);
    let mut problems = Vec::new();

    let server = keep(server::server(&context, &file.server), &mut problems);
    let log = keep(server::log(&context, &file.log), &mut problems);
    let mut apps = BTreeMap::new();
    for (name, typed) in &file.app {
        if problems.len() >= MOST_PROBLEMS {
            break;
        }
        if let Some(app) = keep(app::app(&context, name, typed), &mut problems) {
            apps.insert(name.clone(), app);
        }
    }
    let (groups, unused_upstreams) = upstream::groups(&context, file, &mut problems);
    context.groups = groups;
    let sites = site::sites(&context, file, &mut problems);

    if let Some(admin) = server.as_ref().and_then(|server| server.admin) {
        let same = Listen::Tcp(admin);
        let mut listens = sites.iter().flat_map(|site| &site.listen);
        if admin.port() != 0 && listens.any(|listen| *listen.socket() == same) {
            let span = file.server.admin.as_ref().map_or(0..0, |at| at.span.clone());
            let problem = Problem::new(&span, format!("a site listens on {admin}, too"));
            problems.push(problem.help("give `admin` a port of its own"));
        }
    }
    match (server, log) {
        (Some(server), Some(log)) if problems.is_empty() => {
            Ok(Plan { server, log, sites, apps, unused_upstreams, file: SourceFile::default() })
        }
        _ => Err(problems),
    }
}

/// The number of problems after which the rest of the file is skipped.
const MOST_PROBLEMS: usize = 100;

/// Returns the value, or adds the problem to `problems` and returns `None`.
fn keep<T>(outcome: Outcome<T>, problems: &mut Vec<Problem>) -> Option<T> {
    outcome.map_err(|problem| problems.push(problem)).ok()
}
