//! What a route does to its replies and to their fields.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use super::path::{file, path};
use super::peer::clients;
use super::template::{Known, shared_key, template};
use super::value::{
    is_token, method, no_control, optional_time, required, size, text, time, within,
};
use super::{Context, Resolution};
use crate::error::{Problem, advice, reason};
use crate::file::{self, At, BoolOr, OneOrMany, TextOr};
use crate::files;
use crate::plan::{
    ALGORITHMS, Action, Algorithm, Cache, Compress, ContentCoding, CookieName, Cors, ErrorPages,
    MIN_SIZE, Maintenance, MediaPattern, OriginPattern, Page, PageKind, ReplyField, RequestChange,
    RequestField, Scope, Statuses, TYPES, Template,
};

/// Default of `key`.
const KEY: &str = "{scheme}{host}{uri}";
/// Default of `max_size`, in bytes.
const MAX_SIZE: u64 = 1024 * 1024;

/// Resolves `cache`. Returns `None` if the route stores no replies. For files and fixed replies,
/// returns an error, because Forebay sends them faster than it finds a stored reply. If these
/// routes have `cache` only from `[defaults]`, returns `None`.
pub(super) fn cache(
    typed: &Option<At<BoolOr<file::Cache>>>,
    action: &Action,
    is_default: impl Fn(&At<BoolOr<file::Cache>>) -> bool,
    known: Known<'_>,
) -> Resolution<Option<Cache>> {
    let default = file::Cache::default();
    let (at, table) = match typed {
        None | Some(At { value: BoolOr::Bool(false), .. }) => return Ok(None),
        Some(at @ At { value: BoolOr::Bool(true), .. }) => (at, &default),
        Some(at @ At { value: BoolOr::Table(table), .. }) => (at, table),
    };
    if !has_slow_replies(action) {
        return if is_default(at) { Ok(None) } else { Err(useless(at)) };
    }
    Ok(Some(Cache {
        valid: optional_time(&table.valid)?,
        stale_while_revalidate: time(&table.stale_while_revalidate, Duration::ZERO)?,
        stale_if_error: time(&table.stale_if_error, Duration::ZERO)?,
        key: key(at, &table.key, known)?,
        max_size: usize::try_from(size(&table.max_size)?.unwrap_or(MAX_SIZE)).unwrap_or(usize::MAX),
        private_cookies: private_cookies(table)?,
        set_cookie: table.set_cookie.as_ref().is_some_and(|at| at.value),
    }))
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

fn key<T>(cache: &At<T>, typed: &Option<At<String>>, known: Known<'_>) -> Resolution<Template> {
    let Some(at) = typed else { return template(KEY, cache, known) };
    let key = shared_key(at, known)?;
    if key.constant().is_some() {
        return Err(Problem::new(&at.span, "all requests would get the same reply")
            .help("use placeholders that tell the replies apart, such as \"{host}{uri}\""));
    }
    Ok(key)
}

/// Checks `private_cookies`. Without it, every cookie is private.
fn private_cookies(table: &file::Cache) -> Resolution<Vec<CookieName>> {
    let Some(list) = &table.private_cookies else {
        return Ok(vec![CookieName::Prefix(String::new())]);
    };
    let name = |at: &At<&String>| {
        let name = text(at)?;
        let is_plain = |c: char| c.is_ascii_graphic() && !"=;,\"*".contains(c);
        let (bare, is_prefix) = name.strip_suffix('*').map_or((name, false), |bare| (bare, true));
        if !bare.chars().all(is_plain) {
            return Err(Problem::new(&at.span, format!("\"{name}\" is not the name of a cookie"))
                .help("write a name such as \"session\", or the start of names: \"wp_*\""));
        }
        let bare = bare.to_owned();
        Ok(if is_prefix { CookieName::Prefix(bare) } else { CookieName::Exact(bare) })
    };
    list.items().iter().map(name).collect()
}

/// Checks `compress`. Returns `None` if replies are not compressed.
pub(super) fn compress(typed: &Option<At<BoolOr<file::Compress>>>) -> Resolution<Option<Compress>> {
    let default = file::Compress::default();
    let table = match typed {
        None | Some(At { value: BoolOr::Bool(false), .. }) => return Ok(None),
        Some(At { value: BoolOr::Bool(true), .. }) => &default,
        Some(At { value: BoolOr::Table(table), .. }) => table,
    };
    let codings = codings(table)?;
    let mut algorithms = Vec::new();
    for &coding in &codings {
        algorithms.push(Algorithm { coding, level: level(table, coding)? });
    }
    for coding in ALGORITHMS.into_iter().filter(|coding| !codings.contains(coding)) {
        if let Some(at) = typed_level(table, coding) {
            let message = format!("a level of {} has no effect", coding.coding());
            return Err(Problem::new(&at.span, message)
                .help("it is not among `algorithms`: add it there, or leave the level out"));
        }
    }
    let min_size = size(&table.min_size)?.unwrap_or(MIN_SIZE);
    Ok(Some(Compress { algorithms, types: types(table)?, min_size }))
}

/// Returns the listed algorithms, or the default ones. A repeated algorithm is an error.
fn codings(table: &file::Compress) -> Resolution<Vec<ContentCoding>> {
    let Some(list) = &table.algorithms else { return Ok(ALGORITHMS.to_vec()) };
    let mut found = Vec::new();
    for at in &list.value {
        let coding = match at.value {
            file::Coding::Zstd => ContentCoding::Zstandard,
            file::Coding::Br => ContentCoding::Brotli,
            file::Coding::Gzip => ContentCoding::Gzip,
        };
        if found.contains(&coding) {
            let message = format!("\"{}\" is given twice", coding.coding());
            return Err(Problem::new(&at.span, message).help("leave one out"));
        }
        found.push(coding);
    }
    if found.is_empty() {
        return Err(Problem::new(&list.span, "this list is empty, so that nothing is compressed")
            .help("name \"zstd\", \"br\" or \"gzip\", or say compress = false"));
    }
    Ok(found)
}

fn level(table: &file::Compress, coding: ContentCoding) -> Resolution<u32> {
    match typed_level(table, coding) {
        Some(at) => within(at, Algorithm::levels(coding)),
        None => Ok(Algorithm::default_level(coding)),
    }
}

fn typed_level(table: &file::Compress, coding: ContentCoding) -> Option<&At<u32>> {
    let levels = table.levels.as_ref()?;
    match coding {
        ContentCoding::Zstandard => levels.zstd.as_ref(),
        ContentCoding::Brotli => levels.br.as_ref(),
        ContentCoding::Gzip => levels.gzip.as_ref(),
    }
}

fn types(table: &file::Compress) -> Resolution<Vec<MediaPattern>> {
    let Some(list) = &table.types else {
        return Ok(TYPES.iter().filter_map(|text| MediaPattern::parse(text)).collect());
    };
    if list.items().is_empty() {
        return Err(Problem::new(&list.span, "this list is empty, so that nothing is compressed")
            .help("name media types such as \"text/*\", or leave the key out"));
    }
    list.items().iter().map(media_pattern).collect()
}

pub(super) fn media_pattern(typed: &At<&String>) -> Resolution<MediaPattern> {
    let text = text(typed)?;
    MediaPattern::parse(text).ok_or_else(|| {
        Problem::new(&typed.span, format!("\"{text}\" is not a media type"))
            .help("write one such as \"text/html\", or several: \"text/*\", \"*+json\"")
    })
}

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

pub(super) fn cors(typed: &Option<At<crate::file::Cors>>) -> Resolution<Option<Cors>> {
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
