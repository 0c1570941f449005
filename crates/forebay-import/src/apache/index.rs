//! `DirectoryIndex` that names a script outside of its directory.

use super::Cx;
use super::sections::{Sections, is_below, last};
use super::syntax::{Directive, is};
use crate::draft::DraftRoute;
use crate::files::{is_readable, joined};
use crate::matcher::Matcher;

/// Returns a route that rewrites the path of a directory to the path of its index file. The route
/// is needed if `Alias` or `ScriptAlias` maps the path of the index file to another file. Returns
/// `None` if the index file is in the directory itself, or if there is none.
///
/// For example, `Alias /a /dir`, `ScriptAlias /a/run.cgi /bin/run.cgi` and `DirectoryIndex run.cgi`
/// rewrite `/a/` to `/a/run.cgi`. Apache does the same in an internal request.
pub fn elsewhere(
    cx: &Cx<'_>,
    sections: &Sections<'_>,
    layers: &[&[Directive]],
    (url, dir): (&str, &str),
    route: &DraftRoute,
) -> Option<DraftRoute> {
    let directory = format!("{}/", url.trim_end_matches('/'));
    let is_whole = route.matcher.paths.iter().any(|path| *path == format!("{directory}*"));
    if !is_whole {
        return None;
    }
    for name in &last(layers, "DirectoryIndex")?.args {
        let target = if name.starts_with('/') { name.clone() } else { directory.clone() + name };
        if is_aliased(cx, sections, &target) {
            let is_plain = target.bytes().all(|byte| !b"{}?#%\\*".contains(&byte));
            if !is_plain || target.contains("/../") {
                return None;
            }
            let mut route = route.clone();
            route.matcher = Matcher { paths: vec![directory], ..route.matcher };
            route.keys.set("rewrite", target);
            return Some(route);
        }
        if is_readable(&joined(dir, name)) {
            return None;
        }
    }
    None
}

/// Returns true if `ScriptAlias` maps the path to a script that exists, or if `Alias` maps exactly
/// this path to a file that exists.
fn is_aliased(cx: &Cx<'_>, sections: &Sections<'_>, path: &str) -> bool {
    let mut all = sections.levels.iter().copied().flatten();
    all.any(|directive| {
        let is_script = is(directive, "ScriptAlias");
        let (url, target) = (directive.arg(0), directive.arg(1));
        if !is_script && !is(directive, "Alias") || !is_below(path, url) {
            return false;
        }
        let target = cx.path(target);
        let rest = path.strip_prefix(url.trim_end_matches('/')).unwrap_or_default();
        match rest.trim_matches('/') {
            "" => is_readable(&target),
            rest => is_script && is_readable(&joined(&target, rest)),
        }
    })
}
