//! Every case of `golden/*.cases` gives what is written below it. `case/mod.rs` describes the cases.
//!
//! A plan has some five hundred values, and a test is about three of them. So `golden/defaults.txt`
//! pins the usual value of each field once, and a case shows only what differs. Problems have
//! their position in the lines of the case; a case whose result begins with `|` is about how they
//! are shown, so it has the whole diagnostic.
//!
//! `BLESS=1 cargo test -p forebay-conf --test golden` writes the current results, and pins the most
//! frequent value of each field that has no pin yet. Read the difference before you commit it.

mod case;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;

use case::Case;
use forebay_conf::{ConfError, Label};

/// The usual value of each field, by struct and field.
type Pins = BTreeMap<(String, String), String>;
/// How often a field has each value.
type Counts = BTreeMap<(String, String), BTreeMap<String, usize>>;

#[test]
fn every_case_gives_what_is_written_below_it() {
    let bless = std::env::var_os("BLESS").is_some();
    let files = case::files();
    let mut outcomes: Vec<Vec<_>> =
        files.iter().map(|(_, cases)| cases.iter().map(outcome).collect()).collect();
    let pinned = case::directory().join("defaults.txt");
    let mut pins = read_pins(&fs::read_to_string(&pinned).unwrap_or_default());
    if bless {
        let plans = outcomes.iter().flatten().filter_map(|outcome| outcome.as_ref().ok());
        add_pins(&mut pins, &plans.collect::<Vec<_>>());
        fs::write(&pinned, show_pins(&pins)).unwrap();
    }
    let mut wrong = String::new();
    for ((path, cases), outcomes) in files.iter().zip(&mut outcomes) {
        let mut blessed = String::new();
        for (case, outcome) in cases.iter().zip(outcomes) {
            let Case { heading, line, lines, expected } = case;
            let given = match outcome {
                Ok(plan) => plan.differences(&pins),
                Err(problems) => problems.clone(),
            };
            if given != *expected {
                let place = format!("{}:{line}", path.display());
                write!(wrong, "\n{place}\n{lines}gives\n{given}instead of\n{expected}").unwrap();
            }
            blessed += &[heading, lines, &given].map(String::as_str).concat();
        }
        if bless {
            fs::write(path, blessed).unwrap();
        }
    }
    let count: usize = files.iter().map(|(_, cases)| cases.len()).sum();
    assert!(count > 500, "only {count} cases were found");
    assert!(bless || wrong.is_empty(), "{wrong}");
}

/// The plan of a case, or its problems, with the base directory replaced.
fn outcome(case: &Case) -> Result<Value, String> {
    let base = case::base();
    let without_base = |text: String| text.replace(base.to_str().unwrap(), "BASE");
    match forebay_conf::parse(&case.text(), "site.toml", &base) {
        Ok(plan) => Ok(Value::parse(&without_base(format!("{plan:#?}")))),
        Err(error) if case.expected.starts_with('|') => {
            let shown = without_base(error.plain());
            Err(shown
                .lines()
                .map(|line| format!("| {line}").trim_end().to_owned() + "\n")
                .collect())
        }
        Err(error) => Err(without_base(brief(&error, case))),
    }
}

/// A line for each problem: its position in the lines of the case, message, labels and help.
fn brief(error: &ConfError, case: &Case) -> String {
    let whole = case.whole();
    let mut problems = String::new();
    for (message, (labels, help)) in error.messages().zip(error.labels()) {
        let mut positions = labels.iter().map(|Label { line, columns, text }| {
            let line = whole.get(line - 1).map_or(0, |(_, line)| *line);
            let end = columns.end.max(columns.start + 1) - 1;
            let end = if end > columns.start { format!("-{end}") } else { String::new() };
            let label = if *text == "here" { String::new() } else { format!(" [{text}]") };
            (format!(" {line}:{}{end}", columns.start), label)
        });
        let (position, label) = positions.next().unwrap_or_default();
        let also: String = positions.map(|(position, label)| position + &label).collect();
        let help = if help.is_empty() { help } else { format!(" -- {help}") };
        writeln!(problems, "!{position} {message}{label}{also}{help}").unwrap();
    }
    problems
}

/// Reads `Struct: field = value | ...`, with more fields of the struct in indented lines below.
fn read_pins(text: &str) -> Pins {
    let mut pins = Pins::new();
    let mut name = "";
    for line in text.lines() {
        let fields = line.strip_prefix("    ").unwrap_or_else(|| {
            let (first, fields) = line.split_once(": ").unwrap_or((line, ""));
            name = first;
            fields
        });
        for field in fields.split(" | ").filter(|field| !field.is_empty()) {
            let (field, value) = field.split_once(" = ").unwrap();
            pins.insert(
                (name.to_owned(), field.to_owned()),
                value.trim_end_matches(" |").to_owned(),
            );
        }
    }
    pins
}

fn show_pins(pins: &Pins) -> String {
    let mut structs: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for ((name, field), value) in pins {
        structs.entry(name).or_default().push(format!("{field} = {value}"));
    }
    let shown =
        structs.iter().map(|(name, fields)| filled(&format!("{name}:"), "   ", fields, " |"));
    shown.collect()
}

/// Fills lines of some 120 characters. The first begins with `start`, the others with `next`.
fn filled(start: &str, next: &str, pieces: &[impl AsRef<str>], between: &str) -> String {
    let mut lines = String::new();
    let mut line = start.to_owned();
    for (at, piece) in pieces.iter().enumerate() {
        if at > 0 && line.chars().count() + piece.as_ref().chars().count() > 118 {
            lines += &(line + "\n");
            line = next.to_owned();
        }
        let between = if at + 1 < pieces.len() { between } else { "" };
        line += &format!(" {}{between}", piece.as_ref());
    }
    lines + &line + "\n"
}

/// Pins the value of each field that has no pin, if at least half of three or more plans have it,
/// and removes the pins of fields that are gone.
fn add_pins(pins: &mut Pins, plans: &[&Value]) {
    let mut counts = Counts::new();
    plans.iter().for_each(|plan| plan.count(&mut counts));
    pins.retain(|field, _| counts.contains_key(field));
    for (field, values) in counts {
        let all: usize = values.values().sum();
        let (value, count) = values.into_iter().max_by_key(|(_, count)| *count).unwrap();
        // Structs in an option or a list are shown with what is unusual in them.
        if all > 2 && count * 2 >= all && !value.contains(" {") {
            pins.entry(field).or_insert(value);
        }
    }
}

/// A value as `{:#?}` prints it.
enum Value {
    /// One line.
    Leaf(String),
    /// `NAME(...)` or `[...]`: what stands before and after the members.
    Sequence { open: String, members: Vec<Value>, close: &'static str },
    /// `NAME { ... }`, or a map, which has no name.
    Fields { name: String, fields: Vec<(String, Value)> },
}

impl Value {
    fn parse(text: &str) -> Self {
        let mut lines = text.lines().map(str::trim_start);
        let first = lines.next().unwrap_or_default();
        Self::read(first, &mut lines)
    }

    /// Reads the value that begins with `first`, and the lines up to its end.
    fn read<'a>(first: &str, lines: &mut impl Iterator<Item = &'a str>) -> Self {
        let is_end = |line: &str, bracket: &str| line.trim_end_matches(',') == bracket;
        if let Some(name) = first.strip_suffix('{') {
            let name = name.trim_end().to_owned();
            let mut fields = Vec::new();
            while let Some(line) = lines.next().filter(|line| !is_end(line, "}")) {
                let mut key = line.to_owned();
                // The bytes of a path are the key.
                while key.starts_with('[') && !key.contains(": ") {
                    key += lines.next().unwrap();
                }
                let (field, value) = key.split_once(": ").unwrap_or((&key, ""));
                // Where a thing stands in the file is for messages, not for what it does.
                let is_place = field == "line" || name == "Plan" && field == "file";
                let value = Self::read(value, lines);
                if !is_place {
                    fields.push((field.to_owned(), value));
                }
            }
            return Self::Fields { name, fields };
        }
        let close = match first.as_bytes().last() {
            Some(b'(') => ")",
            Some(b'[') => "]",
            _ => return Self::Leaf(first.trim_end_matches(',').to_owned()),
        };
        let mut members = Vec::new();
        while let Some(line) = lines.next().filter(|line| !is_end(line, close)) {
            members.push(Self::read(line, lines));
        }
        Self::Sequence { open: first.to_owned(), members, close }
    }

    /// The value in one line, without the fields that have their usual values.
    fn shown(&self, pins: &Pins) -> String {
        match self {
            Self::Leaf(text) => text.clone(),
            Self::Sequence { open, members, close } => match &members[..] {
                // `Proxy(Proxy { .. })`, the variant of an enum with a struct of its name.
                [member @ Self::Fields { name, .. }] if open.strip_suffix('(') == Some(name) => {
                    member.shown(pins)
                }
                members => {
                    let members: Vec<_> = members.iter().map(|member| member.shown(pins)).collect();
                    format!("{open}{}{close}", members.join(", "))
                }
            },
            Self::Fields { name, .. } => match &self.unusual(pins)[..] {
                [] => name.clone(),
                fields => format!("{name} {{ {} }}", fields.join(", ")).trim_start().to_owned(),
            },
        }
    }

    /// The fields that do not have their usual values.
    fn unusual(&self, pins: &Pins) -> Vec<String> {
        let Self::Fields { name, fields } = self else { return Vec::new() };
        let shown = fields.iter().map(|(field, value)| (field, value.shown(pins)));
        let unusual = shown.filter(|(field, shown)| {
            pins.get(&(name.to_owned(), (*field).to_owned())) != Some(shown)
        });
        unusual.map(|(field, shown)| format!("{field}: {shown}")).collect()
    }

    fn count(&self, counts: &mut Counts) {
        match self {
            Self::Leaf(_) => {}
            Self::Sequence { members, .. } => members.iter().for_each(|m| m.count(counts)),
            Self::Fields { name, fields } => {
                for (field, value) in fields {
                    value.count(counts);
                    if !name.is_empty() {
                        let shown = match value {
                            Self::Fields { name, .. } if !name.is_empty() => name.clone(),
                            _ => value.shown(&Pins::new()),
                        };
                        let values = counts.entry((name.clone(), field.clone())).or_default();
                        *values.entry(shown).or_default() += 1;
                    }
                }
            }
        }
    }

    /// A paragraph for the plan, for each site, route, stream and application with what is unusual.
    fn differences(&mut self, pins: &Pins) -> String {
        let mut paragraphs = Vec::new();
        self.write("", pins, &mut paragraphs);
        if paragraphs.is_empty() { "=\n".to_owned() } else { paragraphs.concat() }
    }

    fn write(&mut self, path: &str, pins: &Pins, paragraphs: &mut Vec<String>) {
        let Self::Fields { fields, .. } = self else { return };
        let is_apart = |field: &str| matches!(field, "sites" | "routes" | "relays" | "apps");
        let apart: Vec<_> = fields.extract_if(.., |(field, _)| is_apart(field)).collect();
        let shown = self.unusual(pins).join(", ");
        if !shown.is_empty() {
            let pieces: Vec<_> = shown.split(' ').collect();
            paragraphs.push(filled(&format!("={path}"), "=  ", &pieces, ""));
        }
        for (field, mut value) in apart {
            match &mut value {
                Self::Sequence { members, .. } => {
                    for (at, member) in members.iter_mut().enumerate() {
                        member.write(&format!("{path} {field}[{at}]"), pins, paragraphs);
                    }
                }
                Self::Fields { fields, .. } => {
                    for (name, member) in fields {
                        member.write(&format!("{path} {field}[{name}]"), pins, paragraphs);
                    }
                }
                Self::Leaf(_) => {}
            }
        }
    }
}
