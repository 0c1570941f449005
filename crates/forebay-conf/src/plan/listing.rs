//! The listing of a directory, and the template of its page.

use std::path::PathBuf;
use std::sync::Arc;

/// The answer for a directory without an index file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Listing {
    /// No listing.
    #[default]
    Never,
    /// Forebay's own page.
    BuiltIn,
    /// A page from a template.
    Template(Arc<ListingTemplate>),
}

/// The template of a listing. Forebay reads the file when it loads the configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListingTemplate {
    /// The absolute path of the file.
    pub file: PathBuf,
    /// The parts before `{entries}`.
    pub before: Vec<ListingPart>,
    /// The parts between `{entries}` and `{/entries}`, which are repeated for each entry.
    pub entry: Vec<ListingPart>,
    /// The parts after `{/entries}`.
    pub after: Vec<ListingPart>,
}

/// A part of the template of a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ListingPart {
    /// Text that is the same in every listing.
    Text(String),
    /// A value.
    Value(ListingValue),
}

/// A value in the template of a listing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListingValue {
    /// `{path}`: the decoded path of the directory.
    Path,
    /// `{parent}`: a link to the parent directory. For `/`: a link to `/` itself.
    Parent,
    /// `{sort.name}`: a link that sorts by name. If the listing is already sorted by name, the link
    /// reverses the order.
    SortName,
    /// `{sort.size}`: a link that sorts by size.
    SortSize,
    /// `{sort.time}`: a link that sorts by time.
    SortTime,
    /// `{sort}`: the current order: `name`, `size` or `time`.
    Sort,
    /// `{order}`: `asc` or `desc`.
    Order,
    /// `{note}`: a sentence if the listing is incomplete.
    Note,
    /// `{name}`: the name of the entry; for a directory with a final slash.
    Name,
    /// `{href}`: a link to the entry.
    Href,
    /// `{size}`: the size of a file with its unit.
    Size,
    /// `{bytes}`: the size of a file in bytes.
    Bytes,
    /// `{modified}`: the time of the last change in UTC.
    Modified,
    /// `{kind}`: `file` or `directory`.
    Kind,
}

impl ListingValue {
    /// All values with their names. The values of an entry follow the others.
    pub(crate) const ALL: [(&'static str, Self); 14] = [
        ("path", Self::Path),
        ("parent", Self::Parent),
        ("sort.name", Self::SortName),
        ("sort.size", Self::SortSize),
        ("sort.time", Self::SortTime),
        ("sort", Self::Sort),
        ("order", Self::Order),
        ("note", Self::Note),
        ("name", Self::Name),
        ("href", Self::Href),
        ("size", Self::Size),
        ("bytes", Self::Bytes),
        ("modified", Self::Modified),
        ("kind", Self::Kind),
    ];

    /// Returns true if the value belongs to an entry.
    pub(crate) fn is_of_entry(self) -> bool {
        use ListingValue::{Bytes, Href, Kind, Modified, Name, Size};
        matches!(self, Name | Href | Size | Bytes | Modified | Kind)
    }

    /// Returns true if clients or owners of files choose the text of the value. The text must not
    /// become part of a script or of a link.
    pub(crate) fn is_free_text(self) -> bool {
        matches!(self, Self::Path | Self::Name)
    }

    /// Returns true if the value is a link. The text of a link must not become part of another link
    /// or of a script.
    pub(crate) fn is_link(self) -> bool {
        use ListingValue::{Href, Parent, SortName, SortSize, SortTime};
        matches!(self, Href | Parent | SortName | SortSize | SortTime)
    }
}
