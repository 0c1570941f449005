//! Which content coding a client prefers (RFC 9110 section 12.5.3).

use forebay_conf::Precompressed;
use forebay_engine::Request;
use forebay_wire::accept::{Accepted, weighted};
use forebay_wire::http1::Known;

/// The codings of `offered` that the client takes, the best first: by its own preference, and where
/// that is equal, by the order of `offered`. Those that it likes less than no coding are left out.
pub fn codings(request: &Request, offered: &[Precompressed]) -> Vec<Precompressed> {
    let fields = request.head.fields.iter().filter(|f| f.known == Known::AcceptEncoding);
    let accepted: Vec<_> =
        fields.flat_map(|field| weighted(field.value.of(&request.bytes))).collect();
    if accepted.is_empty() {
        return Vec::new();
    }
    rank(&accepted, offered)
}

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

#[cfg(test)]
mod tests {
    use super::*;

    fn of(value: &str) -> String {
        let accepted: Vec<_> = weighted(value.as_bytes()).collect();
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
