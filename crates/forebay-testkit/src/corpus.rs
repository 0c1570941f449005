//! Readers of corpora: collections of requests with their correct replies.

use std::fs;
use std::path::Path;

use serde::Deserialize;

/// Request of Http11Probe, a suite of tests for HTTP/1.1 servers, with the expected reaction of a
/// server.
#[derive(Clone, Debug)]
pub struct Case {
    /// Identifier, such as "RFC9112-5.1-OBS-FOLD".
    pub id: String,
    /// Category: "Compliance", "Smuggling" or "MalformedInput".
    pub category: String,
    /// Section of the RFC that defines the correct reaction, if there is one.
    pub rfc: Option<String>,
    /// True if Http11Probe scores the case; false if the case is only for information.
    pub is_scored: bool,
    /// Correct reactions in the notation of Http11Probe, such as "400 or close".
    pub expected: String,
    /// Description of the case.
    pub description: String,
    /// Bytes to send.
    pub raw: Vec<u8>,
}

/// Reaction of a server to a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reaction {
    /// The server replied with this status.
    Status {
        /// The status code.
        code: u16,
        /// True if the server closed the connection after the reply.
        closed: bool,
    },
    /// The server closed the connection without a reply.
    Closed,
    /// The server neither replied nor closed the connection in time.
    Silence,
}

impl Case {
    /// Returns true if the reaction is correct. If the corpus expects an error status, every 4xx or
    /// 5xx status is correct, and so is a close without a reply. If `expected` contains `+`, a
    /// close without a reply is wrong, and the server must close the connection after a 2xx reply.
    pub fn accepts(&self, outcome: Reaction) -> bool {
        let words: Vec<_> = self.expected.split(|c: char| !c.is_ascii_alphanumeric()).collect();
        let wants_success = words.iter().any(|word| word.starts_with('2'));
        let wants_error = words.iter().any(|word| word.starts_with(['4', '5']));
        let wants_both = self.expected.contains('+');
        match outcome {
            Reaction::Status { code: 400..=599, .. } => wants_error,
            Reaction::Status { code: 200..=299, closed } => {
                wants_success && (closed || !wants_both)
            }
            Reaction::Status { .. } => false,
            Reaction::Closed => !wants_both && (wants_error || words.contains(&"close")),
            Reaction::Silence => words.contains(&"timeout"),
        }
    }
}

/// Reads the copy of Http11Probe's cases that this crate contains.
pub fn http11probe() -> Vec<Case> {
    read(concat!(env!("CARGO_MANIFEST_DIR"), "/corpora/http11probe.json"))
}

/// Reads the cases of a file in the format of `corpora/http11probe.json`.
///
/// # Panics
/// Panics if the file cannot be read or has another format.
pub fn read(path: impl AsRef<Path>) -> Vec<Case> {
    let path = path.as_ref();
    let text = fs::read_to_string(path).unwrap_or_else(|error| panic!("{path:?}: {error}"));
    let file: File =
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{path:?}: {error}"));
    file.cases.into_iter().map(Case::from).collect()
}

#[derive(Deserialize)]
struct File {
    cases: Vec<Entry>,
}

#[derive(Deserialize)]
struct Entry {
    id: String,
    category: String,
    rfc: Option<String>,
    scored: bool,
    expected: String,
    description: String,
    /// Bytes to send. Each character represents the byte with the value of its code point.
    raw: String,
}

impl From<Entry> for Case {
    fn from(entry: Entry) -> Self {
        let byte = |c| u8::try_from(c).expect("the corpus holds Latin-1 characters only");
        Self {
            raw: entry.raw.chars().map(byte).collect(),
            id: entry.id,
            category: entry.category,
            rfc: entry.rfc,
            is_scored: entry.scored,
            expected: entry.expected,
            description: entry.description,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BAD: Reaction = Reaction::Status { code: 400, closed: true };
    const GOOD: Reaction = Reaction::Status { code: 200, closed: false };

    #[test]
    fn every_case_has_an_answer_that_is_right() {
        let cases = http11probe();
        assert_eq!(cases.len(), 71);
        for case in &cases {
            let closing = Reaction::Status { code: 200, closed: true };
            assert!(case.accepts(BAD) || case.accepts(GOOD) || case.accepts(closing), "{case:?}");
            assert!(!case.accepts(Reaction::Status { code: 302, closed: true }), "{case:?}");
            assert!(!case.raw.is_empty(), "{case:?}");
        }
    }

    #[test]
    fn expectations_are_understood() {
        let case = |expected: &str| Case { expected: expected.into(), ..http11probe().remove(0) };
        assert!(case("400 or close").accepts(BAD));
        assert!(case("400 or close").accepts(Reaction::Closed));
        assert!(!case("400 or close").accepts(GOOD));
        assert!(!case("400 or close").accepts(Reaction::Silence));
        assert!(case("400/close/timeout").accepts(Reaction::Silence));
        assert!(case("2xx").accepts(GOOD));
        assert!(!case("2xx").accepts(Reaction::Closed));
        assert!(!case("2xx").accepts(BAD));
        assert!(case("400 or close (pass), 2xx (warn)").accepts(GOOD));
        assert!(!case("2xx + close").accepts(GOOD));
        assert!(case("2xx + close").accepts(Reaction::Status { code: 200, closed: true }));
    }

    #[test]
    fn bytes_come_out_as_latin_1() {
        let cases = http11probe();
        let all: Vec<u8> = cases.iter().flat_map(|case| case.raw.clone()).collect();
        assert!(all.contains(&0) || all.iter().any(|byte| *byte >= 0x80));
    }
}
