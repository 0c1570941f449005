//! Internal redirects: a file or another route's answer in place of an origin's reply.

use forebay_wire::sendfile::NamedFile;

use crate::filter::SsiPage;

/// An internal redirect: the source of the reply that replaces the origin's reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InternalRedirect {
    /// The site's answer to a GET for this target.
    Route(Vec<u8>),
    /// The configured error page for the origin's error reply.
    Page {
        /// Status of the origin's reply.
        status: u16,
        /// Field lines of that reply that belong to the error.
        fields: Vec<u8>,
    },
    /// The evaluation of this SSI page, which is the origin's reply.
    Includes(Box<SsiPage>),
    /// A file.
    File {
        /// Location of the file.
        place: NamedFile,
        /// Field lines of the origin's reply that are sent to the client with the file.
        fields: Vec<u8>,
    },
}
