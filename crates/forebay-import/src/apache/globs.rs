//! Wildcards and expressions of Apache on paths and file names, as regular expressions on the paths
//! of URLs.

/// Returns the regular expression for a text with wildcards. As in Apache, `*` and `?` match no
/// slash.
pub fn of_glob(text: &str) -> String {
    let mut out = String::new();
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match c {
            '*' => out.push_str("[^/]*"),
            '?' => out.push_str("[^/]"),
            '\\' => out.push_str(&escaped(chars.next().unwrap_or('\\'))),
            '[' => {
                let rest = chars.as_str();
                // In `[]a]`, the first `]` belongs to the class, so search for the end after the
                // first character.
                let from = rest.char_indices().skip(1).find(|(_, c)| *c == ']');
                let Some((end, _)) = from else {
                    out.push_str("\\[");
                    continue;
                };
                let class = &rest[..end];
                let (mark, class) = match class.strip_prefix(['!', '^']) {
                    Some(class) => ("^", class),
                    None => ("", class),
                };
                let class = class.replace('\\', "").replace('[', "\\[").replace(']', "\\]");
                let class = class.replace('&', "\\&").replace('~', "\\~").replace('^', "\\^");
                out.push_str(&format!("[{mark}{class}]"));
                chars = rest[end + 1..].chars();
            }
            c => out.push_str(&escaped(c)),
        }
    }
    out
}

fn escaped(c: char) -> String {
    regex_syntax::escape(c.encode_utf8(&mut [0; 4]))
}

/// Converts an expression for the part of a path after a prefix to an expression for the whole
/// path. `start` is the expression for the prefix: with the start `^/x/`, `^a` becomes `^/x/a`.
/// `any` is an expression for text between the prefix and the match: with `.*?`, `a` becomes
/// `^/x/.*?a`. Returns `None` if a `^` within the expression has no translation.
pub fn after(pattern: &str, start: &str, any: &str) -> Option<String> {
    if let Some(pattern) = pattern.strip_prefix("(?i)") {
        return after(pattern, start, any).map(|whole| format!("(?i){whole}"));
    }
    let branches = branches(pattern);
    let own: Vec<&str> = branches.iter().filter_map(|branch| branch.strip_prefix('^')).collect();
    let inner = match &own[..] {
        [one] => (*one).to_owned(),
        all => format!("(?:{})", all.join("|")),
    };
    if own.len() == branches.len() && !has_start(&inner) {
        return Some(format!("{start}{inner}"));
    }
    let is_one = branches.len() == 1;
    if !has_start(pattern) {
        let takes_all = ["(.*", ".*", "(.+", ".+"].iter().any(|any| pattern.starts_with(any));
        return Some(match pattern {
            "." => start.to_owned(),
            _ if is_one && takes_all => format!("{start}{pattern}"),
            _ if is_one => format!("{start}{any}{pattern}"),
            _ => format!("{start}{any}(?:{pattern})"),
        });
    }
    // Expressions such as `(^|/)name` match at the start, or after a slash.
    let open = ["(?:", "("].into_iter().find(|open| pattern.starts_with(open))?;
    let (group, rest) = pattern.strip_prefix(open)?.split_once(')')?;
    let other = group.strip_prefix("^|").or_else(|| group.strip_suffix("|^"))?;
    if !is_one || has_start(other) || has_start(rest) || other.contains(['(', '[', '\\']) {
        return None;
    }
    Some(format!("{start}{open}|{any}(?:{other})){rest}"))
}

/// Replaces each `$` by `(?:/|$)`, because path info may follow a file name. Then `\.php$` also
/// matches `/a.php/b`.
pub fn with_path_info(pattern: &str) -> String {
    let mut out = String::new();
    let mut from = 0;
    for (at, c, in_class) in plain_chars(pattern) {
        if c == '$' && !in_class {
            out.push_str(&pattern[from..at]);
            out.push_str("(?:/|$)");
            from = at + 1;
        }
    }
    out + &pattern[from..]
}

/// Returns true for an expression without `|` outside of groups and classes.
pub fn is_one(pattern: &str) -> bool {
    branches(pattern).len() == 1
}

/// Splits an expression at each `|` outside of groups and classes.
fn branches(pattern: &str) -> Vec<&str> {
    let (mut found, mut from, mut depth) = (Vec::new(), 0, 0_usize);
    for (at, c, in_class) in plain_chars(pattern) {
        match c {
            _ if in_class => {}
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            '|' if depth == 0 => {
                found.push(&pattern[from..at]);
                from = at + 1;
            }
            _ => {}
        }
    }
    found.push(&pattern[from..]);
    found
}

/// Returns true if an expression contains `\A`, or a `^` that is not escaped and not in a class.
fn has_start(pattern: &str) -> bool {
    pattern.contains("\\A") || plain_chars(pattern).any(|(_, c, in_class)| c == '^' && !in_class)
}

/// Returns each character of an expression that no backslash escapes, with its position. The flag
/// is true for a character in a class.
fn plain_chars(pattern: &str) -> impl Iterator<Item = (usize, char, bool)> {
    let (mut is_escaped, mut in_class) = (false, false);
    pattern.char_indices().filter_map(move |(at, c)| {
        if std::mem::take(&mut is_escaped) {
            return None;
        }
        match c {
            '\\' => {
                is_escaped = true;
                return None;
            }
            '[' => in_class = true,
            ']' => in_class = false,
            _ => {}
        }
        Some((at, c, in_class))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wildcards_match_no_slash() {
        for (glob, found) in [
            ("/glob/*/adm", "/glob/[^/]*/adm"),
            ("/q?x/", "/q[^/]x/"),
            ("[!a-c].txt", "[^a-c]\\.txt"),
            ("[]x]", "[\\]x]"),
            ("[x", "\\[x"),
            ("a\\*", "a\\*"),
            ("[a&&b~~^]", "[a\\&\\&b\\~\\~\\^]"),
        ] {
            assert_eq!(of_glob(glob), found);
            assert!(crate::pattern::is_readable(found), "{found}");
        }
    }

    #[test]
    fn parts_of_paths_become_whole_paths() {
        for (pattern, found) in [
            ("^a|^b", Some("^/w/(?:a|b)")),
            ("a|b", Some("^/w/.*?(?:a|b)")),
            ("(^|/)x", Some("^/w/(|.*?(?:/))x")),
            ("(?:/|^)x", Some("^/w/(?:|.*?(?:/))x")),
            ("(?i)^x", Some("(?i)^/w/x")),
            ("(.*)$", Some("^/w/(.*)$")),
            ("[^/]x", Some("^/w/.*?[^/]x")),
            ("a|^b", None),
            ("(a|^b)", None),
            (r"\Aa", None),
            ("(^|[)])x", None),
        ] {
            assert_eq!(after(pattern, "^/w/", ".*?").as_deref(), found, "{pattern}");
        }
        assert_eq!(with_path_info(r"\.php$|[$]\$"), r"\.php(?:/|$)|[$]\$");
    }
}
