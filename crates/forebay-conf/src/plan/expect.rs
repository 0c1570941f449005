//! Tests of a site's routes, written in the configuration beside the routes.

/// A test of a site's routes: a request and its expected answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expectation {
    /// The method of the request.
    pub method: String,
    /// The target of the request: a URL, or a path with its query for the first host of the site.
    pub target: String,
    /// The expected answer.
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
