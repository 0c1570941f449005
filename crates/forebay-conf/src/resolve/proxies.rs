//! Resolves `trusted_proxies`, other lists of networks, and `forwarded`.

use std::path::PathBuf;
use std::sync::Arc;

use super::peer;
use super::value::{host_and_port, text};
use super::{Context, Resolution};
use crate::error::{Problem, advice, reason};
use crate::file::At;
use crate::files;
use crate::key::paths::path;
use crate::plan::{
    Clients, ForwardedFields, MAX_LIST_BYTES, NetworkList, NetworkSource, NetworkUrl,
};

/// Directories of the lists that a name such as "cloudflare" stands for. The administrator's own come first.
const LISTS: [&str; 3] =
    ["/etc/forebay/networks", "/usr/share/forebay/networks", "/usr/local/share/forebay/networks"];

/// Returns the trusted proxies, and the lists of further ones.
pub(super) fn proxies(
    context: &Context<'_>,
    items: &[At<&String>],
) -> Resolution<(Vec<Clients>, Vec<Arc<NetworkList>>)> {
    networks(context, items, peer::proxy)
}

/// Returns clients, and lists of further ones. `single` parses an item that names no list. Reads
/// lists in files; those at URLs are still empty.
pub(super) fn networks<'t>(
    context: &Context<'_>,
    items: &[At<&'t String>],
    single: impl Fn(&At<&'t String>) -> Resolution<Clients>,
) -> Resolution<(Vec<Clients>, Vec<Arc<NetworkList>>)> {
    let (mut clients, mut lists) = (Vec::new(), Vec::new());
    for item in items {
        match source(context, item)? {
            None => clients.push(single(item)?),
            Some(source) => {
                let list = NetworkList::new(source);
                if let NetworkSource::File(path) = &list.source {
                    let wrong = |why: String| {
                        Problem::new(
                            &item.span,
                            format!("{} is no list of networks: {why}", path.display()),
                        )
                        .help(
                            "write an address or a network in each line, such as \"192.0.2.0/24\"",
                        )
                    };
                    let bytes = files::read(path, MAX_LIST_BYTES)
                        .map_err(|error| wrong(reason(&error)).help(advice(&error)))?;
                    if bytes.len() as u64 > MAX_LIST_BYTES {
                        return Err(wrong("it is larger than 1 MiB".into()));
                    }
                    let text =
                        String::from_utf8(bytes).map_err(|_| wrong("it is not text".into()))?;
                    list.replace(&text).map_err(wrong)?;
                }
                lists.push(Arc::new(list));
            }
        }
    }
    Ok((clients, lists))
}

/// Returns the place of a list. `None` for an address, a network and a word such as "unix".
fn source(context: &Context<'_>, item: &At<&String>) -> Resolution<Option<NetworkSource>> {
    let typed = text(item)?;
    if typed.starts_with("http://") || typed.starts_with("https://") {
        return url(item).map(|url| Some(NetworkSource::Url(url)));
    }
    if ["/", "./", "../"].iter().any(|start| typed.starts_with(start)) {
        return Ok(Some(NetworkSource::File(path(context.sources, item)?)));
    }
    // No address begins with a letter beyond f or has only letters.
    let is_word = typed.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'-');
    if !is_word || typed.is_empty() || ["unix", "all"].contains(&typed) {
        return Ok(None);
    }
    let file = format!("{typed}.txt");
    let found = LISTS
        .iter()
        .map(|folder| PathBuf::from(folder).join(&file))
        .find(|path| matches!(files::kind(path), Ok(files::Kind::File)));
    match found {
        Some(path) => Ok(Some(NetworkSource::File(path))),
        None => {
            Err(Problem::new(&item.span, format!("there is no list of networks named \"{typed}\""))
                .help(format!(
                    "write the networks into {}/{file}, or name a file by its path",
                    LISTS[0]
                )))
        }
    }
}

fn url(item: &At<&String>) -> Resolution<NetworkUrl> {
    let typed = text(item)?;
    let wrong = |why: &str| {
        Problem::new(&item.span, format!("\"{typed}\" cannot be read: {why}"))
            .help("write the URL of a text with a network in each line")
    };
    let (rest, port, is_https) = match typed.strip_prefix("https://") {
        Some(rest) => (rest, 443, true),
        None => (typed.strip_prefix("http://").unwrap_or(typed), 80, false),
    };
    let (authority, target) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
    let is_url = |byte: u8| byte.is_ascii_graphic() && !b"\"<>\\^`{|}#".contains(&byte);
    if !target.bytes().all(is_url) {
        return Err(wrong("its path has other characters than a URL"));
    }
    let host = [authority.to_owned(), format!("{authority}:{port}")];
    let Some(host) = host.into_iter().find(|host| host_and_port(host)) else {
        return Err(wrong("no host"));
    };
    let slash = if target.starts_with('/') { "" } else { "/" };
    Ok(NetworkUrl {
        is_https,
        host,
        authority: authority.to_owned(),
        target: format!("{slash}{target}"),
    })
}

/// Fields that never have the address of a client.
const OTHERS: [&str; 12] = [
    "host",
    "connection",
    "content-length",
    "transfer-encoding",
    "cookie",
    "te",
    "upgrade",
    "trailer",
    "expect",
    "authorization",
    "x-forwarded-proto",
    "x-forwarded-host",
];

/// Parses `forwarded`: a word, or the name of a field.
pub(super) fn forwarded(at: &At<String>) -> Resolution<ForwardedFields> {
    let name = text(at)?.to_ascii_lowercase();
    Ok(match &*name {
        "either" => ForwardedFields::Either,
        "x-forwarded" | "x-forwarded-for" => ForwardedFields::XForwarded,
        "forwarded" => ForwardedFields::Forwarded,
        _ => {
            let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
            if name.is_empty() || !name.bytes().all(is_plain) {
                return Err(Problem::new(&at.span, "this is not the name of a field")
                    .help("as in forwarded = \"CF-Connecting-IP\", or \"either\""));
            }
            if OTHERS.contains(&&*name) {
                return Err(Problem::new(&at.span, format!("{name} has no address of a client"))
                    .help("as in forwarded = \"CF-Connecting-IP\", or \"either\""));
            }
            ForwardedFields::Named(name)
        }
    })
}
