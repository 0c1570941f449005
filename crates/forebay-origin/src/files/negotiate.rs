//! Which content coding a client prefers (RFC 9110 section 12.5.3).

use forebay_conf::Precompressed;
use forebay_engine::Request;
use forebay_wire::http1::Known;

/// The codings of `offered` that the client takes, the best first: by its own preference, and where
/// that is equal, by the order of `offered`. Those that it likes less than no coding are left out.
pub fn codings(request: &Request, offered: &[Precompressed]) -> Vec<Precompressed> {
    let fields = request.head.fields.iter().filter(|f| f.known == Known::AcceptEncoding);
    let accepted: Vec<_> = fields
        .flat_map(|field| field.value.of(&request.bytes).split(|&b| b == b','))
        .filter_map(parse)
        .collect();
    if accepted.is_empty() {
        return Vec::new();
    }
    rank(&accepted, offered)
}

/// A coding and how much it is liked, in thousandths.
type Accepted<'a> = (&'a [u8], u16);

fn rank(accepted: &[Accepted<'_>], offered: &[Precompressed]) -> Vec<Precompressed> {
    let weight = |name: &str| {
        let named = |other: &[u8]| other.eq_ignore_ascii_case(name.as_bytes());
        let found = accepted.iter().find(|(other, _)| named(other));
        found.map(|&(_, weight)| weight)
    };
    let any = weight("*");
    let plain = weight("identity").unwrap_or(0);
    let mut found: Vec<(u16, Precompressed)> = offered
        .iter()
        .map(|&coding| {
            let named = weight(coding.coding());
            let named = named.or_else(|| match coding {
                Precompressed::Gzip => weight("x-gzip"),
                _ => None,
            });
            (named.or(any).unwrap_or(0), coding)
        })
        .filter(|&(weight, _)| weight > 0 && weight >= plain)
        .collect();
    found.sort_by_key(|&(weight, _)| std::cmp::Reverse(weight));
    found.into_iter().map(|(_, coding)| coding).collect()
}

/// `coding` or `coding;q=0.5`. What is malformed is not accepted.
fn parse(element: &[u8]) -> Option<Accepted<'_>> {
    let mut parts = element.split(|&b| b == b';').map(<[u8]>::trim_ascii);
    let coding = parts.next().filter(|coding| !coding.is_empty())?;
    let Some(parameter) = parts.next() else { return Some((coding, 1000)) };
    let value = parameter.strip_prefix(b"q=").or_else(|| parameter.strip_prefix(b"Q="))?;
    Some((coding, parse_weight(value)?))
}

/// A weight of RFC 9110 section 12.4.2, in thousandths.
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

    fn of(value: &str) -> String {
        let accepted: Vec<_> = value.as_bytes().split(|&b| b == b',').filter_map(parse).collect();
        let found = rank(&accepted, &Precompressed::ALL);
        found.iter().map(|coding| coding.extension()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn the_client_chooses_and_the_order_breaks_ties() {
        for (value, codings) in [
            ("gzip, deflate, br, zstd", "br zst gz"),
            ("gzip", "gz"),
            ("GZIP;q=0.001", "gz"),
            ("x-gzip", "gz"),
            ("br;q=0.5, gzip;q=0.8", "gz br"),
            ("br;q=0, *", "zst gz"),
            ("*;q=0", ""),
            ("identity", ""),
            ("identity;q=0.5, gzip;q=0.4, br;q=0.6", "br"),
            ("gzip;q=2, br;q=x, zstd;q=0.1234", ""),
            ("gzip;x=1", ""),
            ("", ""),
        ] {
            assert_eq!(of(value), codings, "{value}");
        }
    }
}
