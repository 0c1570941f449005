//! The spellings of a path that Caddy takes for the same path.
//!
//! Caddy converts paths and patterns to lower case with Go's `strings.ToLower`, which knows all
//! letters of Unicode. Forebay's expressions ignore the case of ASCII letters only.

use std::collections::HashMap;
use std::sync::LazyLock;

/// The letters beyond ASCII whose lower case in Go is another letter. The key of each group is the
/// lower case.
static UPPER: LazyLock<HashMap<char, Vec<char>>> = LazyLock::new(|| {
    let mut all: HashMap<char, Vec<char>> = HashMap::new();
    for upper in ('\u{80}'..=char::MAX).filter(|c| c.is_alphabetic() || c.is_uppercase()) {
        let lower = lower(upper);
        if lower != upper {
            all.entry(lower).or_default().push(upper);
        }
    }
    all
});

/// Returns the lower case of a letter, as Go's `strings.ToLower` does.
fn lower(c: char) -> char {
    // In Rust, the lower case of U+0130 has two characters. In Go, it is `i`.
    if c == '\u{130}' {
        return 'i';
    }
    let mut all = c.to_lowercase();
    match (all.next(), all.next()) {
        (Some(lower), None) => lower,
        _ => c,
    }
}

/// Returns an expression for all texts that Caddy converts to the same lower case as `text`. The
/// caller must use the expression without regard to the case of ASCII letters.
pub fn expression(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        let lower = lower(c);
        let own = if c.is_ascii() { regex_syntax::escape(&c.to_string()) } else { bytes(lower) };
        match UPPER.get(&lower) {
            None => out.push_str(&own),
            Some(others) => {
                let others = others.iter().map(|other| bytes(*other));
                out.push_str(&format!("(?:{own}|{})", others.collect::<Vec<_>>().join("|")));
            }
        }
    }
    out
}

/// Returns the UTF-8 bytes of a character as an expression.
fn bytes(c: char) -> String {
    let mut buffer = [0; 4];
    c.encode_utf8(&mut buffer).bytes().map(|byte| format!("\\x{byte:02X}")).collect()
}

/// Returns true if Caddy takes a letter beyond ASCII for a letter of the text.
pub fn has_others(text: &str) -> bool {
    text.chars().any(|c| UPPER.contains_key(&lower(c)))
}

#[cfg(test)]
mod tests {
    use forebay_conf::Regex;

    use super::*;

    #[test]
    fn expressions_match_all_spellings_of_caddy() {
        for (text, same, others) in [
            ("/kit", &["/kit", "/KIT", "/\u{212a}it", "/k\u{130}t"][..], &["/\u{131}", "/kxt"][..]),
            ("/a.b", &["/A.b"], &["/axb"]),
            ("/\u{c4}", &["/\u{e4}", "/\u{c4}"], &["/a"]),
            ("/\u{df}", &["/\u{df}", "/\u{1e9e}"], &["/ss"]),
            ("/s", &["/S"], &["/\u{17f}"]),
        ] {
            let regex = format!("^{}$", expression(text));
            let regex = Regex::new(&regex, true).unwrap_or_else(|why| panic!("{regex}: {why}"));
            assert!(same.iter().all(|path| regex.is_match(path.as_bytes())), "{text}");
            assert!(!others.iter().any(|path| regex.is_match(path.as_bytes())), "{text}");
        }
        assert!(has_others("/Kept") && has_others("/admin") && !has_others("/a.b-c"));
    }
}
