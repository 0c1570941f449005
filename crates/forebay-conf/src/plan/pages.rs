//! Pages for errors and for closed sites, and the CORS settings of a route.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::{Clients, Template};

/// Pages for errors. The first page whose status or class fits is sent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ErrorPages {
    /// Pages by status. The pages of a route precede those of its site. In each group, pages for
    /// one status precede pages for a class.
    pub pages: Vec<(Statuses, Arc<Page>)>,
    /// True if the pages also replace the error replies of backends and applications.
    pub intercept: bool,
}

/// One status, or a class of statuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Statuses {
    /// This status, from 400 to 599.
    One(u16),
    /// All statuses with this first digit: 4 or 5.
    Class(u16),
}

/// A page. Forebay reads the file when it loads the configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// The absolute path of the file.
    pub file: PathBuf,
    /// The text of the page.
    pub text: Template,
    /// The status that replaces the status of the error. `None`: the status of the error.
    pub status: Option<u16>,
    /// The kind of the page, from the ending of the file.
    pub kind: PageKind,
}

/// The kind of a page. It determines how the values of placeholders are escaped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageKind {
    /// `.html` and `.htm`.
    Html,
    /// `.json`.
    Json,
    /// Any other ending: plain text.
    Text,
}

/// A page for all requests while a site or route is closed, except for some clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Maintenance {
    /// The page, sent with status 503.
    pub page: Arc<Page>,
    /// The time in the field `Retry-After`. Default 10 minutes.
    pub retry_after: Duration,
    /// Clients that are served as usual. Default: none.
    pub except: Vec<Clients>,
    /// The page is sent only while this file exists. `None`: always.
    pub while_exists: Option<PathBuf>,
}

/// Web pages of other origins that may use a route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cors {
    /// True if pages of any origin may use the route. `origins` is then empty.
    pub any: bool,
    /// The origins whose pages may use the route, in lower case.
    pub origins: Vec<OriginPattern>,
    /// Methods that pages may use. Never empty.
    pub methods: Vec<String>,
    /// Request headers that pages may send. `None`: all that they ask for.
    pub headers: Option<Vec<String>>,
    /// Reply headers that pages may read. Default: none.
    pub expose: Vec<String>,
    /// True if pages may send cookies and passwords. Never true together with `any`.
    pub credentials: bool,
    /// The time that browsers may keep the answer to a preflight request. Default 10 minutes.
    pub max_age: Duration,
}

/// A pattern of origins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OriginPattern {
    /// This origin: scheme, host and port.
    Exact(String),
    /// Origins that begin with `start` and end in `end`, with at least one label of the host name
    /// between them.
    Below {
        /// The scheme with `://`.
        start: String,
        /// The end of the host name, with the dot before it, and the port.
        end: String,
    },
}

impl ErrorPages {
    /// Returns the first page for a status. Returns `None` if no page is for this status.
    pub fn of(&self, status: u16) -> Option<&Page> {
        let fits = |statuses: Statuses| match statuses {
            Statuses::One(one) => one == status,
            Statuses::Class(class) => class == status / 100,
        };
        self.pages.iter().find(|(statuses, _)| fits(*statuses)).map(|(_, page)| &**page)
    }
}

impl Cors {
    /// Returns true if pages of this origin may use the route.
    pub fn allows(&self, origin: &[u8]) -> bool {
        let Ok(origin) = str::from_utf8(origin) else { return false };
        let origin = origin.to_ascii_lowercase();
        let fits = |pattern: &OriginPattern| match pattern {
            OriginPattern::Exact(exact) => *exact == origin,
            OriginPattern::Below { start, end } => {
                let rest = origin.strip_prefix(start.as_str());
                let label = rest.and_then(|rest| rest.strip_suffix(end.as_str()));
                let is_host = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '.';
                label.is_some_and(|label| !label.is_empty() && label.chars().all(is_host))
            }
        };
        self.any || self.origins.iter().any(fits)
    }
}
