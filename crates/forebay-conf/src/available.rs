//! What the configuration can say but this version does not do yet. A row here turns a key or a
//! value into a clear error; a feature that arrives deletes its row, and nothing else changes.

use toml::de::{DeTable, DeValue};

use crate::error::Problem;

/// A key, or some of its values, that this version does not do.
struct Missing {
    /// Tables from the top, joined by dots; `*` stands for any name. Lists are passed through.
    key: &'static str,
    /// Texts, or their beginnings where they end in `*`. Empty: whatever the value.
    values: &'static [&'static str],
    /// What can be done in its place.
    instead: &'static str,
}

const MISSING: &[Missing] = &[Missing {
    key: "app.*.speaks",
    values: &["h2c"],
    instead: "available: \"http\", \"fastcgi\", \"scgi\", \"uwsgi\" and \"ajp\"; most programs speak \
                  one of them, too",
}];

/// A problem for each thing in the file that this version does not do.
pub(crate) fn missing(file: &DeTable<'_>) -> Vec<Problem> {
    let mut problems = Vec::new();
    for row in MISSING {
        let path: Vec<&str> = row.key.split('.').collect();
        look_in(file, &path, row, &mut problems);
    }
    problems
}

fn look_in(table: &DeTable<'_>, path: &[&str], row: &Missing, problems: &mut Vec<Problem>) {
    let Some((first, rest)) = path.split_first() else { return };
    for (key, value) in table {
        if *first != "*" && *first != key.get_ref().as_ref() {
            continue;
        }
        if rest.is_empty() && row.values.is_empty() {
            let message = format!("`{}` is not available in this version", key.get_ref());
            problems.push(Problem::new(&key.span(), message).help(row.instead));
            continue;
        }
        look_at(value, (key.get_ref(), rest), row, problems);
    }
}

fn look_at(
    value: &toml::Spanned<DeValue<'_>>,
    (key, rest): (&str, &[&str]),
    row: &Missing,
    problems: &mut Vec<Problem>,
) {
    match value.get_ref() {
        DeValue::Array(items) => {
            items.iter().for_each(|item| look_at(item, (key, rest), row, problems))
        }
        DeValue::Table(table) => look_in(table, rest, row, problems),
        DeValue::String(text) if rest.is_empty() && row.values.iter().any(|v| fits(text, v)) => {
            let message = format!("{key} \"{text}\" is not available in this version");
            problems.push(Problem::new(&value.span(), message).help(row.instead));
        }
        _ => {}
    }
}

fn fits(text: &str, value: &str) -> bool {
    match value.strip_suffix('*') {
        Some(beginning) => text.starts_with(beginning),
        None => text == value,
    }
}
