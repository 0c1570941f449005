//! Request fields that select one of several replies (RFC 9111 section 4.1).

use forebay_net::head::{Request, is_alike};
use forebay_wire::accept::weighted;
use forebay_wire::fields::of_lines;
use forebay_wire::http1::Field;

use super::checksum::Checker;

/// Content codings that applications use. Clients that accept the same codings share a reply.
const CODINGS: [&[u8]; 4] = [b"br", b"deflate", b"gzip", b"zstd"];

/// The names of the fields in `Vary`, in lower case, and the values of these fields in a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Variant(Vec<(String, Vec<u8>)>);

impl Variant {
    /// Returns the names in `Vary` of a reply, with the values of these fields in `request`.
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

    /// Returns true if `request` has the same values for the names of this variant.
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

    /// Returns a hash of the names and values. The hash is 0 if there are no names.
    pub fn hash(&self) -> u64 {
        hash_of(self.0.iter().map(|(name, value)| (&**name, &value[..])))
    }

    /// Returns the hash of a list of these names with the values of `request`.
    pub fn hash_for<'a>(names: impl IntoIterator<Item = &'a str>, request: &Request) -> u64 {
        let fields: Vec<_> =
            names.into_iter().map(|name| (name, normalized(name, request))).collect();
        hash_of(fields.iter().map(|(name, value)| (*name, &value[..])))
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

/// Normalizes the lines of a field. Two requests have equal results only if every application gives
/// the same answer to both.
///
/// Applications read fields differently: some use only the first or the last line, compare the
/// whole text, or search it for a word. A client could otherwise choose the reply that another
/// client gets. Therefore all fields keep their text, except plain lists of codings in
/// `Accept-Encoding`, which lose order and weights.
fn normalized(name: &str, request: &Request) -> Vec<u8> {
    let bytes = &request.bytes;
    let fields = request.head.fields.iter();
    let lines = || fields.clone().filter(|field| is_alike(field.name.of(bytes), name));
    let is_named = |field: &Field| field.name.of(bytes).eq_ignore_ascii_case(name.as_bytes());
    let mut all = lines();
    if name == "accept-encoding"
        && let (Some(only), None) = (all.next(), all.next())
        && is_named(only)
        && let Some(codings) = codings(only.value.of(bytes))
    {
        return codings;
    }
    // LF and CR separate the lines, because no value contains them.
    let mut text = Vec::new();
    for field in lines() {
        if is_named(field) {
            text.push(b'\n');
        } else {
            // Some applications read this field as `name`, for example `X_A` as `X-A`. Others
            // ignore it. So the text contains the name, too.
            text.push(b'\r');
            text.extend(field.name.of(bytes).to_ascii_lowercase());
            text.push(b':');
        }
        text.extend_from_slice(field.value.of(bytes));
    }
    text
}

/// Returns false if an element has a parameter besides its weight. An application that searches the
/// text for a word would also find the word in a parameter, as in `br;x=gzip`.
fn has_only_a_weight(element: &[u8]) -> bool {
    let mut parameters = element.split(|&b| b == b';').skip(1).map(<[u8]>::trim_ascii);
    match (parameters.next(), parameters.next()) {
        (None, _) => true,
        (Some([b'q' | b'Q', b'=', weight @ ..]), None) => {
            weight.iter().all(|byte| byte.is_ascii_digit() || *byte == b'.')
        }
        _ => false,
    }
}

/// Returns the content codings that a client accepts. Returns `None` if the list contains a weight
/// of 0, another parameter, an unknown coding, or a repeated coding. Applications may answer such a
/// list with different codings.
fn codings(value: &[u8]) -> Option<Vec<u8>> {
    let mut accepted = [false; CODINGS.len()];
    for element in value.split(|&b| b == b',') {
        if !has_only_a_weight(element) {
            return None;
        }
        let (name, weight) = weighted(element).next()?;
        let known = CODINGS.iter().position(|coding| name.eq_ignore_ascii_case(coding));
        match known {
            _ if weight == 0 => return None,
            Some(at) if !accepted[at] => accepted[at] = true,
            None if name.eq_ignore_ascii_case(b"identity") => {}
            _ => return None,
        }
    }
    let named = CODINGS.iter().zip(accepted).filter(|(_, is_accepted)| *is_accepted);
    let names: Vec<_> = named.map(|(name, _)| *name).collect();
    Some([b"=", &names.join(&b","[..])[..]].concat())
}
