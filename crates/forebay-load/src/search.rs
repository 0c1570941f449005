//! Search for bytes in a body that arrives in pieces.

use memchr::memmem;

/// Search for a byte sequence (the needle) in a body that arrives in pieces. The pieces are never
/// joined.
#[derive(Debug)]
pub(crate) struct Search {
    finder: memmem::Finder<'static>,
    /// Last bytes of the previous pieces: one byte fewer than the needle has.
    tail: Vec<u8>,
    found: bool,
}

impl Search {
    pub fn new(needle: &[u8]) -> Self {
        let finder = memmem::Finder::new(needle).into_owned();
        Self { found: needle.is_empty(), finder, tail: Vec::new() }
    }

    /// Prepares the search for a new body.
    pub fn reset(&mut self) {
        self.tail.clear();
        self.found = self.finder.needle().is_empty();
    }

    pub fn feed(&mut self, piece: &[u8]) {
        if self.found {
            return;
        }
        let keep = self.finder.needle().len() - 1;
        // A match that starts in an earlier piece ends within the first `keep` bytes of this piece.
        let border = piece.len().min(keep);
        self.tail.extend_from_slice(&piece[..border]);
        self.found = self.finder.find(&self.tail).is_some() || self.finder.find(piece).is_some();
        if piece.len() >= keep {
            self.tail.clear();
            self.tail.extend_from_slice(&piece[piece.len() - keep..]);
        } else {
            self.tail.drain(..self.tail.len().saturating_sub(keep));
        }
    }

    pub fn found(&self) -> bool {
        self.found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(needle: &str, pieces: &[&str]) -> bool {
        let mut search = Search::new(needle.as_bytes());
        pieces.iter().for_each(|piece| search.feed(piece.as_bytes()));
        search.found()
    }

    #[test]
    fn found_however_the_body_is_cut() {
        let body = "xxHelHello, worldyy";
        for first in 0..body.len() {
            for second in first..body.len() {
                let pieces = [&body[..first], &body[first..second], &body[second..]];
                assert!(found("Hello, world", &pieces), "{pieces:?}");
                assert!(!found("Hello, World", &pieces), "{pieces:?}");
            }
        }
        let bytes: Vec<&str> = body.split("").collect();
        assert!(found("Hello, world", &bytes));
    }

    #[test]
    fn not_found_across_bodies() {
        let mut search = Search::new(b"ab");
        search.feed(b"a");
        search.reset();
        search.feed(b"b");
        assert!(!search.found());
    }

    #[test]
    fn the_empty_needle_is_everywhere() {
        assert!(found("", &[]));
    }
}
