//! Prints a draft as TOML with comments.

use std::collections::HashSet;
use std::path::Path;

use crate::draft::{ANSWERS, Draft, DraftRoute, DraftSite};
use crate::expect::expectations;
use crate::keys::Keys;
use crate::pattern::group_name;
use crate::value::{Key, Table, Value};
use crate::{Imported, Note};

/// Number of routes at the top of a site that `forebay check` compares with each further route.
const MOST_COMPARED: usize = 1000;

/// Maximum length of a comment line, in characters.
const WIDTH: usize = 100;

/// Returns the configuration and its notes.
pub fn print(draft: Draft, file: &Path, keys: &Keys) -> Imported {
    let mut out = String::new();
    let source = file.display().to_string();
    comment(
        &mut out,
        "",
        &format!("Imported from {source}. Compare answers with the old server before you switch."),
    );
    let elsewhere = unprinted(&draft);
    draft.comments.iter().chain(&elsewhere).for_each(|line| comment(&mut out, "", line));
    if let Some(first) = draft.notes.0.first() {
        let (count, has) = match draft.notes.0.len() {
            1 => ("1 line".to_owned(), "has"),
            many => (format!("{many} lines"), "have"),
        };
        comment(
            &mut out,
            "",
            &format!(
                "{count} {has} no translation: look for NOT TRANSLATED. The first is {}:{}.",
                first.file, first.line
            ),
        );
    }
    out.push_str(&render(&draft, keys));
    let mut notes: Vec<Note> = draft.notes.0;
    notes.sort_by(|a, b| (&a.file, a.line).cmp(&(&b.file, b.line)));
    Imported { toml: out, notes }
}

/// Removes routes, groups and applications that no request reaches.
pub fn reduce(draft: &mut Draft) {
    draft.sites.iter_mut().for_each(drop_unreachable);
    drop_unused(draft);
}

/// Returns the tables of a draft in TOML.
pub fn render(draft: &Draft, keys: &Keys) -> String {
    let mut out = String::new();
    table(&mut out, "server", &draft.server);
    table(&mut out, "server.limits", &draft.limits);
    table(&mut out, "server.timeouts", &draft.timeouts);
    let has_tests = keys.has("Site", "expect");
    let mark = if has_tests { "" } else { "# " };
    for site in &draft.sites {
        let expect = if draft.omits_tests { Vec::new() } else { expectations(site) };
        print_site(&mut out, site, &expect, mark);
    }
    for stream in &draft.streams {
        out.push('\n');
        stream.comments.iter().for_each(|line| comment(&mut out, "", line));
        out.push_str("[[stream]]\n");
        stream.keys.lines().for_each(|line| out.push_str(&format!("{line}\n")));
    }
    for (name, keys) in &draft.maps {
        table(&mut out, &format!("map.{}", Key(name)), keys);
    }
    for (name, keys) in &draft.upstreams {
        table(&mut out, &format!("upstream.{}", Key(name)), keys);
    }
    for (name, keys) in &draft.apps {
        table(&mut out, &format!("app.{}", Key(name)), keys);
    }
    out
}

fn table(out: &mut String, name: &str, keys: &Table) {
    if keys.is_empty() {
        return;
    }
    out.push_str(&format!("\n[{name}]\n"));
    keys.lines().for_each(|line| out.push_str(&format!("{line}\n")));
}

/// Prints a site with its tests. `mark` is the text before each line of the tests, such as `# ` if
/// the lines are comments.
fn print_site(out: &mut String, site: &DraftSite, expect: &[String], mark: &str) {
    out.push('\n');
    site.comments.iter().for_each(|line| comment(out, "", line));
    out.push_str("[[site]]\n");
    let mut head = Table::default().with("listen", site.listen.clone());
    if !site.hosts.is_empty() {
        head.set("hosts", site.hosts.clone());
    }
    head.0.extend(site.keys.0.iter().cloned());
    head.lines().for_each(|line| out.push_str(&format!("{line}\n")));
    if !expect.is_empty() {
        out.push_str(&format!("{mark}expect = [\n"));
        expect.iter().for_each(|line| {
            out.push_str(&format!("{mark}  {},\n", Value::from(line.as_str())));
        });
        out.push_str(&format!("{mark}]\n"));
    }
    site.routes.iter().for_each(|route| print_route(out, route));
}

/// Prints a route, with the line that it translates as a comment.
fn print_route(out: &mut String, route: &DraftRoute) {
    out.push_str(&route_text(&format!("{}: {}", route.place, route.source), route));
}

/// Returns the text of a route. `source` is its first comment.
pub fn route_text(source: &str, route: &DraftRoute) -> String {
    let mut out = String::from("\n");
    comment(&mut out, "  ", source);
    route.comments.iter().for_each(|line| comment(&mut out, "  ", line));
    out.push_str("  [[site.route]]\n");
    let mut all = Table::default();
    let matcher = &route.matcher;
    let is_all = matcher.paths.iter().any(|path| path == "/*");
    match &matcher.paths[..] {
        [] => {}
        _ if is_all && (!matcher.suffixes.is_empty() || matcher.regex.is_some()) => {}
        [path] => all.set("path", path.as_str()),
        paths => all.set("paths", paths.to_vec()),
    }
    match &matcher.suffixes[..] {
        [] => {}
        [suffix] => all.set("suffix", suffix.as_str()),
        suffixes => all.set("suffix", suffixes.to_vec()),
    }
    all.set_some(
        "path_regex",
        matcher.regex.as_deref().map(|regex| used_groups(regex, &route.keys)),
    );
    if !matcher.methods.is_empty() {
        all.set("methods", matcher.methods.clone());
    }
    if !matcher.when.is_empty() {
        all.set("when", matcher.when.clone());
    }
    all.0.extend(route.keys.0.iter().cloned());
    all.lines().for_each(|line| out.push_str(&format!("  {line}\n")));
    out
}

/// Returns the notes that are not yet among the comments of the draft, a site or a route.
fn unprinted(draft: &Draft) -> Vec<String> {
    let routes = draft.sites.iter().flat_map(|site| &site.routes);
    let sites = draft.sites.iter().flat_map(|site| &site.comments);
    let sites = sites.chain(draft.streams.iter().flat_map(|stream| &stream.comments));
    let printed: HashSet<&String> =
        routes.flat_map(|route| &route.comments).chain(sites).chain(&draft.comments).collect();
    let notes = draft.notes.0.iter().map(Note::comment);
    notes.filter(|text| !printed.contains(text)).collect()
}

/// Removes groups and applications that no route and no stream names.
pub fn drop_unused(draft: &mut Draft) {
    let routes = || draft.sites.iter().flat_map(|site| &site.routes);
    let tables = routes().map(|route| &route.keys);
    let tables = tables.chain(draft.streams.iter().map(|stream| &stream.keys));
    let texts: Vec<String> = tables.map(|keys| keys.lines().collect()).collect();
    let uses = |name: &str| texts.iter().any(|text| text.contains(&Value::from(name).to_string()));
    draft.upstreams.retain(|(name, _)| uses(&format!("@{name}")));
    draft.apps.retain(|(name, _)| uses(name));
}

/// Returns a regular expression without the names of groups that no placeholder in `keys` uses.
fn used_groups(regex: &str, keys: &Table) -> String {
    let text: String = keys.lines().collect();
    let mut regex = regex.to_owned();
    for number in 1..100 {
        let name = group_name(number);
        if !text.contains(&format!("{{{name}}}")) {
            regex = regex.replace(&format!("(?<{name}>"), "(");
        }
    }
    regex
}

/// Removes routes that get no requests, because one earlier route takes all of them.
/// `forebay check` refuses such routes.
fn drop_unreachable(site: &mut DraftSite) {
    let mut kept: Vec<DraftRoute> = Vec::new();
    for route in std::mem::take(&mut site.routes) {
        let takes_all = |above: &&DraftRoute| {
            // A route that only rewrites answers no requests, so later routes get its requests.
            let has_answer = ANSWERS.iter().any(|answer| above.keys.get(answer).is_some());
            let only_rewrites = above.keys.get("rewrite").is_some() && !has_answer;
            !above.passes_on() && !only_rewrites && above.matcher.covers(&route.matcher)
        };
        match kept.iter().take(MOST_COMPARED).find(takes_all) {
            Some(above) => {
                let (place, source) = (&route.place, &route.source);
                let text =
                    format!("{place}: {source} has no route: {} takes its requests.", above.place);
                if !site.comments.contains(&text) && *place != above.place {
                    site.comments.push(text);
                }
            }
            None => kept.push(route),
        }
    }
    site.routes = kept;
}

/// Appends a comment, in lines of a readable length.
fn comment(out: &mut String, indent: &str, text: &str) {
    let mut line = String::new();
    let plain: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    for word in plain.split_whitespace() {
        if !line.is_empty() && line.len() + word.len() >= WIDTH {
            out.push_str(&format!("{indent}# {line}\n"));
            line = " ".into();
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
    }
    if !line.is_empty() {
        out.push_str(&format!("{indent}# {line}\n"));
    }
}
