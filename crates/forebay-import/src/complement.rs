//! Writes expressions for all paths except some, without look-around, which Forebay does not have.

/// The rest of a path pattern: a text, and true if any text may follow.
type Rest<'p> = (&'p [u8], bool);

/// Maximum total length of the patterns. The expression is a few times as long.
const LONGEST: usize = 120;

/// Returns an expression for the paths that match a pattern of `included` and no
/// pattern of `excluded`. A pattern such as `/a/*` begins with a slash, and may end with `*`. An
/// empty list `included` means all paths. Returns `None` if the patterns are too long or not
/// ASCII, or if no path remains.
pub fn without(included: &[String], excluded: &[String]) -> Option<String> {
    let all = || included.iter().chain(excluded);
    if !all().all(|path| path.is_ascii()) || all().map(String::len).sum::<usize>() > LONGEST {
        return None;
    }
    let mut of_included = rests(included)?;
    if included.is_empty() {
        of_included.push((b"", true));
    }
    Some(format!("^/{}", remaining(&of_included, &rests(excluded)?)?))
}

fn rests(paths: &[String]) -> Option<Vec<Rest<'_>>> {
    paths.iter().map(|path| path.strip_prefix('/').map(rest)).collect()
}

fn rest(path: &str) -> Rest<'_> {
    match path.strip_suffix('*') {
        Some(start) => (start.as_bytes(), true),
        None => (path.as_bytes(), false),
    }
}

/// Returns an expression for the rests of paths that an item of `included` matches and no item of
/// `excluded` matches. Returns `None` if no rest of a path remains.
fn remaining(included: &[Rest<'_>], excluded: &[Rest<'_>]) -> Option<String> {
    let takes_all = |rests: &[Rest<'_>]| rests.contains(&(b"", true));
    let may_end = |rests: &[Rest<'_>]| rests.iter().any(|rest| rest.0.is_empty());
    if included.is_empty() || takes_all(excluded) {
        return None;
    }
    let takes_others = takes_all(included);
    if takes_others && excluded.is_empty() {
        return Some(String::new());
    }
    let mut parts = Vec::new();
    if may_end(included) && !may_end(excluded) {
        parts.push("$".to_owned());
    }
    let all = included.iter().chain(excluded);
    let mut next: Vec<u8> = all.filter_map(|rest| rest.0.first().copied()).collect();
    next.sort_unstable();
    next.dedup();
    if takes_others {
        parts.push(none_of(&next));
    }
    for byte in next {
        let mut included = after(included, byte);
        if takes_others {
            included.push((b"", true));
        }
        let rest = remaining(&included, &after(excluded, byte));
        parts.extend(rest.map(|rest| literal(byte) + &rest));
    }
    group(parts)
}

/// Returns the rests of patterns that begin with `byte`, without this byte.
fn after<'p>(rests: &[Rest<'p>], byte: u8) -> Vec<Rest<'p>> {
    let split = |rest: &Rest<'p>| Some((rest.0.split_first()?, rest.1));
    let found = rests.iter().filter_map(split).filter(|((first, _), _)| **first == byte);
    found.map(|((_, rest), all)| (rest, all)).collect()
}

/// Returns an expression, in lower case, for the paths that end in none of these texts. Returns
/// `None` if a text is empty or not ASCII, or if the texts are too long.
pub fn without_ends(ends: &[&str]) -> Option<String> {
    let is_usable = |end: &&str| end.is_ascii() && !end.is_empty();
    if !ends.iter().all(is_usable) || ends.iter().map(|end| end.len()).sum::<usize>() > LONGEST {
        return None;
    }
    let ends: Vec<String> = ends.iter().map(|end| end.to_ascii_lowercase()).collect();
    let ends: Vec<&[u8]> = ends.iter().map(String::as_bytes).collect();
    Some(format!("{}$", before(&ends)?))
}

/// Returns an expression for all texts that end with none of `ends`. Returns `None` if an item of
/// `ends` is empty, because all texts end with it.
fn before(ends: &[&[u8]]) -> Option<String> {
    if ends.iter().any(|end| end.is_empty()) {
        return None;
    }
    let mut last: Vec<u8> = ends.iter().filter_map(|end| end.last().copied()).collect();
    last.sort_unstable();
    last.dedup();
    let mut parts = vec!["^".to_owned(), none_of(&last)];
    for byte in last {
        let split = |end: &&'_ [u8]| end.split_last().map(|(last, rest)| (*last, rest.to_vec()));
        let found = ends.iter().filter_map(split).filter(|(last, _)| *last == byte);
        let rests: Vec<Vec<u8>> = found.map(|(_, rest)| rest).collect();
        let rests: Vec<&[u8]> = rests.iter().map(Vec::as_slice).collect();
        parts.extend(before(&rests).map(|rest| rest + &literal(byte)));
    }
    group(parts)
}

fn none_of(bytes: &[u8]) -> String {
    if bytes.is_empty() {
        return ".".into();
    }
    format!("[^{}]", bytes.iter().map(|byte| literal(*byte)).collect::<String>())
}

fn literal(byte: u8) -> String {
    regex_syntax::escape(&char::from(byte).to_string())
}

fn group(mut parts: Vec<String>) -> Option<String> {
    match parts.len() {
        0 => None,
        1 => parts.pop(),
        _ => Some(format!("(?:{})", parts.join("|"))),
    }
}

#[cfg(test)]
mod tests {
    use forebay_conf::Regex;

    use super::*;

    #[test]
    fn exactly_the_other_paths_match() {
        let paths =
            ["/", "/a", "/ab", "/abc", "/abd", "/b", "/a/b", "/a-b]", "/x.php", "/A", "/\n"];
        let takes = |pattern: &str, path: &str| match pattern.strip_suffix('*') {
            Some(start) => path.to_ascii_lowercase().starts_with(start),
            None => path.eq_ignore_ascii_case(pattern),
        };
        for (included, excluded) in [
            (&[][..], &["/a*"][..]),
            (&[], &["/a"]),
            (&[], &["/abc", "/ab*", "/b"]),
            (&[], &["/", "/a-b]*"]),
            (&[], &["/a", "/abc*"]),
            (&["/a*"], &["/ab*"]),
            (&["/a*", "/b"], &["/a", "/abd"]),
            (&["/a", "/ab"], &["/ab"]),
        ] {
            let owned =
                |list: &[&str]| list.iter().map(|path| (*path).to_owned()).collect::<Vec<_>>();
            let text = without(&owned(included), &owned(excluded)).unwrap();
            let regex = Regex::new(&text, true).unwrap();
            for path in paths {
                let is_included =
                    included.is_empty() || included.iter().any(|pattern| takes(pattern, path));
                let is_excluded = excluded.iter().any(|pattern| takes(pattern, path));
                let expected = is_included && !is_excluded;
                assert_eq!(
                    regex.is_match(path.as_bytes()),
                    expected,
                    "{included:?} {excluded:?} {path} {text}"
                );
            }
        }
        for (included, excluded) in
            [(&["/a*"][..], "/a*"), (&[], "/*"), (&["/a"], "/a"), (&[], "/\u{e4}")]
        {
            let included: Vec<String> = included.iter().map(|path| (*path).to_owned()).collect();
            assert_eq!(without(&included, &[excluded.to_owned()]), None, "{excluded}");
        }
        assert_eq!(without(&[], &["/x".repeat(LONGEST)]), None);
    }

    #[test]
    fn exactly_the_paths_with_other_ends_match() {
        for ends in [&[".php"][..], &[".php", ".phtml"], &["l", "html"], &[".a", "a"]] {
            let regex = without_ends(ends).unwrap();
            let regex = Regex::new(&regex, true).unwrap();
            for path in ["/", "/x.php", "/php", "/x.phtml", "/.php/", "/html", "/a.a", "/\n.php"] {
                let expected = !ends.iter().any(|end| path.ends_with(end));
                assert_eq!(regex.is_match(path.as_bytes()), expected, "{ends:?} {path}");
            }
        }
        assert_eq!(without_ends(&[""]), None);
        assert_eq!(without_ends(&[".\u{e4}"]), None);
    }
}
