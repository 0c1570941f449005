//! The path of a request to a backend, if its prefix is replaced by another prefix.

use crate::keys::Keys;
use crate::template::literal;

/// The change of a request's path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mount {
    Same,
    /// The prefix is removed.
    Strip(String),
    /// The path is replaced by this template.
    Rewrite(String),
}

/// Returns the change that replaces `prefix` by `target` at the beginning of a path. The text of an
/// error says what the user must do.
pub fn mount(prefix: &str, target: &str, is_exact: bool, keys: &Keys) -> Result<Mount, String> {
    let bare = |path: &str| path.trim_end_matches('/').to_owned();
    if prefix == target || (!is_exact && bare(prefix) == bare(target)) {
        return Ok(Mount::Same);
    }
    if bare(target).is_empty() && !is_exact {
        return Ok(Mount::Strip(bare(prefix)));
    }
    if !keys.route("rewrite") {
        return Err(format!(
            "let the server answer below {prefix}, or write its own paths in the route"
        ));
    }
    if is_exact {
        return Ok(Mount::Rewrite(literal(target, keys)));
    }
    // `{rest}` begins after the slash that ends the prefix.
    Ok(Mount::Rewrite(format!("{}/{{rest}}", literal(&bare(target), keys))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_are_removed_or_replaced() {
        let (with, without) = (Keys::with(&["rewrite"]), Keys::without(&["rewrite"]));
        assert_eq!(mount("/", "/", false, &with), Ok(Mount::Same));
        assert_eq!(mount("/a/", "/a/", false, &with), Ok(Mount::Same));
        assert_eq!(mount("/a/", "/", false, &with), Ok(Mount::Strip("/a".into())));
        assert_eq!(mount("/a/", "/b/", false, &with), Ok(Mount::Rewrite("/b/{rest}".into())));
        assert_eq!(mount("/a", "/b", true, &with), Ok(Mount::Rewrite("/b".into())));
        assert!(mount("/a/", "/b/", false, &without).is_err());
    }
}
