//! Makes one tree of all files and reads the tree as typed tables. Before that, it replaces
//! placeholders, expands short forms, and adds the keys of defaults and sets.

use std::cell::OnceCell;
use std::collections::HashMap;
use std::ops::Range;

use serde::Deserialize;
use toml::Spanned;
use toml::de::DeValue;

use crate::error::Problem;
use crate::explain::explain;
use crate::file::File;
use crate::hosts;
use crate::merge::{self, AllFilled};
use crate::outside::Outside;
use crate::plan::Fingerprint;
use crate::preset;
use crate::settings;
use crate::source::Sources;
use crate::tree::{self, Node, Tree};

/// Reads all sources as typed tables. Also records in `outside` the values that messages must hide.
pub(crate) fn read(
    sources: &Sources,
    outside: &mut Outside,
) -> Result<(File, AllFilled), Vec<Problem>> {
    // `numbers` has the value of each text that consists of one placeholder, as in
    // `threads = "{env.N}"`. Such a value may be a number or a boolean. The tree borrows the
    // values.
    let numbers = OnceCell::new();
    let (mut tree, filled) = assemble(sources, outside)?;
    let numbers: &Vec<String> =
        numbers.get_or_init(|| outside.alone.values().cloned().collect::<Vec<_>>());
    loop {
        // `deserialize` consumes the tree. If it finds a text in place of a number or a boolean,
        // the next attempt uses this copy.
        let spare = (!outside.alone.is_empty()).then(|| tree.clone());
        let whole = Spanned::new(0..0, tree);
        let error = match File::deserialize(toml::Deserializer::from(whole)) {
            Ok(file) => return Ok((file, filled)),
            Err(error) => error,
        };
        let span = error.span().unwrap_or(0..0);
        let number = outside.alone.remove(&span.start);
        match (spare, number) {
            (Some(mut spare), Some(text))
                if error.message().starts_with("invalid type: string") =>
            {
                let at = numbers.iter().position(|number| *number == text);
                let Some(scalar) = at.and_then(|at| scalar(&numbers[at])) else {
                    return Err(vec![explain(&error, "")]);
                };
                replace(&mut spare, &span, &scalar);
                tree = spare;
            }
            _ => return Err(vec![explain(&error, "")]),
        }
    }
}

/// Returns the tree of all sources, with all placeholders, short forms, defaults and sets applied.
pub(crate) fn assemble<'s>(
    sources: &'s Sources,
    outside: &mut Outside,
) -> Result<(Tree<'s>, AllFilled), Vec<Problem>> {
    let mut tree = tree::parse(sources)?;
    outside.fill(sources, &mut tree)?;
    hosts::expand(&mut tree, sources)?;
    let mut filled = merge::fill_sites(&mut tree);
    preset::expand(&mut tree)?;
    merge::fill_routes(&mut tree, &mut filled)?;
    filled.fingerprints = fingerprints(&mut tree, sources);
    Ok((tree, filled))
}

/// The fingerprint of each route, by the indices of its site and of the route in it.
///
/// It covers what decides the route's replies: the hosts of the site, the route itself, the
/// directory of relative paths, and each group of servers and each map that the route names. The
/// text of an application is not part of it, because a new version of an application is no new
/// route.
fn fingerprints(tree: &mut Tree<'_>, sources: &Sources) -> HashMap<(usize, usize), Fingerprint> {
    let shared: Vec<(&str, char, HashMap<String, String>)> =
        [("upstream", "\"@", '"'), ("map", "{map.", '}')]
            .into_iter()
            .map(|(table, before, after)| {
                let tables = tree::table_at(tree, table).into_iter().flatten();
                let texts =
                    tables.map(|(name, node)| (tree::name(name).to_owned(), settings::text(node)));
                (before, after, texts.collect())
            })
            .collect();
    let mut all = HashMap::new();
    for (number, (_, site)) in tree::tables_at(tree, "site").enumerate() {
        let hosts = site.get("hosts").map(settings::text).unwrap_or_default();
        for (at, (span, route)) in tree::tables_at(site, "route").enumerate() {
            let base = sources.at(span.start).base.display();
            let typed = settings::text_of(route);
            let mut text = format!("{hosts}\n{base}\n{typed}");
            for (before, after, tables) in &shared {
                let names =
                    typed.split(before).skip(1).filter_map(|rest| rest.split(*after).next());
                names.filter_map(|name| tables.get(name)).for_each(|table| text.push_str(table));
            }
            all.insert((number, at), Fingerprint::of(&text));
        }
    }
    all
}

/// Returns the boolean that a text represents, or the whole number of up to 19 digits. Returns
/// `None` for any other text.
fn scalar(text: &str) -> Option<DeValue<'_>> {
    match text {
        "true" => return Some(DeValue::Boolean(true)),
        "false" => return Some(DeValue::Boolean(false)),
        _ => {}
    }
    let is_number = !text.is_empty() && text.len() < 20 && text.bytes().all(|b| b.is_ascii_digit());
    let value = is_number.then(|| DeValue::parse(text).ok()).flatten()?;
    Some(value.into_inner())
}

/// Replaces each value at the position `span` by `by`. A value from `[defaults]` is in several
/// routes, always with the same position.
fn replace<'s>(tree: &mut Tree<'s>, span: &Range<usize>, by: &DeValue<'s>) {
    tree.iter_mut().for_each(|(_, node)| replace_in(node, span, by));
}

fn replace_in<'s>(node: &mut Node<'s>, span: &Range<usize>, by: &DeValue<'s>) {
    let is_here = node.span() == *span;
    match node.get_mut() {
        DeValue::Table(table) => replace(table, span, by),
        DeValue::Array(items) => items.iter_mut().for_each(|item| replace_in(item, span, by)),
        value if is_here => *value = by.clone(),
        _ => {}
    }
}
