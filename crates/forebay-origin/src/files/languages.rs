//! Variants of a file in several languages: `index.html.de` and `index.html.en` for `index.html`,
//! as in Apache's mod_negotiation.
//!
//! The path without a language selects the variant that the client prefers (`Accept-Language`). The
//! file without a language in its name is a variant in the default language. The path of a variant
//! selects that variant.

use std::cell::RefCell;
use std::collections::HashMap;

use forebay_net::head::Request;
use forebay_wire::accept::{rank_languages, weighted};

/// Maximum number of remembered paths. At this number, all paths are forgotten.
const REMEMBERED: usize = 10_000;
/// Maximum length of a remembered path without variants.
const LONGEST_MISSING: usize = 256;
/// Maximum number of languages that Forebay reads in one request.
const READ: usize = 64;

/// The languages of a route.
pub struct FileLanguages {
    /// Language tags in lower case. The first one is the default.
    tags: Vec<String>,
    /// For each path, the second of the last search, and a bit for each language that exists.
    known: RefCell<HashMap<Vec<u8>, (u64, u64)>>,
}

impl FileLanguages {
    /// Returns the languages with these tags; `None` if there are none.
    pub fn new(tags: &[String]) -> Option<Self> {
        (!tags.is_empty()).then(|| Self { tags: tags.to_vec(), known: RefCell::default() })
    }

    /// Returns true if the path ends in a language, such as `index.html.de`.
    pub fn are_in(&self, path: &[u8]) -> bool {
        split(path, &self.tags).is_some()
    }

    /// Returns the path of the variant of `path` that the client prefers, such as `a.html.de` for
    /// `a.html`. The result may be `path` itself. Returns `None` if `path` has no variants.
    /// `exists` looks for a file. `is_plain` is true if the file `path` exists. `second` is the
    /// current time.
    pub fn preferred(
        &self,
        request: &Request,
        path: &[u8],
        (is_plain, second): (bool, u64),
        exists: impl Fn(&[u8]) -> bool,
    ) -> Option<Vec<u8>> {
        let name = |tag: &str| [path, b".", tag.as_bytes()].concat();
        let found = self.found(path, second, |tag| exists(&name(tag)));
        if found == 0 {
            return None;
        }
        let has = |index: usize| found & (1 << index) != 0;
        let best = self.ranked(request).into_iter().find(|&i| has(i) || i == 0 && is_plain)?;
        Some(if has(best) { name(&self.tags[best]) } else { path.to_vec() })
    }

    /// Returns a number with one bit for each language that has a variant of the path.
    fn found(&self, path: &[u8], second: u64, exists: impl Fn(&str) -> bool) -> u64 {
        let mut known = self.known.borrow_mut();
        if let Some(&(at, found)) = known.get(path)
            && at == second
        {
            return found;
        }
        let tags = self.tags.iter().enumerate();
        let found = tags.filter(|(_, tag)| exists(tag)).fold(0, |bits, (i, _)| bits | (1 << i));
        // Do not remember long paths without variants, because clients can request any number of
        // them.
        if found == 0 && path.len() > LONGEST_MISSING {
            known.remove(path);
            return found;
        }
        if known.len() >= REMEMBERED {
            known.clear();
        }
        known.insert(path.to_vec(), (second, found));
        found
    }

    /// Returns the numbers of all languages, with those that the client prefers first.
    fn ranked(&self, request: &Request) -> Vec<usize> {
        let (head, bytes) = (&request.head, &request.bytes);
        let is_named = |name: &[u8]| name.eq_ignore_ascii_case(b"accept-language");
        let fields = head.fields.iter().filter(|field| is_named(field.name.of(bytes)));
        let accepted: Vec<_> =
            fields.flat_map(|field| weighted(field.value.of(bytes))).take(READ).collect();
        let tags: Vec<&str> = self.tags.iter().map(String::as_str).collect();
        rank_languages(&accepted, &tags)
    }
}

/// Splits the path of a variant into the path without a language and the language. Returns `None`
/// if `path` does not end in a language.
pub fn split<'p, 't>(path: &'p [u8], tags: &'t [String]) -> Option<(&'p [u8], &'t str)> {
    tags.iter().find_map(|tag| {
        let base = path.strip_suffix(tag.as_bytes())?.strip_suffix(b".")?;
        (!base.is_empty() && !base.ends_with(b"/")).then_some((base, tag.as_str()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_path_without_variants_is_not_remembered() {
        let languages = FileLanguages::new(&["en".to_owned()]).unwrap();
        assert_eq!(languages.found(&[b'a'; 257], 1, |_| false), 0);
        assert!(languages.known.borrow().is_empty());
        assert_eq!(languages.found(&[b'a'; 256], 1, |_| false), 0);
        assert_eq!(languages.found(&[b'a'; 257], 1, |_| true), 1);
        assert_eq!(languages.known.borrow().len(), 2);
    }

    #[test]
    fn a_language_ends_the_name_of_a_variant() {
        let tags = ["en".to_owned(), "pt-br".to_owned()];
        let base = |path: &'static str| split(path.as_bytes(), &tags).map(|(base, _)| base);
        assert_eq!(base("a/index.html.en"), Some(&b"a/index.html"[..]));
        assert_eq!(base("a.pt-br"), Some(&b"a"[..]));
        for path in ["index.html", "a/.en", "en", ".en", "a.EN", "aen", "a.en/"] {
            assert_eq!(base(path), None, "{path}");
        }
    }
}
