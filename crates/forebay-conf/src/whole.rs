//! Makes one tree of all files and reads the tree as typed tables. Before that, it replaces
//! placeholders, expands short forms, and adds the keys of defaults and sets.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;

use toml::Spanned;
use toml::de::DeValue;

use crate::error::Problem;
use crate::explain::unknown_key;
use crate::file::File;
use crate::hosts;
use crate::key::{Cx, Form, MOST_PROBLEMS, Names};
use crate::left_out::LeftOut;
use crate::merge::{self, AllFilled};
use crate::outside::Outside;
use crate::plan::Fingerprint;
use crate::preset;
use crate::settings;
use crate::source::Sources;
use crate::tree::{self, Tree};

/// All sources as typed tables.
pub(crate) struct Whole {
    pub file: File,
    pub filled: AllFilled,
    /// What texts may name.
    pub names: Names,
    /// Problems of single values. In `file`, their keys are missing.
    pub problems: Vec<Problem>,
}

/// Reads all sources as typed tables. Also records in `outside` the values that messages must hide.
pub(crate) fn read(
    sources: &Sources,
    outside: &mut Outside,
    left_out: &mut LeftOut,
) -> Result<Whole, Vec<Problem>> {
    let (tree, filled) = assemble(sources, outside, left_out)?;
    let cx = Cx {
        sources,
        names: RefCell::default(),
        outside: &outside.alone,
        unknown_key,
        room: Cell::new(MOST_PROBLEMS),
        is_partial: Cell::new(false),
        wrong_values: RefCell::default(),
        of_directories: RefCell::default(),
    };
    let file = File::read(&Spanned::new(0..0, DeValue::Table(tree)), &cx);
    let (mut problems, of_directories) = (cx.wrong_values.take(), cx.of_directories.take());
    match file {
        Ok(_) if problems.len() >= MOST_PROBLEMS => Err(problems),
        _ if !of_directories.is_empty() => {
            problems.extend(file.err());
            problems.extend(of_directories);
            Err(problems)
        }
        Ok(file) => Ok(Whole { file, filled, names: cx.names.take(), problems }),
        Err(problem) => {
            problems.push(problem);
            Err(problems)
        }
    }
}

/// Returns the tree of all sources, with all placeholders, short forms, defaults and sets applied,
/// without the directories that are left out.
pub(crate) fn assemble<'s>(
    sources: &'s Sources,
    outside: &mut Outside,
    left_out: &mut LeftOut,
) -> Result<(Tree<'s>, AllFilled), Vec<Problem>> {
    let mut tree = tree::parse(sources)?;
    outside.fill(sources, &mut tree)?;
    hosts::expand(&mut tree, sources)?;
    let mut filled = merge::fill_sites(&mut tree);
    preset::expand(&mut tree)?;
    left_out.apply(&mut tree, sources);
    merge::fill_routes(&mut tree, &mut filled)?;
    filled.fingerprints = fingerprints(&mut tree, sources);
    filled.find_directories(&mut tree);
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
