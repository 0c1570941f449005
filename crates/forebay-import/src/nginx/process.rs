//! Translates the settings of the main block and of `http`.

use super::Cx;
use super::names;
use super::syntax::Directive;
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
pub fn settings(cx: &mut Cx<'_>, main: &[Directive], has_http: bool) {
    if has_http {
        let comments = cx.note_unread(main, &[]);
        cx.draft.comments.extend(comments);
    }
    let comments = cx.note_unread(cx.http.own(), &["error_page"]);
    cx.draft.comments.extend(comments);
    needless(cx, main);
    if let Some(user) = main.iter().find(|directive| directive.name == "user") {
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
    let threads = threads.and_then(|directive| directive.arg(0).parse::<u64>().ok());
    cx.draft.server.set_some("threads", threads.filter(|threads| (1..=512).contains(threads)));
    for (name, key) in TIMES {
        let Some(time) = cx.http.value(name).and_then(duration) else { continue };
        if time != "0s" || key == "keep_alive" {
            cx.draft.timeouts.set(key, time);
        }
    }
    let requests = cx.http.value("keepalive_requests").and_then(|n| n.parse::<u64>().ok());
    cx.draft.limits.set_some("keepalive_requests", requests.filter(|n| *n > 0));
    log(cx);
}

/// Adds a comment with the directives that need no key in Forebay.
fn needless(cx: &mut Cx<'_>, main: &[Directive]) {
    let mut found: Vec<&str> = Vec::new();
    let mut blocks = vec![main];
    while let Some(block) = blocks.pop() {
        for directive in block {
            let name = directive.name.as_str();
            if names::is_needless(name) && !found.contains(&name) {
                found.push(name);
            }
            if matches!(name, "http" | "server" | "location") {
                blocks.push(directive.inside());
            }
        }
    }
    found.sort_unstable();
    if !found.is_empty() {
        let text = format!("Forebay needs no key for: {}.", found.join(", "));
        cx.draft.comments.push(text);
    }
}

fn log(cx: &mut Cx<'_>) {
    let mut all = cx.http.own().iter();
    let log = all.find(|directive| directive.name == "access_log" && directive.arg(0) != "off");
    let Some(log) = log else { return };
    let next = "choose a file that Forebay may write: [log] with access = \"FILE\" and format = \"combined\"";
    let comment = cx.note(log, next);
    cx.draft.comments.push(comment);
}
