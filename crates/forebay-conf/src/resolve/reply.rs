//! What a route does to its replies and to their fields.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use super::peer::clients;
use super::value::{is_token, no_control, optional_time, required, text};
use super::{Context, Resolution};
use crate::error::{Problem, advice, reason};
use crate::file::{self, At, BoolOr, TextOr};
use crate::files;
use crate::key::no_effect;
use crate::key::paths::{file, path};
use crate::key::{FromText, template};
use crate::plan::{
    Action, Cache, ErrorPages, Maintenance, MediaPattern, Page, PageKind, ReplyChange, ReplyField,
    RequestChange, RequestField, Scope, Statuses, Template,
};

/// Returns the settings of `cache`. `None`: the route stores no replies. For files and fixed replies,
/// returns an error, because Forebay sends them faster than it finds a stored reply, unless they have
/// `cache` only from `[defaults]`.
pub(super) fn cache(
    context: &Context<'_>,
    typed: &Option<At<Option<Cache>>>,
    action: &Action,
) -> Resolution<Option<Cache>> {
    match typed {
        Some(At { value: Some(cache), .. }) if has_slow_replies(action) => Ok(Some(cache.clone())),
        Some(at @ At { value: Some(_), .. }) if !context.is_default(&at.span) => Err(useless(at)),
        _ => Ok(None),
    }
}

fn has_slow_replies(action: &Action) -> bool {
    match action {
        Action::Files(_)
        | Action::Respond(_)
        | Action::Redirect(_)
        | Action::Moved(_)
        | Action::Rewrite => false,
        Action::Cgi(_)
        | Action::Fastcgi(_)
        | Action::AppServer(_)
        | Action::Ajp(_)
        | Action::Proxy(_)
        | Action::App(_) => true,
    }
}

fn useless<T>(at: &At<T>) -> Problem {
    Problem::new(&at.span, "`cache` makes no difference here").help(
        "it stores replies of applications and servers; files and fixed replies cost less than a \
         lookup: leave it out",
    )
}

pub(super) fn media_pattern(typed: &At<&String>) -> Resolution<MediaPattern> {
    MediaPattern::from_text(text(typed)?, &typed.span)
}

/// Returns the changes to the fields of requests. A name that FastCGI or CGI cannot carry is an
/// error.
pub(super) fn request_headers(
    typed: &file::RequestFields,
    known: Scope<'_>,
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
    known: Scope<'_>,
) -> Resolution<RequestField> {
    let (value, is_added) = match &at.value {
        TextOr::Text(value) => (at.with(value), false),
        TextOr::Table(table) => {
            let value = required(&table.value, &at.span, "value", "\"{client}\"")?;
            (value.with(&value.value), table.add.unwrap_or(false))
        }
    };
    let value = template(no_control(&value, &value)?.trim(), &value.span, known)?;
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
pub(super) fn reply_headers(typed: &file::Route, known: Scope<'_>) -> Resolution<Vec<ReplyField>> {
    let always = typed.always.as_ref().is_some_and(|at| at.value);
    let mut fields: Vec<ReplyField> = Vec::new();
    for (typed, change) in
        [(&typed.set_headers, ReplyChange::Set), (&typed.add_headers, ReplyChange::Add)]
    {
        for (name, at) in typed {
            header_name(&at.with(name))?;
            let is_same = |field: &&ReplyField| field.name.eq_ignore_ascii_case(name);
            if let Some(same) = fields.iter().find(is_same).filter(|field| field.name != *name) {
                return Err(twice(&same.name, name, at));
            }
            let (values, always, if_missing) = match &at.value {
                TextOr::Text(value) => (vec![at.with(value)], always, false),
                TextOr::Table(table) => {
                    let value = required(&table.value, &at.span, "value", "\"nosniff\"")?;
                    let if_missing = table.if_missing.as_ref().filter(|at| at.value);
                    if let Some(at) = if_missing.filter(|_| change == ReplyChange::Add) {
                        let help = "move the header to `set_headers`";
                        return Err(no_effect(&at.span, "if_missing", "in `add_headers`", help));
                    }
                    (value.items(), table.always.unwrap_or(always), if_missing.is_some())
                }
            };
            for (number, value) in values.into_iter().enumerate() {
                let value = template(no_control(value.value, &value)?.trim(), &value.span, known)?;
                // The first value replaces the origin's fields. Each further value becomes a
                // further field.
                let change = match change {
                    _ if if_missing => ReplyChange::IfMissing,
                    ReplyChange::Set if number > 0 => ReplyChange::Add,
                    change => change,
                };
                fields.push(ReplyField { name: name.clone(), value, change, always });
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

/// The largest page, in bytes. Pages are kept in memory.
const LARGEST: u64 = 1024 * 1024;

/// Returns the own error pages of a site or route, and after them the pages in `inherited`. For a
/// route, these are the pages of its site.
pub(super) fn error_pages(
    context: &Context<'_>,
    typed: &file::ErrorPages,
    intercept: &Option<At<bool>>,
    inherited: &ErrorPages,
) -> Resolution<ErrorPages> {
    let mut pages = Vec::new();
    for (name, at) in typed {
        pages.push((statuses(name, at)?, Arc::new(error_page(context, at)?)));
    }
    let is_own = |statuses: &Statuses| pages.iter().any(|(own, _)| own == statuses);
    let inherited_pages: Vec<_> =
        inherited.pages.iter().filter(|(statuses, _)| !is_own(statuses)).cloned().collect();
    // Sort only the own pages, because they have precedence: the route's page for "4xx" precedes
    // the site's page for "404".
    pages.sort_by_key(|(statuses, _)| *statuses);
    pages.extend(inherited_pages);
    let intercept_here = intercept.as_ref().map_or(inherited.intercept, |at| at.value);
    Ok(ErrorPages { pages, intercept: intercept_here })
}

fn statuses<T>(name: &str, at: &At<T>) -> Resolution<Statuses> {
    let class = name.strip_suffix("xx").and_then(|digit| digit.parse().ok());
    let status = name.parse().ok();
    match (class, status) {
        (Some(class @ 4..=5), _) => Ok(Statuses::Class(class)),
        (_, Some(status @ 400..=599)) => Ok(Statuses::One(status)),
        _ => Err(Problem::new(&at.span, format!("\"{name}\" is not an error"))
            .help("give a status from 400 to 599, or a class: \"4xx\" or \"5xx\"")),
    }
}

/// Returns an error page: a file, or a table with a file and a status.
fn error_page(context: &Context<'_>, typed: &At<TextOr<file::ErrorPage>>) -> Resolution<Page> {
    let table = match &typed.value {
        TextOr::Text(path) => return page(context, &typed.with(path.clone())),
        TextOr::Table(table) => table,
    };
    let file = required(&table.file, &typed.span, "file", "\"403.html\"")?;
    let status = match &table.status {
        // These statuses have no body, are redirects, or do not exist.
        Some(At { value: ..200 | 204 | 205 | 300..400 | 600.., span }) => {
            return Err(Problem::new(span, "a page cannot have this status")
                .help("give 200, or a status from 400 to 599"));
        }
        Some(at) => Some(at.value),
        None => None,
    };
    Ok(Page { status, ..page(context, file)? })
}

/// Reads a page and parses its placeholders.
fn page(context: &Context<'_>, typed: &At<String>) -> Resolution<Page> {
    let path = file(context.sources, typed)?;
    let problem =
        |why: String| Problem::new(&typed.span, format!("cannot use {}: {why}", path.display()));
    let bytes = files::read(&path, LARGEST)
        .map_err(|error| problem(reason(&error)).help(advice(&error)))?;
    if bytes.len() as u64 > LARGEST {
        return Err(problem("it is too large".to_owned())
            .help("a page has at most 1 MiB: link to large pictures"));
    }
    let text = String::from_utf8(bytes)
        .map_err(|_| problem("it is not UTF-8".into()).help("save it as UTF-8"))?;
    let scope = Scope { is_page: true, ..Scope::default() };
    let text = Template::parse(&text, scope).expect("a page keeps unknown braces");
    let kind = kind(&path);
    Ok(Page { file: path, text, status: None, kind })
}

fn kind(path: &Path) -> PageKind {
    let extension = path.extension().and_then(|extension| extension.to_str());
    match extension.map(str::to_ascii_lowercase).as_deref() {
        Some("html" | "htm") => PageKind::Html,
        Some("json") => PageKind::Json,
        _ => PageKind::Text,
    }
}

/// Returns the maintenance page of a site or route. `inherited` is the page of the route's site,
/// and applies if the route has none. Returns `None` without a page, or if the page is switched
/// off.
pub(super) fn maintenance(
    context: &Context<'_>,
    typed: &Option<At<BoolOr<file::Maintenance>>>,
    inherited: Option<&Arc<Maintenance>>,
) -> Resolution<Option<Arc<Maintenance>>> {
    let at = match typed {
        None => return Ok(inherited.cloned()),
        Some(At { value: BoolOr::Bool(false), .. }) => return Ok(None),
        Some(at) => at,
    };
    let BoolOr::Table(table) = &at.value else {
        return Err(Problem::new(&at.span, "a maintenance page needs its file")
            .help("write maintenance = { page = \"maintenance.html\" }"));
    };
    let page = page(context, required(&table.page, &at.span, "page", "\"maintenance.html\"")?)?;
    let items = table.except.as_ref().map(At::items).unwrap_or_default();
    Ok(Some(Arc::new(Maintenance {
        page: Arc::new(page),
        retry_after: optional_time(&table.retry_after)?.unwrap_or(TEN_MINUTES),
        except: items.iter().map(clients).collect::<Resolution<_>>()?,
        while_exists: table
            .while_exists
            .as_ref()
            .map(|at| path(context.sources, at))
            .transpose()?,
    })))
}

const TEN_MINUTES: Duration = Duration::from_secs(600);
