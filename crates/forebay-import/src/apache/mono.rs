//! Translates the ASP.NET applications of mod_mono to applications of kind `mono`, which run in
//! Forebay's own host instead of mod-mono-server.

use super::Cx;
use super::mod_perl::name_of;
use super::sections::{all, last};
use super::syntax::Directive;
use crate::draft::DraftRoute;
use crate::files;
use crate::value::Table;

/// Name of the applications without an alias.
const DEFAULT: &str = "default";

/// Directives that name applications, in the form `[ALIAS] [HOST:[PORT:]]PATH:DIR,...`.
const APPLICATIONS: [&str; 2] = ["MonoApplications", "AddMonoApplications"];

/// Returns the route for paths that mod_mono answers. `url` is the path of the route, and `dir` the
/// directory of its files. The route is closed if the application has no translation.
pub fn route(
    cx: &mut Cx<'_>,
    layers: &[&[Directive]],
    (handler, url, dir): (&Directive, &str, &str),
    mut route: DraftRoute,
) -> DraftRoute {
    handler.settle();
    match application(cx, layers, url, dir) {
        Ok((name, table)) => {
            let name = cx.draft.add_app(&name, table);
            route.keys.set("app", name);
            route
        }
        Err(next) => {
            let comment = cx.note(handler, &next);
            route.closed(comment)
        }
    }
}

fn application(
    cx: &mut Cx<'_>,
    layers: &[&[Directive]],
    url: &str,
    dir: &str,
) -> Result<(String, Table), String> {
    let server = last(layers, "MonoSetServerAlias");
    server.into_iter().for_each(Directive::settle);
    let alias = server.map_or(DEFAULT, |line| line.arg(0));
    let lines = APPLICATIONS.iter().flat_map(|name| of_alias(layers, name, alias));
    let mut known: Vec<(String, String)> = Vec::new();
    for (line, list) in lines {
        line.settle();
        for entry in list.split(',') {
            let mut parts = entry.trim().rsplit(':');
            if let (Some(dir), Some(path)) = (parts.next(), parts.next()) {
                known.push((path.trim_end_matches('/').to_owned(), cx.path(dir)));
            }
        }
    }
    // Without applications, mod_mono takes the directory of the files.
    let (path, dir) = if known.is_empty() {
        (url.trim_end_matches('/').to_owned(), dir.to_owned())
    } else {
        let below = |path: &str| {
            url.strip_prefix(path).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        let found = known.into_iter().filter(|(path, _)| below(path));
        found.max_by_key(|(path, _)| path.len()).ok_or_else(|| {
            format!("no application of `{alias}` has this path: write one of kind \"mono\"")
        })?
    };
    if !files::is_directory(&dir) {
        return Err(format!(
            "there is no directory {dir} here: write an application of kind \"mono\" with `dir`"
        ));
    }
    let mut table = Table::default().with("kind", "mono").with("dir", dir.as_str());
    table.set_some("virtual_path", Some(path).filter(|path| !path.is_empty()));
    let mut env = Table::default();
    for (line, list) in of_alias(layers, "MonoSetEnv", alias) {
        line.settle();
        for (name, value) in list.split(';').filter_map(|pair| pair.split_once('=')) {
            env.set(name.trim(), value);
        }
    }
    for (line, value) in of_alias(layers, "MonoIOMAP", alias) {
        line.settle();
        env.set("MONO_IOMAP", value);
    }
    if !env.is_empty() {
        table.set("env", env);
    }
    Ok((name_of(&dir), table))
}

/// Returns the lines with this name about the server `alias`, and the value of each.
fn of_alias<'a>(
    layers: &[&'a [Directive]],
    name: &str,
    alias: &str,
) -> Vec<(&'a Directive, &'a str)> {
    let value = |line: &'a Directive| match &line.args[..] {
        [value] if alias == DEFAULT => Some((line, value.as_str())),
        [own, value] if own == alias => Some((line, value.as_str())),
        _ => None,
    };
    all(layers, name).into_iter().filter_map(value).collect()
}
