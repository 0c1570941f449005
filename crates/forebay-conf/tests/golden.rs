//! Every `golden/NAME.toml` gives the plan in `NAME.plan` or the diagnostic in `NAME.err`.
//!
//! A plan has some five hundred values, and a test is about three of them. So `golden/defaults.txt`
//! pins the usual value of each field once, and a golden plan shows only what differs. A new key
//! then changes one line of the pins instead of every plan.
//!
//! `BLESS=1 cargo test -p forebay-conf --test golden` writes the current output, and pins the most
//! frequent value of each field that has no pin yet. Read the difference before you commit it.
//! Paths are relative to `golden/base`.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

/// The usual value of each field, by `Struct.field`.
type Pins = BTreeMap<String, String>;

#[test]
fn every_file_gives_what_its_golden_file_says() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let pinned = dir.join("defaults.txt");
    let bless = std::env::var_os("BLESS").is_some();
    let inputs: Vec<_> = inputs(&dir);
    let outcomes: Vec<_> = inputs.iter().map(|typed| outcome(typed, &dir.join("base"))).collect();
    let old = read_pins(&fs::read_to_string(&pinned).unwrap_or_default());
    let plans = outcomes.iter().filter_map(|outcome| outcome.as_ref().ok());
    let pins = if bless { pins_of(plans, &old) } else { old };
    if bless {
        let lines = pins.iter().map(|(field, value)| format!("{field} = {value}\n"));
        fs::write(&pinned, lines.collect::<String>()).unwrap();
    }
    let mut wrong = Vec::new();
    for (typed, outcome) in inputs.iter().zip(&outcomes) {
        let (extension, given) = match outcome {
            Ok(plan) => ("plan", plan.differences(&pins)),
            Err(message) => ("err", message.clone()),
        };
        let golden = typed.with_extension(extension);
        let other = typed.with_extension(if extension == "plan" { "err" } else { "plan" });
        if bless {
            fs::write(&golden, &given).unwrap();
            let _ = fs::remove_file(other);
        } else if fs::read_to_string(&golden).unwrap_or_default() != given || other.exists() {
            wrong.push(format!("{} gives\n{given}", typed.display()));
        }
    }
    assert!(inputs.len() > 150, "only {} golden files were found", inputs.len());
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn inputs(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let mut inputs: Vec<_> =
        entries.filter(|path| path.extension().is_some_and(|e| e == "toml")).collect();
    inputs.sort();
    inputs
}

/// The plan of a file, or the message why it has none, with the base directory replaced.
fn outcome(typed: &Path, base: &Path) -> Result<Value, String> {
    let text = fs::read_to_string(typed).unwrap();
    let name = typed.file_name().unwrap().to_str().unwrap();
    let without_base = |text: String| text.replace(base.to_str().unwrap(), "BASE");
    match forebay_conf::parse(&text, name, base) {
        Ok(plan) => Ok(Value::parse(&without_base(format!("{plan:#?}")))),
        Err(error) => Err(without_base(error.plain())),
    }
}

fn read_pins(text: &str) -> Pins {
    let pairs = text.lines().filter_map(|line| line.split_once(" = "));
    pairs.map(|(field, value)| (field.to_owned(), value.to_owned())).collect()
}

/// The pins for `plans`: the old ones of fields that are still there, and the most frequent value
/// of each other field.
fn pins_of<'a>(plans: impl Iterator<Item = &'a Value>, old: &Pins) -> Pins {
    let mut counts: BTreeMap<String, BTreeMap<String, usize>> = BTreeMap::new();
    for plan in plans {
        plan.visit("", "", &mut |_, field, shown| {
            *counts.entry(field.to_owned()).or_default().entry(shown.to_owned()).or_default() += 1;
        });
    }
    let most_frequent = |values: BTreeMap<String, usize>| {
        values.into_iter().max_by_key(|(_, count)| *count).unwrap_or_default().0
    };
    let pins = counts.into_iter().map(|(field, values)| {
        let pin = old.get(&field).cloned().unwrap_or_else(|| most_frequent(values));
        (field, pin)
    });
    pins.collect()
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
            let mut fields = Vec::new();
            while let Some(line) = lines.next().filter(|line| !is_end(line, "}")) {
                let (name, value) = line.split_once(": ").unwrap_or((line, ""));
                fields.push((name.to_owned(), Self::read(value, lines)));
            }
            return Self::Fields { name: name.trim_end().to_owned(), fields };
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

    fn has_fields(&self) -> bool {
        match self {
            Self::Leaf(_) => false,
            Self::Sequence { members, .. } => members.iter().any(Self::has_fields),
            Self::Fields { .. } => true,
        }
    }

    /// The value in one line; of a struct only its name, because its fields have lines of their own.
    fn shown(&self) -> String {
        match self {
            Self::Leaf(text) => text.clone(),
            Self::Sequence { open, members, close } => {
                let members: Vec<_> = members.iter().map(Self::shown).collect();
                format!("{open}{}{close}", members.join(", "))
            }
            Self::Fields { name, .. } if name.is_empty() => "{ .. }".to_owned(),
            Self::Fields { name, .. } => name.clone(),
        }
    }

    /// Calls `report` with the path, the `Struct.field` and the value of each field, from the
    /// outermost one inwards.
    fn visit(&self, path: &str, pin: &str, report: &mut dyn FnMut(&str, &str, &str)) {
        if !pin.is_empty() {
            report(path, pin, &self.shown());
        }
        self.visit_members(path, report);
    }

    fn visit_members(&self, path: &str, report: &mut dyn FnMut(&str, &str, &str)) {
        match self {
            Self::Leaf(_) => {}
            Self::Sequence { members, close, .. } => {
                for (at, member) in members.iter().enumerate().filter(|(_, m)| m.has_fields()) {
                    match *close {
                        "]" => member.visit_members(&format!("{path}[{at}]"), report),
                        _ => member.visit_members(path, report),
                    }
                }
            }
            Self::Fields { name, fields } => {
                for (field, value) in fields {
                    let dot = if path.is_empty() { "" } else { "." };
                    let pin = format!("{name}.{field}");
                    value.visit(&format!("{path}{dot}{field}"), &pin, report);
                }
            }
        }
    }

    /// A line for each field whose value is not the pinned one.
    fn differences(&self, pins: &Pins) -> String {
        let mut lines = String::new();
        self.visit("", "", &mut |path, pin, shown| {
            if pins.get(pin).is_none_or(|pinned| pinned != shown) {
                writeln!(lines, "{path} = {shown}").unwrap();
            }
        });
        lines
    }
}

#[test]
fn only_what_differs_from_the_pins_is_shown() {
    let text = "Plan {\n    server: Server {\n        threads: Some(\n            8,\n        ),\n        \
                timing: false,\n    },\n    sites: [\n        Site {\n            name: \"a { b\",\n            \
                tls: Some(\n                Tls {\n                    on: true,\n                },\n            \
                ),\n        },\n    ],\n    empty: [],\n}";
    let plan = Value::parse(text);
    let all = "server = Server\nserver.threads = Some(8)\nserver.timing = false\nsites = [Site]\n\
               sites[0].name = \"a { b\"\nsites[0].tls = Some(Tls)\nsites[0].tls.on = true\nempty = []\n";
    assert_eq!(plan.differences(&Pins::new()), all);
    let pins =
        read_pins("Plan.server = Server\nServer.timing = false\nPlan.empty = []\nTls.on = true\n");
    let differences = "server.threads = Some(8)\nsites = [Site]\nsites[0].name = \"a { b\"\nsites[0].tls = Some(Tls)\n";
    assert_eq!(plan.differences(&pins), differences);
    // A pin of a field is kept, so that a golden plan changes only with the plan.
    let pins = pins_of([plan].iter(), &read_pins("Server.timing = true\nGone.field = 1\n"));
    assert_eq!(pins["Server.timing"], "true");
    assert!(!pins.contains_key("Gone.field") && pins["Tls.on"] == "true");
}
