//! Translates configurations of nginx: <https://nginx.org/en/docs/>.

mod access;
mod answer;
mod auth_copies;
mod backends;
mod bodies;
mod cache;
mod conditions;
mod fields;
mod files_of;
mod here;
mod internal;
mod listeners;
mod locations;
mod logs;
mod maintenance;
mod maps;
mod names;
mod needless;
mod pages;
mod rewrites;
mod scope;
mod server;
mod servers;
mod streams;
mod switches;
mod syntax;
mod unread;
mod upstreams;
mod value_maps;
mod variables;

use std::cell::Cell;
use std::collections::HashSet;
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
    /// The locations that have a closed route, by [`Directive::id`].
    closed: HashSet<*const Cell<bool>>,
    /// The variables, such as `$x`, that a directive such as `set` may change.
    changed: HashSet<String>,
}

impl Cx<'_> {
    /// Adds a note about a directive without a full translation. Marks the directive as read, so
    /// that the import adds no second note. Returns the note as a comment for the draft.
    fn note(&mut self, directive: &Directive, next: impl Into<String>) -> String {
        match directive.name.as_str() {
            // The note is about the whole block.
            "if" | "limit_except" => directive.settle_all(),
            _ => directive.settle(),
        }
        self.draft.notes.add(&directive.place, &directive.line(), next)
    }

    /// Returns true if an upstream looks like php-fpm: the address of a server contains `php`, or
    /// the name of the upstream ends with `:9000`.
    fn is_php(&self, upstream: &str) -> bool {
        let mut upstreams = self.http.every("upstream");
        upstreams.any(|found| {
            found.arg(0) == upstream
                && found.inside().iter().any(|server| server.arg(0).contains("php"))
        }) || upstream.ends_with(":9000")
    }
}

/// Collects the variables that directives such as `set`, and named groups of expressions, change.
fn changed(block: &[Directive], names: &mut HashSet<String>) {
    for directive in block {
        let name = directive.name.as_str();
        if (name.starts_with("set") || name.ends_with("_set")) && directive.arg(0).starts_with('$')
        {
            names.insert(directive.arg(0).to_owned());
        }
        for arg in std::iter::once(&directive.name).chain(&directive.args) {
            let groups = arg.split("(?").skip(1).map(|rest| rest.trim_start_matches('P'));
            let groups = groups.filter_map(|rest| rest.strip_prefix(['<', '\'']));
            let name = |rest: &str| rest.split(['>', '\'']).next().unwrap_or_default().to_owned();
            names.extend(groups.map(|rest| format!("${}", name(rest))));
        }
        changed(directive.inside(), names);
    }
}

/// Adds notes on the directives outside of servers that have no translation.
fn report(cx: &mut Cx<'_>, main: &[Directive], http: Option<&Directive>) {
    let mut comments = Vec::new();
    // Without `http`, the main block has the servers of a single site.
    if let Some(http) = http {
        comments.extend(unread::report(cx, &[main], http.inside()));
    }
    comments.extend(unread::report(cx, &[], main));
    cx.draft.comments.extend(comments);
}

pub fn translate(file: &Path, keys: &Keys) -> Result<Draft, ImportError> {
    let mut main = syntax::read(file)?;
    let has = |name: &str| main.iter().any(|directive| directive.name == name);
    let is_part = has("location") && !["http", "server", "stream"].iter().any(|name| has(name));
    if is_part {
        let place = main[0].place.clone();
        main = vec![Directive::new("server", Vec::new(), Some(main), place)];
    }
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
        closed: HashSet::new(),
        changed: HashSet::new(),
    };
    if is_part {
        let text = "The file has no server: its locations are those of a site for all hosts on \
                    port 80. Write `listen` and `hosts` of the server that includes the file.";
        cx.draft.comments.push(text.into());
    }
    changed(&main, &mut cx.changed);
    let blocks: Vec<&Directive> =
        main.iter().filter(|directive| directive.name == "stream").collect();
    servers::settings(&mut cx, &main);
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
    report(&mut cx, &main, http);
    servers::needless(&mut cx, &main);
    if cx.draft.sites.is_empty() && cx.draft.streams.is_empty() {
        let message = format!("no server of {} has a translation", file.display());
        return Err(ImportError::new(message, "write the streams anew: see the guide on streams"));
    }
    Ok(cx.draft)
}
