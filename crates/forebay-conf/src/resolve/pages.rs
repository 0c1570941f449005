//! Resolves error pages, maintenance pages and CORS settings.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use super::path::{file, path};
use super::peer::clients;
use super::value::{is_token, method, optional_time, required, text};
use super::{Context, Resolution};
use crate::error::{Problem, advice, reason};
use crate::file::{self, At, BoolOr, OneOrMany, TextOr};
use crate::files;
use crate::plan::{
    Cors, ErrorPages, Maintenance, OriginPattern, Page, PageKind, Scope, Statuses, Template,
};

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
    let path = file(context, typed)?;
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
        while_exists: table.while_exists.as_ref().map(|at| path(context, at)).transpose()?,
    })))
}

const TEN_MINUTES: Duration = Duration::from_secs(600);

pub(super) fn cors(typed: &Option<At<crate::file::Table<file::Cors>>>) -> Resolution<Option<Cors>> {
    let Some(at) = typed else { return Ok(None) };
    let origins = required(&at.origins, &at.span, "origins", "[\"https://app.example.org\"]")?;
    let items = origins.items();
    let any = items.iter().any(|item| item.value == "*");
    if any && items.len() > 1 {
        return Err(Problem::new(&origins.span, "\"*\" is every origin")
            .help("leave out the others, or \"*\""));
    }
    let credentials = at.credentials.unwrap_or(false);
    if any && credentials {
        return Err(Problem::new(
            &origins.span,
            "every page of the web could use a visitor's login",
        )
        .label("\"*\" with `credentials`")
        .help("name the origins, or leave `credentials` out"));
    }
    let listed = if any { Vec::new() } else { items };
    let names = |typed: &Option<At<OneOrMany<String>>>| {
        let items = typed.as_ref().map(At::items).unwrap_or_default();
        items.iter().map(field).collect::<Resolution<Vec<_>>>()
    };
    let methods = match &at.methods {
        Some(at) => at.items().iter().map(method).collect::<Resolution<_>>()?,
        None => {
            ["GET", "HEAD", "QUERY", "POST", "PUT", "PATCH", "DELETE"].map(str::to_owned).to_vec()
        }
    };
    Ok(Some(Cors {
        any,
        origins: listed.iter().map(origin).collect::<Resolution<_>>()?,
        methods,
        headers: at.headers.is_some().then(|| names(&at.headers)).transpose()?,
        expose: names(&at.expose)?,
        credentials,
        max_age: optional_time(&at.max_age)?.unwrap_or(TEN_MINUTES),
    }))
}

fn field(typed: &At<&String>) -> Resolution<String> {
    let name = text(typed)?;
    if !is_token(name) {
        return Err(Problem::new(&typed.span, format!("\"{name}\" is not the name of a header"))
            .help("a name is letters, digits and hyphens, such as \"Content-Type\""));
    }
    Ok(name.to_owned())
}

/// Checks an origin such as `https://app.example.org`. Its host may begin with `*.`.
fn origin(typed: &At<&String>) -> Resolution<OriginPattern> {
    let origin = text(typed)?.to_ascii_lowercase();
    let problem = |why: &str| {
        Problem::new(&typed.span, format!("\"{origin}\" is not an origin"))
            .help(format!("{why}, such as \"https://app.example.org\""))
    };
    let Some((scheme, host)) = origin.split_once("://") else {
        return Err(problem("an origin has a scheme and a host"));
    };
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-.:[]".contains(c);
    let name = host.strip_prefix("*.").unwrap_or(host);
    if scheme.is_empty() || name.is_empty() || !name.chars().all(is_plain) {
        return Err(problem("an origin has no path, and a `*` is only for the first part"));
    }
    let default = if scheme == "https" { ":443" } else { ":80" };
    let host = host.strip_suffix(default).unwrap_or(host);
    Ok(match host.strip_prefix('*') {
        Some(end) => OriginPattern::Below { start: format!("{scheme}://"), end: end.to_owned() },
        None => OriginPattern::Exact(format!("{scheme}://{host}")),
    })
}
