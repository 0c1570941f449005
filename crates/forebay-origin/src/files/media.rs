//! Media types of files, by the ends of their names.

use std::borrow::Cow;

/// The media types of a route's files.
#[derive(Clone)]
pub struct MediaTypes {
    /// Types by the end of a name in lower case. Longer ends come first.
    own: Vec<(String, String)>,
    /// The type of files that have no other type.
    default: Cow<'static, str>,
}

impl Default for MediaTypes {
    fn default() -> Self {
        Self { own: Vec::new(), default: Cow::Borrowed("application/octet-stream") }
    }
}

impl MediaTypes {
    /// Creates the types that `settings` names.
    pub fn new(settings: &forebay_conf::Files) -> Self {
        Self { own: settings.types.clone(), default: settings.default_type.clone().into() }
    }

    /// Returns the media type of the file at `path`.
    pub fn of(&self, path: &[u8]) -> Cow<'static, str> {
        let name = path.rsplit(|&b| b == b'/').next().unwrap_or_default();
        let fits = |end: &str| {
            let start = name.len().checked_sub(end.len());
            start.is_some_and(|at| name[at..].eq_ignore_ascii_case(end.as_bytes()))
        };
        if let Some((_, own)) = self.own.iter().find(|(end, _)| fits(end)) {
            return Cow::Owned(own.clone());
        }
        let extension = name.rsplit(|&b| b == b'.').next().unwrap_or_default();
        str::from_utf8(extension)
            .ok()
            .filter(|extension| extension.len() < name.len())
            .and_then(|extension| mime_guess::from_ext(extension).first_raw())
            .map_or_else(|| self.default.clone(), Cow::Borrowed)
    }
}
