//! Tests of a site's rules, written beside them.

/// A test of a site's rules: a request and its answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expectation {
    /// The method.
    pub method: String,
    /// A path with its query, for the first host of the site, or a URL.
    pub target: String,
    /// The answer.
    pub answer: ExpectedAnswer,
}

/// An expected answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExpectedAnswer {
    /// A status, and perhaps the `Location` of the reply.
    Status(u16, Option<String>),
    /// The kind of route that answers (`proxy`, `app`, ...), and perhaps the name of its
    /// application.
    Kind(&'static str, Option<String>),
    /// The route with this name.
    Route(String),
}
