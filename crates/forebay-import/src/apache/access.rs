//! `Require`, `Order`, `Allow` and `Deny`, and passwords.

use super::Cx;
use super::sections::{all, last};
use super::syntax::{Directive, is};
use crate::files;
use crate::value::Table;

/// The access rules of a place.
#[derive(Clone, Debug, Default)]
pub struct Gate {
    pub keys: Table,
    /// The note on a rule without a translation. The route is then closed.
    pub closed: Option<String>,
}

impl Gate {
    pub fn is_open(&self) -> bool {
        self.keys.is_empty() && self.closed.is_none()
    }
}

/// Rules on clients, before they become keys.
#[derive(Default)]
struct ClientRules {
    allow: Vec<String>,
    deny: Vec<String>,
    grants_all: bool,
    denies_all: bool,
    needs_user: bool,
}

/// The directives that restrict access.
const RULES: [&str; 8] =
    ["Require", "RequireAll", "RequireAny", "RequireNone", "Order", "Allow", "Deny", "AuthMerging"];

/// Returns the access rules of layers. The last layer with rules replaces those before it.
pub fn gate(cx: &mut Cx<'_>, layers: &[&[Directive]]) -> Gate {
    let has_rules = |layer: &&&[Directive]| {
        layer.iter().any(|directive| RULES.iter().any(|name| is(directive, name)))
    };
    let mut gate = Gate::default();
    let Some(layer) = layers.iter().rev().find(has_rules) else { return gate };
    let mut rules = ClientRules::default();
    for directive in layer.iter() {
        read(cx, directive, &mut rules, &mut gate, false);
    }
    let order = layer.iter().rfind(|directive| is(directive, "Order"));
    let allows_others = order.is_some_and(|order| order.arg(0).eq_ignore_ascii_case("deny,allow"));
    if order.is_some() && rules.denies_all && allows_others && !rules.allow.is_empty() {
        rules.denies_all = false;
    }
    if order.is_some()
        && !allows_others
        && !rules.grants_all
        && rules.allow.is_empty()
        && !rules.needs_user
    {
        // `Order allow,deny` refuses all that no `Allow` names.
        rules.denies_all = true;
    }
    finish(cx, layers, rules, &mut gate);
    gate
}

fn read(
    cx: &mut Cx<'_>,
    directive: &Directive,
    rules: &mut ClientRules,
    gate: &mut Gate,
    is_not: bool,
) {
    let inside = directive.inside();
    if is(directive, "Require") {
        require(cx, directive, rules, gate, is_not);
    } else if is(directive, "RequireAny") && !is_not {
        inside.iter().for_each(|inner| read(cx, inner, rules, gate, false));
    } else if is(directive, "RequireAll") && !is_not {
        inside.iter().for_each(|inner| read(cx, inner, rules, gate, false));
    } else if is(directive, "RequireNone") {
        inside.iter().for_each(|inner| read(cx, inner, rules, gate, true));
    } else if is(directive, "Allow") || is(directive, "Deny") {
        let is_allow = is(directive, "Allow");
        for who in directive.args.iter().skip(1) {
            if who.eq_ignore_ascii_case("all") {
                rules.grants_all |= is_allow;
                rules.denies_all |= !is_allow;
            } else {
                match network(who) {
                    Some(who) if is_allow => rules.allow.push(who),
                    Some(who) => rules.deny.push(who),
                    None => close(cx, directive, gate),
                }
            }
        }
    }
}

fn require(
    cx: &mut Cx<'_>,
    directive: &Directive,
    rules: &mut ClientRules,
    gate: &mut Gate,
    is_not: bool,
) {
    let (mut args, mut is_not) = (&directive.args[..], is_not);
    if args.first().is_some_and(|first| first.eq_ignore_ascii_case("not")) {
        (args, is_not) = (&args[1..], !is_not);
    }
    let Some((kind, rest)) = args.split_first() else { return };
    match kind.to_ascii_lowercase().as_str() {
        "all" => {
            let grants = rest.first().is_some_and(|word| word.eq_ignore_ascii_case("granted"));
            if grants != is_not { rules.grants_all = true } else { rules.denies_all = true }
        }
        "ip" => {
            for who in rest {
                match network(who) {
                    Some(who) if is_not => rules.deny.push(who),
                    Some(who) => rules.allow.push(who),
                    None => close(cx, directive, gate),
                }
            }
        }
        "local" if !is_not => {
            rules.allow.extend(["127.0.0.0/8", "::1"].map(str::to_owned));
        }
        "valid-user" if !is_not => rules.needs_user = true,
        _ => close(cx, directive, gate),
    }
}

fn close(cx: &mut Cx<'_>, directive: &Directive, gate: &mut Gate) {
    let next = "write the rule with `allow`, `deny` or `basic_auth`";
    gate.closed = Some(cx.note(directive, next));
}

/// Returns an address or network: `10.0.0.0/8`, `10.`, `10.0.0.0/255.0.0.0` or `::1`.
fn network(text: &str) -> Option<String> {
    if let Some((address, mask)) = text.split_once('/') {
        let address: std::net::IpAddr = address.parse().ok()?;
        if mask.parse::<u8>().is_ok() {
            return Some(text.to_owned());
        }
        let mask: std::net::Ipv4Addr = mask.parse().ok()?;
        let bits = u32::from(mask);
        let length = bits.leading_ones();
        return (bits.count_ones() == length).then(|| format!("{address}/{length}"));
    }
    if text.parse::<std::net::IpAddr>().is_ok() {
        return Some(text.to_owned());
    }
    let parts: Vec<&str> = text.trim_end_matches('.').split('.').collect();
    let is_part = |part: &&str| part.parse::<u8>().is_ok();
    if parts.len() > 3 || !parts.iter().all(is_part) {
        return None;
    }
    let zeros = vec!["0"; 4 - parts.len()];
    Some(format!("{}/{}", [parts.clone(), zeros].concat().join("."), parts.len() * 8))
}

fn finish(cx: &mut Cx<'_>, layers: &[&[Directive]], rules: ClientRules, gate: &mut Gate) {
    // Several lines admit a client that one of them admits; here all must.
    if rules.denies_all && rules.allow.is_empty() && !rules.needs_user {
        gate.keys.set("deny", "all");
        return;
    }
    if !rules.allow.is_empty() && !rules.grants_all {
        gate.keys.set("allow", rules.allow.clone());
    }
    if !rules.deny.is_empty() {
        gate.keys.set("deny", rules.deny);
    }
    if !rules.needs_user {
        return;
    }
    let kind = last(layers, "AuthType");
    let is_basic = kind.is_some_and(|kind| kind.arg(0).eq_ignore_ascii_case("basic"));
    let file = last(layers, "AuthUserFile").map(|file| (file, cx.path(file.arg(0))));
    match file {
        Some((_, path)) if is_basic && files::has_users(&path) => {
            let mut table = Table::default().with("file", path);
            let realm = last(layers, "AuthName").map(|name| name.arg(0));
            table.set_some(
                "realm",
                realm.filter(|realm| !realm.is_empty() && !realm.contains(['"', '\\'])),
            );
            gate.keys.set("basic_auth", table);
        }
        Some((directive, path)) if is_basic => {
            let next = format!(
                "{path} has no user with a hash of htpasswd -B here: write basic_auth = {{ file = \"...\" }}"
            );
            gate.closed = Some(cx.note(directive, next));
        }
        _ => {
            let directive = kind.or_else(|| all(layers, "Require").last().copied());
            let next = "use `basic_auth` with a file of htpasswd";
            gate.closed = directive.map(|directive| cx.note(directive, next));
            if gate.closed.is_none() {
                gate.keys.set("deny", "all");
            }
        }
    }
    if last(layers, "Satisfy").is_some_and(|satisfy| satisfy.arg(0).eq_ignore_ascii_case("any"))
        && cx.keys.route("satisfy")
        && gate.keys.0.len() > 1
    {
        gate.keys.set("satisfy", "any");
    }
}

#[cfg(test)]
mod tests {
    use super::network;

    #[test]
    fn networks_of_all_forms() {
        for (text, found) in [
            ("10", Some("10.0.0.0/8")),
            ("192.168.", Some("192.168.0.0/16")),
            ("10.1.2.3", Some("10.1.2.3")),
            ("10.0.0.0/255.255.0.0", Some("10.0.0.0/16")),
            ("::1", Some("::1")),
            ("example.org", None),
            ("10.0.0.0/255.0.255.0", None),
        ] {
            assert_eq!(network(text).as_deref(), found, "{text}");
        }
    }
}
