//! Suggestions for "did you mean": finds the known name that is nearest to a typed name.

/// Returns the candidate nearest to the typed name. Returns `None` if no candidate is similar
/// enough.
pub(crate) fn nearest<'a>(
    typed: &str,
    candidates: impl IntoIterator<Item = &'a str>,
) -> Option<&'a str> {
    let length = typed.chars().count();
    if length > LONGEST {
        return None;
    }
    let allowed = (length / 3).clamp(1, 3);
    candidates
        .into_iter()
        .take(MOST_CANDIDATES)
        .filter(|candidate| candidate.len() <= 2 * LONGEST && *candidate != typed)
        .map(|candidate| (distance(typed, candidate), candidate))
        .filter(|&(distance, _)| distance <= allowed)
        .min_by_key(|&(distance, _)| distance)
        .map(|(_, candidate)| candidate)
}

/// Returns "`a`, `b` or `c`", with `quote` around each name and the given word between the last
/// two.
pub(crate) fn list<'a>(
    names: impl IntoIterator<Item = &'a str>,
    word: &str,
    quote: char,
) -> String {
    let names: Vec<String> =
        names.into_iter().map(|name| format!("{quote}{name}{quote}")).collect();
    match names.split_last() {
        None => "nothing".into(),
        Some((only, [])) => only.clone(),
        Some((last, rest)) => format!("{} {word} {last}", rest.join(", ")),
    }
}

/// The largest number of candidates that are compared, however large the file is.
const MOST_CANDIDATES: usize = 1000;

/// The longest name in characters that is compared. The time grows with the square of the length.
const LONGEST: usize = 64;

/// Returns the number of edits between two names (optimal string alignment). An edit inserts,
/// deletes or replaces one character, or swaps two neighbours. Case does not count, nor does the
/// difference between `-` and `_`.
fn distance(a: &str, b: &str) -> usize {
    let fold = |text: &str| -> Vec<char> {
        text.chars().map(|c| if c == '-' { '_' } else { c.to_ascii_lowercase() }).collect()
    };
    let (a, b) = (fold(a), fold(b));
    let mut rows = vec![vec![0; b.len() + 1]; a.len() + 1];
    for (i, row) in rows.iter_mut().enumerate() {
        row[0] = i;
    }
    rows[0] = (0..=b.len()).collect();
    for i in 1..=a.len() {
        for j in 1..=b.len() {
            let replace = rows[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
            let mut best = replace.min(rows[i - 1][j] + 1).min(rows[i][j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                best = best.min(rows[i - 2][j - 2] + 1);
            }
            rows[i][j] = best;
        }
    }
    rows[a.len()][b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances() {
        assert_eq!(distance("", "abc"), 3);
        assert_eq!(distance("lsiten", "listen"), 1);
        assert_eq!(distance("kitten", "sitting"), 3);
        assert_eq!(distance("Max-Body", "max_body"), 0);
    }

    #[test]
    fn only_what_is_near_is_suggested() {
        assert_eq!(nearest("lisen", ["hosts", "listen"]), Some("listen"));
        assert_eq!(nearest("colour", ["hosts", "listen"]), None);
        assert_eq!(nearest("x", ["to"]), None);
        assert_eq!(nearest(&"l".repeat(1_000_000), ["listen"]), None);
    }

    #[test]
    fn lists_read_as_english() {
        assert_eq!(list(["a"], "or", '`'), "`a`");
        assert_eq!(list(["a", "b", "c"], "and", '"'), r#""a", "b" and "c""#);
        assert_eq!(list([], "or", '`'), "nothing");
    }
}
