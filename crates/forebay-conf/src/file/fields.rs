//! Changes to the fields of requests and replies, as the user types them.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Deserialize;

use super::shape::{At, OneOrMany, TextOr};

/// Request fields by name.
pub type RequestFields = BTreeMap<String, At<TextOr<RequestField>>>;

/// Reply fields by name.
pub type ReplyFields = BTreeMap<String, At<TextOr<ReplyField>>>;

/// A request field to set or add.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(extend("required" = ["value"]))]
pub struct RequestField {
    /// The value, with placeholders. An empty value removes the client's field. With `add`, the
    /// typed value must not be empty. If replacing the placeholders gives an empty value, Forebay
    /// adds nothing.
    pub value: Option<At<String>>,
    /// Adds the field to the client's fields of this name. With false, the field replaces them.
    /// Default: false.
    pub add: Option<bool>,
}

/// A reply field to set or add.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(extend("required" = ["value"]))]
pub struct ReplyField {
    /// The value, with placeholders, or a list of values for several fields of this name.
    pub value: Option<At<OneOrMany<String>>>,
    /// Sets the field also in replies with a status of 400 or more. Default: `always` of the
    /// route.
    pub always: Option<bool>,
}
