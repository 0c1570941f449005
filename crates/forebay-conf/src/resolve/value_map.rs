//! Resolves the tables [map.NAME].

use std::collections::BTreeMap;
use std::sync::Arc;

use super::template::{Known, template};
use super::value::{no_control, required, text};
use super::when::regex;
use super::{MOST_PROBLEMS, Resolution, keep};
use crate::error::Problem;
use crate::file::{self, At, File};
use crate::plan::{Placeholder, Template, TemplatePart, ValueMap};

/// The largest number of patterns with `*` or `~` in one table. Forebay tries them in turn.
const MOST_TRIED: usize = 1000;

/// Returns the tables without a problem, and adds the problems of the others to `problems`.
pub(super) fn maps(file: &File, problems: &mut Vec<Problem>) -> BTreeMap<String, Arc<ValueMap>> {
    let mut maps = BTreeMap::new();
    for (name, typed) in &file.map {
        if problems.len() >= MOST_PROBLEMS {
            break;
        }
        if let Some(map) = keep(value_map(name, typed), problems) {
            maps.insert(name.clone(), Arc::new(map));
        }
    }
    maps
}

fn value_map(name: &str, typed: &At<file::ValueMap>) -> Resolution<ValueMap> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-".contains(c);
    if name.is_empty() || !name.chars().all(is_plain) {
        return Err(Problem::new(&typed.span, format!("\"{name}\" is not the name of a map"))
            .help("use letters, digits, hyphens and underscores, as in [map.origin]"));
    }
    let from_at = required(&typed.from, &typed.span, "from", "\"{header.Origin}\"")?;
    let from = parse(text(from_at)?, from_at)?;
    if from.constant().is_some() {
        return Err(Problem::new(&from_at.span, "this text is the same for every request")
            .help("use a placeholder, such as \"{header.Origin}\""));
    }
    let mut map = ValueMap {
        name: name.to_owned(),
        from,
        exact: BTreeMap::new(),
        globs: Vec::new(),
        expressions: Vec::new(),
        default: match &typed.default {
            Some(at) => parse(no_control(at, at)?, at)?,
            None => Template::default(),
        },
    };
    let is_host = map.from.parts() == [TemplatePart::Value(Placeholder::Host)];
    for (pattern, at) in &typed.values {
        let value = parse(no_control(at, at)?, at)?;
        no_control(pattern, at)?;
        // Forebay looks up hosts in lower case, so convert the keys to lower case.
        let is_lowered = is_host && !pattern.starts_with('~');
        let pattern = &if is_lowered { pattern.to_ascii_lowercase() } else { pattern.clone() };
        match pattern.split_once('*') {
            _ if pattern.starts_with('~') => map.expressions.push((regex(pattern, at)?, value)),
            None => drop(map.exact.insert(pattern.clone(), value)),
            Some((_, end)) if end.contains('*') => {
                return Err(Problem::new(&at.span, format!("\"{pattern}\" has several `*`"))
                    .help("write a regular expression, such as \"~^a.*b\""));
            }
            Some((start, end)) => map.globs.push((start.to_owned(), end.to_owned(), value)),
        }
    }
    if map.globs.len() + map.expressions.len() > MOST_TRIED {
        let message = format!("more than {MOST_TRIED} patterns with `*` or `~`");
        return Err(Problem::new(&typed.span, message).help("write texts without them"));
    }
    map.globs.sort_by_key(|(start, end, _)| std::cmp::Reverse(start.len() + end.len()));
    Ok(map)
}

/// Parses a text of a table [map.NAME]. The text may have placeholders, but no groups of
/// `path_regex` and no {map.NAME}.
fn parse<T>(typed: &str, at: &At<T>) -> Resolution<Template> {
    template(typed, at, Known { captures: &[], maps: &BTreeMap::new(), geo: None })
}
