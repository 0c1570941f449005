//! Resolves the action of a route. Each route has exactly one action.

use std::ops::Range;
use std::path::PathBuf;
use std::time::Duration;

use super::app_server::{fastcgi, scgi, uwsgi};
use super::listing::listing;
use super::media::{media_type, name_end, types};
use super::moved::moved;
use super::program::max_processes;
use super::proxy::ajp;
use super::proxy::proxy;
use super::template::redirect_target;
use super::value::{required, size_or_unlimited, text, time_above_zero, variables, within};
use super::{Context, Resolution};
use crate::error::{Problem, reason};
use crate::file::{self, AllOrList, At, File, OneOrMany, TextOr};
use crate::files;
use crate::key::paths::{directory, file, file_name};
use crate::plan::{Action, Cgi, ContentCoding, Files, Redirect, Respond, Scope, ScriptsBelow};
use crate::suggest;

/// Checks the route's action: the one key that says which origin answers.
pub(super) fn action(
    context: &Context<'_>,
    file: &File,
    route: &At<file::Route>,
    known: Scope<'_>,
) -> Resolution<Action> {
    exactly_one(route)?;
    if let Some(typed) = &route.files {
        return files(context, typed).map(Action::Files);
    }
    if let Some(typed) = &route.cgi {
        return cgi(context, typed).map(Action::Cgi);
    }
    if let Some(typed) = &route.fastcgi {
        return fastcgi(context, file, typed).map(Action::Fastcgi);
    }
    if let Some(typed) = &route.scgi {
        return scgi(context, file, typed).map(Action::AppServer);
    }
    if let Some(typed) = &route.uwsgi {
        return uwsgi(context, file, typed).map(Action::AppServer);
    }
    if let Some(typed) = &route.ajp {
        return ajp(context, file, typed).map(Action::Ajp);
    }
    if let Some(typed) = &route.proxy {
        return proxy(context, file, typed).map(Action::Proxy);
    }
    if let Some(typed) = &route.app {
        return app(file, typed).map(Action::App);
    }
    if let Some(typed) = &route.respond {
        return respond(typed).map(Action::Respond);
    }
    if let Some(At { value: TextOr::Table(table), .. }) = &route.redirect
        && let Some(pages) = moved(context, table)?
    {
        return Ok(Action::Moved(pages));
    }
    match &route.redirect {
        Some(typed) => redirect(typed, known).map(Action::Redirect),
        None => Ok(Action::Rewrite),
    }
}

const ACTIONS: [&str; 10] =
    ["files", "cgi", "fastcgi", "scgi", "uwsgi", "ajp", "proxy", "app", "respond", "redirect"];

/// Checks that the route has exactly one action. A route with `rewrite` may have none.
fn exactly_one(route: &At<file::Route>) -> Resolution<()> {
    fn span<T>(typed: &Option<At<T>>) -> Option<&Range<usize>> {
        typed.as_ref().map(|at| &at.span)
    }
    let spans = [
        span(&route.files),
        span(&route.cgi),
        span(&route.fastcgi),
        span(&route.scgi),
        span(&route.uwsgi),
        span(&route.ajp),
        span(&route.proxy),
        span(&route.app),
        span(&route.respond),
        span(&route.redirect),
    ];
    let given = ACTIONS.into_iter().zip(spans);
    let mut given: Vec<_> = given.filter_map(|(name, span)| Some((name, span?))).collect();
    given.sort_by_key(|(_, span)| span.start);
    match given[..] {
        [] if route.rewrite.is_some() => Ok(()),
        [] => Err(nothing(&route.span)),
        [_] => Ok(()),
        [(first, first_span), (second, second_span), ..] => Err(Problem::new(
            second_span,
            format!("this route answers with `{first}` and with `{second}`"),
        )
        .label("a second answer")
        .also(first_span, "the first")
        .help("keep one; a second [[site.route]] can hold the other")),
    }
}

fn nothing(span: &Range<usize>) -> Problem {
    Problem::new(span, "this route does not say what answers")
        .label("needs an answer")
        .help(format!("give it one of {}", suggest::list(ACTIONS, "or", '`')))
}

/// Checks `files` and adds the defaults.
fn files(context: &Context<'_>, typed: &At<TextOr<file::Files>>) -> Resolution<Files> {
    let table = match &typed.value {
        TextOr::Text(root) => {
            let root = directory(context.sources, &typed.with(root))?;
            return Ok(Files { beneath: context.beneath(&root), ..Files::new(root) });
        }
        TextOr::Table(table) => table,
    };
    let root = directory(context.sources, required(&table.root, &typed.span, "root", "\"DIR\"")?)?;
    let default = Files::new(root);
    let index = match &table.index {
        Some(at) => at.items().iter().map(file_name).collect::<Resolution<_>>()?,
        None => default.index,
    };
    Ok(Files {
        index,
        listing: listing(context, &table.listing)?,
        hidden: table.hidden.unwrap_or(false),
        follow_symlinks: table.follow_symlinks.unwrap_or_default(),
        precompressed: precompressed(table)?,
        languages: languages(table)?,
        extensions: extensions(table)?,
        types: types(&table.types)?,
        default_type: match &table.default_type {
            Some(at) if at.is_empty() => String::new(),
            Some(at) => media_type(at)?,
            None => default.default_type,
        },
        max_ranges: match &table.max_ranges {
            Some(at) => within(at, 0..=1000)?,
            None => default.max_ranges,
        },
        ignores_htaccess: table.htaccess == Some(file::Htaccess::Ignore),
        scripts: match table.scripts {
            Some(file::ScriptsBelow::Below) => ScriptsBelow::All,
            Some(file::ScriptsBelow::Refuse) => ScriptsBelow::Nothing,
            None => ScriptsBelow::default(),
        },
        beneath: context.beneath(&default.root),
        ..default
    })
}

/// Checks `precompressed`. Returns the codings in the order of the list.
fn precompressed(typed: &file::Files) -> Resolution<Vec<ContentCoding>> {
    let list = match &typed.precompressed {
        None => return Ok(Vec::new()),
        Some(At { value: AllOrList::All(true), .. }) => return Ok(ContentCoding::ALL.to_vec()),
        Some(At { value: AllOrList::All(false), .. }) => return Ok(Vec::new()),
        Some(At { value: AllOrList::List(list), .. }) => list,
    };
    let mut found = Vec::new();
    for at in list {
        let kind = match at.value {
            file::Precompressed::Br => ContentCoding::Brotli,
            file::Precompressed::Zst => ContentCoding::Zstandard,
            file::Precompressed::Gz => ContentCoding::Gzip,
        };
        if found.contains(&kind) {
            let message = format!("\"{}\" is given twice", kind.extension());
            return Err(Problem::new(&at.span, message).help("leave one out"));
        }
        found.push(kind);
    }
    Ok(found)
}

/// Checks `languages`. Returns the tags in lower case.
fn languages(typed: &file::Files) -> Resolution<Vec<String>> {
    const MOST: usize = 64;
    let Some(list) = &typed.languages else { return Ok(Vec::new()) };
    let mut found: Vec<String> = Vec::new();
    for at in list.items() {
        let tag = text(&at)?.to_ascii_lowercase();
        let is_part = |part: &str| {
            matches!(part.len(), 1..=8) && part.bytes().all(|b| b.is_ascii_alphanumeric())
        };
        let wrong = |message: String| Problem::new(&at.span, message);
        if !tag.split('-').all(is_part) || tag.len() > 35 {
            return Err(wrong(format!("\"{tag}\" is not the tag of a language"))
                .help("write a tag such as \"de\" or \"pt-br\""));
        }
        if found.contains(&tag) {
            return Err(wrong(format!("\"{tag}\" is given twice")).help("leave one out"));
        }
        if found.len() == MOST {
            return Err(wrong(format!("more than {MOST} languages")).help("leave some out"));
        }
        found.push(tag);
    }
    Ok(found)
}

fn extensions(typed: &file::Files) -> Resolution<Vec<String>> {
    const MOST: usize = 8;
    let Some(list) = &typed.extensions else { return Ok(Vec::new()) };
    if list.items().len() > MOST {
        return Err(
            Problem::new(&list.span, format!("more than {MOST} extensions")).help("leave some out")
        );
    }
    let checked = |at: &At<&String>| {
        name_end(at.value, &at.span, "")?;
        Ok(at.to_string())
    };
    list.items().iter().map(checked).collect()
}

/// Checks `cgi` and adds the defaults.
fn cgi(context: &Context<'_>, typed: &At<TextOr<file::Cgi>>) -> Resolution<Cgi> {
    let empty = file::Cgi::default();
    let (table, dir, program) = match &typed.value {
        TextOr::Text(dir) => (&empty, directory(context.sources, &typed.with(dir))?, None),
        TextOr::Table(table) => {
            let (dir, program) = scripts(context, typed, table)?;
            (table, dir, program)
        }
    };
    let name = |typed: &Option<At<String>>| match typed {
        Some(at) => text(at).map(|name| Some(name.to_owned())),
        None => Ok(None),
    };
    Ok(Cgi {
        dir,
        program,
        timeout: time_above_zero(&table.timeout, Duration::from_secs(60))?,
        max_processes: max_processes(&table.max_processes)?,
        max_output: size_or_unlimited(&table.max_output)?.unwrap_or(u64::MAX),
        env: variables(&table.env)?,
        user: name(&table.user)?,
        group: name(&table.group)?,
        limits: table.limits,
    })
}

/// Without `program`, returns the directory of the scripts, and `None`. With `program`, returns the
/// directory of the program, and the path of the program.
fn scripts(
    context: &Context<'_>,
    typed: &At<TextOr<file::Cgi>>,
    table: &file::Cgi,
) -> Resolution<(PathBuf, Option<PathBuf>)> {
    match (&table.dir, &table.program) {
        (Some(dir), Some(program)) => Err(Problem::new(&program.span, "both `dir` and `program`")
            .also(&dir.span, "the directory of many scripts")
            .help("keep `program` if one program answers for all paths of the route")),
        (None, Some(program)) => {
            let program = file(context.sources, program)?;
            let dir = program.parent().unwrap_or(context.base(&typed.span)).to_owned();
            Ok((dir, Some(program)))
        }
        (dir, None) => {
            let dir = required(dir, &typed.span, "dir", "\"DIR\"")?;
            Ok((directory(context.sources, dir)?, None))
        }
    }
}

pub(super) fn app(file: &File, typed: &At<String>) -> Resolution<String> {
    if file.app.contains_key(&typed.value) {
        return Ok(typed.value.clone());
    }
    let problem = Problem::new(&typed.span, format!("there is no app \"{}\"", typed.value));
    Err(match suggest::nearest(&typed.value, file.app.keys().map(String::as_str)) {
        Some(name) => problem
            .label(format!("did you mean \"{name}\"?"))
            .help(format!("apps are tables of the file: [app.{name}] is one")),
        None => problem
            .label("no such app in this file")
            .help("add a table for it, with `kind` and what that kind needs: [app.NAME]"),
    })
}

/// Checks `respond`. With status 204, 205 or 304, a body is an error.
fn respond(typed: &At<TextOr<file::Respond>>) -> Resolution<Respond> {
    let default = Respond::new(200, String::new());
    let table = match &typed.value {
        TextOr::Text(body) => return Ok(Respond { body: body.clone(), ..default }),
        TextOr::Table(table) => table,
    };
    let status = match &table.status {
        Some(at) => within(at, 200..=599)?,
        None => default.status,
    };
    let (key, body, span) = match (&table.body, &table.robots) {
        (Some(body), Some(robots)) => {
            return Err(Problem::new(&robots.span, "this reply has `body` and `robots`")
                .also(&body.span, "the first text")
                .help("leave one of the two keys out; `robots` may be a list of texts"));
        }
        (None, Some(at)) => ("robots", robots(at)?, Some(&at.span)),
        (body, None) => {
            let text = body.as_ref().map_or(String::new(), |at| at.value.clone());
            ("body", text, body.as_ref().map(|at| &at.span))
        }
    };
    if let (204 | 205 | 304, false, Some(span)) = (status, body.is_empty(), span) {
        return Err(Problem::new(span, format!("a reply of status {status} has no body"))
            .help(format!("leave `{key}` out, or choose another status")));
    }
    let content_type = match &table.content_type {
        Some(at) => text(at)?.to_owned(),
        None => default.content_type,
    };
    Ok(Respond { status, body, content_type })
}

/// Directories of the texts that a word such as "no-ai" stands for. The administrator's own come
/// first.
const ROBOTS: [&str; 3] =
    ["/etc/forebay/robots", "/usr/share/forebay/robots", "/usr/local/share/forebay/robots"];
/// Crawlers read no more of a robots.txt (RFC 9309 section 2.5).
const MAX_ROBOTS_BYTES: usize = 500 << 10;

/// Returns the text of a robots.txt. An empty line separates its parts, so that the rules of one are
/// not those of another's crawlers.
fn robots(typed: &At<OneOrMany<String>>) -> Resolution<String> {
    let mut parts = Vec::new();
    for item in typed.items() {
        let is_word = |byte: u8| byte.is_ascii_lowercase() || byte == b'-';
        if item.value.is_empty() || !item.value.bytes().all(is_word) {
            parts.push(item.value.trim().to_owned());
            continue;
        }
        let paths = ROBOTS.map(|folder| PathBuf::from(folder).join(format!("{}.txt", item.value)));
        let found = paths.iter().find(|path| matches!(files::kind(path), Ok(files::Kind::File)));
        let Some(path) = found else {
            let message = format!("there is no text for crawlers named \"{}\"", item.value);
            return Err(Problem::new(&item.span, message).help(format!(
                "write the rules into {}, or here: \"User-agent: *\\nDisallow: /\\n\"",
                paths[0].display()
            )));
        };
        let text = files::read(path, MAX_ROBOTS_BYTES as u64).map_err(|error| reason(&error));
        let text =
            text.and_then(|bytes| String::from_utf8(bytes).map_err(|_| "it is not text".into()));
        let text = text.map_err(|why| {
            Problem::new(&item.span, format!("{} cannot be used: {why}", path.display()))
                .help("write the rules as text, in UTF-8")
        })?;
        parts.push(text.trim().to_owned());
    }
    let text = parts.join("\n\n") + "\n";
    if text.len() > MAX_ROBOTS_BYTES {
        return Err(Problem::new(&typed.span, "these rules are longer than 500 KiB")
            .help("crawlers read no further: write fewer"));
    }
    Ok(text)
}

/// Checks `redirect`. The default status is 302.
fn redirect(typed: &At<TextOr<file::Redirect>>, known: Scope<'_>) -> Resolution<Redirect> {
    let (to, status) = match &typed.value {
        TextOr::Text(to) => (typed.with(to), None),
        TextOr::Table(table) => {
            let to = required(&table.to, &typed.span, "to", "\"/new\"")?;
            (to.with(&to.value), table.status.as_ref())
        }
    };
    let (target, keep_query) = redirect_target(&to, known)?;
    let status = match status {
        Some(at) if matches!(at.value, 301 | 302 | 303 | 307 | 308) => at.value,
        Some(at) => {
            return Err(Problem::new(&at.span, format!("status {} is not a redirect", at.value))
                .help("write 301 or 308 (permanent), 302 or 307 (temporary), or 303 (see other)"));
        }
        None => 302,
    };
    Ok(Redirect { to: target, keep_query, status })
}
