//! Parses the targets of redirects and rewrites.

use super::Resolution;
use super::value::text;
use crate::error::Problem;
use crate::file::At;
use crate::key::template;
use crate::plan::{Placeholder, Rewrite, Scope, Template, TemplatePart};

/// Parses the target of a redirect. Refuses a target whose host or scheme the client could choose.
/// The boolean is true if the client's query is appended.
pub(super) fn redirect_target(
    typed: &At<&String>,
    known: Scope<'_>,
) -> Resolution<(Template, bool)> {
    let target = text(typed)?;
    let problem = || Problem::new(&typed.span, format!("cannot redirect to \"{target}\""));
    if target.contains(' ') || !target.is_ascii() {
        return Err(problem()
            .help("give a URL (https://...) or a path that begins with a slash, percent-encoded"));
    }
    let (target, ends_query) = without_question_mark(target);
    let to = template(target, &typed.span, known)?;
    if let Some(open) = unclosed_brace(&to) {
        return Err(Problem::new(&typed.span, format!("there is no placeholder \"{open}\""))
            .help("close it with }, or write %7B for a brace"));
    }
    host_is_the_files(&to, target, typed)?;
    let is_path = |first: &TemplatePart| match first {
        TemplatePart::Text(text) => text.starts_with('/'),
        TemplatePart::Value(value) => matches!(value, Placeholder::Path | Placeholder::Uri),
    };
    if after_scheme(&to).is_none() && !to.parts().first().is_some_and(is_path) {
        return Err(problem()
            .help("give a URL (https://...) or a path that begins with a slash, percent-encoded"));
    }
    let keep_query = !ends_query && !has_query_of_client(&to);
    Ok((to, keep_query))
}

/// Parses the target of `rewrite` or `fallback_to`. The user types the path decoded, as in the key
/// `path`.
pub(super) fn rewrite_target(typed: &At<&String>, known: Scope<'_>) -> Resolution<Rewrite> {
    let target = text(typed)?;
    let problem = || Problem::new(&typed.span, format!("\"{target}\" is not a path"));
    let (target, ends_query) = without_question_mark(target);
    let (path, query) = match target.split_once('?') {
        Some((path, query)) => (path, Some(query)),
        None => (target, None),
    };
    let starts = path.starts_with('/') || path.starts_with("{path}") || path.starts_with("{uri}");
    if !starts || path.starts_with("//") {
        return Err(problem().help("a path begins with one slash, such as \"/index.php\""));
    }
    if target.contains('#') {
        return Err(problem().help("leave off `#` and the rest: only browsers use it"));
    }
    if path.contains('*') {
        return Err(Problem::new(
            &typed.span,
            format!("\"{target}\" is not the path of one thing"),
        )
        .help("leave off the `*`: give a path such as \"/index.php\", or use {rest}"));
    }
    let hex = |at: usize| path.as_bytes().get(at..at + 2);
    let is_escape = |(at, _): (usize, &str)| {
        hex(at + 1).is_some_and(|two| two.iter().all(u8::is_ascii_hexdigit))
    };
    if path.match_indices('%').any(is_escape) {
        return Err(problem().help("the path is typed decoded: write the character itself"));
    }
    if path.split('/').any(|part| part == "." || part == "..") || path.contains("//") {
        return Err(problem().help("leave out `//`, `.` and `..`"));
    }
    if query.is_some_and(|query| !query.bytes().all(|byte| byte.is_ascii_graphic())) {
        return Err(problem().help("percent-encode the query, such as %20 for a space"));
    }
    let mut parts = encoded(template(path, &typed.span, known)?);
    if let Some(query) = query {
        let query = template(query, &typed.span, known)?;
        parts.push(TemplatePart::Text("?".into()));
        parts.extend_from_slice(query.parts());
    }
    let to = Template::of(merged(parts));
    let keep_query = !ends_query && !has_query_of_client(&to);
    let has_query =
        query.is_some() || ends_query || to.uses(|value| matches!(value, Placeholder::Uri));
    Ok(Rewrite { to, has_query, keep_query })
}

/// Removes a final question mark, which drops the client's query, as in nginx. The boolean is true
/// if the target ended with a question mark. Returns the target `?` unchanged.
fn without_question_mark(target: &str) -> (&str, bool) {
    match target.strip_suffix('?') {
        Some(rest) if !rest.is_empty() => (rest, true),
        _ => (target, false),
    }
}

fn has_query_of_client(to: &Template) -> bool {
    to.uses(|value| matches!(value, Placeholder::Query | Placeholder::Uri))
}

/// Returns the text from the first `{` that begins no placeholder, such as `{host` for `/a/{host`.
/// Returns `None` if there is no such `{`.
fn unclosed_brace(to: &Template) -> Option<String> {
    to.parts().iter().find_map(|part| match part {
        TemplatePart::Text(text) => text.find('{').map(|at| text[at..].to_owned()),
        TemplatePart::Value(_) => None,
    })
}

/// Percent-encodes the texts of a path, but not its placeholders.
fn encoded(path: Template) -> Vec<TemplatePart> {
    let encode = |text: &str| {
        let byte = |byte: u8| match byte {
            b'!'..=b'~' if !b"\"<>\\^`{|}#?%".contains(&byte) => (byte as char).to_string(),
            _ => format!("%{byte:02X}"),
        };
        text.bytes().map(byte).collect()
    };
    let part = |part: &TemplatePart| match part {
        TemplatePart::Text(text) => TemplatePart::Text(encode(text)),
        value => value.clone(),
    };
    path.parts().iter().map(part).collect()
}

/// Joins adjacent texts.
fn merged(parts: Vec<TemplatePart>) -> Vec<TemplatePart> {
    let mut merged: Vec<TemplatePart> = Vec::with_capacity(parts.len());
    for part in parts {
        match (merged.last_mut(), part) {
            (Some(TemplatePart::Text(last)), TemplatePart::Text(text)) => last.push_str(&text),
            (_, part) => merged.push(part),
        }
    }
    merged
}

/// Splits a target such as `https://{host}/x` after `//`. Returns the text up to the first
/// placeholder, and the parts after this text. Returns `None` if the target does not begin with
/// `https://`, `http://` or `{scheme}://`.
fn after_scheme(to: &Template) -> Option<(&str, &[TemplatePart])> {
    match to.parts() {
        [TemplatePart::Text(text), rest @ ..] => {
            let after = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://"))?;
            Some((after, rest))
        }
        [TemplatePart::Value(Placeholder::Scheme), TemplatePart::Text(text), rest @ ..] => {
            Some((text.strip_prefix("://")?, rest))
        }
        _ => None,
    }
}

/// Checks that a client cannot choose the host of a redirect by the path that it requests. After
/// the scheme, the target must have a host. After the host, the target must end, or continue with
/// `/`, `?`, `#`, or a placeholder whose value begins with a slash.
fn host_is_the_files(to: &Template, target: &str, typed: &At<&String>) -> Resolution<()> {
    let problem = || {
        Problem::new(&typed.span, format!("\"{target}\" lets clients choose where they are sent"))
            .help("put a host and a slash in front, as in \"https://example.org/{rest}\"")
    };
    // Browsers read a backslash as a slash, so `/\` may begin a host.
    if to.constant().is_none() && (target.contains('\\') || target.starts_with("//")) {
        let message = format!("\"{target}\" may lead to a host that clients choose");
        return Err(Problem::new(&typed.span, message)
            .help("write \"https://{host}/...\", or a path that begins with one slash"));
    }
    let Some((mut text, rest)) = after_scheme(to) else { return Ok(()) };
    let mut has_host = false;
    for part in rest.iter().map(Some).chain([None]) {
        if let Some(end) = text.find(['/', '?', '#']) {
            return if end > 0 || has_host { Ok(()) } else { Err(problem()) };
        }
        has_host |= !text.is_empty();
        match part {
            Some(TemplatePart::Text(next)) => text = next,
            Some(TemplatePart::Value(Placeholder::Host | Placeholder::BareHost)) => {
                (text, has_host) = ("", true);
            }
            Some(TemplatePart::Value(Placeholder::Port)) if text.ends_with(':') => text = "",
            Some(TemplatePart::Value(Placeholder::RequestedPort)) if has_host => text = "",
            Some(TemplatePart::Value(Placeholder::Path | Placeholder::Uri)) | None if has_host => {
                return Ok(());
            }
            _ => return Err(problem()),
        }
    }
    Ok(())
}
