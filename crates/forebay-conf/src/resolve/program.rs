//! Resolves `kind = "command"`, a program that listens on a socket itself, and the ready kinds that
//! are such commands.

use std::ops::Range;
use std::path::{Path, PathBuf};

use super::app_server::{PHP, prefix, script_ends};
use super::upstream::sticky_cookie;
use super::value::{required, size, text, within};
use super::{Context, Resolution};
use crate::error::Problem;
use crate::file::{self, At, Kind};
use crate::files;
use crate::key::no_effect;
use crate::key::paths::{directory, existing, file, path, without_parents};
use crate::plan::{AppKind, AppProtocol, HostField, Listening};

pub(super) fn program(context: &Context<'_>, typed: &At<file::App>) -> Resolution<AppKind> {
    let span = &typed.span;
    let run_typed = required(&typed.run, span, "run", "[\"PROGRAM\", \"ARGUMENT\"]")?;
    let mut run = command(run_typed)?;
    // Without a slash, PATH has it; a placeholder's value is unknown until a process starts.
    if let (Some(first), Some(program)) = (run_typed.first(), run.first_mut())
        && program.contains('/')
        && !program.starts_with('{')
    {
        *program = program_path(context, typed, first)?.to_string_lossy().into_owned();
    }
    let speaks = required(&typed.speaks, span, "speaks", "\"http\"")?.value;
    let listen = listening(typed, &run, &run_typed.span)?;
    let secret = match &typed.secret {
        Some(at) if speaks != AppProtocol::Ajp => {
            let why = "on a program that does not speak ajp";
            return Err(no_effect(&at.span, "secret", why, "leave it out"));
        }
        typed => typed.as_ref().map(|at| at.value.clone()),
    };
    let host = host(typed, speaks)?;
    let strip_prefix = strip_prefix(typed, speaks)?;
    has_mount(typed, speaks)?;
    let sticky = match &typed.sticky {
        Some(at) if !speaks.is_http() => {
            let why = "on a program that does not speak http";
            return Err(no_effect(&at.span, "sticky", why, "leave it out"));
        }
        Some(at) => Some(sticky_cookie(&at.cookie, &at.span)?),
        None => None,
    };
    let connections = match &typed.connections {
        Some(at) => within(at, 1..=100_000)?,
        None if speaks.is_http() || speaks == AppProtocol::Ajp => 100,
        None => 1,
    };
    if let Some(at) =
        typed.params.values().next().filter(|_| speaks.is_http() || speaks == AppProtocol::Ajp)
    {
        let why = "on a program that speaks http or ajp";
        return Err(no_effect(&at.span, "params", why, "write `request_headers` in the route"));
    }
    let root = match &typed.root {
        Some(at) if speaks.is_http() || speaks == AppProtocol::Ajp => {
            return Err(Problem::new(
                &at.span,
                "`root` has no effect on a program that speaks http or ajp",
            )
            .help("leave it out, or put the directory into `run`"));
        }
        Some(at) => Some(directory(context.sources, at)?),
        None => None,
    };
    let scripts = scripts(typed, &run, speaks, root.is_some())?;
    Ok(AppKind::Command {
        run,
        speaks,
        listen,
        secret,
        host,
        strip_prefix,
        sticky,
        connections,
        warm_up: warm_up(typed, speaks)?,
        root,
        scripts,
    })
}

/// A request line and its fields have at most this many bytes.
const MAX_WARM_UP: usize = 4096;

fn warm_up(typed: &file::App, speaks: AppProtocol) -> Resolution<Vec<String>> {
    let Some(at) = &typed.warm_up else { return Ok(Vec::new()) };
    if speaks != AppProtocol::Http {
        let why = "on a program that does not speak http";
        return Err(no_effect(&at.span, "warm_up", why, "leave it out"));
    }
    let target = |at: At<&String>| {
        let is_target = |byte: u8| byte.is_ascii_graphic() && byte != b'#';
        if !at.starts_with('/') || at.len() > MAX_WARM_UP || !at.bytes().all(is_target) {
            return Err(Problem::new(&at.span, "this is no path of a request")
                .help("write a path, and a query if it needs one: \"/login?from=warm-up\""));
        }
        Ok(at.value.clone())
    };
    at.items().into_iter().map(target).collect()
}

/// Runs a WAR file in the machine's servlet container.
const WAR: &str = include_str!("../../../../hosts/war.sh");

/// Returns the command of a ready kind: `runs`, then the path of `file`. [`ready_variables`] tell it
/// where to listen.
pub(super) fn ready(
    context: &Context<'_>,
    typed: &At<file::App>,
    runs: &[&str],
) -> Resolution<AppKind> {
    let is_java = runs[0] == "java";
    let example = if is_java { "\"shop.jar\"" } else { "\"server.js\"" };
    let file_typed = required(&typed.file, &typed.span, "file", example)?;
    let (path, is_web_application) = match directory(context.sources, file_typed) {
        Ok(directory) if is_java => (directory, true),
        _ => {
            let path = file(context.sources, file_typed)?;
            let is_war = path.extension().is_some_and(|end| end.eq_ignore_ascii_case("war"));
            (path, is_java && is_war)
        }
    };
    let path = path.to_str().ok_or_else(|| {
        Problem::new(&file_typed.span, "a path that is not UTF-8").help("rename it, or use a link")
    })?;
    // The program's launcher replaces placeholders in all arguments.
    if path.contains(['{', '}']) {
        return Err(Problem::new(&file_typed.span, "a path with braces").help("rename the file"));
    }
    let container = ["sh", "-c", WAR, "war.sh", "{room}", "{port}"];
    let runs = if is_web_application { &container } else { runs };
    Ok(AppKind::Command {
        run: runs.iter().copied().chain([path]).map(str::to_owned).collect(),
        speaks: AppProtocol::Http,
        listen: Listening::Port,
        secret: None,
        host: host(typed, AppProtocol::Http)?,
        strip_prefix: strip_prefix(typed, AppProtocol::Http)?,
        sticky: typed.sticky.as_ref().map(|at| sticky_cookie(&at.cookie, &at.span)).transpose()?,
        connections: typed.connections.as_ref().map_or(Ok(100), |at| within(at, 1..=100_000))?,
        warm_up: warm_up(typed, AppProtocol::Http)?,
        root: None,
        scripts: Vec::new(),
    })
}

/// The environment variables of a ready kind that the user does not set: the names by which servers
/// of this kind expect their address.
pub(super) fn ready_variables(kind: Kind) -> &'static [(&'static str, &'static str)] {
    match kind {
        Kind::Node => {
            &[
                ("PORT", "{port}"),
                // SvelteKit, Nuxt and Astro; Next.js.
                ("HOST", "127.0.0.1"),
                ("HOSTNAME", "127.0.0.1"),
                ("NODE_ENV", "production"),
            ]
        }
        // Spring Boot, Quarkus, Micronaut and Helidon; others read PORT.
        Kind::Java => &[
            ("PORT", "{port}"),
            ("SERVER_PORT", "{port}"),
            ("SERVER_ADDRESS", "127.0.0.1"),
            ("QUARKUS_HTTP_PORT", "{port}"),
            ("QUARKUS_HTTP_HOST", "127.0.0.1"),
            ("MICRONAUT_SERVER_PORT", "{port}"),
            ("MICRONAUT_SERVER_HOST", "127.0.0.1"),
        ],
        _ => &[],
    }
}

fn strip_prefix(typed: &file::App, speaks: AppProtocol) -> Resolution<Option<String>> {
    match &typed.strip_prefix {
        typed if speaks.is_http() => super::proxy::strip_prefix(typed),
        Some(at) if speaks != AppProtocol::Fastcgi || typed.root.is_none() => {
            let why = "on a program that does not speak http, and has no scripts below a `root`";
            let help =
                "leave it out: the program gets the prefix in SCRIPT_NAME, the rest in PATH_INFO";
            Err(no_effect(&at.span, "strip_prefix", why, help))
        }
        typed => prefix(typed),
    }
}

/// Checks that `mount` has an effect: the program's protocol must have SCRIPT_NAME, and the program
/// must not have script files.
fn has_mount(typed: &file::App, speaks: AppProtocol) -> Resolution<()> {
    let Some(at) = &typed.mount else { return Ok(()) };
    let (why, help) = match speaks {
        AppProtocol::Scgi | AppProtocol::Uwsgi => return Ok(()),
        AppProtocol::Fastcgi if typed.root.is_none() => return Ok(()),
        AppProtocol::Fastcgi => {
            ("on a program with scripts below a `root`", "leave out one of the two")
        }
        AppProtocol::Http | AppProtocol::H2c => (
            "on a program that speaks http",
            "for a program that does not know the start of its paths, write `strip_prefix`",
        ),
        AppProtocol::Ajp => ("on a program that speaks ajp", "leave it out"),
    };
    Err(no_effect(&at.span, "mount", why, help))
}

/// Returns the endings of files that may be run. Without this list, PHP would run any file,
/// including an uploaded picture.
fn scripts(
    typed: &file::App,
    run: &[String],
    speaks: AppProtocol,
    has_root: bool,
) -> Resolution<Vec<String>> {
    let finds_files = speaks == AppProtocol::Fastcgi && has_root;
    if let Some(at) = typed.scripts.as_ref().filter(|_| !finds_files) {
        let why = "on a program that does not speak fastcgi, or has no `root`";
        return Err(no_effect(&at.span, "scripts", why, "leave it out"));
    }
    let name = run.first().and_then(|program| program.rsplit('/').next()).unwrap_or_default();
    Ok(match script_ends(&typed.scripts)? {
        Some(ends) => ends,
        None if finds_files && name.starts_with("php") => vec![PHP.into()],
        None => Vec::new(),
    })
}

fn host(typed: &file::App, speaks: AppProtocol) -> Resolution<HostField> {
    match &typed.host {
        Some(at) if !speaks.is_http() => {
            let message = "`host` has no effect on a program that does not speak http";
            Err(Problem::new(&at.span, message)
                .help("leave it out: the program gets the client's in HTTP_HOST"))
        }
        host => Ok(host.as_ref().map(|at| at.value).unwrap_or_default()),
    }
}

/// Returns the process that opens the socket. The key `listen` names it. Without this key, {socket}
/// or {port} in `run` or `env` means that the program opens the socket. It is an error if the
/// program would not know its address.
fn listening(typed: &file::App, run: &[String], span: &Range<usize>) -> Resolution<Listening> {
    let env = typed.env.values().map(|at| &at.value);
    let says = |word: &str| run.iter().chain(env.clone()).any(|text| text.contains(word));
    let (socket, port) = (says("{socket}"), says("{port}"));
    let chosen = typed.listen.as_ref().map(|at| at.value);
    let needs = |word: &str, or: &str| {
        Problem::new(span, format!("the program has no address to listen on: {word} is missing"))
            .help(format!("put it into `run` or `env`, as the program expects it{or}"))
    };
    match (chosen, socket, port) {
        (None, true, true) => {
            Err(Problem::new(span, "`run` and `env` have both {socket} and {port}")
                .help("keep one of them, or say which one it listens on: listen = \"socket\""))
        }
        (None, true, false) | (Some(Listening::Socket), true, _) => Ok(Listening::Socket),
        (None, false, true) | (Some(Listening::Port), _, true) => Ok(Listening::Port),
        (None, false, false) => Err(needs(
            "{socket} or {port}",
            "; or let Forebay open the socket: listen = \"inherit\" or \"stdin\"",
        )),
        (Some(Listening::Socket), false, _) => Err(needs("{socket}", "")),
        (Some(Listening::Port), _, false) => Err(needs("{port}", "")),
        (Some(listening), ..) => Ok(listening),
    }
}

fn command(typed: &At<Vec<At<String>>>) -> Resolution<Vec<String>> {
    let Some(program) = typed.first() else {
        return Err(Problem::new(&typed.span, "this command is empty")
            .help("give the program and its arguments: [\"PROGRAM\", \"ARGUMENT\"]"));
    };
    text(program)?;
    for argument in typed.iter() {
        if argument.contains('\0') {
            return Err(Problem::new(&argument.span, "an argument holds a zero byte")
                .help("leave it out: no argument can hold one"));
        }
    }
    Ok(typed.iter().map(|argument| argument.value.clone()).collect())
}

/// The smallest accepted `max_memory` in bytes. With less, each worker would be replaced before it
/// served a request.
pub(super) const LEAST_MEMORY: u64 = 1024 * 1024;

/// The largest number of watched paths.
const MOST_WATCHED: usize = 100;

pub(super) fn watch(dir: &Path, typed: &file::App) -> Resolution<Vec<PathBuf>> {
    let Some(at) = &typed.watch else { return Ok(Vec::new()) };
    let items = at.items();
    within(&at.with(items.len()), 1..=MOST_WATCHED)?;
    items.iter().map(|item| Ok(dir.join(text(item)?))).collect()
}

/// Returns the largest number of CGI processes at the same time.
pub(super) fn max_processes(typed: &Option<At<usize>>) -> Resolution<usize> {
    typed.as_ref().map_or(Ok(64), |at| within(at, 1..=100_000))
}

pub(super) fn at_least(typed: &Option<file::Size>, least: u64) -> Resolution<Option<u64>> {
    match (typed, size(typed)?) {
        (Some(at), Some(bytes)) => within(&at.with(bytes), least..=u64::MAX).map(Some),
        _ => Ok(None),
    }
}

/// Returns the path of a program of an application. A relative one starts at the application's
/// `dir`; if nothing is there, at the directory of the configuration file, where other paths start.
pub(super) fn program_path(
    context: &Context<'_>,
    app: &At<file::App>,
    typed: &At<String>,
) -> Resolution<PathBuf> {
    let base = path(context.sources, typed)?;
    let Some(dir) = app.dir.as_ref().filter(|_| Path::new(&typed.value).is_relative()) else {
        return Ok(base);
    };
    let below = directory(context.sources, dir)?.join(&typed.value).components().collect();
    let below = without_parents(below);
    Ok(if files::kind(&below).is_err() && files::kind(&base).is_ok() { base } else { below })
}

/// The path of an application's interpreter. Symbolic links are not resolved, because Python finds
/// its virtual environment by the directory of the link.
pub(super) fn interpreter(
    context: &Context<'_>,
    app: &At<file::App>,
    typed: &At<String>,
) -> Resolution<PathBuf> {
    existing(context.sources, typed, program_path(context, app, typed)?, files::Kind::File)
}
