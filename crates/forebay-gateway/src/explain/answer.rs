//! The part of an answer that the rules and the file system decide, without any backend.

use std::path::PathBuf;

use forebay_conf::ErrorPages;

/// An answer, as far as it is known.
#[derive(Debug, Default)]
pub struct Answer {
    /// The number of the site.
    pub site: Option<usize>,
    /// The number of the route that answers.
    pub route: Option<usize>,
    /// The status; `None` if a process or a backend chooses it.
    pub status: Option<u16>,
    /// The status that an error page gives the client instead of `status`.
    pub of_page: Option<u16>,
    /// The `Location` of a redirect.
    pub location: Option<String>,
    /// The file that a files route sends.
    pub file: Option<PathBuf>,
}

impl Answer {
    /// Sets the status, unless an earlier step has answered.
    pub fn decide(&mut self, status: u16) {
        self.status.get_or_insert(status);
    }

    /// Sets the status of an error. Also sets the status that the client gets, if an error page
    /// replaces `status` with another one. Does nothing if an earlier step has answered.
    pub fn refuse(&mut self, status: u16, pages: &ErrorPages) {
        if self.status.is_none() {
            self.of_page = pages.of(status).and_then(|page| page.status);
        }
        self.decide(status);
    }

    /// Returns the status that the client gets. Returns `None` if no step has answered.
    pub fn sent_status(&self) -> Option<u16> {
        self.of_page.or(self.status)
    }

    /// Sets the status and the target of a redirect, unless an earlier step has answered.
    pub fn redirect(&mut self, status: u16, location: String) {
        if self.status.is_none() {
            (self.status, self.location) = (Some(status), Some(location));
        }
    }
}
