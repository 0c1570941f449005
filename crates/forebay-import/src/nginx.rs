//! Translates configurations of nginx: <https://nginx.org/en/docs/>.

mod access;
mod answer;
mod auth_copies;
mod auth_server;
mod backends;
mod bodies;
mod cache;
mod conditions;
mod fields;
mod files_of;
mod fixed_fields;
mod here;
mod internal;
mod listeners;
mod locations;
mod maintenance;
mod maps;
mod methods;
mod names;
mod pages;
mod process;
mod referers;
mod rewrites;
mod scope;
mod server;
mod servers;
mod streams;
mod syntax;
mod upstreams;
mod value_maps;
mod variables;

use std::path::{Path, PathBuf};

use crate::draft::Draft;
use crate::keys::Keys;
use crate::source::ImportError;
use crate::value::Value;
use scope::Scope;
use syntax::Directive;
use upstreams::BackendProtocol;

/// The state of a translation.
struct Cx<'a> {
    keys: &'a Keys,
    /// The block `http`, within the main block.
    http: Scope<'a>,
    /// Base directory of relative paths.
    dir: PathBuf,
    draft: Draft,
    /// The upstreams in use, with their protocols.
    groups: Vec<(String, BackendProtocol)>,
    /// The compression of the whole site, which its routes need not repeat.
    site_compress: Option<Value>,
    /// The limit on bodies of the whole site.
    site_max_body: Option<String>,
    /// Number of named locations that are being translated at present. Each of them was reached
    /// from the previous one.
    depth: usize,
}

impl Cx<'_> {
    /// Adds a note: Forebay has no full translation of this directive. Returns the note as a
    /// comment for the draft.
    fn note(&mut self, directive: &Directive, next: impl Into<String>) -> String {
        self.draft.notes.add(&directive.place, &directive.line(), next)
    }

    /// Adds notes on the directives that the translation does not read. Returns the notes as
    /// comments. `elsewhere` are directives that the translation reads only in other blocks.
    fn note_unread(&mut self, block: &[Directive], elsewhere: &[&str]) -> Vec<String> {
        let is_unread = |directive: &&Directive| {
            let name = directive.name.as_str();
            let is_here = names::READ.contains(&name) && !elsewhere.contains(&name);
            !is_here && !names::is_needless(name)
        };
        let unread: Vec<&Directive> = block.iter().filter(is_unread).collect();
        let next = |name: &str| {
            if elsewhere.contains(&name) { names::ELSEWHERE } else { names::next_step(name) }
        };
        unread.iter().map(|found| self.note(found, next(&found.name))).collect()
    }

    /// Returns true if the servers of an upstream look like php-fpm.
    fn is_php(&self, upstream: &str) -> bool {
        let mut upstreams = self.http.every("upstream");
        upstreams.any(|found| {
            found.arg(0) == upstream
                && found.inside().iter().any(|server| server.arg(0).contains("php"))
        }) || upstream.ends_with(":9000")
    }
}

pub fn translate(file: &Path, keys: &Keys) -> Result<Draft, ImportError> {
    let main = syntax::read(file)?;
    let http = main.iter().find(|directive| directive.name == "http");
    let scope = match http {
        Some(http) => Scope::new(&main).inside(http.inside()),
        // The file of a single site has its `server` blocks at the top level.
        None => Scope::new(&main),
    };
    let absolute = std::path::absolute(file).unwrap_or_else(|_| file.to_owned());
    let dir = absolute.parent().unwrap_or(Path::new("/")).to_owned();
    let is_site =
        http.is_none() && dir.parent().is_some_and(|above| above.join("nginx.conf").is_file());
    let mut cx = Cx {
        keys,
        http: scope.clone(),
        dir: if is_site { dir.parent().unwrap_or(&dir).to_owned() } else { dir },
        draft: Draft::default(),
        groups: Vec::new(),
        site_compress: None,
        site_max_body: None,
        depth: 0,
    };
    let blocks: Vec<&Directive> =
        main.iter().filter(|directive| directive.name == "stream").collect();
    process::settings(&mut cx, &main, http.is_some() || !blocks.is_empty());
    let servers: Vec<&Directive> =
        scope.own().iter().filter(|directive| directive.name == "server").collect();
    if servers.is_empty() && blocks.is_empty() {
        let message = format!("{} has no server {{ }} block", file.display());
        return Err(ImportError::new(message, "give nginx.conf, or the file of a site"));
    }
    if !servers.is_empty() {
        servers::translate(&mut cx, &servers);
    }
    blocks.iter().for_each(|block| streams::translate(&mut cx, &main, block));
    if cx.draft.sites.is_empty() && cx.draft.streams.is_empty() {
        let message = format!("no server of {} has a translation", file.display());
        return Err(ImportError::new(message, "write the streams anew: see the guide on streams"));
    }
    Ok(cx.draft)
}
