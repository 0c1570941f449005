//! Translates access rules: addresses, passwords and forward authentication.

use super::Cx;
use super::auth_copies::{AuthCopy, auth_copies, copied};
use super::auth_server;
use super::files_of;
use super::names;
use super::scope::Scope;
use super::syntax::Directive;
use crate::draft::DraftRoute;
use crate::files;
use crate::value::Table;

/// The access rules of a location or a server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Gate {
    pub keys: Table,
    pub comments: Vec<String>,
    /// The note on a rule without a translation. Routes with these rules then refuse all requests
    /// (403).
    pub closed: Option<String>,
}

impl Gate {
    /// Returns true if no rule restricts access.
    pub fn is_open(&self) -> bool {
        self.keys.is_empty() && self.closed.is_none()
    }
}

/// Returns the access rules of a scope.
pub fn gate(cx: &mut Cx<'_>, scope: &Scope<'_>) -> Gate {
    let mut gate = Gate::default();
    addresses(cx, &scope.any(&["allow", "deny"]), &mut gate);
    password(cx, scope, &mut gate);
    subrequest(cx, scope, &mut gate);
    let is_address = |key: &str| matches!(key, "allow" | "deny");
    let others = gate.keys.0.iter().filter(|(key, _)| !is_address(key)).count();
    let rules = others + usize::from(others < gate.keys.0.len());
    if scope.value("satisfy") == Some("any") && rules > 1 {
        if cx.keys.route("satisfy") {
            gate.keys.set("satisfy", "any");
        } else if let Some(directive) = scope.nearest("satisfy") {
            let next = "both rules must hold here: keep the one that you need";
            gate.comments.push(cx.note(directive, next));
        }
    }
    for directive in unreadable(scope).into_iter().flat_map(|name| scope.all(name)) {
        gate.closed = Some(cx.note(directive, names::next_step(&directive.name)));
    }
    gate
}

/// Adds access rules to a route.
pub fn guard(route: &mut DraftRoute, gate: &Gate) {
    gate.keys.0.iter().for_each(|(key, value)| route.keys.set(key, value.clone()));
    route.comments.extend(gate.comments.iter().cloned());
}

/// Returns the names of directives that may restrict access, and that have no translation.
fn unreadable<'a>(scope: &Scope<'a>) -> Vec<&'a str> {
    let is_on = |name: &&str| {
        let mut all = scope.every(name).filter(|directive| !files_of::refuses_links(directive));
        all.any(|directive| directive.arg(0) != "off")
    };
    let mut found: Vec<&str> = scope.gates().filter(is_on).collect();
    found.sort_unstable();
    found.dedup();
    found
}

/// Adds the rules on addresses to `gate`. In nginx, the first rule that matches decides. In
/// Forebay, `deny` precedes `allow`, so the translated rules may refuse further clients, but never
/// admit further clients.
pub fn addresses(cx: &mut Cx<'_>, rules: &[&Directive], gate: &mut Gate) {
    let (mut allow, mut deny, mut denies_others) = (Vec::new(), Vec::new(), false);
    let mut is_mixed = false;
    for rule in rules {
        let (is_allow, who) = (rule.name == "allow", rule.arg(0));
        match (is_allow, who) {
            (true, "all") => break,
            (false, "all") => {
                denies_others = true;
                break;
            }
            (true, who) => allow.push(client(who)),
            (false, who) => {
                is_mixed |= !allow.is_empty();
                deny.push(client(who));
            }
        }
    }
    let Some(first) = rules.first() else { return };
    let has_variables = |list: &[String]| list.iter().any(|who| who.contains('$'));
    if has_variables(&allow) || has_variables(&deny) {
        gate.closed = Some(cx.note(first, "a rule cannot have a variable: name the addresses"));
        return;
    }
    match (denies_others, allow.is_empty()) {
        (true, true) => gate.keys.set("deny", "all"),
        (true, false) => gate.keys.set("allow", allow),
        (false, _) => {}
    }
    if !deny.is_empty() && gate.keys.get("deny").is_none() {
        gate.keys.set("deny", deny);
    }
    if is_mixed {
        let next = "in Forebay `deny` precedes `allow`: check addresses that both name";
        gate.comments.push(cx.note(first, next));
    }
}

/// Returns an address or network in Forebay's form.
fn client(who: &str) -> String {
    if who == "unix:" { "unix".into() } else { who.to_owned() }
}

/// Adds `basic_auth` for `auth_basic`. Closes the routes if the file with the users cannot be used.
fn password(cx: &mut Cx<'_>, scope: &Scope<'_>, gate: &mut Gate) {
    let Some(realm) = scope.nearest("auth_basic").filter(|realm| realm.arg(0) != "off") else {
        return;
    };
    let file = scope.value("auth_basic_user_file").unwrap_or_default();
    if file.is_empty() || file.contains('$') {
        gate.closed = Some(cx.note(realm, "name one file with users in `basic_auth`"));
        return;
    }
    let file = files::below(&cx.dir, file);
    if !files::has_users(&file) {
        let next = format!(
            "the file {file} has no user with a hash of htpasswd -B here: write basic_auth = {{ file = \"...\" }}"
        );
        gate.closed = Some(cx.note(realm, next));
        return;
    }
    let mut table = Table::default().with("file", file);
    let text = realm.arg(0);
    if !text.is_empty() && !text.contains(['$', '"', '\\']) {
        table.set("realm", text);
    }
    gate.keys.set("basic_auth", table);
}

/// Adds the server that decides about each request (`auth_request`).
fn subrequest(cx: &mut Cx<'_>, scope: &Scope<'_>, gate: &mut Gate) {
    let Some(directive) = scope.nearest("auth_request").filter(|found| found.arg(0) != "off")
    else {
        return;
    };
    let mut table = match auth_server::table(cx, scope, directive.arg(0)) {
        Ok(table) => table,
        Err(next) => {
            gate.closed = Some(cx.note(directive, next));
            return;
        }
    };
    let copies = auth_copies(scope);
    if copies.iter().any(|copy| copy.name != copy.answer) {
        let mut renamed = Table::default();
        copies.into_iter().for_each(|AuthCopy { name, answer }| renamed.set(&name, answer));
        table.set("copy", renamed);
    } else if !copies.is_empty() {
        let names: Vec<String> = copies.into_iter().map(|copy| copy.name).collect();
        table.set("copy", names);
    }
    table.set_some("user", user(scope));
    gate.keys.set("forward_auth", table);
}

/// Returns the field of the answer to `auth_request` that contains the user's name: `Remote-User`
/// or a field that ends with `-User`. Returns `None` if no directive reads such a field.
pub fn user(scope: &Scope<'_>) -> Option<String> {
    scope.value("auth_request").filter(|path| *path != "off")?;
    let sets = scope.all("auth_request_set");
    let mut fields = sets.iter().filter_map(|set| copied(set.arg(1)));
    fields.find(|field| field == "Remote-User" || field.ends_with("-User"))
}
