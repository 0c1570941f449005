//! The request fields that a configuration of Forebay cannot set, or need not set.

/// Fields that Forebay sends to HTTP servers by itself, each with the values of nginx that have the
/// same effect. An empty list means all values.
const SENT: [(&str, &[&str]); 7] = [
    ("host", &[]),
    ("x-forwarded-for", &["$proxy_add_x_forwarded_for", "$remote_addr", "$http_x_forwarded_for"]),
    ("x-forwarded-proto", &["$scheme", "$http_x_forwarded_proto", "$proxy_x_forwarded_proto"]),
    ("x-forwarded-host", &["$host", "$http_host", "$server_name", "$http_x_forwarded_host"]),
    ("upgrade", &[]),
    ("connection", &[]),
    ("x-forwarded-scheme", &["$scheme", "$http_x_forwarded_proto"]),
];

/// Fields that Forebay does not let a configuration set. It removes those that a client must not
/// send.
const OWN: [&str; 9] = [
    "content-length",
    "expect",
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

/// Returns Forebay's treatment of a request field with this value. Returns `None` if the
/// configuration may set the field.
pub fn of(name: &str, value: &str) -> Option<Fixed> {
    if OWN.iter().any(|own| own.eq_ignore_ascii_case(name)) {
        return Some(Fixed::Own);
    }
    let (_, usual) = SENT.iter().find(|(sent, _)| sent.eq_ignore_ascii_case(name))?;
    let is_usual = usual.is_empty() || usual.contains(&value);
    Some(if is_usual { Fixed::Sent } else { Fixed::SentOtherwise })
}
