//! A route's changes to the fields of requests and replies.

use super::Template;

/// A change to a field of requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestField {
    /// The name: letters, digits and hyphens. No field that frames the message.
    pub name: String,
    /// The change.
    pub change: RequestChange,
}

/// A change to a field of requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RequestChange {
    /// The field has this value, or is removed if the value is empty.
    Set(Template),
    /// The field is added to those of the client, unless the value is empty.
    Add(Template),
    /// The field is removed.
    Remove,
}

/// A field that is set or added in replies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplyField {
    /// The name, which is valid. No field that frames the message.
    pub name: String,
    /// The value. Its text has no control characters.
    pub value: Template,
    /// The field is added to those of the origin, and does not replace them.
    pub is_added: bool,
    /// The field is also part of replies with a status of 400 or more.
    pub always: bool,
}

/// The target of a rewrite: a path that begins with a slash, and a query.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rewrite {
    /// The target. Its text is percent-encoded.
    pub to: Template,
    /// The target has a query.
    pub has_query: bool,
    /// The client's query is appended.
    pub keep_query: bool,
}
