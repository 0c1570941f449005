//! Replaces literal texts in a body that arrives in pieces.
//!
//! The filter holds back only bytes that may be the beginning of a text: fewer bytes than the
//! longest text has.

use std::rc::Rc;

use aho_corasick::{AhoCorasick, MatchKind};
use forebay_conf::{Replace, ReplaceEscape};
use forebay_net::head::Request;
use forebay_net::template::Escape;

/// Output length in bytes at which a step stops. The last replacement may exceed this length.
/// Without the limit, a client that chooses the value of a placeholder could make a body very
/// large.
const ROOM: usize = 64 * 1024;

/// The texts and replacements of a route.
pub(super) struct Replacements {
    settings: Replace,
    finder: AhoCorasick,
    /// Length of the longest text.
    longest: usize,
    /// True for each byte that begins a text.
    begins: [bool; 256],
    has_placeholders: bool,
    is_private: bool,
}

/// Replaces texts in the body of one reply.
pub(super) struct Replacer {
    shared: Rc<Replacements>,
    /// The replacements with the values of the request. Empty if there are no placeholders.
    values: Vec<Vec<u8>>,
    /// Bytes that have not been written yet.
    held: Vec<u8>,
    /// For each text: true if it was replaced and, because of `once`, is not replaced again. Empty
    /// without `once`.
    done: Vec<bool>,
}

impl Replacements {
    pub(super) fn new(settings: &Replace) -> Self {
        let texts = || settings.texts.iter().map(|(text, _)| text.as_bytes());
        let finder = AhoCorasick::builder()
            .match_kind(MatchKind::LeftmostLongest)
            .ascii_case_insensitive(settings.ignore_case)
            .build(texts())
            .expect("the configuration limits number and length of the texts");
        let mut begins = [false; 256];
        for first in texts().filter_map(|text| text.first()) {
            begins[usize::from(*first)] = true;
            if settings.ignore_case {
                begins[usize::from(first.to_ascii_lowercase())] = true;
                begins[usize::from(first.to_ascii_uppercase())] = true;
            }
        }
        Self {
            finder,
            longest: texts().map(<[u8]>::len).max().unwrap_or(0),
            begins,
            has_placeholders: settings.has_placeholders(),
            is_private: settings.is_private(),
            settings: settings.clone(),
        }
    }

    pub(super) fn of_request(self: &Rc<Self>, request: &Request) -> Replacer {
        let escape = match self.settings.escape {
            ReplaceEscape::Html => Escape::Html,
            ReplaceEscape::Json => Escape::Json,
        };
        let texts = &self.settings.texts;
        let values = if self.has_placeholders {
            let filled = texts.iter().map(|(_, to)| {
                let mut value = Vec::new();
                request.fill(to, escape, &mut value);
                value
            });
            filled.collect()
        } else {
            Vec::new()
        };
        let done = if self.settings.once { vec![false; texts.len()] } else { Vec::new() };
        Replacer { shared: self.clone(), values, held: Vec::new(), done }
    }

    /// Returns true if the bytes are the beginning of this text, but not all of it.
    fn is_beginning(&self, bytes: &[u8], text: &[u8]) -> bool {
        bytes.len() < text.len() && self.is_same(bytes, &text[..bytes.len()])
    }

    fn is_same(&self, bytes: &[u8], text: &[u8]) -> bool {
        if self.settings.ignore_case { bytes.eq_ignore_ascii_case(text) } else { bytes == text }
    }
}

impl Replacer {
    pub(super) fn settings(&self) -> &Replace {
        &self.shared.settings
    }

    pub(super) fn is_private(&self) -> bool {
        self.shared.is_private
    }

    pub(super) fn take(&mut self, data: &[u8]) {
        self.held.extend_from_slice(data);
    }

    /// Appends bytes with replaced texts to `out`, until `out` has at least [`ROOM`] bytes. Returns
    /// true if `out` is full and the next call can append more bytes. `is_last` is true after the
    /// end of the body.
    pub(super) fn step(&mut self, is_last: bool, out: &mut Vec<u8>) -> bool {
        let held = std::mem::take(&mut self.held);
        let mut at = 0;
        let is_full = loop {
            if out.len() >= ROOM {
                break at < held.len();
            }
            let wait = if is_last { held.len() } else { self.undecided_from(&held, at) };
            let found = self.find(&held, at).filter(|(start, _, _)| *start < wait);
            let Some((start, end, number)) = found else {
                out.extend_from_slice(&held[at..wait]);
                at = wait;
                break false;
            };
            out.extend_from_slice(&held[at..start]);
            out.extend_from_slice(self.replacement(number));
            if let Some(done) = self.done.get_mut(number) {
                *done = true;
            }
            at = end;
        };
        self.held = held;
        self.held.drain(..at);
        is_full
    }

    fn replacement(&self, number: usize) -> &[u8] {
        let constant = || {
            let (_, to) = &self.shared.settings.texts[number];
            to.constant().unwrap_or_default().as_bytes()
        };
        self.values.get(number).map_or_else(constant, Vec::as_slice)
    }

    fn is_done(&self, number: usize) -> bool {
        self.done.get(number).is_some_and(|done| *done)
    }

    /// Finds the first text, from position `at` on, that must be replaced. Returns its start and
    /// end in `bytes`, and its index in the list of texts. If several texts begin at one position,
    /// finds the longest. Returns `None` if no text must be replaced.
    fn find(&self, bytes: &[u8], mut at: usize) -> Option<(usize, usize, usize)> {
        if !self.done.is_empty() && self.done.iter().all(|done| *done) {
            return None;
        }
        loop {
            let found = self.shared.finder.find(aho_corasick::Input::new(bytes).range(at..))?;
            let number = found.pattern().as_usize();
            if !self.is_done(number) {
                return Some((found.start(), found.end(), number));
            }
            // Because of `once`, the found text was replaced before and must now remain. But a
            // shorter text that begins at the same position may be replaced.
            let texts = self.shared.settings.texts.iter().enumerate();
            let rest = &bytes[found.start()..];
            let fits = |(number, (text, _)): &(usize, &(String, _))| {
                let is_here = rest.get(..text.len());
                !self.is_done(*number)
                    && is_here.is_some_and(|here| self.shared.is_same(here, text.as_bytes()))
            };
            let shorter = texts.filter(fits).max_by_key(|(_, (text, _))| text.len());
            if let Some((number, (text, _))) = shorter {
                return Some((found.start(), found.start() + text.len(), number));
            }
            at = found.start() + 1;
        }
    }

    /// Returns the first position, from `at` on, at which an incomplete text may begin. For
    /// example, `bytes` may end in `</bo`, the beginning of the text `</body>`. Returns the length
    /// of `bytes` if there is no such position.
    fn undecided_from(&self, bytes: &[u8], at: usize) -> usize {
        let first = bytes.len().saturating_sub(self.shared.longest.saturating_sub(1));
        let may_begin = |start: &usize| {
            self.shared.begins[usize::from(bytes[*start])]
                && self.shared.settings.texts.iter().enumerate().any(|(number, (text, _))| {
                    !self.is_done(number)
                        && self.shared.is_beginning(&bytes[*start..], text.as_bytes())
                })
        };
        (first.max(at)..bytes.len()).find(may_begin).unwrap_or(bytes.len())
    }
}

#[cfg(test)]
mod tests {
    use forebay_conf::{MediaPattern, Template};

    use super::*;

    fn replacements(texts: &[(&str, &str)], once: bool, ignore_case: bool) -> Rc<Replacements> {
        let texts = texts.iter().map(|(text, to)| ((*text).to_owned(), Template::text(*to)));
        Rc::new(Replacements::new(&Replace {
            texts: texts.collect(),
            types: vec![MediaPattern::parse("text/html").unwrap()],
            escape: ReplaceEscape::Html,
            once,
            ignore_case,
            last_modified: false,
        }))
    }

    fn replacer(shared: &Rc<Replacements>) -> Replacer {
        let done = vec![false; if shared.settings.once { shared.settings.texts.len() } else { 0 }];
        Replacer { shared: shared.clone(), values: Vec::new(), held: Vec::new(), done }
    }

    /// Returns the changed body, if the body arrives in these pieces.
    fn changed<'a>(
        shared: &Rc<Replacements>,
        pieces: impl IntoIterator<Item = &'a [u8]>,
    ) -> Vec<u8> {
        let (mut replacer, mut body) = (replacer(shared), Vec::new());
        let mut write = |replacer: &mut Replacer, is_last| {
            loop {
                let mut out = Vec::new();
                let is_full = replacer.step(is_last, &mut out);
                assert!(out.len() < 2 * ROOM);
                body.extend_from_slice(&out);
                if !is_full {
                    break;
                }
            }
        };
        for piece in pieces {
            replacer.take(piece);
            write(&mut replacer, false);
            assert!(replacer.held.len() < shared.longest.max(1), "{:?}", replacer.held);
        }
        write(&mut replacer, true);
        assert!(replacer.held.is_empty());
        body
    }

    #[test]
    fn texts_are_replaced_at_every_split() {
        for (texts, once, body, expected) in [
            (&[("old", "new")][..], false, "old cold ol old", "new cnew ol new"),
            (&[("ab", "1"), ("abc", "2"), ("bcd", "3")], false, "ab abc abcd xbcd", "1 2 2d x3"),
            (&[("aa", "b")], false, "aaaaa", "bba"),
            (&[("a", "aa")], false, "aba", "aabaa"),
            (&[("x", "")], false, "xxaxx", "a"),
            (&[("ab", "1"), ("abc", "2")], true, "abc abc abc ab", "2 1c abc ab"),
            (&[("old", "new")], true, "old old", "new old"),
            (&[("<html>", "<html lang=de>")], false, "<htm<html><html", "<htm<html lang=de><html"),
        ] {
            let shared = replacements(texts, once, false);
            let bytes = body.as_bytes();
            let one_by_one = changed(&shared, bytes.chunks(1));
            assert_eq!(String::from_utf8_lossy(&one_by_one), expected, "{body}");
            for at in 0..=bytes.len() {
                let split = changed(&shared, [&bytes[..at], &bytes[at..]]);
                assert_eq!(String::from_utf8_lossy(&split), expected, "{body} at {at}");
            }
        }
    }

    #[test]
    fn case_is_ignored_if_asked() {
        let shared = replacements(&[("Old", "new")], false, true);
        assert_eq!(changed(&shared, [&b"OLD o"[..], b"lD \xff"]), b"new new \xff");
        let shared = replacements(&[("Old", "new")], false, false);
        assert_eq!(changed(&shared, [&b"OLD O"[..], b"ld"]), b"OLD new");
    }

    #[test]
    fn random_bodies_change_as_in_one_piece() {
        for round in 0..300_u64 {
            let mut random = fastrand::Rng::with_seed(round);
            let mut word = |longest: usize| -> String {
                (0..random.usize(1..=longest))
                    .map(|_| random.choice(['a', 'b', 'c']).unwrap())
                    .collect()
            };
            let mut texts: Vec<(String, String)> = (0..3).map(|_| (word(4), word(3))).collect();
            texts.sort();
            texts.dedup_by(|a, b| a.0 == b.0);
            let texts: Vec<_> = texts.iter().map(|(a, b)| (&a[..], &b[..])).collect();
            let shared = replacements(&texts, round % 2 == 0, false);
            let body: Vec<u8> = (0..200).map(|_| random.u8(b'a'..=b'd')).collect();
            let whole = changed(&shared, [&body[..]]);
            let size = random.usize(1..9);
            assert_eq!(changed(&shared, body.chunks(size)), whole, "round {round}");
        }
    }

    #[test]
    fn a_long_replacement_uses_bounded_memory() {
        let long = "y".repeat(30_000);
        let shared = replacements(&[("x", &long)], false, false);
        let body = changed(&shared, [&b"x".repeat(100)[..]]);
        assert_eq!(body.len(), 3_000_000);
    }
}
