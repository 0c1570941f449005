//! The `Proxy` and `ProxyMatch` sections that apply to a backend.

use super::Cx;
use super::access::{access_without_translation, gate};
use super::sections::Sections;
use super::syntax::{Directive, is};
use crate::pattern::literal_starts;

/// The sections that apply to the URL of a backend.
#[derive(Default)]
pub struct ProxySections<'a> {
    /// The blocks that apply to all requests, in the order of the file.
    pub blocks: Vec<&'a [Directive]>,
    /// A section with access rules that may apply to some of the requests.
    pub partial: Option<&'a Directive>,
}

/// The requests of a backend that a `Proxy` section applies to: all, some or none.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ProxyShare {
    All,
    Some,
    None,
}

/// Returns the `Proxy` sections for requests that a route passes to `target` and to the paths below
/// it. If a section with access rules applies to only some of these requests, `partial` names the
/// section.
pub fn sections_of<'a>(
    cx: &mut Cx<'_>,
    sections: &Sections<'a>,
    target: &str,
) -> ProxySections<'a> {
    let mut found = ProxySections::default();
    let target = target.rsplit_once('|').map_or(target, |(_, url)| url).to_ascii_lowercase();
    let has_path = target.split_once("://").is_some_and(|(_, rest)| rest.contains('/'));
    let target = if has_path { target } else { format!("{target}/") };
    let all = sections.levels.iter().copied().flatten();
    for section in all.filter(|d| is(d, "Proxy") || is(d, "ProxyMatch")) {
        let part = match (is(section, "Proxy"), section.arg(0)) {
            (true, "~") => by_expression(section.arg(1), &target),
            (true, text) => by_text(text, &target),
            (false, text) => by_expression(text, &target),
        };
        let is_used = part != ProxyShare::None;
        match cx.proxies.iter_mut().find(|(other, _)| other.place == section.place) {
            Some((_, used)) => *used |= is_used,
            None => cx.proxies.push((section.clone(), is_used)),
        }
        let block = section.inside();
        match part {
            ProxyShare::All => found.blocks.push(block),
            ProxyShare::Some if !gate(cx, &[block]).is_open() => found.partial = Some(section),
            ProxyShare::Some if access_without_translation(block).is_some() => {
                found.partial = Some(section);
            }
            ProxyShare::Some | ProxyShare::None => {}
        }
    }
    found
}

/// Marks the `Proxy` sections that apply to no backend as read, because they have no effect.
pub fn settle_unused(cx: &Cx<'_>) {
    let unused = cx.proxies.iter().filter(|(_, is_used)| !is_used);
    unused.for_each(|(section, _)| section.settle_all());
}

/// Returns the share of the requests to `target` that a `Proxy` section applies to. `text` is the
/// argument of the section, which may have wildcards.
fn by_text(text: &str, target: &str) -> ProxyShare {
    let text = text.to_ascii_lowercase();
    let start = text.split(['*', '?', '[', '\\']).next().unwrap_or_default();
    let is_whole =
        start.len() == text.len() || text.len() == start.len() + 1 && text.ends_with('*');
    match (target.starts_with(start), start.starts_with(target)) {
        (true, _) if is_whole => ProxyShare::All,
        (false, false) => ProxyShare::None,
        _ => ProxyShare::Some,
    }
}

fn by_expression(text: &str, target: &str) -> ProxyShare {
    let Some(starts) = literal_starts(text) else { return ProxyShare::Some };
    let is_whole = |start: &(String, bool)| start.1 && target.starts_with(&start.0);
    let overlaps = |(start, _): &(String, bool)| {
        target.starts_with(start.as_str()) || start.starts_with(target)
    };
    match () {
        () if starts.iter().any(is_whole) => ProxyShare::All,
        () if starts.iter().any(overlaps) => ProxyShare::Some,
        () => ProxyShare::None,
    }
}
