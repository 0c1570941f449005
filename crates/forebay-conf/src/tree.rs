//! The TOML tree of several files, with positions. Keys are joined and moved in this tree before it
//! is read as typed tables. Every value keeps the position where it was written.

use std::borrow::Cow;
use std::ops::Range;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::error::Problem;
use crate::source::{Source, Sources};

/// A table whose texts are borrowed from the sources.
pub(crate) type Tree<'s> = DeTable<'s>;

/// A key with its position.
pub(crate) type Key<'s> = Spanned<Cow<'s, str>>;

/// A value with its position.
pub(crate) type Node<'s> = Spanned<DeValue<'s>>;

/// Reads all sources into one tree. The sites of the configuration file precede the sites of
/// included files. Tables with equal names are joined. A key that two files set is a problem.
pub(crate) fn parse(sources: &Sources) -> Result<Tree<'_>, Vec<Problem>> {
    let mut whole = Tree::new();
    let mut problems = Vec::new();
    for source in sources.files() {
        match parse_one(source) {
            Ok(tree) => join(&mut whole, tree, &mut Vec::new(), &mut problems),
            Err(problem) => problems.push(problem),
        }
    }
    if problems.is_empty() { Ok(whole) } else { Err(problems) }
}

/// Reads one source. Positions in the tree count from the start of the first source.
pub(crate) fn parse_one(source: &Source) -> Result<Tree<'_>, Problem> {
    let table = DeTable::parse(&source.text)
        .map_err(|error| crate::explain::explain(&error, &source.text).moved(source.start))?;
    let table = table.into_inner();
    Ok(if source.start == 0 { table } else { moved_table(table, source.start) })
}

fn moved_table(table: Tree<'_>, by: usize) -> Tree<'_> {
    let mut out = Tree::new();
    for (key, value) in table {
        let span = moved(key.span(), by);
        out.insert(Spanned::new(span, key.into_inner()), moved_node(value, by));
    }
    out
}

fn moved_node(node: Node<'_>, by: usize) -> Node<'_> {
    let span = moved(node.span(), by);
    let value = match node.into_inner() {
        DeValue::Table(table) => DeValue::Table(moved_table(table, by)),
        DeValue::Array(items) => {
            DeValue::Array(items.into_iter().map(|item| moved_node(item, by)).collect())
        }
        scalar => scalar,
    };
    Spanned::new(span, value)
}

fn moved(span: Range<usize>, by: usize) -> Range<usize> {
    span.start + by..span.end + by
}

/// Joins the table `from` of one file into the table `into` of the same name from another file.
/// `path` has the names of the tables that contain `into`. If both tables have a key that only one
/// file may have, adds a problem to `problems`.
fn join<'s>(
    into: &mut Tree<'s>,
    from: Tree<'s>,
    path: &mut Vec<String>,
    problems: &mut Vec<Problem>,
) {
    for (key, value) in from {
        let Some(present) = into.get_mut(name(&key)) else {
            into.insert(key, value);
            continue;
        };
        // Ignore `include`, because all included files have already been read.
        if path.is_empty() && key.get_ref() == "include" {
            continue;
        }
        let joins = may_join(path, key.get_ref());
        let (span, also) = (key.span(), present.span());
        match (present.get_mut(), value.into_inner()) {
            (DeValue::Array(all), DeValue::Array(more))
                if joins && ["site", "stream"].contains(&key.get_ref().as_ref()) =>
            {
                more.into_iter().for_each(|one| all.push(one));
            }
            (DeValue::Table(into), DeValue::Table(from)) if joins => {
                path.push(key.get_ref().to_string());
                join(into, from, path, problems);
                path.pop();
            }
            _ => {
                path.push(key.get_ref().to_string());
                let problem = Problem::new(&span, format!("`{}` is given twice", path.join(".")));
                path.pop();
                problems.push(problem.label("a second time").also(&also, "first given here").help(
                    "a key or a [table] may be given in one file only: remove one of the two",
                ));
            }
        }
    }
}

/// Returns true if several files may have parts of this table. The table of an application, of a
/// group of servers, or of a set must be in one file.
fn may_join(path: &[String], key: &str) -> bool {
    match path.first().map(String::as_str) {
        None => {
            ["server", "log", "defaults", "set", "app", "upstream", "site", "stream"].contains(&key)
        }
        Some("server" | "log" | "defaults") => true,
        _ => false,
    }
}

/// Calls `each` with every text of a table, at any depth.
pub(crate) fn each_text<'s>(
    table: &mut Tree<'s>,
    each: &mut impl FnMut(&Range<usize>, &mut Cow<'s, str>),
) {
    for (_, value) in table.iter_mut() {
        each_text_of(value, each);
    }
}

/// Calls `each` with every text of a value, at any depth.
pub(crate) fn each_text_of<'s>(
    node: &mut Node<'s>,
    each: &mut impl FnMut(&Range<usize>, &mut Cow<'s, str>),
) {
    let span = node.span();
    match node.get_mut() {
        DeValue::String(text) => each(&span, text),
        DeValue::Array(items) => items.iter_mut().for_each(|item| each_text_of(item, each)),
        DeValue::Table(table) => each_text(table, each),
        _ => {}
    }
}

pub(crate) fn name<'t>(key: &'t Key<'_>) -> &'t str {
    key.get_ref()
}

/// Returns a text with its position.
pub(crate) fn text<'s>(span: &Range<usize>, text: impl Into<Cow<'s, str>>) -> Node<'s> {
    Spanned::new(span.clone(), DeValue::String(text.into()))
}

/// Returns a table of these keys. All keys get the same position.
pub(crate) fn table<'s>(
    span: &Range<usize>,
    keys: impl IntoIterator<Item = (&'static str, Node<'s>)>,
) -> Node<'s> {
    let mut table = Tree::new();
    keys.into_iter().for_each(|(key, value)| insert(&mut table, span, key, value));
    Spanned::new(span.clone(), DeValue::Table(table))
}

pub(crate) fn list<'s>(span: &Range<usize>, items: impl IntoIterator<Item = Node<'s>>) -> Node<'s> {
    Spanned::new(span.clone(), DeValue::Array(items.into_iter().collect()))
}

/// Adds a key, or replaces its value.
pub(crate) fn insert<'s>(
    table: &mut Tree<'s>,
    span: &Range<usize>,
    key: impl Into<Cow<'s, str>>,
    value: Node<'s>,
) {
    table.insert(Spanned::new(span.clone(), key.into()), value);
}

/// Returns the value of a key if it is a table, otherwise `None`.
pub(crate) fn table_at<'t, 's>(table: &'t Tree<'s>, key: &str) -> Option<&'t Tree<'s>> {
    table.get(key)?.get_ref().as_table()
}

/// Returns the tables in the value of a key with their positions, if the value is a list.
pub(crate) fn tables_at<'t, 's>(
    table: &'t mut Tree<'s>,
    key: &str,
) -> impl Iterator<Item = (Range<usize>, &'t mut Tree<'s>)> {
    let items = match table.get_mut(key).map(Spanned::get_mut) {
        Some(DeValue::Array(items)) => Some(items.iter_mut()),
        _ => None,
    };
    items.into_iter().flatten().filter_map(|item| {
        let span = item.span();
        match item.get_mut() {
            DeValue::Table(table) => Some((span, table)),
            _ => None,
        }
    })
}

/// Returns the texts of a value that is a text or a list of texts, with their positions. Returns
/// `None` for any other value.
pub(crate) fn texts<'t>(node: &'t Node<'_>) -> Option<Vec<(Range<usize>, &'t str)>> {
    match node.get_ref() {
        DeValue::String(text) => Some(vec![(node.span(), text)]),
        DeValue::Array(items) => {
            items.iter().map(|item| Some((item.span(), item.get_ref().as_str()?))).collect()
        }
        _ => None,
    }
}
