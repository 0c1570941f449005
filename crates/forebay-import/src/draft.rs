//! The draft of a configuration: tables, routes and notes, before they are printed.

use std::collections::HashSet;
use std::fmt::{self, Display, Formatter};
use std::path::PathBuf;
use std::rc::Rc;

use crate::matcher::Matcher;
use crate::value::{Table, Value};

/// The position of a line: its file and its number.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SourceLine {
    pub file: Rc<str>,
    pub line: usize,
}

impl Display for SourceLine {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.file, self.line)
    }
}

/// A note on a line that Forebay does not translate, or not completely.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Note {
    /// The file, as the command line or an include names it.
    pub file: String,
    /// The number of the line, from 1.
    pub line: usize,
    /// The directive, shortened.
    pub directive: String,
    /// The reason or the effect of the missing translation, and the next step for the user.
    pub next: String,
}

impl Note {
    /// Returns the note as a comment for the new configuration.
    pub(crate) fn comment(&self) -> String {
        format!("NOT TRANSLATED {self}")
    }
}

impl Display for Note {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}: {}", self.file, self.line, self.directive, self.next)
    }
}

/// The draft of a Forebay configuration.
#[derive(Debug, Default)]
pub struct Draft {
    /// Comments at the top of the file.
    pub comments: Vec<String>,
    pub server: Table,
    pub limits: Table,
    pub timeouts: Table,
    pub sites: Vec<DraftSite>,
    pub streams: Vec<DraftStream>,
    pub upstreams: Vec<(String, Table)>,
    pub apps: Vec<(String, Table)>,
    /// Tables of values ([map.NAME]).
    pub maps: Vec<(String, Table)>,
    pub notes: Notes,
    /// The access files (`.htaccess`) that were read.
    pub access_files: Vec<PathBuf>,
    /// True if no `expect` lines are printed.
    pub omits_tests: bool,
}

/// The notes of a draft, in their order and as a set.
#[derive(Debug, Default)]
pub struct Notes(pub Vec<Note>, HashSet<Note>);

impl Notes {
    /// Adds a note unless an equal one exists. Returns the note as a comment.
    pub fn add(&mut self, place: &SourceLine, directive: &str, next: impl Into<String>) -> String {
        let note = Note {
            file: place.file.to_string(),
            line: place.line,
            directive: shortened(directive),
            next: next.into(),
        };
        let comment = note.comment();
        if self.1.insert(note.clone()) {
            self.0.push(note);
        }
        comment
    }

    /// Removes all notes after the first `count`.
    pub fn truncate(&mut self, count: usize) {
        for note in self.0.drain(count.min(self.0.len())..) {
            self.1.remove(&note);
        }
    }
}

/// Returns a text without control characters. A text of more than 100 characters is shortened, and
/// ends with `...`.
fn shortened(text: &str) -> String {
    let plain = text.chars().map(|c| if c.is_control() { ' ' } else { c });
    let short: String = plain.take(100).collect();
    if short.chars().count() < text.chars().count() { short + "..." } else { short }
}

/// A stream (`[[stream]]`).
#[derive(Clone, Debug)]
pub struct DraftStream {
    /// The line that the stream translates.
    pub place: SourceLine,
    pub comments: Vec<String>,
    pub keys: Table,
}

/// A site (`[[site]]`).
#[derive(Clone, Debug, Default)]
pub struct DraftSite {
    pub comments: Vec<String>,
    pub listen: Vec<String>,
    /// Host names. Empty if the site answers for all hosts.
    pub hosts: Vec<String>,
    pub keys: Table,
    pub routes: Vec<DraftRoute>,
}

/// A route (`[[site.route]]`).
#[derive(Clone, Debug)]
pub struct DraftRoute {
    /// The line that the route translates.
    pub place: SourceLine,
    /// The text of this line, for the comment.
    pub source: String,
    pub comments: Vec<String>,
    pub matcher: Matcher,
    /// The keys of the route, without its conditions.
    pub keys: Table,
    /// True if the keys that change replies have been added.
    pub is_decorated: bool,
}

impl Draft {
    /// Adds an application, unless an equal one exists. Returns its name: `name`, or `name` with a
    /// number if another application has this name.
    pub fn add_app(&mut self, name: &str, table: Table) -> String {
        if let Some((equal, _)) = self.apps.iter().find(|(_, other)| *other == table) {
            return equal.clone();
        }
        let is_free = |name: &String| !self.apps.iter().any(|(other, _)| other == name);
        let numbered = (2..).map(|number| format!("{name}-{number}"));
        let free = std::iter::once(name.to_owned()).chain(numbered).find(is_free);
        let free = free.expect("one of the numbered names is free");
        self.apps.push((free.clone(), table));
        free
    }
}

impl DraftRoute {
    pub fn new(place: &SourceLine, source: impl Into<String>, matcher: Matcher) -> Self {
        Self {
            place: place.clone(),
            source: source.into(),
            comments: Vec::new(),
            matcher,
            keys: Table::default(),
            is_decorated: false,
        }
    }

    pub fn respond(mut self, status: u64) -> Self {
        self.drop_answer();
        self.keys.set("respond", Table::default().with("status", status));
        self
    }

    /// Returns the closed route: it refuses all requests with status 403. `comment` is the note
    /// with the reason.
    pub fn closed(self, comment: String) -> Self {
        let mut route = Self { keys: Table::default(), ..self }.respond(403);
        route.comments.push(comment);
        route.comments.push(CLOSED.into());
        route
    }

    pub fn redirect(mut self, to: &str, status: u64) -> Self {
        self.drop_answer();
        match status {
            302 => self.keys.set("redirect", to),
            _ => self.keys.set("redirect", Table::default().with("to", to).with("status", status)),
        }
        self
    }

    fn drop_answer(&mut self) {
        ANSWERS.iter().for_each(|answer| self.keys.remove(answer));
        for key in
            ["fallback", "fallback_to", "buffer", "on_abort", "request_buffering", "sendfile_root"]
        {
            self.keys.remove(key);
        }
    }

    /// Returns true if the route leaves some requests to the routes below.
    pub fn passes_on(&self) -> bool {
        self.keys.get("fallback") == Some(&Value::Bool(true))
    }

    /// Returns true if the part of the path that the `*` of the route matched selects a file or is
    /// a part of a target.
    pub fn depends_on_path(&self) -> bool {
        let names_rest = |value: &Value| value.to_string().contains("{rest}");
        ["files", "cgi"].iter().any(|key| self.keys.get(key).is_some())
            || self.keys.0.iter().any(|(_, value)| names_rest(value))
    }

    /// Returns true if only some clients may use the route.
    pub fn has_gate(&self) -> bool {
        GATES.iter().any(|gate| self.keys.get(gate).is_some())
    }
}

/// The comment of a closed route.
pub const CLOSED: &str = "The route is closed until you have replaced this.";

/// The comment of the route for hosts that no site has.
pub const UNKNOWN_HOSTS: &str = "Caddy answers so for hosts that no site has.";

/// The keys that answer the requests of a route. A route has at most one of them.
pub const ANSWERS: [&str; 10] =
    ["files", "cgi", "fastcgi", "scgi", "uwsgi", "ajp", "proxy", "app", "respond", "redirect"];

/// The keys that restrict access.
pub const GATES: [&str; 6] =
    ["allow", "deny", "basic_auth", "forward_auth", "perl_gate", "satisfy"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeated_notes_are_found_soon_and_removed_notes_may_return() {
        let (sender, receiver) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let mut notes = Notes::default();
            for line in (0..100_000).chain(0..100_000) {
                notes.add(&SourceLine { file: "x".into(), line }, "a", "b");
            }
            let all = notes.0.len();
            notes.truncate(1);
            notes.add(&SourceLine { file: "x".into(), line: 9 }, "a", "b");
            notes.add(&SourceLine { file: "x".into(), line: 0 }, "a", "b");
            sender.send((all, notes.0.len()))
        });
        // A search of the list for each note needs minutes.
        let counts = receiver.recv_timeout(std::time::Duration::from_secs(60));
        assert_eq!(counts, Ok((100_000, 2)));
    }
}
