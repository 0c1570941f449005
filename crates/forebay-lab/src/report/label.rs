//! Shortens names for charts and tables.

/// Returns the names shortened to `longest` characters, but still different from each other.
///
/// If a name is too long, the start that all names share is dropped first.
pub fn labels<'a>(names: impl IntoIterator<Item = &'a str>, longest: usize) -> Vec<String> {
    let names: Vec<&str> = names.into_iter().collect();
    let is_long = |name: &str| name.chars().count() > longest;
    let shared = if names.iter().any(|name| is_long(name)) { shared(&names) } else { 0 };
    let mut labels: Vec<String> = Vec::new();
    for name in names {
        let rest = if shared > 0 { format!("…{}", &name[shared..]) } else { name.to_owned() };
        let label = short(&rest, longest);
        let number = 1 + labels.iter().filter(|other| is_numbered(other, &label)).count();
        labels.push(match number {
            1 => label,
            number => format!("{} ({number})", short(&label, longest.saturating_sub(4))),
        });
    }
    labels
}

/// Cuts a name to `longest` characters.
pub fn short(name: &str, longest: usize) -> String {
    if name.chars().count() <= longest {
        return name.to_owned();
    }
    let kept: String = name.chars().take(longest - 1).collect();
    format!("{}…", kept.trim_end())
}

/// Returns true if `other` is equal to `label`, or is made of the beginning of `label` and a
/// number. For the label `abc`, `abc (2)` and `ab… (2)` are such labels.
fn is_numbered(other: &str, label: &str) -> bool {
    let Some((bare, end)) = other.rsplit_once(" (") else { return other == label };
    let has_number = end.strip_suffix(')').is_some_and(|number| number.parse::<u32>().is_ok());
    let bare = bare.trim_end_matches('…');
    other == label || has_number && !bare.is_empty() && label.starts_with(bare)
}

/// Returns the length in bytes of the start that all names share. The start ends after a character
/// that is no letter or digit, as `web-` in `web-a1` and `web-a2`. Returns 0 if the start is
/// shorter than `WORTH`, or if a name is nothing but this start.
fn shared(names: &[&str]) -> usize {
    const WORTH: usize = 4;
    let Some((first, others)) = names.split_first().filter(|(_, others)| !others.is_empty()) else {
        return 0;
    };
    let common = |other: &&str| {
        let pairs = first.char_indices().zip(other.chars());
        let differ = pairs.map(|((at, ours), theirs)| (at, ours != theirs)).find(|(_, d)| *d);
        differ.map_or(first.len().min(other.len()), |(at, _)| at)
    };
    let end = others.iter().map(common).min().unwrap_or(0);
    let is_sign = |c: char| !c.is_alphanumeric();
    let end = first[..end]
        .rfind(is_sign)
        .map_or(0, |at| at + first[at..].chars().next().map_or(0, char::len_utf8));
    // No name may become empty.
    if end < WORTH || names.iter().any(|name| name.len() == end) { 0 } else { end }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn common_parts_of_long_names_are_dropped() {
        let urls = ["http://127.0.0.1:8080/an/application", "http://127.0.0.1:8081/an/application"];
        assert_eq!(labels(urls, 24), ["…8080/an/application", "…8081/an/application"]);
        assert_eq!(labels(["nginx", "forebay"], 24), ["nginx", "forebay"]);
        assert_eq!(labels(["a long name, and alone"], 10), ["a long na…"]);
    }

    #[test]
    fn a_word_in_parentheses_is_no_number() {
        let names = ["Apache (mod_perl)", "Apache mod_php"];
        assert_eq!(labels(names, 24), names);
        assert_eq!(labels(["nginx", "nginx", "nginx"], 24), ["nginx", "nginx (2)", "nginx (3)"]);
    }

    #[test]
    fn names_stay_different() {
        let long =
            ["the same beginning of A", "the same beginning of B", "other than both of those"];
        let cut = labels(long, 12);
        assert_ne!(cut[0], cut[1], "{cut:?}");
        assert!(cut.iter().all(|label| label.chars().count() <= 12), "{cut:?}");
    }
}
