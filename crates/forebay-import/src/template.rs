//! Texts with placeholders.

use crate::keys::Keys;
use crate::pattern::{PatternConditions, group_name};

/// Returns a text as a template. Doubles each opening brace before a letter or `_`, because a
/// single brace would begin a placeholder.
pub fn literal(text: &str, keys: &Keys) -> String {
    if !keys.has_placeholders() {
        return text.to_owned();
    }
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        out.push(c);
        let is_name = |c: &char| c.is_ascii_alphabetic() || *c == '_';
        if c == '{' && chars.peek().is_some_and(is_name) {
            out.push('{');
        }
    }
    out
}

/// Adds a placeholder, or a literal text of [`literal`], to a text with placeholders. Returns `None`
/// if a brace at the end of `out` would change the meaning of `part`: `{` before `{host}` would be
/// an escaped brace, and `{` before `host}` would be a placeholder.
pub fn join(out: &mut String, part: &str) -> Option<()> {
    let changes = |c: char| c.is_ascii_alphabetic() || c == '_' || c == '{';
    if out.ends_with('{') && part.starts_with(changes) {
        return None;
    }
    out.push_str(part);
    Some(())
}

/// Returns the placeholder of a numbered group; `None` if the conditions do not have this group.
pub fn group(number: usize, found: &PatternConditions) -> Option<String> {
    if found.rest == Some(number) {
        Some("{rest}".into())
    } else if found.path == Some(number) || number == 0 {
        Some("{path}".into())
    } else if found.matcher.regex.is_some() {
        Some(format!("{{{}}}", group_name(number)))
    } else {
        None
    }
}

/// Returns the target without the client's query at its end, because Forebay appends this query by
/// itself. The flag is true if the target had the query.
pub fn without_query(target: &str) -> (String, bool) {
    for end in ["?{query}", "&{query}"] {
        if let Some(before) = target.strip_suffix(end) {
            return (before.to_owned(), true);
        }
    }
    (target.to_owned(), false)
}

/// Returns the target of a redirect in the form of this version. Some versions do not append the
/// client's query by themselves. `keeps_query` is true if the client's query belongs to the target.
pub fn redirect_target(target: &str, keeps_query: bool, keys: &Keys) -> String {
    let has_query = target.contains("{uri}") || target.contains("{query}");
    match (keys.has_placeholders(), keeps_query) {
        (true, true) => target.to_owned(),
        // A final question mark drops the client's query.
        (true, false) if has_query || target.ends_with('?') => target.to_owned(),
        (true, false) => format!("{target}?"),
        (false, true) if !has_query && !target.contains('?') => {
            match target.strip_suffix("{path}") {
                Some(before) => format!("{before}{{uri}}"),
                None => format!("{target}?{{query}}"),
            }
        }
        (false, _) => target.trim_end_matches('?').to_owned(),
    }
}

/// Returns true if Forebay accepts the target of a redirect. For example, a client must not choose
/// the host.
pub fn is_redirect_target(target: &str) -> bool {
    let is_plain = target.is_ascii()
        && !target.contains([' ', '\\'])
        && !target.bytes().any(|byte| byte.is_ascii_control());
    let schemes = ["https://", "http://", "{scheme}://"];
    let after = schemes.iter().find_map(|scheme| target.strip_prefix(scheme));
    let is_placed = match after {
        Some(rest) => {
            let rest = rest.strip_prefix("www.").unwrap_or(rest);
            let after_host = ["{host}", "{bare_host}"]
                .iter()
                .find_map(|host| rest.strip_prefix(host))
                .map(|rest| rest.strip_prefix("{requested_port}").unwrap_or(rest));
            let rest = after_host.map_or(rest, |rest| if rest.is_empty() { "/" } else { rest });
            !rest.is_empty() && !rest.starts_with('{') && has_fixed_host(rest)
                || after_host.is_some()
                    && ["/", "{path}", "{uri}", "?", ":"]
                        .iter()
                        .any(|start| rest.starts_with(start))
        }
        None => {
            target.starts_with('/') && !target.starts_with("//")
                || target.starts_with("{path}")
                || target.starts_with("{uri}")
        }
    };
    is_plain && is_placed && has_closed_braces(target)
}

/// Returns true if no part of the host comes from the client.
fn has_fixed_host(rest: &str) -> bool {
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let host = rest[..end].replace("{requested_port}", "");
    match host.find('{') {
        None => true,
        Some(at) => host[at..].starts_with("{path}") || host[at..].starts_with("{uri}"),
    }
}

/// Returns true if Forebay accepts the target of a rewrite.
pub fn is_rewrite_target(target: &str) -> bool {
    let path = target.split('?').next().unwrap_or_default();
    let query = target.split_once('?').map_or("", |(_, query)| query);
    let starts = path.starts_with('/') || path.starts_with("{path}") || path.starts_with("{uri}");
    let hex = |at: usize| path.as_bytes().get(at).is_some_and(u8::is_ascii_hexdigit);
    starts
        && !path.contains(['*', '#'])
        && !query.contains('#')
        && !path.contains("//")
        && !path.chars().any(char::is_control)
        && !path.match_indices('%').any(|(at, _)| hex(at + 1) && hex(at + 2))
        && !path.split('/').any(|part| part == "." || part == "..")
        && query.bytes().all(|byte| byte.is_ascii_graphic())
        && has_closed_braces(target)
}

/// Returns true if every brace encloses the name of a placeholder.
fn has_closed_braces(target: &str) -> bool {
    let mut rest = target;
    while let Some((_, after)) = rest.split_once('{') {
        let Some((name, behind)) = after.split_once('}') else { return false };
        if name.is_empty()
            || !name.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b))
        {
            return false;
        }
        rest = behind;
    }
    true
}

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
