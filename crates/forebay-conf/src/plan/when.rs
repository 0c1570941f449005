//! Conditions of a route on other parts of a request than its path.

use super::{Clients, Regex};

/// Conditions on a request. It must meet all of them, and not all of `not`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct When {
    /// The method is one of these; empty: any. `GET` includes `HEAD`.
    pub methods: Vec<String>,
    /// Request fields by name.
    pub headers: Vec<(String, ValueTest)>,
    /// Cookies by name.
    pub cookies: Vec<(String, ValueTest)>,
    /// Parameters of the query by name.
    pub query: Vec<(String, ValueTest)>,
    /// The client has one of these addresses; empty: any.
    pub clients: Vec<Clients>,
    /// The client uses TLS or does not. `None`: either.
    pub https: Option<bool>,
    /// The subject of the client's certificate, which the site has verified.
    pub certificate: Option<ValueTest>,
    /// Conditions of which at least one must not be met.
    pub not: Option<Box<When>>,
}

/// A condition on a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ValueTest {
    /// There is a value.
    Present,
    /// There is no value.
    Absent,
    /// One of the values equals one of these, or matches it.
    OneOf(Vec<ValuePattern>),
}

/// A pattern of values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ValuePattern {
    /// Exactly this value.
    Exact(String),
    /// A value that this expression matches.
    Regex(Regex),
}

impl ValueTest {
    /// Returns true if these values meet the condition.
    pub fn holds<V: AsRef<[u8]>>(&self, values: impl IntoIterator<Item = V>) -> bool {
        let mut values = values.into_iter();
        match self {
            Self::Present => values.next().is_some(),
            Self::Absent => values.next().is_none(),
            Self::OneOf(patterns) => values.any(|value| {
                let value = value.as_ref();
                patterns.iter().any(|pattern| match pattern {
                    ValuePattern::Exact(text) => text.as_bytes() == value,
                    ValuePattern::Regex(regex) => regex.is_match(value),
                })
            }),
        }
    }
}
