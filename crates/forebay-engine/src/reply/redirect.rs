//! Replies in whose place something else is to be sent.

use forebay_wire::sendfile::{self, Place};

/// What is to be sent in place of an origin's reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InternalRedirect {
    /// What the site answers for this target.
    Route(Vec<u8>),
    /// What the site answers for this path, normal, to a request that is otherwise the same.
    Path(Vec<u8>),
    /// A file.
    File {
        /// Which one.
        place: Place,
        /// Field lines of the origin's reply that the client gets with the file.
        fields: Vec<u8>,
    },
}

impl InternalRedirect {
    /// The file that the field lines of a reply name; `None` where they name none.
    pub fn to_file(lines: &[u8]) -> Option<Self> {
        let (place, fields) = sendfile::find(lines)?;
        Some(Self::File { place, fields })
    }
}
