//! Resolves media types and charsets.

use std::collections::BTreeMap;
use std::ops::Range;

use super::Resolution;
use super::value::{is_token, text};
use crate::error::Problem;
use crate::file::At;

/// Returns pairs of a name's end in lower case, such as `.tar.gz`, and a media type. Longer ends
/// come first.
pub(super) fn types(typed: &BTreeMap<String, At<String>>) -> Resolution<Vec<(String, String)>> {
    let mut types: Vec<(String, String)> = Vec::new();
    for (end, at) in typed {
        name_end(end, &at.span, " = \"TYPE\"")?;
        let end = end.to_ascii_lowercase();
        if types.iter().any(|(other, _)| *other == end) {
            return Err(Problem::new(&at.span, format!("\"{end}\" is given twice"))
                .help("the case of an end does not matter"));
        }
        types.push((end, media_type(at)?));
    }
    types.sort_by_key(|(end, _)| std::cmp::Reverse(end.len()));
    Ok(types)
}

/// Checks the end of a file's name, such as `.html`. An error shows the right form, with `after`
/// behind it.
pub(super) fn name_end(end: &str, span: &Range<usize>, after: &str) -> Resolution<()> {
    if end.len() > 1 && end.starts_with('.') && !end.contains(['/', '*', '\0']) {
        return Ok(());
    }
    let plain = end.rsplit(['/', '*']).next().unwrap_or_default().trim_start_matches('.');
    let help = match plain {
        "" => format!("write an end with its dot, such as \".html\"{after}"),
        _ => format!("write it with its dot: \".{plain}\"{after}"),
    };
    Err(Problem::new(span, format!("\"{end}\" is not the end of a file name")).help(help))
}

/// Checks a media type such as `text/plain; charset=utf-8`.
pub(super) fn media_type(typed: &At<String>) -> Resolution<String> {
    let typed_text = text(typed)?;
    let mut parts = typed_text.split(';').map(str::trim);
    let names = parts.next().and_then(|names| names.split_once('/'));
    let is_type = names.is_some_and(|(kind, name)| is_token(kind) && is_token(name));
    let is_parameter = |part: &str| {
        part.split_once('=').is_some_and(|(name, value)| is_token(name) && !value.is_empty())
    };
    if !is_type || !typed_text.is_ascii() || !parts.all(is_parameter) {
        return Err(Problem::new(&typed.span, format!("\"{typed_text}\" is not a media type"))
            .help("write a type such as \"text/plain\" or \"text/plain; charset=utf-8\""));
    }
    Ok(typed_text.to_owned())
}

pub(super) fn charset(typed: &At<String>) -> Resolution<String> {
    let name = text(typed)?;
    if !is_token(name) || name.eq_ignore_ascii_case("off") {
        return Err(Problem::new(&typed.span, format!("\"{name}\" is not a charset"))
            .help("write its name, such as \"utf-8\", or leave the key out"));
    }
    Ok(name.to_owned())
}
