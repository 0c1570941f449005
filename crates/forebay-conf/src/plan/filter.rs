//! Changes to the bodies of replies.

use super::{MediaPattern, Placeholder, Template, TemplatePart};

/// Changes to the bodies of a route's replies.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filters {
    /// Texts to replace. Default `None`.
    pub replace: Option<Replace>,
    /// Server-side includes. Default `None`.
    pub ssi: Option<Ssi>,
}

impl Filters {
    /// Returns true if bodies are not changed.
    pub fn is_empty(&self) -> bool {
        self.replace.is_none() && self.ssi.is_none()
    }
}

/// Server-side includes in the bodies of replies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ssi {
    /// The media types of replies to evaluate. Never empty. Default `text/html`.
    pub types: Vec<MediaPattern>,
    /// The largest page in bytes, with all that it includes. Default 4 MiB.
    pub max_size: usize,
    /// Keeps the validators of evaluated pages. Default false.
    pub last_modified: bool,
}

/// Literal texts to replace in the bodies of replies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replace {
    /// The texts to find, with their replacements. Never empty. No text is empty, and no text
    /// occurs twice.
    pub texts: Vec<(String, Template)>,
    /// The media types of replies to change. Never empty. Default `text/html`.
    pub types: Vec<MediaPattern>,
    /// The escapes for values of placeholders.
    pub escape: ReplaceEscape,
    /// Replaces only the first occurrence of each text. Default false.
    pub once: bool,
    /// Finds texts without regard to the case of ASCII letters. Default false.
    pub ignore_case: bool,
    /// Keeps the validators of changed replies. Default false.
    pub last_modified: bool,
}

/// The escapes for values of placeholders in replacements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplaceEscape {
    /// For the text of an HTML or XML document.
    Html,
    /// For a JSON string.
    Json,
}

impl Replace {
    /// Returns true if a replacement uses a value that is not a part of the URL, such as `{user}`.
    /// The changed reply may then be meant for only one visitor.
    pub fn is_private(&self) -> bool {
        let of_url = |value: &Placeholder| {
            matches!(
                value,
                Placeholder::Scheme
                    | Placeholder::Host
                    | Placeholder::Port
                    | Placeholder::RequestedPort
                    | Placeholder::Path
                    | Placeholder::Query
                    | Placeholder::Uri
                    | Placeholder::Rest
                    | Placeholder::Prefix
                    | Placeholder::Capture(_)
                    | Placeholder::Parameter(_)
            )
        };
        self.texts.iter().any(|(_, to)| to.uses(|value| !of_url(value)))
    }

    /// Returns true if a replacement has a placeholder.
    pub fn has_placeholders(&self) -> bool {
        self.texts.iter().any(|(_, to)| to.uses(|_| true))
    }
}

/// Returns true if the placeholder's values need no escapes: their characters have no meaning in
/// HTML, scripts and style sheets.
pub(crate) fn is_plain(value: &Placeholder) -> bool {
    matches!(
        value,
        Placeholder::Scheme
            | Placeholder::Host
            | Placeholder::Port
            | Placeholder::RequestedPort
            | Placeholder::Client
            | Placeholder::ClientPort
            | Placeholder::Country(_)
            | Placeholder::Asn(_)
            | Placeholder::RequestId
    )
}

/// Returns true if the text of a template may begin a script or a style sheet.
pub(crate) fn has_script(template: &Template) -> bool {
    template.parts().iter().any(|part| match part {
        TemplatePart::Text(text) => {
            let text = text.to_ascii_lowercase();
            text.contains("<script") || text.contains("<style")
        }
        TemplatePart::Value(_) => false,
    })
}
