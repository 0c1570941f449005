//! Translates the settings of the main block and of `http`.

use super::Cx;
use super::syntax::Directive;
use super::{logs, needless};
use crate::files;
use crate::units::duration;

/// Directives of `http` with a time, and their keys of [server.timeouts].
const TIMES: [(&str, &str); 4] = [
    ("client_header_timeout", "head"),
    ("client_body_timeout", "body_idle"),
    ("keepalive_timeout", "keep_alive"),
    ("send_timeout", "write"),
];

/// Translates the settings of the whole process.
pub fn settings(cx: &mut Cx<'_>, main: &[Directive]) {
    if let Some(user) = main.iter().find(|directive| directive.name == "user") {
        user.settle();
        let (name, group) = (user.arg(0), user.arg(1));
        if files::has_user(name) {
            cx.draft.server.set("user", name);
            if files::has_group(group) && group != name {
                cx.draft.server.set("group", group);
            }
        } else {
            let comment = cx.note(user, "this machine has no such user: set `user` of [server]");
            cx.draft.comments.push(comment);
        }
    }
    let threads = main.iter().find(|directive| directive.name == "worker_processes");
    let number = threads.and_then(|directive| directive.arg(0).parse::<u64>().ok());
    let number = number.filter(|number| (1..=512).contains(number));
    threads.filter(|_| number.is_some()).iter().for_each(|threads| threads.settle());
    cx.draft.server.set_some("threads", number);
    for (name, key) in TIMES {
        let Some(time) = cx.http.value(name).and_then(duration) else { continue };
        if time != "0s" || key == "keep_alive" {
            cx.draft.timeouts.set(key, time);
        }
    }
    let requests = cx.http.value("keepalive_requests").and_then(|n| n.parse::<u64>().ok());
    cx.draft.limits.set_some("keepalive_requests", requests.filter(|n| *n > 0));
    logs::process(cx);
    head_size(cx);
}

/// Translates `large_client_header_buffers` to the key `head_size`: all buffers together hold the
/// head of a request.
fn head_size(cx: &mut Cx<'_>) {
    /// The default of `head_size` in bytes.
    const DEFAULT: u64 = 32 * 1024;
    let Some(buffers) = cx.http.nearest("large_client_header_buffers") else { return };
    let number = buffers.arg(0).parse::<u64>().ok();
    let bytes = crate::units::bytes(buffers.arg(1));
    match number.zip(bytes).and_then(|(number, bytes)| number.checked_mul(bytes)) {
        Some(DEFAULT) => {}
        Some(all @ 1_024..=1_048_576) => {
            cx.draft.limits.set("head_size", all.to_string());
            // In nginx, the request line must fit into one of the buffers.
            let target = bytes.filter(|bytes| *bytes > 8 * 1024).map(|bytes| bytes.min(all / 2));
            cx.draft.limits.set_some("target", target.map(|bytes| bytes.to_string()));
        }
        _ => drop(cx.note(buffers, "write the largest request head in `head_size`")),
    }
}

/// Adds comments with the directives that need no key in Forebay, and the reasons. The caller has
/// translated all other lines.
pub fn needless(cx: &mut Cx<'_>, main: &[Directive]) {
    let mut found: Vec<(&str, Vec<&str>)> = Vec::new();
    let mut blocks = vec![main];
    while let Some(block) = blocks.pop() {
        for directive in block {
            let name = directive.name.as_str();
            let reason = needless::reason(name).filter(|_| !directive.is_settled());
            if let Some(reason) = reason {
                match found.iter_mut().find(|(other, _)| *other == reason) {
                    Some((_, names)) if names.contains(&name) => {}
                    Some((_, names)) => names.push(name),
                    None => found.push((reason, vec![name])),
                }
            }
            if matches!(name, "http" | "server" | "location" | "upstream" | "stream") {
                blocks.push(directive.inside());
            }
        }
    }
    found.sort_unstable();
    let text = |(reason, mut names): (&str, Vec<&str>)| {
        names.sort_unstable();
        format!("Forebay needs no key for {}: {reason}.", names.join(", "))
    };
    cx.draft.comments.splice(0..0, found.into_iter().map(text));
}
