//! Reports directives that no translator has read, so that no line is lost silently.

use std::collections::{HashMap, HashSet};

use crate::directive::Directive;
use crate::draft::{Notes, SourceLine};

/// Maximum number of notes on directives of one kind. Further notes are joined to one note.
const MOST_ALONE: usize = 3;

/// Maximum number of places that one note names.
const MOST_PLACES: usize = 12;

/// A directive that no translator has read.
#[derive(Clone, Debug)]
pub struct Unread {
    place: SourceLine,
    name: String,
    /// The directive as one line.
    line: String,
    /// The next step for the user.
    next: String,
}

impl Unread {
    pub fn new(directive: &Directive, line: String, next: impl Into<String>) -> Self {
        directive.settle();
        let (place, name) = (directive.place.clone(), directive.name.clone());
        Self { place, name, line, next: next.into() }
    }

    pub fn name(&self) -> &str {
        &self.name
    }
}

/// Adds a note on each directive, but only one note with all places for many directives of one
/// kind. Returns the notes as comments.
pub fn add(notes: &mut Notes, all: Vec<Unread>) -> Vec<String> {
    let (mut kinds, mut positions): (Vec<Vec<Unread>>, _) = (Vec::new(), HashMap::new());
    for unread in all {
        let kind = (unread.name.clone(), unread.next.clone());
        let at = *positions.entry(kind).or_insert(kinds.len());
        match kinds.get_mut(at) {
            Some(same) => same.push(unread),
            None => kinds.push(vec![unread]),
        }
    }
    let mut comments = Vec::new();
    for same in kinds {
        if same.len() <= MOST_ALONE {
            let add = |found: &Unread| notes.add(&found.place, &found.line, found.next.as_str());
            comments.extend(same.iter().map(add));
        } else {
            let next = format!("{}{}", same[0].next, places(&same));
            comments.push(notes.add(&same[0].place, &same[0].line, next));
        }
    }
    comments
}

/// Returns a text with the places of all directives except the first. The text is empty if all have
/// the same place.
fn places(all: &[Unread]) -> String {
    let file = &all[0].place.file;
    let mut seen = HashSet::from([&all[0].place]);
    let others = all.iter().map(|unread| &unread.place).filter(|place| seen.insert(place));
    let text = |place: &SourceLine| {
        if place.file == *file { place.line.to_string() } else { place.to_string() }
    };
    let mut named: Vec<String> = others.map(text).collect();
    let others = named.len().saturating_sub(MOST_PLACES);
    named.truncate(MOST_PLACES);
    let text = format!("; the same holds for the lines {}", named.join(", "));
    match others {
        _ if named.is_empty() => String::new(),
        0 => text,
        _ => format!("{text} and {others} others"),
    }
}
