//! Parser of lists with weights, such as `Accept-Encoding` (RFC 9110 section 12.4.2), and of lists
//! of entity tags (section 13.1).

use std::cmp::Reverse;

/// Element of a list and its weight in thousandths.
pub type Accepted<'a> = (&'a [u8], u16);

/// Returns each element of a field's value, such as `gzip;q=0.5`, with its weight in thousandths.
/// Malformed elements are skipped.
pub fn weighted(value: &[u8]) -> impl Iterator<Item = Accepted<'_>> {
    value.split(|&b| b == b',').filter_map(parse)
}

/// Returns the content codings of `offered` that a client accepts (RFC 9110 section 12.5.3). The
/// result contains indices into `offered`, with the best coding first.
///
/// The client's weights determine the order. Codings of equal weight are in the order of `offered`.
/// The weight of `*` applies to the codings that the client does not name. A coding is skipped if
/// its weight is 0, or if the client prefers `identity`, which means no coding. `accepted` contains
/// the elements of all `Accept-Encoding` fields.
pub fn rank_codings(accepted: &[Accepted<'_>], offered: &[&str]) -> Vec<usize> {
    let weight = |name: &str| {
        let named = |other: &[u8]| other.eq_ignore_ascii_case(name.as_bytes());
        let found = accepted.iter().find(|(other, _)| named(other));
        found.map(|&(_, weight)| weight)
    };
    let any = weight("*");
    let identity = weight("identity").unwrap_or(0);
    let mut found: Vec<(u16, usize)> = offered
        .iter()
        .enumerate()
        .map(|(index, &name)| {
            let alias = if name == "gzip" { weight("x-gzip") } else { None };
            (weight(name).or(alias).or(any).unwrap_or(0), index)
        })
        .filter(|&(weight, _)| weight > 0 && weight >= identity)
        .collect();
    found.sort_by_key(|&(weight, _)| Reverse(weight));
    found.into_iter().map(|(_, index)| index).collect()
}

/// Returns the indices of all languages in `offered`, with the client's preferred languages first
/// (RFC 4647 section 3.4). Tags are compared without regard to case.
///
/// If the client names `de`, the offered tag `de-ch` matches. If the client names `de-ch`, the
/// offered tag `de` also matches. `*` matches every tag. The client's weights determine the order.
/// Languages of equal weight are in the client's order. Languages that the client does not mention
/// follow in the order of `offered`. Languages with the weight 0 come last.
pub fn rank_languages(accepted: &[Accepted<'_>], offered: &[&str]) -> Vec<usize> {
    let place = |tag: &str| {
        let fits = |(at, &(range, weight)): (usize, &Accepted<'_>)| {
            let (tag, length) = (tag.as_bytes(), range.len().min(tag.len()));
            let is_start = range[..length].eq_ignore_ascii_case(&tag[..length]);
            let follows = |text: &[u8]| matches!(text.get(length), None | Some(b'-'));
            let is_like = is_start && follows(range) && follows(tag);
            // If several elements of the client match a tag, the most specific element counts.
            let rank = match () {
                () if range == b"*" => 0,
                () if is_like && range.len() > tag.len() => 1,
                () if is_like => 1 + range.len(),
                () => return None,
            };
            Some((rank, Reverse(at), weight))
        };
        accepted.iter().enumerate().filter_map(fits).max()
    };
    let mut found: Vec<_> = offered
        .iter()
        .enumerate()
        .map(|(index, tag)| match place(tag) {
            Some((_, _, 0)) => (2, Reverse(0), 0, Reverse(0), index),
            Some((rank, Reverse(at), weight)) => (0, Reverse(weight), at, Reverse(rank), index),
            None => (1, Reverse(0), 0, Reverse(0), index),
        })
        .collect();
    found.sort_unstable();
    found.into_iter().map(|(.., index)| index).collect()
}

/// Returns true if `tags`, a list of entity tags, is `*` or contains the strong tag `etag`. If
/// `weak` is true, the element `W/` followed by `etag` also matches (the weak comparison of RFC
/// 9110 section 8.8.3.2).
pub fn lists_tag(tags: &[u8], etag: &[u8], weak: bool) -> bool {
    tags == b"*"
        || tags.split(|&b| b == b',').map(<[u8]>::trim_ascii).any(|tag| {
            let tag = if weak { tag.strip_prefix(b"W/").unwrap_or(tag) } else { tag };
            tag == etag
        })
}

/// Parses `element` or `element;q=0.5`. Returns `None` if the element is empty, or if another
/// parameter or an invalid weight follows it.
fn parse(element: &[u8]) -> Option<Accepted<'_>> {
    let mut parts = element.split(|&b| b == b';').map(<[u8]>::trim_ascii);
    let element = parts.next().filter(|element| !element.is_empty())?;
    let Some(parameter) = parts.next() else { return Some((element, 1000)) };
    let value = parameter.strip_prefix(b"q=").or_else(|| parameter.strip_prefix(b"Q="))?;
    Some((element, parse_weight(value)?))
}

fn parse_weight(value: &[u8]) -> Option<u16> {
    let (whole, fraction) = match value {
        [whole] => (whole, &b""[..]),
        [whole, b'.', fraction @ ..] if fraction.len() <= 3 => (whole, fraction),
        _ => return None,
    };
    if !matches!(whole, b'0' | b'1') || !fraction.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let digits = fraction.iter().chain(b"000").take(3);
    let weight = digits.fold(u16::from(whole - b'0'), |sum, b| sum * 10 + u16::from(b - b'0'));
    (weight <= 1000).then_some(weight)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights() {
        for (value, expected) in [
            ("a", Some(1000)),
            ("a;q=1.000", Some(1000)),
            ("a ; Q=0.5", Some(500)),
            ("a;q=0", Some(0)),
            ("a;q=0.", Some(0)),
            ("a;q=0.001", Some(1)),
            ("a;q=1.001", None),
            ("a;q=2", None),
            ("a;q=x", None),
            ("a;q=0.1234", None),
            ("a;q=", None),
            ("a;x=1", None),
            (";q=1", None),
            ("", None),
        ] {
            let found = weighted(value.as_bytes()).next().map(|(_, weight)| weight);
            assert_eq!(found, expected, "{value}");
        }
        let all: Vec<_> = weighted(b"a, b;q=x,c;q=0.2").collect();
        assert_eq!(all, [(&b"a"[..], 1000), (b"c", 200)]);
    }

    #[test]
    fn the_client_chooses_a_coding_and_the_order_breaks_ties() {
        for (value, expected) in [
            ("gzip, deflate, br, zstd", "br zstd gzip"),
            ("gzip", "gzip"),
            ("GZIP;q=0.001", "gzip"),
            ("x-gzip", "gzip"),
            ("br;q=0.5, gzip;q=0.8", "gzip br"),
            ("br;q=0, *", "zstd gzip"),
            ("*;q=0", ""),
            ("*;q=0, gzip", "gzip"),
            ("*", "br zstd gzip"),
            ("identity", ""),
            ("identity;q=0, br", "br"),
            ("identity;q=0.5, gzip;q=0.4, br;q=0.6", "br"),
            ("gzip;q=2, br;q=x, zstd;q=0.1234", ""),
            ("gzip;x=1", ""),
            ("", ""),
        ] {
            let accepted: Vec<_> = weighted(value.as_bytes()).collect();
            let offered = ["br", "zstd", "gzip"];
            let found = rank_codings(&accepted, &offered).into_iter().map(|index| offered[index]);
            assert_eq!(found.collect::<Vec<_>>().join(" "), expected, "{value}");
        }
    }

    #[test]
    fn languages_are_ranked_as_the_client_prefers() {
        for (value, expected) in [
            ("", "en de de-ch pt-br"),
            ("de", "de de-ch en pt-br"),
            ("de-CH", "de-ch de en pt-br"),
            ("de-AT, en;q=0.9", "de en de-ch pt-br"),
            ("fr, de;q=0.3, en;q=0.5", "en de de-ch pt-br"),
            ("de, en", "de de-ch en pt-br"),
            ("*", "en de de-ch pt-br"),
            ("*;q=0.1, PT-BR", "pt-br en de de-ch"),
            ("en;q=0", "de de-ch pt-br en"),
            ("de;q=0, *", "en pt-br de de-ch"),
            ("pt", "pt-br en de de-ch"),
            ("d, e, -, en;q=9, de;q=-1", "en de de-ch pt-br"),
        ] {
            let accepted: Vec<_> = weighted(value.as_bytes()).collect();
            let offered = ["en", "de", "de-ch", "pt-br"];
            let found = rank_languages(&accepted, &offered).into_iter().map(|i| offered[i]);
            assert_eq!(found.collect::<Vec<_>>().join(" "), expected, "{value}");
        }
    }

    #[test]
    fn entity_tags() {
        assert!(lists_tag(b"\"a\", W/\"b\"", b"\"b\"", true));
        assert!(!lists_tag(b"\"a\", W/\"b\"", b"\"b\"", false));
        assert!(lists_tag(b"*", b"\"b\"", false));
    }
}
