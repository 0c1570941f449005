//! One declaration for each key of the configuration: a field of a struct with `derive(Table)`.
//!
//! Where it can, the plan holds the struct itself. Its reader, the messages about unknown and missing keys, and
//! the JSON Schema with all documentation come from its fields. A [`Form`] is a way to write a
//! value: a field of type `u64` may be [`Bytes`] in one table and a whole number in another.
//!
//! A table reports all its problems at once. A problem of one key says nothing about the others.

mod forms;
mod node;
pub(crate) mod paths;
mod shape;
mod texts;

use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::ops::Range;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use toml::de::{DeTable, DeValue};

use crate::error::{Directory, MARK, Problem};
use crate::source::Sources;
use crate::suggest;

pub(crate) use forms::{
    AboveZero, Bytes, Many, Method, Placed, StatusRange, Switch, Text, Unlimited, Whole,
    above_zero, duration, is_token, no_control, no_effect, not_empty, plain, required, size,
    within,
};
pub(crate) use node::{Node, boolean, integer, text, wrong};
pub use shape::{AllOrList, At, BoolOr, NumberOrText, OneOrMany, Size, StatusText, TextOr, Time};
pub(crate) use texts::{Databases, Names, PathRegex, SharedKey, check_shared, regex, template};

/// The number of problems after which the rest is not looked at.
pub(crate) const MOST_PROBLEMS: usize = 100;

/// A value, or the problem with what the user typed.
pub(crate) type Resolution<T> = Result<T, Problem>;

/// What a value may need to know beside its own text.
pub(crate) struct Cx<'a> {
    /// The files of the configuration, for relative paths.
    pub sources: &'a Sources,
    /// What texts with placeholders may name.
    pub names: RefCell<Names>,
    /// The values of texts that were one placeholder `{env.NAME}`, by position: each may be meant as
    /// a number or a boolean.
    pub outside: &'a BTreeMap<usize, String>,
    /// Explains a key that is not one of these, by its name and position.
    pub unknown_key: fn(&str, &[&str], &Range<usize>) -> Problem,
    /// The number of further problems that are worth reporting.
    pub room: Cell<usize>,
    /// True for `[defaults]` and sets, whose tables need not be whole.
    pub is_partial: Cell<bool>,
    /// Problems of values whose keys are then taken as missing. So the rest of the file is checked
    /// as well.
    pub wrong_values: RefCell<Vec<Problem>>,
    /// Problems of single directories of `hosts_from` and `users_from`. Any number of them is of
    /// interest, because each concerns another directory.
    pub of_directories: RefCell<Vec<Problem>>,
}

impl Cx<'_> {
    /// Returns true if so many values are wrong that the rest is not looked at.
    pub fn has_enough(&self) -> bool {
        self.wrong_values.borrow().len() >= MOST_PROBLEMS
    }

    /// Moves the problems of a table, from the number `before` of [`Self::wrong_values`] on, to those
    /// of its directory. A wrong form is the configuration's, whatever the directory.
    fn of_directory<T>(
        &self,
        directory: &Directory,
        before: usize,
        value: Resolution<T>,
    ) -> Resolution<T> {
        let found = self.wrong_values.borrow_mut().split_off(before);
        let mut of_directories = self.of_directories.borrow_mut();
        let has_problem = !found.is_empty();
        of_directories.extend(found.into_iter().map(|problem| problem.in_directory(directory)));
        match value {
            Ok(_) if has_problem => Err(Problem::not_whole()),
            Err(problem) if !problem.is_about_form() && !problem.is_not_whole() => {
                of_directories.push(problem.in_directory(directory));
                Err(Problem::not_whole())
            }
            value => value,
        }
    }
}

/// A way to write a value of the type `T` in a configuration.
pub(crate) trait Form<T = Self>: Sized {
    /// Returns the JSON Schema of the value.
    fn schema(generator: &mut SchemaGenerator) -> Schema;

    /// Reads the value.
    fn read(node: &Node<'_>, cx: &Cx<'_>) -> Resolution<T>;
}

/// A way to write a value as a text, which is not empty and has no control characters.
pub(crate) trait FromText<T = Self>: Sized {
    /// Parses the text. `span` is its position.
    fn from_text(text: &str, span: &Range<usize>) -> Resolution<T>;
}

impl<T, F: FromText<T>> Form<T> for F {
    fn schema(generator: &mut SchemaGenerator) -> Schema {
        String::schema(generator)
    }

    fn read(node: &Node<'_>, _: &Cx<'_>) -> Resolution<T> {
        F::from_text(plain(text(node)?, &node.span())?, &node.span())
    }
}

/// A struct whose fields are the keys of a table. Derived.
pub(crate) trait Table: Sized {
    /// The name in the schema.
    const NAME: &'static str;
    /// The documentation of the table.
    const ABOUT: &'static str;
    /// The keys in the order of the documentation.
    const KEYS: &'static [Key];
    /// The key that a text or number in place of the table stands for.
    const SHORT: Option<&'static str>;

    /// What to do before the first key is read.
    fn begin(_: &Cx<'_>) {}

    /// Reads all keys. `None`: `keys` has a problem.
    fn take(keys: &mut Keys<'_, '_>) -> Option<Self>;

    /// Adds to the schema what single keys cannot say.
    fn extend(_: &mut Schema) {}
}

/// A key of a table.
pub(crate) struct Key {
    pub name: &'static str,
    /// The documentation, without a default in `default`.
    pub about: &'static str,
    /// The schema of its values.
    pub schema: fn(&mut SchemaGenerator) -> Schema,
    /// The value of a table without this key, as it would be typed.
    pub default: Option<&'static str>,
    /// An example of a value, if every table needs the key.
    pub required: Option<&'static str>,
}

/// An enum whose values are texts. Derived.
pub(crate) trait Choice: Copy + 'static {
    /// The name in the schema.
    const NAME: &'static str;
    /// The documentation.
    const ABOUT: &'static str;
    /// Each value with its text, its documentation and other texts for it.
    const ROWS: &'static [(Self, &'static str, &'static str, &'static [&'static str])];
}

/// A table while it is read.
pub(crate) struct Keys<'a, 's> {
    table: Given<'a, 's>,
    cx: &'a Cx<'a>,
    problems: Vec<Problem>,
    /// True if a key, or one of a table in this one, is taken as missing because of its value.
    has_wrong_value: bool,
}

/// The keys that a table has, with their positions.
pub(crate) struct Given<'a, 's> {
    /// The position of the table.
    pub span: Range<usize>,
    pub cx: &'a Cx<'a>,
    nodes: BTreeMap<&'a str, &'a Node<'s>>,
}

impl Given<'_, '_> {
    /// Returns the position of the value of a key that was typed.
    pub fn span(&self, key: &str) -> Option<Range<usize>> {
        self.nodes.get(key).map(|node| node.span())
    }
}

impl<'a, 's> Keys<'a, 's> {
    /// Reads a key that may be missing. `None`: the table cannot be read.
    pub fn typed<T, F: Form<T>>(
        &mut self,
        key: &'static Key,
        check: impl Fn(&T, &Range<usize>) -> Resolution<()>,
    ) -> Option<Option<T>> {
        let Some(node) = self.table.nodes.get(key.name) else { return Some(None) };
        if self.cx.has_enough() {
            self.has_wrong_value = true;
            return Some(None);
        }
        let wrong_before = self.cx.wrong_values.borrow().len();
        let value = F::read(node, self.cx).and_then(|value| {
            check(&value, &node.span())?;
            Ok(Some(value))
        });
        self.has_wrong_value |= self.cx.wrong_values.borrow().len() > wrong_before;
        match value {
            Err(problem) if !problem.is_about_form() => {
                self.has_wrong_value = true;
                if problem.is_not_whole() {
                    return Some(None);
                }
                self.cx.wrong_values.borrow_mut().push(problem);
                Some(None)
            }
            value => self.keep(value),
        }
    }

    /// Reads a key that has a default or is required. `None`: the table cannot be read.
    pub fn value<T, F: Form<T>>(
        &mut self,
        key: &'static Key,
        check: impl Fn(&T, &Range<usize>) -> Resolution<()>,
    ) -> Option<T> {
        if let Some(value) = self.typed::<T, F>(key, check)? {
            return Some(value);
        }
        let is_typed = self.table.nodes.contains_key(key.name);
        let value = match key.default {
            Some(default) => {
                let default = DeValue::parse(default).expect("a default is TOML").into_inner();
                F::read(&Node::new(self.table.span.clone(), default), self.cx)
            }
            None if is_typed || self.cx.is_partial.get() => Err(Problem::not_whole()),
            None => Err(missing(key, &self.table.span)),
        };
        self.keep(value)
    }

    /// Applies a rule over several keys, unless the values of some are not known.
    pub fn finish(&mut self, rule: impl FnOnce(&Given<'_, '_>) -> Resolution<()>) -> Option<()> {
        if self.cx.is_partial.get() || self.has_wrong_value {
            return Some(());
        }
        let outcome = rule(&self.table);
        self.keep(outcome)
    }

    /// Returns the value. Keeps its problem for the whole table.
    pub fn keep<T>(&mut self, value: Resolution<T>) -> Option<T> {
        value.map_err(|problem| self.problems.push(problem)).ok()
    }
}

/// Counts a problem where it is found. Once enough of them are known, does not explain it, which takes
/// time for an unknown key.
fn explain(cx: &Cx<'_>, problem: impl FnOnce() -> Problem) -> Problem {
    match cx.room.get() {
        0 => Problem::unexplained(),
        room => {
            cx.room.set(room - 1);
            problem()
        }
    }
}

/// Reads a table.
pub(crate) fn read_table<T: Table>(node: &Node<'_>, cx: &Cx<'_>) -> Resolution<T> {
    let before = cx.wrong_values.borrow().len();
    let value = read_keys(node, cx);
    match node.get_ref().as_table().and_then(Directory::of) {
        None => value,
        Some(directory) => cx.of_directory(&directory, before, value),
    }
}

fn read_keys<T: Table>(node: &Node<'_>, cx: &Cx<'_>) -> Resolution<T> {
    T::begin(cx);
    let mut nodes = BTreeMap::new();
    let mut problems = Vec::new();
    match (node.get_ref(), T::SHORT) {
        (DeValue::Table(entries), _) => {
            let names: Vec<_> = T::KEYS.iter().map(|key| key.name).collect();
            for (name, value) in entries {
                if names.contains(&&**name.get_ref()) {
                    nodes.insert(&**name.get_ref(), value);
                } else if name.get_ref() == MARK {
                } else if cx.room.get() > 0 || problems.is_empty() {
                    let unknown = || (cx.unknown_key)(name.get_ref(), &names, &name.span());
                    problems.push(explain(cx, || unknown().about_form()));
                }
            }
        }
        (DeValue::String(_) | DeValue::Integer(_), Some(short)) => {
            nodes.insert(short, node);
        }
        (_, Some(_)) => return Err(wrong(node, "a string or a table")),
        (_, None) => return Err(wrong(node, "a table")),
    }
    let table = Given { span: node.span(), cx, nodes };
    let mut keys = Keys { table, cx, problems, has_wrong_value: false };
    let value = T::take(&mut keys);
    match (value, Problem::all(keys.problems)) {
        (Some(value), None) => Ok(value),
        (_, Some(problem)) => Err(problem),
        (None, None) => unreachable!("a key without a value has a problem"),
    }
}

/// Returns a table without keys, all of which have a default.
pub(crate) fn default_table<T: Table>() -> T {
    let empty = Node::new(0..0, DeValue::Table(DeTable::new()));
    let unknown_key = |name: &str, _: &[&str], span: &Range<usize>| Problem::new(span, name);
    let cx = Cx {
        sources: &Sources::default(),
        names: RefCell::default(),
        outside: &BTreeMap::new(),
        unknown_key,
        room: Cell::new(0),
        is_partial: Cell::new(false),
        wrong_values: RefCell::default(),
        of_directories: RefCell::default(),
    };
    read_table(&empty, &cx).expect("every key has a default")
}

/// Returns the problem of a table without a key that it needs.
fn missing(key: &Key, table: &Range<usize>) -> Problem {
    let (name, example) = (key.name, key.required.unwrap_or_default());
    Problem::new(table, format!("`{name}` is missing"))
        .label(format!("needs `{name}`"))
        .help(format!("add {name} = {example}"))
}

/// Reads one of the texts of a choice.
pub(crate) fn read_choice<C: Choice>(node: &Node<'_>) -> Resolution<C> {
    let typed = text(node)?;
    let is_typed = |(_, name, _, others): &&(C, &str, &str, &[&str])| {
        *name == typed || others.contains(&typed)
    };
    C::ROWS.iter().find(is_typed).map(|row| row.0).ok_or_else(|| {
        let names: Vec<_> = C::ROWS.iter().map(|row| row.1).collect();
        unknown_value(typed, &names, &node.span())
    })
}

/// Explains a text that is not one of those of its key.
fn unknown_value(typed: &str, names: &[&str], span: &Range<usize>) -> Problem {
    let names = || names.iter().copied();
    let problem = Problem::new(span, format!("unknown value \"{typed}\""));
    let problem = problem.help(format!("write {}", suggest::list(names(), "or", '"')));
    match suggest::nearest(typed, names()) {
        Some(meant) => problem.label(format!("did you mean \"{meant}\"?")),
        None => problem.label("not one of the values of this key"),
    }
    .about_form()
}

/// Returns a reference to the schema of a table, and adds that schema to the generator.
pub(crate) fn table_schema<T: Table>(generator: &mut SchemaGenerator) -> Schema {
    let table = generator.subschema_for::<Described<T>>();
    match T::KEYS.iter().find(|key| Some(key.name) == T::SHORT) {
        Some(short) => {
            let short = (short.schema)(generator);
            json_schema!({ "anyOf": [short, table] })
        }
        None => table,
    }
}

/// The schema of a table.
pub(crate) struct Described<T>(PhantomData<T>);

impl<T: Table> JsonSchema for Described<T> {
    fn schema_name() -> Cow<'static, str> {
        T::NAME.into()
    }

    fn schema_id() -> Cow<'static, str> {
        std::any::type_name::<T>().into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let mut schema = json_schema!({
            "description": T::ABOUT,
            "type": "object",
            "properties": properties::<T>(generator),
            "additionalProperties": false,
        });
        let required = T::KEYS.iter().filter(|key| key.required.is_some());
        let required: Vec<_> = required.map(|key| key.name).collect();
        if !required.is_empty() {
            schema.insert("required".into(), required.into());
        }
        T::extend(&mut schema);
        schema
    }
}

/// Returns the schemas of the keys of a table.
pub(crate) fn properties<T: Table>(
    generator: &mut SchemaGenerator,
) -> serde_json::Map<String, serde_json::Value> {
    let property = |key: &Key| {
        let mut schema = (key.schema)(generator);
        schema.insert("description".into(), key.documentation().into());
        (key.name.to_owned(), schema.to_value())
    };
    T::KEYS.iter().map(property).collect()
}

impl Key {
    fn documentation(&self) -> String {
        match &self.default {
            Some(default) => format!("{} Default: {default}.", self.about),
            None => self.about.to_owned(),
        }
    }
}

/// Returns a reference to the schema of a choice, and adds that schema to the generator.
pub(crate) fn choice_schema<C: Choice>(generator: &mut SchemaGenerator) -> Schema {
    struct Described<C>(PhantomData<C>);
    impl<C: Choice> JsonSchema for Described<C> {
        fn schema_name() -> Cow<'static, str> {
            C::NAME.into()
        }

        fn schema_id() -> Cow<'static, str> {
            std::any::type_name::<C>().into()
        }

        fn json_schema(_: &mut SchemaGenerator) -> Schema {
            let one = |(_, name, about, _): &(C, &str, &str, &[&str])| {
                json_schema!({ "description": about, "type": "string", "const": name }).to_value()
            };
            let all: Vec<_> = C::ROWS.iter().map(one).collect();
            json_schema!({ "description": C::ABOUT, "oneOf": all })
        }
    }
    generator.subschema_for::<Described<C>>()
}
