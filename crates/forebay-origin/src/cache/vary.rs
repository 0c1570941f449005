//! Request fields that select one of several replies (RFC 9111 section 4.1).

use forebay_net::head::Request;
use forebay_wire::accept::weighted;
use forebay_wire::fields::of_lines;

use super::checksum::Checker;

/// Content codings that applications use. Clients that accept the same codings share a reply.
const CODINGS: [&[u8]; 4] = [b"br", b"deflate", b"gzip", b"zstd"];

/// Names in `Vary`, in lower case, and the values of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Variant(Vec<(String, Vec<u8>)>);

impl Variant {
    /// Returns the names in `Vary` of a reply, with the values of its request.
    pub fn of(lines: &[u8], request: &Request) -> Self {
        let mut fields = Vec::new();
        for field in of_lines(lines).filter(|field| field.name.eq_ignore_ascii_case(b"vary")) {
            for name in field.value.split(|&b| b == b',').map(<[u8]>::trim_ascii) {
                let name = String::from_utf8_lossy(name).to_ascii_lowercase();
                let is_known = fields.iter().any(|(known, _)| *known == name);
                if !name.is_empty() && !is_known {
                    let value = normalized(&name, request);
                    fields.push((name, value));
                }
            }
        }
        Self(fields)
    }

    /// Returns true if `request` has the same values for these names.
    pub fn matches(&self, request: &Request) -> bool {
        self.0.iter().all(|(name, value)| normalized(name, request) == *value)
    }

    /// Creates a list of these names and values.
    pub fn from_fields(fields: Vec<(String, Vec<u8>)>) -> Self {
        Self(fields)
    }

    /// Returns the names and values.
    pub fn fields(&self) -> &[(String, Vec<u8>)] {
        &self.0
    }

    /// Returns the names.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|(name, _)| &**name)
    }

    /// Returns a hash of names and values; 0 if there are none.
    pub fn hash(&self) -> u64 {
        hash_of(self.0.iter().map(|(name, value)| (&**name, &value[..])))
    }

    /// Returns the hash of a list of these names with the values of `request`.
    pub fn hash_for(names: &[String], request: &Request) -> u64 {
        let values: Vec<_> = names.iter().map(|name| normalized(name, request)).collect();
        hash_of(names.iter().zip(&values).map(|(name, value)| (&**name, &value[..])))
    }

    pub fn size(&self) -> usize {
        self.0.iter().map(|(name, value)| name.len() + value.len() + 64).sum()
    }
}

fn hash_of<'a>(fields: impl Iterator<Item = (&'a str, &'a [u8])>) -> u64 {
    let mut checker = None;
    for (name, value) in fields {
        let checker = checker.get_or_insert_with(Checker::default);
        for text in [name.as_bytes(), value] {
            checker.update(&(text.len() as u64).to_le_bytes());
            checker.update(text);
        }
    }
    checker.map_or(0, |checker| {
        let [a, b, c, d, e, f, g, h, ..] = checker.finish();
        u64::from_le_bytes([a, b, c, d, e, f, g, h]).max(1)
    })
}

/// Returns the value of a field in a form that is equal for equal preferences.
fn normalized(name: &str, request: &Request) -> Vec<u8> {
    let value = request.joined_field(name);
    match name {
        "accept-encoding" => {
            let listed: Vec<_> = weighted(&value).collect();
            let weight_of = |coding: &[u8]| {
                let mut named = listed.iter().filter(|(name, _)| name.eq_ignore_ascii_case(coding));
                named.next().map(|&(_, weight)| weight)
            };
            let is_accepted = |coding: &[u8]| {
                weight_of(coding).or_else(|| weight_of(b"*")).is_some_and(|weight| weight > 0)
            };
            let codings: Vec<_> =
                CODINGS.into_iter().filter(|coding| is_accepted(coding)).collect();
            codings.join(&b","[..])
        }
        "accept-language" => {
            let mut languages: Vec<_> = weighted(&value)
                .map(|(name, weight)| (1000 - weight, name.to_ascii_lowercase()))
                .collect();
            languages.sort();
            let text = languages
                .into_iter()
                .map(|(less, name)| [&name[..], b";", less.to_string().as_bytes()].concat());
            text.collect::<Vec<_>>().join(&b","[..])
        }
        _ => {
            let elements = value.split(|&b| b == b',').map(<[u8]>::trim_ascii);
            elements.collect::<Vec<_>>().join(&b","[..])
        }
    }
}
