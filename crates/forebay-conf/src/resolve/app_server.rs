//! Resolves applications that run independently of Forebay: FastCGI, SCGI and uwsgi.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::upstream::{Keys as Servers, of_route};
use super::value::{optional_time_above_zero, size, size_or_unlimited, text, variables, within};
use super::{Context, Resolution};
use crate::error::Problem;
use crate::file::{self, At, File, OneOrMany, Size, Time};
use crate::key::paths::{directory, file_name, path};
use crate::key::{no_effect, not_empty};
use crate::plan::{AppServer, Fastcgi, Multiplex, Scheme, ServerProtocol, Upstream};

/// Checks `fastcgi` and adds the defaults. `root` is required if `mount` is missing.
pub(super) fn fastcgi(
    context: &Context<'_>,
    file: &File,
    typed: &At<file::Fastcgi>,
) -> Resolution<Fastcgi> {
    let keys = Servers::of(&typed.to, &typed.max_connections);
    let upstream = of_route(context, file, Scheme::Fastcgi, &typed.span, &keys)?;
    let mount = typed.mount.as_ref().map(mount).transpose()?;
    if mount.is_some() {
        has_no_scripts(typed)?;
    } else if typed.root.is_none() {
        let problem = Problem::new(&typed.span, "`root` is missing");
        return Err(problem
            .label("needs `root` or `mount`")
            .help("add root = \"DIR\", or mount = \"\" for an application without script files"));
    }
    multiplexes(typed)?;
    let index = match &typed.index {
        Some(at) => file_name(&at.with(&at.value))?,
        None => "index.php".into(),
    };
    let scripts = match script_ends(&typed.scripts)? {
        Some(ends) => ends,
        None if index.ends_with(PHP) => vec![PHP.into()],
        None => Vec::new(),
    };
    let must_exist = typed.must_exist.as_ref();
    // PHP would run an uploaded image for a path such as /image.jpg/x.php.
    if let Some(at) = must_exist.filter(|at| !at.value && !scripts.is_empty()) {
        return Err(Problem::new(&at.span, "scripts of some endings must exist")
            .help("add scripts = \"*\" if the application finds its pages itself"));
    }
    Ok(Fastcgi {
        must_exist: must_exist.is_none_or(|at| at.value),
        root: typed.root.as_ref().map(|typed| root(context, typed)).transpose()?,
        strip_prefix: prefix(&typed.strip_prefix)?,
        mount,
        upstream,
        scripts,
        index,
        params: variables(&typed.params)?,
        keep_conn: typed.keep_conn.unwrap_or(true),
        max_output: size_or_unlimited(&typed.max_output)?.unwrap_or(u64::MAX),
        reply_timeout: optional_time_above_zero(&typed.reply_timeout)?,
        multiplex: typed.multiplex.unwrap_or_default(),
        max_streams: match &typed.max_streams {
            Some(at) => within(at, 1..=10_000)?,
            None => 64,
        },
        max_shared: usize::MAX,
        max_buffered: max_buffered(&typed.max_buffered)?,
    })
}

/// Checks that an application without script files has no keys about script files.
fn has_no_scripts(typed: &file::Fastcgi) -> Resolution<()> {
    let spans = [
        ("index", typed.index.as_ref().map(|at| &at.span)),
        ("scripts", typed.scripts.as_ref().map(|at| &at.span)),
        ("must_exist", typed.must_exist.as_ref().map(|at| &at.span)),
        ("strip_prefix", typed.strip_prefix.as_ref().map(|at| &at.span)),
    ];
    match spans.into_iter().find_map(|(key, span)| Some((key, span?))) {
        Some((key, span)) => {
            let help = "leave out one of the two: with `mount`, no path names a script";
            Err(no_effect(span, key, "together with `mount`", help))
        }
        None => Ok(()),
    }
}

/// The file name extension of PHP scripts.
pub(super) const PHP: &str = ".php";

/// Returns the endings of scripts, or `None` if the user typed none. For `"*"`, which means any
/// file, returns an empty list. Only safe characters are accepted, because Forebay writes the
/// endings unchanged into php-fpm's configuration.
pub(super) fn script_ends(
    typed: &Option<At<OneOrMany<String>>>,
) -> Resolution<Option<Vec<String>>> {
    let Some(at) = typed else { return Ok(None) };
    let items = at.items();
    not_empty(
        &items,
        &at.span,
        ", so that nothing may be run",
        "name the ends of scripts, such as [\".php\"], or leave the key out",
    )?;
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    if let [At { value, .. }] = items[..]
        && value == "*"
    {
        return Ok(Some(Vec::new()));
    }
    let end = |item: &At<&String>| {
        let text = text(item)?;
        if text.starts_with('.') && text.len() > 1 && text.chars().all(is_plain) {
            return Ok(text.to_owned());
        }
        let message = format!("\"{text}\" is not the end of a script's name");
        Err(Problem::new(&item.span, message)
            .help("it begins with a dot and has letters and digits, such as \".php\""))
    };
    items.iter().map(end).collect::<Resolution<_>>().map(Some)
}

/// Checks that the keys about multiplexing are given only together with `multiplex`.
fn multiplexes(typed: &file::Fastcgi) -> Resolution<()> {
    let multiplexes = typed.multiplex.is_some_and(|at| at != Multiplex::Off);
    let spans = [
        ("max_streams", typed.max_streams.as_ref().map(|at| &at.span)),
        ("max_buffered", typed.max_buffered.as_ref().map(|at| &at.span)),
    ];
    match spans.into_iter().find_map(|(key, span)| Some((key, span?))) {
        Some((key, span)) if !multiplexes => {
            let help = "leave it out, or let requests share connections: multiplex = \"auto\"";
            Err(no_effect(span, key, "while each request has a connection of its own", help))
        }
        _ => Ok(()),
    }
}

pub(super) fn scgi(
    context: &Context<'_>,
    file: &File,
    typed: &At<file::Scgi>,
) -> Resolution<AppServer> {
    let file::Scgi { to, root, mount, params, max_output, reply_timeout, max_connections } =
        &typed.value;
    let servers = Servers::of(to, max_connections);
    let upstream = of_route(context, file, Scheme::Scgi, &typed.span, &servers)?;
    let keys = Keys { root, mount, params, max_output, reply_timeout };
    keys.resolve(context, ServerProtocol::Scgi, upstream)
}

pub(super) fn uwsgi(
    context: &Context<'_>,
    file: &File,
    typed: &At<file::Uwsgi>,
) -> Resolution<AppServer> {
    let file::Uwsgi {
        to,
        root,
        mount,
        params,
        max_output,
        reply_timeout,
        max_connections,
        modifier1,
        modifier2,
    } = &typed.value;
    let servers = Servers::of(to, max_connections);
    let upstream = of_route(context, file, Scheme::Uwsgi, &typed.span, &servers)?;
    let keys = Keys { root, mount, params, max_output, reply_timeout };
    let (modifier1, modifier2) = (modifier(modifier1)?, modifier(modifier2)?);
    keys.resolve(context, ServerProtocol::Uwsgi { modifier1, modifier2 }, upstream)
}

/// The keys that SCGI and uwsgi share, except those about servers.
struct Keys<'a> {
    root: &'a Option<At<String>>,
    mount: &'a Option<At<String>>,
    params: &'a BTreeMap<String, At<String>>,
    max_output: &'a Option<Size>,
    reply_timeout: &'a Option<Time>,
}

impl Keys<'_> {
    /// Checks the keys that `scgi` and `uwsgi` share, and adds the defaults.
    fn resolve(
        &self,
        context: &Context<'_>,
        protocol: ServerProtocol,
        upstream: Arc<Upstream>,
    ) -> Resolution<AppServer> {
        Ok(AppServer {
            protocol,
            root: match self.root {
                Some(typed) => Some(root(context, typed)?),
                None => None,
            },
            upstream,
            mount: Some(match self.mount {
                Some(typed) => mount(typed)?,
                None => String::new(),
            }),
            params: variables(self.params)?,
            max_output: size_or_unlimited(self.max_output)?.unwrap_or(u64::MAX),
            reply_timeout: optional_time_above_zero(self.reply_timeout)?,
        })
    }
}

/// Returns a directory. A relative path must exist. An absolute path need not exist, because it may
/// be on another machine or in a container.
fn root(context: &Context<'_>, typed: &At<String>) -> Resolution<PathBuf> {
    if Path::new(&typed.value).is_absolute() {
        path(context.sources, typed)
    } else {
        directory(context.sources, typed)
    }
}

/// Returns the path prefix that an application is mounted at, without a final slash. The prefix may
/// be empty.
pub(super) fn mount(typed: &At<String>) -> Resolution<String> {
    if typed.value.is_empty() {
        return Ok(String::new());
    }
    whole_segments(typed, "a path to mount at")
}

/// Returns the prefix that is removed from a path before a script is looked up. Returns `None` if
/// the user typed none.
pub(super) fn prefix(typed: &Option<At<String>>) -> Resolution<Option<String>> {
    typed.as_ref().map(|at| whole_segments(at, "the start of a path")).transpose()
}

/// Checks that a text is a decoded path of whole segments. Returns the path without a final slash.
fn whole_segments(typed: &At<String>, what: &str) -> Resolution<String> {
    let text = text(typed)?;
    let problem = Problem::new(&typed.span, format!("\"{text}\" is not {what}"));
    if !text.starts_with('/') {
        return Err(problem.help(format!("a path begins with a slash: \"/{text}\"")));
    }
    if text.contains(['*', '?', '#', '%']) {
        return Err(problem.help("write the path itself, decoded and without `*` or query"));
    }
    if text.split('/').any(|part| part == "." || part == "..") || text.contains("//") {
        return Err(problem.help("paths are compared without `//`, `.` and `..`: leave them out"));
    }
    Ok(text.trim_end_matches('/').to_owned())
}

/// Returns the buffer size in bytes. Less than `LEAST` bytes are an error, because they would be
/// too few even for fast clients.
fn max_buffered(typed: &Option<Size>) -> Resolution<usize> {
    const LEAST: u64 = 64 * 1024;
    match (typed, size(typed)?) {
        (Some(at), Some(size)) if size < LEAST => {
            Err(Problem::new(&at.span, format!("{size} bytes are too few"))
                .help("the least is \"64k\", which even fast clients need"))
        }
        (_, size) => Ok(size.map_or(1 << 20, |size| usize::try_from(size).unwrap_or(usize::MAX))),
    }
}

/// Returns the modifier, a byte. The default is zero.
fn modifier(typed: &Option<At<usize>>) -> Resolution<u8> {
    typed.as_ref().map_or(Ok(0), |at| within(at, 0..=255).map(|value| value as u8))
}
