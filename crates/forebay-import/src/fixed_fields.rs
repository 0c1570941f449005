//! The request fields that a configuration of Forebay cannot set, or need not set.

/// Fields that Forebay sends to HTTP servers by itself, each with the values of nginx that have the
/// same effect. An empty list means all values.
const SENT: [(&str, &[&str]); 6] = [
    ("host", &[]),
    ("x-forwarded-for", &["$proxy_add_x_forwarded_for", "$remote_addr"]),
    ("x-forwarded-proto", &["$scheme"]),
    ("x-forwarded-host", &["$host", "$http_host"]),
    ("upgrade", &[]),
    ("connection", &[]),
];

/// Fields that Forebay does not let a configuration set. It removes those that a client must not
/// send.
const OWN: [&str; 10] = [
    "content-length",
    "expect",
    "forebay-hops",
    "http2-settings",
    "keep-alive",
    "proxy",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
];

/// The treatment of a request field that nginx sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fixed {
    /// Forebay sends the field with a value of the same effect.
    Sent,
    /// Forebay sends the field, but its value may differ.
    SentOtherwise,
    /// Forebay sets or removes the field itself.
    Own,
}

/// Returns true for a field that a configuration of Forebay cannot set or remove.
pub fn is_own(name: &str) -> bool {
    OWN.iter().any(|own| own.eq_ignore_ascii_case(name))
}

/// Returns Forebay's treatment of a request field with this value. Returns `None` if the
/// configuration may set the field.
pub fn of(name: &str, value: &str) -> Option<Fixed> {
    if is_own(name) {
        return Some(Fixed::Own);
    }
    let (_, usual) = SENT.iter().find(|(sent, _)| sent.eq_ignore_ascii_case(name))?;
    let is_usual = usual.is_empty() || usual.contains(&value);
    Some(if is_usual { Fixed::Sent } else { Fixed::SentOtherwise })
}
