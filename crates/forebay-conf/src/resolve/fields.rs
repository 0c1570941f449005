//! Resolves the changes of a route to the fields of requests and replies.

use super::Resolution;
use super::template::{Known, template};
use super::value::{is_token, no_control, required};
use crate::error::Problem;
use crate::file::{self, At, TextOr};
use crate::plan::{ReplyField, RequestChange, RequestField};

/// Returns the changes to the fields of requests. A name that FastCGI or CGI cannot carry is an
/// error.
pub(super) fn request_headers(
    typed: &file::RequestFields,
    known: Known<'_>,
) -> Resolution<Vec<RequestField>> {
    let mut fields: Vec<RequestField> = Vec::new();
    for (name, at) in typed {
        request_name(name, at)?;
        if let Some(same) = fields.iter().find(|field| field.name.eq_ignore_ascii_case(name)) {
            return Err(twice(&same.name, name, at));
        }
        fields.push(request_field(name, at, known)?);
    }
    Ok(fields)
}

/// Checks one field of `request_headers`: a text replaces the field, and a table replaces the field
/// or adds to the field.
fn request_field(
    name: &str,
    at: &At<TextOr<file::RequestField>>,
    known: Known<'_>,
) -> Resolution<RequestField> {
    let (value, is_added) = match &at.value {
        TextOr::Text(value) => (at.with(value), false),
        TextOr::Table(table) => {
            let value = required(&table.value, &at.span, "value", "\"{client}\"")?;
            (value.with(&value.value), table.add.unwrap_or(false))
        }
    };
    let value = template(no_control(&value, &value)?.trim(), &value, known)?;
    let is_empty = value.parts().is_empty();
    if is_added && (is_empty || is_about_client(name)) {
        let wrong = if is_empty { "an empty value" } else { name };
        return Err(Problem::new(&at.span, format!("{wrong} cannot be added"))
            .help("leave out `add`: the header then replaces the client's own"));
    }
    let change = match (is_empty, is_added) {
        (true, _) => RequestChange::Remove,
        (false, true) => RequestChange::Add(value),
        (false, false) => RequestChange::Set(value),
    };
    Ok(RequestField { name: name.to_owned(), change })
}

/// Returns the fields to set and to add in replies.
pub(super) fn reply_headers(typed: &file::Route, known: Known<'_>) -> Resolution<Vec<ReplyField>> {
    let always = typed.always.as_ref().is_some_and(|at| at.value);
    let mut fields: Vec<ReplyField> = Vec::new();
    for (typed, is_added) in [(&typed.set_headers, false), (&typed.add_headers, true)] {
        for (name, at) in typed {
            header_name(&at.with(name))?;
            let is_same = |field: &&ReplyField| field.name.eq_ignore_ascii_case(name);
            if let Some(same) = fields.iter().find(is_same).filter(|field| field.name != *name) {
                return Err(twice(&same.name, name, at));
            }
            let (values, always) = match &at.value {
                TextOr::Text(value) => (vec![at.with(value)], always),
                TextOr::Table(table) => {
                    let value = required(&table.value, &at.span, "value", "\"nosniff\"")?;
                    (value.items(), table.always.unwrap_or(always))
                }
            };
            for (number, value) in values.into_iter().enumerate() {
                let value = template(no_control(value.value, &value)?.trim(), &value, known)?;
                // The first value replaces the origin's fields. Each further value becomes a
                // further field.
                let is_added = is_added || number > 0;
                fields.push(ReplyField { name: name.clone(), value, is_added, always });
            }
        }
    }
    Ok(fields)
}

/// Returns the names of fields to remove from replies, in lower case.
pub(super) fn remove_headers(typed: &file::Route) -> Resolution<Vec<String>> {
    let removed =
        |typed: &At<String>| Ok(header_name(&typed.with(&typed.value))?.to_ascii_lowercase());
    typed.remove_headers.iter().map(removed).collect()
}

fn twice<T>(first: &str, second: &str, at: &At<T>) -> Problem {
    Problem::new(&at.span, format!("{first} and {second} are one header"))
        .help("give each header once: the case of a name does not matter")
}

fn header_name<'t>(typed: &At<&'t String>) -> Resolution<&'t str> {
    let name: &'t str = typed.value;
    if !is_token(name) {
        return Err(Problem::new(&typed.span, format!("\"{name}\" is not the name of a header"))
            .help("a name is letters, digits and hyphens, such as \"Cache-Control\""));
    }
    if FRAMING.iter().any(|framing| name.eq_ignore_ascii_case(framing)) {
        return Err(Problem::new(&typed.span, format!("{name} cannot be set or removed"))
            .help("it frames the message or belongs to the connection: leave it to Forebay"));
    }
    Ok(name)
}

/// Checks the name of a request field. Letters, digits and hyphens are allowed. CGI and FastCGI
/// make `HTTP_A_B` of both `A-B` and `A_B`, so `_` and other marks are an error.
fn request_name<T>(name: &String, at: &At<T>) -> Resolution<()> {
    header_name(&at.with(name))?;
    let problem = |why: &str| Problem::new(&at.span, format!("{name} {why}"));
    if !name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-') {
        let plain = name.replace(|c: char| !c.is_ascii_alphanumeric(), "-");
        return Err(problem("has other marks than hyphens, which many applications mistake")
            .help(format!("write \"{plain}\"")));
    }
    let refused = |names: &[&str]| names.iter().any(|other| name.eq_ignore_ascii_case(other));
    if refused(&["Host"]) {
        return Err(problem("cannot be set here")
            .help("to send the backend its own name, write host = \"backend\" in `proxy`"));
    }
    if refused(&["Proxy"]) {
        return Err(problem("cannot be set").help(
            "CGI scripts would use its value as their proxy (HTTP_PROXY): take another name",
        ));
    }
    if refused(&["Forebay-Hops"]) {
        return Err(problem("cannot be set or removed")
            .help("with it, Forebay ends requests that come back to it: leave it to Forebay"));
    }
    if refused(&["Expect", "Proxy-Connection", "HTTP2-Settings"]) {
        return Err(problem("cannot be set or removed")
            .help("it belongs to the connection: leave it to Forebay"));
    }
    Ok(())
}

/// Returns true if the field is about the client or its connection, such as `X-Forwarded-For`. A
/// client could forge such a field, so a value must replace the client's field, not add to it.
fn is_about_client(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    name.starts_with("x-forwarded-") || ["x-real-ip", "forwarded"].contains(&name.as_str())
}

const FRAMING: [&str; 7] =
    ["Connection", "Content-Length", "Keep-Alive", "TE", "Trailer", "Transfer-Encoding", "Upgrade"];
