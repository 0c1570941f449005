//! A route's changes to the fields of requests and replies.

use super::Template;

/// A change to a field of requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestField {
    /// The name: letters, digits and hyphens. Names of fields that frame the message are not
    /// allowed.
    pub name: String,
    /// The change.
    pub change: RequestChange,
}

/// A change to a field of requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RequestChange {
    /// The field gets this value. If the value is empty, the field is removed.
    Set(Template),
    /// The field is added to the client's fields of this name, unless the value is empty.
    Add(Template),
    /// The field is removed.
    Remove,
}

/// A field that is set or added in replies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplyField {
    /// The name; a valid field name. Names of fields that frame the message are not allowed.
    pub name: String,
    /// The value. Its text has no control characters.
    pub value: Template,
    /// True if the field is added to the origin's fields of this name. Otherwise the field replaces
    /// them.
    pub is_added: bool,
    /// True if the field is also set in replies with a status of 400 or more.
    pub always: bool,
}

/// The target of a rewrite: a path that begins with a slash, and a query.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rewrite {
    /// The path and the query. The text of the template is percent-encoded.
    pub to: Template,
    /// True if the target has a query.
    pub has_query: bool,
    /// True if the client's query is appended.
    pub keep_query: bool,
}
