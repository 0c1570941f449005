//! Resolves `replace` and `ssi` of a route.

use super::reply::media_pattern;
use super::value::required;
use super::{Context, Resolution};
use crate::error::Problem;
use crate::file::{self, At, BoolOr};
use crate::key::{no_effect, not_empty, template};
use crate::plan::{
    Action, Filters, MediaPattern, Replace, ReplaceEscape, RequestChange, RequestField, Scope,
    Template, has_script, is_plain,
};

/// The largest number of texts.
const MOST_TEXTS: usize = 64;
/// The largest length of a text. The filter holds back at most this many bytes of a reply.
const LONGEST_TEXT: usize = 1024;

/// Resolves `replace` and `ssi`, which change the bodies of replies. Adds to `fields` the removal
/// of request fields such as `Accept-Encoding`, so that the body can be changed.
pub(super) fn filters(
    context: &Context<'_>,
    typed: &file::Route,
    (action, known): (&Action, Scope<'_>),
    fields: &mut Vec<RequestField>,
) -> Resolution<Filters> {
    let replace = match &typed.replace {
        None | Some(At { value: BoolOr::Bool(false), .. }) => None,
        Some(at @ At { value: BoolOr::Bool(true), .. }) => {
            return Err(Problem::new(&at.span, "`replace` needs the texts to replace")
                .help("write replace = { texts = { \"old\" = \"new\" } }"));
        }
        Some(at @ At { value: BoolOr::Table(table), .. }) => {
            if has_pages(context, "replace", at, action)? {
                Some(replace(&at.with(table), known)?)
            } else {
                None
            }
        }
    };
    let ssi = match &typed.ssi {
        None | Some(At { value: None, .. }) => None,
        Some(at) if !has_pages(context, "ssi", at, action)? => None,
        Some(at) => at.value.clone(),
    };
    let filters = Filters { replace, ssi };
    let mut remove = |name: &str| {
        if !fields.iter().any(|field| field.name.eq_ignore_ascii_case(name)) {
            fields.push(RequestField { name: name.to_owned(), change: RequestChange::Remove });
        }
    };
    if !filters.is_empty() {
        // Forebay cannot find texts in an encoded body, so the server must not encode bodies.
        // Forebay can still compress the changed body.
        remove("Accept-Encoding");
    }
    if filters.ssi.is_some() && !matches!(action, Action::Files(_)) {
        // Forebay evaluates only whole pages, so the server must not send ranges. A `files` route
        // needs no such change, because it ignores ranges of evaluated pages.
        remove("Range");
        remove("If-Range");
    }
    Ok(filters)
}

/// Returns true if replies of the action may have text to change. For `redirect` and `rewrite`,
/// whose replies have no text, returns an error. Returns false for them if the route has the key
/// only from `[defaults]`.
fn has_pages<T>(context: &Context<'_>, key: &str, at: &At<T>, action: &Action) -> Resolution<bool> {
    let name = match action {
        Action::Redirect(_) | Action::Moved(_) => "redirect",
        Action::Rewrite => "rewrite",
        _ => return Ok(true),
    };
    if context.is_default(&at.span) {
        return Ok(false);
    }
    Err(no_effect(&at.span, key, &format!("beside `{name}`"), "leave it out"))
}

fn replace(at: &At<&file::Replace>, known: Scope<'_>) -> Resolution<Replace> {
    let table = at.value;
    let first = table.texts.values().next().cloned();
    required(&first, &at.span, "texts", "{ \"old\" = \"new\" }")?;
    let ignore_case = table.ignore_case.unwrap_or(false);
    let mut texts: Vec<(String, Template)> = Vec::new();
    for (text, to) in &table.texts {
        check_text(text, to)?;
        let is_same = |(other, _): &&(String, Template)| other.eq_ignore_ascii_case(text);
        if let Some((other, _)) = texts.iter().find(is_same).filter(|_| ignore_case) {
            let message = format!("{other:?} and {text:?} are one text with `ignore_case`");
            return Err(Problem::new(&to.span, message).help("leave one out"));
        }
        texts.push((text.clone(), template(to, &to.span, known)?));
    }
    if texts.len() > MOST_TEXTS {
        let message = format!("{} texts are too many", texts.len());
        return Err(Problem::new(&at.span, message)
            .help(format!("give at most {MOST_TEXTS}, or change the pages themselves")));
    }
    let types = types(&table.types)?;
    let escape = escape(table, &types, &texts)?;
    let last_modified = table.last_modified.as_ref().filter(|at| at.value);
    let replace = Replace {
        texts,
        types: types.into_iter().map(|(_, pattern)| pattern).collect(),
        escape: escape.unwrap_or(ReplaceEscape::Html),
        once: table.once.unwrap_or(false),
        ignore_case,
        last_modified: last_modified.is_some(),
    };
    match last_modified {
        Some(at) if replace.has_placeholders() => {
            Err(Problem::new(&at.span, "`last_modified` cannot be true with placeholders")
                .help("clients would keep a reply after the values have changed: leave it out"))
        }
        _ => Ok(replace),
    }
}

fn check_text(text: &str, to: &At<String>) -> Resolution<()> {
    if text.is_empty() {
        return Err(Problem::new(&to.span, "an empty text is found everywhere")
            .help("give the text that is to be replaced"));
    }
    if text.len() > LONGEST_TEXT {
        return Err(Problem::new(&to.span, format!("a text of {} bytes is too long", text.len()))
            .help(format!("the longest has {LONGEST_TEXT} bytes: a part of it may be enough")));
    }
    Ok(())
}

/// Returns the media types as typed, in lower case, with their patterns.
fn types(typed: &Option<At<file::OneOrMany<String>>>) -> Resolution<Vec<(String, MediaPattern)>> {
    let Some(list) = typed else {
        let html = MediaPattern::parse("text/html").expect("a media type");
        return Ok(vec![("text/html".to_owned(), html)]);
    };
    not_empty(
        &list.items(),
        &list.span,
        ", so that nothing is changed",
        "name media types such as \"text/html\", or leave the key out",
    )?;
    let named = |at: &At<&String>| Ok((at.to_ascii_lowercase(), media_pattern(at)?));
    list.items().iter().map(named).collect()
}

/// Returns the escapes for the values of placeholders. Returns `None` if no value needs escapes.
/// Returns an error if a client could put code into the page: with a value in a script, or in
/// another media type than HTML, XML and JSON.
fn escape(
    table: &file::Replace,
    types: &[(String, MediaPattern)],
    texts: &[(String, Template)],
) -> Resolution<Option<ReplaceEscape>> {
    let is_unsafe = |(_, to): &&(String, Template)| to.uses(|value| !is_plain(value));
    let Some((text, to)) = texts.iter().find(is_unsafe) else { return Ok(None) };
    let span = &table.texts[text].span;
    let help = "only {scheme}, {host}, {port}, {client}, {client_port} and {request_id} are safe \
                there";
    if has_script(to) {
        let message = "a value of the client in a script or style sheet could run as code";
        return Err(Problem::new(span, message).help(format!("{help}: write the value elsewhere")));
    }
    let escape_of = |(name, _): &(String, MediaPattern)| match &name[..] {
        "text/html" | "application/xhtml+xml" | "text/xml" | "application/xml" => {
            Some(ReplaceEscape::Html)
        }
        name if name.ends_with("+xml") => Some(ReplaceEscape::Html),
        "application/json" => Some(ReplaceEscape::Json),
        name if name.ends_with("+json") => Some(ReplaceEscape::Json),
        _ => None,
    };
    let first = types.first().and_then(escape_of);
    if first.is_some() && types.iter().all(|one| escape_of(one) == first) {
        return Ok(first);
    }
    let message = "the values of the client cannot be escaped for these `types`";
    Err(Problem::new(span, message)
        .help(format!("name only HTML and XML types, or only JSON types; in others, {help}")))
}
