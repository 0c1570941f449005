//! Reads the global options at the top of a Caddyfile.

use std::collections::HashSet;

use super::addresses::networks;
use super::needless::is_needless;
use super::syntax::Directive;
use super::{Cx, on_demand};
use crate::units::{decimal_bytes, duration};

/// The next step for an option without a translation.
const NEXT: &str = "see the tables [server] and [site.tls] of the reference";

/// The options that all sites share.
pub struct Global {
    pub http_port: String,
    pub https_port: String,
    pub email: Option<String>,
    pub directory: Option<String>,
    /// The URL of the application that permits names (`on_demand_tls`).
    pub ask: Option<String>,
    /// The hosts of `default_bind`.
    pub bind: Vec<String>,
    /// The proxies whose fields about the client are valid.
    pub trusted: Vec<String>,
    pub redirects: bool,
    /// The hosts of the addresses without TLS on the HTTP port. An address without a host has the empty name.
    pub plain: HashSet<String>,
    pub https: bool,
    /// True if Caddy finds the client's address in a way that Forebay does not have, such as in a
    /// field with another name.
    has_other_clients: bool,
}

/// Reads the global options.
pub fn read(cx: &mut Cx<'_>, lines: &[Directive]) -> Global {
    let mut global = Global {
        http_port: "80".into(),
        https_port: "443".into(),
        email: None,
        directory: None,
        ask: None,
        bind: Vec::new(),
        trusted: Vec::new(),
        redirects: true,
        plain: HashSet::new(),
        https: true,
        has_other_clients: false,
    };
    let Some(options) = lines.first().filter(|first| first.name.is_empty()) else { return global };
    for option in options.inside().iter().filter(|option| !is_needless("", &option.name)) {
        match option.name.as_str() {
            "http_port" => global.http_port = option.arg(0).to_owned(),
            "https_port" => global.https_port = option.arg(0).to_owned(),
            "default_bind" => global.bind.clone_from(&option.args),
            "email" => global.email = Some(option.arg(0).to_owned()),
            "acme_ca" => global.directory = Some(option.arg(0).to_owned()),
            "on_demand_tls" => global.ask = on_demand::ask(cx, option),
            "auto_https" if ["off", "disable_redirects"].contains(&option.arg(0)) => {
                global.redirects = false;
                global.https &= option.arg(0) != "off";
            }
            "grace_period" | "shutdown_delay" if duration(option.arg(0)).is_some() => {
                let key = if option.name == "grace_period" { "grace" } else { "drain_delay" };
                cx.draft.server.set_some(key, duration(option.arg(0)));
            }
            "servers" if option.args.is_empty() => {
                option.inside().iter().for_each(|line| server(cx, line, &mut global));
            }
            name => {
                let has_proxies = |line: &Directive| line.name == "trusted_proxies";
                global.has_other_clients |=
                    name == "servers" && option.inside().iter().any(has_proxies);
                add_note(cx, option);
            }
        }
    }
    if global.has_other_clients {
        // Trust no proxies, because this Caddyfile finds the client's address in a way that Forebay
        // does not have. With trusted proxies, a client could choose its own address in
        // X-Forwarded-For.
        global.trusted.clear();
    }
    cx.has_other_clients = global.has_other_clients;
    cx.trusts_proxies = !global.trusted.is_empty();
    global
}

fn add_note(cx: &mut Cx<'_>, line: &Directive) {
    let comment = cx.note(line, NEXT);
    cx.draft.comments.push(comment);
}

/// Reads a line of the option `servers`.
fn server(cx: &mut Cx<'_>, line: &Directive, global: &mut Global) {
    match line.name.as_str() {
        "trusted_proxies" if line.arg(0) == "static" => match networks(&line.args[1..]) {
            Some(list) => global.trusted = list,
            None => {
                global.has_other_clients = true;
                add_note(cx, line);
            }
        },
        "trusted_proxies" => {
            global.has_other_clients = true;
            add_note(cx, line);
        }
        // Forebay always behaves as with these two lines.
        "trusted_proxies_strict" => {}
        "client_ip_headers" if line.args == ["X-Forwarded-For"] => {}
        "client_ip_headers" => {
            global.has_other_clients = true;
            add_note(cx, line);
        }
        "max_header_size" => match decimal_bytes(line.arg(0)) {
            Some(size @ 1_024..=1_048_576) => {
                cx.draft.limits.set("head_size", size.to_string());
            }
            _ => add_note(cx, line),
        },
        "timeouts" => line.inside().iter().for_each(|line| {
            let key = match line.name.as_str() {
                "read_header" => "head",
                "idle" => "keep_alive",
                _ => return add_note(cx, line),
            };
            match duration(line.arg(0)) {
                Some(time) => cx.draft.timeouts.set(key, time),
                None => add_note(cx, line),
            }
        }),
        _ => add_note(cx, line),
    }
}
