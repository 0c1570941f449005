//! Finds the texts under which a rate limit counts a request.
//!
//! Usually a request has one text. If it has a parameter, cookie or field more than once, or in
//! several spellings, it has a text for each value, because the application may read any of them.

use std::net::IpAddr;
use std::sync::Arc;

use forebay_conf::{HostPattern, Placeholder, Template, TemplatePart, ValueMap};
use forebay_net::head::Request;
use forebay_server::route::names_host;
use forebay_wire::http1::host_of;

use crate::named::NamedValue;

/// Maximum number of texts of a request. The counters of a client with more texts would replace
/// those of other clients.
const MOST_TEXTS: usize = 8;

/// The text of all requests with more than [`MOST_TEXTS`] texts. If each key contains the client,
/// the client's network follows.
const TOO_MANY: &[u8] = b"\0too many values";

/// A part of the key of a rate limit.
pub enum KeyPart {
    /// The client's address. Of an IPv6 address, only the network (/64) counts, because a client
    /// may use all addresses of its network.
    Client,
    /// The host. All hosts that the site does not name count together.
    Host,
    /// The value of a table, which may contain the client's address, too.
    Map(Arc<ValueMap>),
    /// A value that a request may have more than once.
    Named(NamedValue),
    /// A value with only one spelling after normalization, such as the decoded path.
    Other(TemplatePart),
}

impl KeyPart {
    /// Converts a part of the configured `key`.
    pub fn of(part: &TemplatePart) -> Self {
        match part {
            TemplatePart::Value(Placeholder::Client) => Self::Client,
            TemplatePart::Value(Placeholder::Map(map)) => Self::Map(map.clone()),
            part => Self::of_text(part),
        }
    }

    /// Returns true if the part differs between all clients. This is true for `{client}`, and for a
    /// table whose values all contain `{client}`. If the table is the whole key, its values may
    /// also be empty, because an empty key sets no limit.
    fn is_by_client(&self, is_whole: bool) -> bool {
        let has_client = |text: &Template| {
            let is_unlimited = is_whole && text.parts().is_empty();
            is_unlimited || text.depends_on(&|placeholder| *placeholder == Placeholder::Client)
        };
        match self {
            Self::Client => true,
            Self::Map(map) => map.values().all(has_client),
            _ => false,
        }
    }

    /// Converts a part of the text that a table looks up. Such a text contains no table.
    fn of_text(part: &TemplatePart) -> Self {
        match part {
            TemplatePart::Value(Placeholder::Host) => Self::Host,
            TemplatePart::Value(Placeholder::Header(name)) if name.eq_ignore_ascii_case("host") => {
                Self::Host
            }
            TemplatePart::Value(value) => {
                NamedValue::of(value).map_or_else(|| Self::Other(part.clone()), Self::Named)
            }
            TemplatePart::Text(_) => Self::Other(part.clone()),
        }
    }
}

/// Returns the different texts of a request that are not empty. `hosts` are the names of the site.
/// If there are more than [`MOST_TEXTS`] texts, returns only the text [`TOO_MANY`]. If each key
/// contains the client, the client's network follows in this text.
pub fn texts(key: &[KeyPart], hosts: &[HostPattern], request: &Request) -> Vec<Vec<u8>> {
    let mut texts = Texts { request, hosts, is_lookup: false, texts: vec![Vec::new()] };
    texts.append(key);
    let mut texts = texts.texts;
    if texts.len() > MOST_TEXTS {
        let mut text = TOO_MANY.to_vec();
        // A client that sends many values must not use up the limit of other clients.
        if key.iter().any(|part| part.is_by_client(key.len() == 1)) {
            text.extend_from_slice(&network_of(request.client.ip()));
        }
        return vec![text];
    }
    texts.retain(|text| !text.is_empty());
    texts.sort_unstable();
    texts.dedup();
    texts
}

/// Builds the texts of a request, part by part of the key.
struct Texts<'r> {
    request: &'r Request,
    hosts: &'r [HostPattern],
    /// True for the text that a table looks up.
    is_lookup: bool,
    texts: Vec<Vec<u8>>,
}

impl Texts<'_> {
    fn append(&mut self, key: &[KeyPart]) {
        for part in key {
            if self.texts.len() > MOST_TEXTS {
                return;
            }
            match part {
                KeyPart::Map(map) => self.append_mapped(map),
                KeyPart::Named(named) => {
                    self.append_each(&named.values(self.request, MOST_TEXTS + 1));
                }
                KeyPart::Client => self.append_each(&[network_of(self.request.client.ip())]),
                KeyPart::Host => self.append_each(&[self.host()]),
                KeyPart::Other(part) => {
                    let mut value = Vec::new();
                    self.request.append_normalized(part, &mut value);
                    self.append_each(&[value]);
                }
            }
        }
    }

    /// Replaces each text by its combinations with the values. Example: two texts and three values
    /// give six texts.
    fn append_each(&mut self, values: &[Vec<u8>]) {
        if let [value] = values {
            self.texts.iter_mut().for_each(|text| text.extend_from_slice(value));
            return;
        }
        let each =
            |text: &Vec<u8>| values.iter().map(|value| [&text[..], value].concat()).collect();
        let longer: Vec<Vec<Vec<u8>>> = self.texts.iter().map(each).collect();
        self.texts = longer.into_iter().flatten().collect();
    }

    /// Looks up texts of the request in a table, and appends the values.
    fn append_mapped(&mut self, map: &ValueMap) {
        let part_of = |part: &TemplatePart| KeyPart::of_text(part);
        let from: Vec<_> = map.from.parts().iter().map(part_of).collect();
        let looked_up = self.beside(true, &from);
        if looked_up.len() > MOST_TEXTS {
            // Do not look up so many texts. Append the texts themselves, so that the request has
            // more than `MOST_TEXTS` texts, and `texts` returns `TOO_MANY`.
            return self.append_each(&looked_up);
        }
        let mut templates: Vec<&Template> = Vec::new();
        for text in &looked_up {
            let template = map.value(text);
            if !templates.contains(&template) {
                templates.push(template);
            }
        }
        // A table contains no other table.
        let values = templates.into_iter().flat_map(|template| {
            let parts: Vec<_> = template.parts().iter().map(KeyPart::of).collect();
            self.beside(self.is_lookup, &parts)
        });
        let values: Vec<_> = values.take(MOST_TEXTS + 1).collect();
        self.append_each(&values);
    }

    /// Returns the texts that `parts` alone give for the request. The texts in `self` do not
    /// precede them.
    fn beside(&self, is_lookup: bool, parts: &[KeyPart]) -> Vec<Vec<u8>> {
        let (request, hosts) = (self.request, self.hosts);
        let mut texts = Texts { request, hosts, is_lookup, texts: vec![Vec::new()] };
        texts.append(parts);
        texts.texts
    }

    /// Returns the host in lower case. In a key, a NUL byte replaces an unknown host and an empty
    /// host, because requests with an empty key are not limited.
    fn host(&self) -> Vec<u8> {
        let request = self.request;
        let authority = request.head.authority.map(|span| span.of(&request.bytes));
        let host = host_of(authority.unwrap_or_default());
        let is_known = self.hosts.is_empty() || names_host(self.hosts, host);
        if self.is_lookup || is_known && !host.is_empty() {
            host.to_ascii_lowercase()
        } else {
            b"\0".to_vec()
        }
    }
}

/// Returns the bytes of the client's network. A client of a Unix socket has no address, so the
/// result is empty.
fn network_of(client: Option<IpAddr>) -> Vec<u8> {
    let (network, length) = client.map(network).unwrap_or_default();
    network[..length].to_vec()
}

/// Returns the bytes of an IPv4 address (4), or of the /64 network of an IPv6 address (8). The
/// second value is the number of bytes.
pub fn network(client: IpAddr) -> ([u8; 8], usize) {
    let mut network = [0; 8];
    match client.to_canonical() {
        IpAddr::V4(address) => {
            network[..4].copy_from_slice(&address.octets());
            (network, 4)
        }
        IpAddr::V6(address) => {
            network.copy_from_slice(&address.octets()[..8]);
            (network, 8)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_an_ipv6_network_are_one_key() {
        let network = |text: &str| network_of(text.parse().ok());
        assert_eq!(network("2001:db8::1"), network("2001:db8::ffff:1"));
        assert_ne!(network("2001:db8::1"), network("2001:db8:0:1::1"));
        assert_eq!(network("::ffff:10.0.0.1"), network("10.0.0.1"));
        assert_ne!(network("10.0.0.1"), network("10.0.0.2"));
    }
}
