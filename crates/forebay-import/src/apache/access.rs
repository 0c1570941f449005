//! Translates `Require`, `Order`, `Allow` and `Deny`, and passwords.

use super::Cx;
use super::names;
use super::networks::network;
use super::sections::{all, last, settle};
use super::syntax::{Directive, is, line};
use crate::draft::DraftRoute;
use crate::files;
use crate::matcher::Matcher;
use crate::value::{Table, Value};

/// The access rules of a part of a site, as keys of Forebay.
#[derive(Clone, Debug, Default)]
pub struct Gate {
    pub keys: Table,
    /// The note on a rule without a translation. Routes with these rules then refuse all requests
    /// (403).
    pub closed: Option<String>,
}

impl Gate {
    pub fn is_open(&self) -> bool {
        self.keys.is_empty() && self.closed.is_none()
    }

    /// Returns true if the rules refuse all clients.
    pub fn refuses_all(&self) -> bool {
        self.keys.get("deny") == Some(&Value::from("all"))
    }
}

/// Access rules as Apache states them, before they are translated to Forebay's keys.
#[derive(Default)]
struct ClientRules {
    allow: Vec<String>,
    deny: Vec<String>,
    grants_all: bool,
    denies_all: bool,
    /// True if `Order` and `Deny` refuse all clients that no `Allow` names.
    denies_hosts: bool,
    needs_user: bool,
    /// The users that `Require user` names. If empty, all users of the file may pass.
    users: Vec<String>,
    /// True if any user of the file may pass, even if `users` names users.
    admits_all_users: bool,
    /// True if a client needs only an address of `allow` or a password.
    has_alternatives: bool,
}

/// The kinds of rules in a section of which one is enough: the lines of the section itself, of
/// `RequireAny`, and whole groups of other kinds.
#[derive(Default)]
struct Alternatives<'a> {
    has_places: bool,
    has_users: bool,
    /// A group of `RequireAll` that requires an address and a user.
    of_both: Option<&'a Directive>,
    /// Number of rules that may admit some clients.
    count: usize,
}

impl<'a> Alternatives<'a> {
    fn add(&mut self, directive: &'a Directive) {
        if is(directive, "RequireAny") {
            directive.inside().iter().for_each(|inner| self.add(inner));
            return;
        }
        let block = std::slice::from_ref(directive);
        let (places, users) = (names_places(block), needs_users(block));
        if is(directive, "RequireNone") || !places && !users {
            return;
        }
        self.count += 1;
        if places && users {
            self.of_both = Some(directive);
        } else {
            self.has_places |= places;
            self.has_users |= users;
        }
    }
}

impl ClientRules {
    /// Adds the rules of a `RequireAll`. A client must meet all of these rules.
    fn add_all_of(&mut self, together: Self) {
        if together.denies_all {
            // One of the rules refuses all clients, so no client meets all of the rules.
            self.denies_all = true;
            return;
        }
        let is_restricted = !together.allow.is_empty() || together.needs_user;
        self.grants_all |= together.grants_all && !is_restricted;
        self.needs_user |= together.needs_user;
        self.admits_all_users |= together.admits_all_users && together.users.is_empty();
        self.users.extend(together.users);
        self.allow.extend(together.allow);
        self.deny.extend(together.deny);
    }
}

/// The directives that restrict access.
const RULES: [&str; 7] =
    ["Require", "RequireAll", "RequireAny", "RequireNone", "Order", "Allow", "Deny"];

/// The directives about passwords, and about the merging of rules.
const LOGIN: [&str; 6] =
    ["AuthName", "AuthType", "AuthUserFile", "AuthBasicProvider", "AuthMerging", "Satisfy"];

/// Returns the route of a section for the requests of `matcher`. If `is_refusal` is true, the route
/// answers 403. Otherwise the route is closed, and a note has `next` as the next step for the user.
pub fn refused(
    cx: &mut Cx<'_>,
    section: &Directive,
    matcher: Matcher,
    is_refusal: bool,
    next: &str,
) -> DraftRoute {
    let route = DraftRoute::new(&section.place, line(section), matcher);
    if is_refusal {
        return route.respond(403);
    }
    let comment = cx.note(section, next);
    route.closed(comment)
}

/// Returns the access rules of a part of a site. `layers` are the sections that apply to this part,
/// the outermost first. The innermost section with access rules replaces the rules of outer
/// sections. If another directive also restricts access, closes the routes of this part.
pub fn gate(cx: &mut Cx<'_>, layers: &[&[Directive]]) -> Gate {
    let has_rules = |layer: &&&[Directive]| {
        layer.iter().any(|directive| RULES.iter().any(|name| is(directive, name)))
    };
    settle_gate(layers);
    let mut gate = Gate::default();
    let Some(at) = layers.iter().rposition(|layer| has_rules(&layer)) else { return gate };
    let layer = &layers[at];
    let mut rules = ClientRules::default();
    let (old_is_open, new_is_open) = (is_open(cx, layer, is_old), is_open(cx, layer, is_new));
    let is_any = satisfies_any(layers);
    for directive in *layer {
        // A client must meet the rules of mod_access_compat and the rules of mod_authz_core. If the
        // rules of only one module admit all clients, skip the rules of this module.
        let is_needless = !is_any
            && (old_is_open && is_old(directive) && !new_is_open
                || new_is_open && is_new(directive) && !old_is_open);
        if !is_needless {
            read(cx, directive, &mut rules, &mut gate, false);
        }
    }
    if let Some(directive) = mixes_users(layer) {
        close(cx, directive, &mut gate);
    }
    // Of alternatives, one is enough: `Require ip` beside `Require valid-user` admits clients of
    // these addresses without a password. Rules of mod_access_compat also apply to all clients.
    let mut kinds = Alternatives::default();
    layer.iter().for_each(|directive| kinds.add(directive));
    let has_old_rules = !is_any && !old_is_open && layer.iter().any(is_old);
    match kinds.of_both {
        Some(group) if kinds.count > 1 => close(cx, group, &mut gate),
        _ if !kinds.has_places || !kinds.has_users || has_old_rules => {}
        // With `satisfy`, Forebay admits all addresses that `deny` does not name.
        _ if !rules.deny.is_empty() => {
            let first = layer.iter().find(|directive| is_new(directive));
            first.into_iter().for_each(|directive| close(cx, directive, &mut gate));
        }
        _ => rules.has_alternatives = true,
    }
    let has_both = layer.iter().any(is_old) && layer.iter().any(is_new);
    if has_both && !is_any && !old_is_open && !new_is_open && names_places(layer) {
        let first = layer.iter().find(|directive| is_new(directive));
        first.into_iter().for_each(|directive| close(cx, directive, &mut gate));
    }
    let order = layer.iter().rfind(|d| is(d, "Order") && (is_any || !old_is_open || new_is_open));
    let allows_others = order.is_some_and(|order| order.arg(0).eq_ignore_ascii_case("deny,allow"));
    if order.is_some() && rules.denies_all && allows_others && !rules.allow.is_empty() {
        rules.denies_all = false;
    }
    if order.is_some() && !allows_others && !rules.grants_all && rules.allow.is_empty() {
        // `Order allow,deny` refuses all clients that no `Allow` names.
        rules.denies_all = true;
        rules.denies_hosts = true;
    }
    if order.is_some() && !allows_others && layer.iter().any(denies_everybody) {
        // After `Order allow,deny`, `Deny from all` refuses all clients, even clients that an
        // `Allow` names.
        rules = ClientRules { denies_all: true, ..ClientRules::default() };
    }
    finish(cx, layers, rules, &mut gate);
    if let Some(outer) = other_rules(&layers[..at], layer) {
        // This section has no rules of one module, so Apache also applies this module's rules from
        // an outer section. The translation reads only one section, so it closes the route.
        close(cx, outer, &mut gate);
    }
    if let Some(merging) = last(layers, "AuthMerging")
        && !merging.arg(0).eq_ignore_ascii_case("off")
    {
        // With `AuthMerging`, the rules of outer sections apply, too. The translation reads only
        // one section, so it closes the route.
        close(cx, merging, &mut gate);
    }
    gate
}

/// Returns the rules about hosts (`Order`, `Allow`, `Deny`) alone, which hold beside those of
/// handlers.
pub fn gate_of_hosts(cx: &mut Cx<'_>, layers: &[&[Directive]]) -> Gate {
    let old = |layer: &&[Directive]| layer.iter().filter(|line| is_old(line)).cloned().collect();
    let layers: Vec<Vec<Directive>> = layers.iter().map(old).collect();
    gate(cx, &layers.iter().map(Vec::as_slice).collect::<Vec<_>>())
}

/// Marks the access rules of the layers as read.
pub fn settle_gate(layers: &[&[Directive]]) {
    settle(layers, &RULES);
    settle(layers, &LOGIN);
}

/// Returns true if the access rules of a part of a site admit all clients. Adds no notes, and marks
/// no lines as read.
pub fn is_open_to_all(cx: &mut Cx<'_>, layers: &[&[Directive]]) -> bool {
    let is_read =
        |directive: &&Directive| RULES.iter().chain(&LOGIN).any(|name| is(directive, name));
    let copy = |layer: &&[Directive]| -> Vec<Directive> {
        layer.iter().filter(is_read).map(Directive::with_own_mark).collect()
    };
    let copies: Vec<Vec<Directive>> = layers.iter().map(copy).collect();
    let copies: Vec<&[Directive]> = copies.iter().map(Vec::as_slice).collect();
    let count = cx.draft.notes.0.len();
    let is_open = gate(cx, &copies).is_open();
    cx.draft.notes.truncate(count);
    is_open
}

/// Returns true for a directive of mod_access_compat.
fn is_old(directive: &Directive) -> bool {
    ["Order", "Allow", "Deny"].iter().any(|name| is(directive, name))
}

/// Returns true for a directive of mod_authz_core.
fn is_new(directive: &Directive) -> bool {
    directive.name.to_ascii_lowercase().starts_with("require")
}

/// Returns true if the directives that `is_own` selects in a section admit all clients. Returns
/// false if `is_own` selects no directive.
fn is_open(cx: &mut Cx<'_>, layer: &[Directive], is_own: fn(&Directive) -> bool) -> bool {
    let mut own = layer.iter().filter(|directive| is_own(directive)).peekable();
    if own.peek().is_none() {
        return false;
    }
    let (mut rules, mut gate) = (ClientRules::default(), Gate::default());
    let count = cx.draft.notes.0.len();
    own.for_each(|directive| read(cx, directive, &mut rules, &mut gate, false));
    // Drop the notes, because the section is read again later.
    cx.draft.notes.truncate(count);
    let restricts = rules.denies_all || !rules.deny.is_empty() || rules.needs_user;
    rules.grants_all && !restricts && gate.closed.is_none()
}

/// Returns a group of `Require` lines that names users, if further rules are in the same block as
/// the group. Also searches inside the groups of the block. Returns `None` if there is no such
/// group. Forebay has one list of users and one list of addresses, so it cannot require an address
/// only for some users.
fn mixes_users(block: &[Directive]) -> Option<&Directive> {
    let rules = || block.iter().filter(|directive| is_new(directive));
    let group = rules().find(|rule| is_container(rule) && names_users(rule.inside()));
    let is_alone = rules().nth(1).is_none();
    let mixed = group.filter(|_| !is_alone);
    mixed.or_else(|| rules().find_map(|rule| mixes_users(rule.inside())))
}

/// Returns true if a rule requires a user, by name or with any password.
fn needs_users(block: &[Directive]) -> bool {
    let is_user = |kind: &str| ["user", "valid-user"].iter().any(|k| kind.eq_ignore_ascii_case(k));
    block.iter().any(|directive| {
        is(directive, "Require") && is_user(directive.arg(0)) || needs_users(directive.inside())
    })
}

fn names_users(block: &[Directive]) -> bool {
    block.iter().any(|directive| {
        is(directive, "Require") && directive.arg(0).eq_ignore_ascii_case("user")
            || names_users(directive.inside())
    })
}

/// Returns true if a rule of mod_authz_core, also within a group, names addresses.
fn names_places(layer: &[Directive]) -> bool {
    let is_place = |directive: &Directive| {
        directive.args.iter().any(|word| matches!(&*word.to_ascii_lowercase(), "ip" | "local"))
    };
    layer
        .iter()
        .filter(|directive| is_new(directive))
        .any(|directive| is_place(directive) || names_places(directive.inside()))
}

/// Returns true if a client must meet the rules of only one module (`Satisfy any`).
fn satisfies_any(layers: &[&[Directive]]) -> bool {
    last(layers, "Satisfy").is_some_and(|satisfy| satisfy.arg(0).eq_ignore_ascii_case("any"))
}

fn denies_everybody(directive: &Directive) -> bool {
    is(directive, "Deny") && directive.args.iter().any(|who| who.eq_ignore_ascii_case("all"))
}

/// Returns a directive of an outer section that restricts access and also applies in the section
/// `inner`. Returns `None` if there is no such directive. Rules of `inner` override only the outer
/// rules of the same module. `Require` belongs to mod_authz_core; `Order`, `Allow` and `Deny`
/// belong to mod_access_compat.
fn other_rules<'a>(outer: &[&'a [Directive]], inner: &[Directive]) -> Option<&'a Directive> {
    let grants = |directive: &Directive| directive.args.iter().any(|word| word == "granted");
    let has_old = inner.iter().any(is_old);
    let has_new = inner.iter().any(is_new);
    let of_old = outer.iter().rfind(|layer| layer.iter().any(is_old)).filter(|_| !has_old);
    let of_new = outer.iter().rfind(|layer| layer.iter().any(is_new)).filter(|_| !has_new);
    let old = of_old.and_then(|layer| layer.iter().find(|d| is(d, "Deny")));
    let new = of_new.and_then(|layer| layer.iter().find(|d| is_new(d) && !grants(d)));
    old.or(new)
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
        let mut together = ClientRules::default();
        inside.iter().for_each(|inner| read(cx, inner, &mut together, gate, false));
        // A client must meet all lines of a `RequireAll`. The key `allow` admits a client that is
        // in any network of its list, so it cannot require two networks.
        let count = |kinds: &[&str]| {
            let is_one = |inner: &&Directive| {
                is(inner, "Require") && kinds.contains(&&*inner.arg(0).to_ascii_lowercase())
            };
            inside.iter().filter(is_one).count()
        };
        // A request has one user, so no request meets two `Require user` lines with different
        // names.
        if count(&["ip", "local"]) > 1 || count(&["user"]) > 1 || inside.iter().any(is_container) {
            close(cx, directive, gate);
        }
        rules.add_all_of(together);
    } else if is(directive, "RequireNone") {
        if inside.iter().any(is_container) {
            close(cx, directive, gate);
        }
        inside.iter().for_each(|inner| read(cx, inner, rules, gate, true));
    } else if is(directive, "Allow") || is(directive, "Deny") {
        let is_allow = is(directive, "Allow");
        for who in directive.args.iter().skip(1) {
            if who.eq_ignore_ascii_case("all") {
                rules.grants_all |= is_allow;
                rules.denies_all |= !is_allow;
                rules.denies_hosts |= !is_allow;
            } else {
                let list = if is_allow { &mut rules.allow } else { &mut rules.deny };
                match network(who) {
                    _ if who.eq_ignore_ascii_case("localhost") => {
                        list.extend(["127.0.0.0/8", "::1"].map(str::to_owned));
                    }
                    Some(who) => list.push(who),
                    None => close(cx, directive, gate),
                }
            }
        }
    }
}

/// Returns true for a directive that groups `Require` lines.
fn is_container(directive: &Directive) -> bool {
    ["RequireAll", "RequireAny", "RequireNone"].iter().any(|name| is(directive, name))
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
            rules.denies_all |= grants == is_not;
            // A line with `not` can refuse clients, but cannot admit any.
            rules.grants_all |= grants && !is_not;
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
        "valid-user" if !is_not => (rules.needs_user, rules.admits_all_users) = (true, true),
        "user" if !is_not && cx.keys.has("BasicAuth", "users") && !rest.is_empty() => {
            rules.needs_user = true;
            rules.users.extend(rest.iter().cloned());
        }
        "group" if !is_not => {
            let next = "name the members of the group in `users` of `basic_auth`";
            gate.closed = Some(cx.note(directive, next));
        }
        "user" if !is_not => {
            let next = "name these users in `users` of `basic_auth`";
            gate.closed = Some(cx.note(directive, next));
        }
        _ => close(cx, directive, gate),
    }
}

fn close(cx: &mut Cx<'_>, directive: &Directive, gate: &mut Gate) {
    let next = "write the rule with `allow`, `deny` or `basic_auth`";
    gate.closed = Some(cx.note(directive, next));
}

fn finish(cx: &mut Cx<'_>, layers: &[&[Directive]], rules: ClientRules, gate: &mut Gate) {
    // In Forebay, a request must meet every key, unless `satisfy` is "any".
    let is_any = satisfies_any(layers) || rules.has_alternatives;
    let needs_only_user = rules.needs_user && (is_any || !rules.denies_hosts);
    if rules.denies_all && rules.allow.is_empty() && !needs_only_user {
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
    let is_other = |name: &String| !name.eq_ignore_ascii_case("file");
    let provider = last(layers, "AuthBasicProvider").filter(|d| d.args.iter().any(is_other));
    if let Some(provider) = provider {
        let next = "users come from a file of htpasswd: see `basic_auth`";
        gate.closed = Some(cx.note(provider, next));
        return;
    }
    match file {
        Some((_, path)) if is_basic && files::has_users(&path) => {
            let mut table = Table::default().with("file", path);
            if !rules.admits_all_users && !rules.users.is_empty() {
                table.set("users", rules.users);
            }
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
            let is_digest = kind.is_some_and(|kind| kind.arg(0).eq_ignore_ascii_case("digest"));
            let next = if is_digest {
                names::next_step("AuthDigestProvider")
            } else {
                "use `basic_auth` with a file of htpasswd"
            };
            gate.closed = directive.map(|directive| cx.note(directive, next));
            if gate.closed.is_none() {
                gate.keys.set("deny", "all");
            }
        }
    }
    if is_any && cx.keys.route("satisfy") && gate.keys.0.len() > 1 {
        gate.keys.set("satisfy", "any");
    }
}

/// Returns a directive of a section that restricts access and has no translation, such as
/// `SSLRequire`. Returns `None` if there is none.
pub fn access_without_translation(block: &[Directive]) -> Option<&Directive> {
    let restricts = |directive: &&Directive| {
        let name = directive.name.to_ascii_lowercase();
        let is_filter = name == "secruleengine" && directive.arg(0).eq_ignore_ascii_case("on");
        let is_module = is_filter
            || matches!(&*name, "wsgiaccessscript" | "mellonenable")
            || matches!(&*name, "fcgidaccesschecker" | "fcgidauthenticator" | "fcgidauthorizer")
            || name.starts_with("luahookaccess")
            || name.starts_with("luahookauth");
        // Registering a provider restricts nothing.
        let is_perl = name.starts_with("perl")
            && !name.starts_with("perladdauth")
            && ["access", "authen", "authz", "headerparser", "perlinit"]
                .iter()
                .any(|phase| name.contains(phase))
            && !super::mod_perl::only_reloads(directive);
        let configures = |code: &Directive| {
            ["add_config", "PerlConfig", "Directory", "Files", "Location", "VirtualHost"]
                .iter()
                .any(|word| code.name.contains(word))
        };
        let is_perl = is_perl || name == "perl" && directive.inside().iter().any(configures);
        let is_ldap = name.starts_with("authldap") || name.starts_with("authdb");
        let wants_tls = matches!(&*name, "sslrequire" | "sslrequiressl");
        let wants_client =
            name == "sslverifyclient" && !directive.arg(0).eq_ignore_ascii_case("none");
        let limits_methods = matches!(&*name, "limit" | "limitexcept")
            && directive.inside().iter().any(|inner| {
                let grants = is(inner, "Require") && inner.arg(1).eq_ignore_ascii_case("granted");
                ["Require", "Order", "Deny"].iter().any(|rule| is(inner, rule)) && !grants
            });
        is_module || is_perl || is_ldap || wants_tls || wants_client || limits_methods
    };
    block.iter().find(restricts)
}

/// Returns the requests that a `Limit` or `LimitExcept` section refuses for all clients. Returns
/// `None` for sections with other rules.
pub fn refused_methods(section: &Directive) -> Option<Matcher> {
    let is_except = is(section, "LimitExcept");
    let denies = |rule: &Directive| {
        let words: Vec<String> = rule.args.iter().map(|word| word.to_ascii_lowercase()).collect();
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        is(rule, "Require") && words == ["all", "denied"]
            || is(rule, "Deny") && words == ["from", "all"]
    };
    let block = section.inside();
    let is_known = |rule: &Directive| denies(rule) || is(rule, "Order");
    let is_method = |method: &String| {
        !method.is_empty() && method.bytes().all(|byte| byte.is_ascii_uppercase())
    };
    let is_whole = (is_except || is(section, "Limit"))
        && block.iter().any(denies)
        && block.iter().all(is_known)
        && !section.args.is_empty()
        && section.args.iter().all(is_method);
    // GET includes HEAD, as in Apache.
    let methods = section.args.clone();
    is_whole.then(|| {
        if is_except {
            let others = Table::default().with("not", Table::default().with("method", methods));
            Matcher { when: others, ..Matcher::default() }
        } else {
            Matcher::default().with_methods(methods)
        }
    })
}

/// Returns a directive that may refuse or redirect requests. Searches a section and the sections
/// inside it. Returns `None` if there is no such directive.
pub fn restriction(block: &[Directive]) -> Option<&Directive> {
    let grants = |d: &Directive| d.args.len() == 2 && d.arg(1).eq_ignore_ascii_case("granted");
    let decides = |d: &&Directive| {
        let is_rule = ["Require", "Order", "Deny"].iter().any(|name| is(d, name)) && !grants(d);
        is_rule || d.name.to_ascii_lowercase().starts_with("redirect")
    };
    let own = access_without_translation(block).or_else(|| block.iter().find(decides));
    own.or_else(|| super::rewrites::decision(block))
        .or_else(|| block.iter().find_map(|inner| restriction(inner.inside())))
}

#[cfg(test)]
mod tests {
    use super::is_open_to_all;
    use crate::apache::{Cx, syntax};
    use crate::draft::Draft;
    use crate::keys::Keys;
    use crate::{Language, import};

    #[test]
    fn a_question_settles_no_line() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("apache2.conf");
        let text = "AuthName a\nRequire group staff\n<RequireAny>\nRequire host b\n</RequireAny>\n";
        std::fs::write(&file, text).unwrap();
        let main = syntax::read(&file).unwrap();
        let mut cx = Cx {
            keys: Keys::shared(),
            main: &main,
            root: dir.path().into(),
            draft: Draft::default(),
            dirs: Vec::new(),
            proxies: Vec::new(),
            runs_php: false,
        };
        assert!(!is_open_to_all(&mut cx, &[&main]));
        assert_eq!(cx.draft.notes.0, []);
        assert!(main.iter().all(|line| !line.is_settled()));
        assert!(main.iter().flat_map(|line| line.inside()).all(|line| !line.is_settled()));
        assert!(is_open_to_all(&mut cx, &[]));
    }

    #[test]
    fn rules_are_never_weaker_than_those_of_apache() {
        // The rules of /a, and lines that its route must have.
        for (rules, wanted) in [
            ("Require ip 10.0.0.0/8", "allow = [\"10.0.0.0/8\"]"),
            ("Require ip 10.0.0.0/8\nRequire all granted", ""),
            (
                "<RequireAll>\nRequire all granted\nRequire ip 10.0.0.0/8\n</RequireAll>",
                "allow = [\"10.0.0.0/8\"]",
            ),
            (
                "<RequireAll>\nRequire all granted\nRequire not ip 10.0.0.5\n</RequireAll>",
                "deny = [\"10.0.0.5\"]",
            ),
            (
                "<RequireAll>\nRequire ip 10.0.0.0/8\nRequire all denied\n</RequireAll>",
                "deny = \"all\"",
            ),
            (
                "<RequireAll>\nRequire ip 10.0.0.0/8\nRequire ip 10.1.0.0/16\n</RequireAll>",
                "status = 403",
            ),
            ("<RequireNone>\nRequire all granted\n</RequireNone>", "deny = \"all\""),
            ("AuthMerging And\nRequire ip 10.0.0.0/8", "status = 403"),
            (
                "<RequireAll>\nRequire ip 10.0.0.0/8\n<RequireAny>\nRequire ip 192.168.1.0/24\n\
                 </RequireAny>\n</RequireAll>",
                "status = 403",
            ),
            (
                "<RequireNone>\n<RequireAny>\nRequire ip 10.0.0.0/8\n</RequireAny>\n</RequireNone>",
                "status = 403",
            ),
            ("Order allow,deny\nDeny from all\nAllow from 10.0.0.0/8", "deny = \"all\""),
            ("Order deny,allow\nDeny from all\nAllow from 10.0.0.0/8", "allow = [\"10.0.0.0/8\"]"),
            // A right password does not help a client that `Deny` refuses.
            ("Order deny,allow\nDeny from all\nRequire valid-user", "deny = \"all\""),
            ("Order allow,deny\nRequire valid-user", "deny = \"all\""),
            // The rules of both modules apply.
            ("Order allow,deny\nAllow from all\nRequire ip 10.0.0.0/8", "allow = [\"10.0.0.0/8\"]"),
            (
                "Order deny,allow\nDeny from all\nAllow from 10.0.0.0/8\nRequire all granted",
                "allow = [\"10.0.0.0/8\"]",
            ),
            (
                "Order deny,allow\nDeny from all\nAllow from 10.0.0.0/8\nRequire ip 192.0.2.1",
                "status = 403",
            ),
            ("Order allow,deny\nAllow from all\nRequire all denied", "deny = \"all\""),
            ("Order allow,deny\nAllow from all\nRequire all granted", ""),
            (
                "Order deny,allow\nDeny from all\nAllow from localhost 10.",
                "allow = [\"127.0.0.0/8\", \"::1\", \"10.0.0.0/8\"]",
            ),
            ("SSLRequireSSL", "status = 403"),
            ("<Limit POST>\nRequire valid-user\n</Limit>", "status = 403"),
        ] {
            let found = route(&format!("<Location /a>\n{rules}\n</Location>"));
            assert!(found.contains(wanted), "{rules}:\n{found}");
            if wanted.is_empty() {
                assert!(!found.contains("allow") && !found.contains("deny"), "{rules}:\n{found}");
            }
        }
        // Rules of mod_access_compat in an inner section do not lift those of mod_authz_core.
        let found = route(
            "<Location />\nRequire all denied\n</Location>\n\
             <Location /a>\nOrder allow,deny\nAllow from all\n</Location>",
        );
        assert!(found.contains("status = 403"), "{found}");
    }

    #[test]
    fn an_inner_rule_that_equals_the_outermost_one_stays() {
        let found = site(
            "<Location />\nRequire ip 10.0.0.0/8\n</Location>\n\
             <Location /api>\nRequire all granted\n</Location>\n\
             <Location /api/admin>\nRequire ip 10.0.0.0/8\n</Location>",
        );
        let admin = found.find("/api/admin").unwrap_or_else(|| panic!("{found}"));
        let rest = &found[admin..];
        let end = rest.find("[[site.route]]").unwrap_or(rest.len());
        assert!(rest[..end].contains("10.0.0.0/8"), "{found}");
        assert!(admin < found.find("\"/api/*\"").unwrap_or(usize::MAX), "{found}");
    }

    #[test]
    fn a_section_without_rules_keeps_those_outside_it() {
        let outer = "<Location /a>\nRequire ip 10.0.0.0/8\n</Location>";
        for merging in ["Off", "And", "Or"] {
            let inner = format!("{outer}\n<Location /a/b>\nAuthMerging {merging}\n</Location>");
            let text = site(&inner);
            let routes: Vec<&str> = text.split("[[site.route]]").skip(1).collect();
            assert!(!routes.is_empty(), "{text}");
            for route in routes.iter().filter(|route| route.contains("/a/b")) {
                let is_restricted = route.contains("10.0.0.0/8") || route.contains("403");
                assert!(is_restricted, "{merging}:\n{text}");
            }
        }
    }

    #[test]
    fn users_are_named_in_the_password_file() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("htpasswd");
        std::fs::write(&file, "ann:$apr1$abcdefgh$w1Qb7IQwGkhQ9lJrzxXQb.\n").unwrap();
        let of = |rules: &str| {
            let file = file.display();
            route(&format!(
                "<Location /a>\nAuthType Basic\nAuthName x\nAuthUserFile {file}\n{rules}\n</Location>"
            ))
        };
        for (rules, wanted) in [
            ("Require user ann", "users = [\"ann\"]"),
            ("Require user ann \"b c\"\nRequire user dan", "users = [\"ann\", \"b c\", \"dan\"]"),
            ("Require user ann\nRequire ip 10.0.0.0/8", "users = [\"ann\"]"),
            (
                "<RequireAll>\nRequire user ann\nRequire ip 10.0.0.0/8\n</RequireAll>",
                "users = [\"ann\"]",
            ),
            (
                "<RequireAll>\nRequire valid-user\nRequire user ann\n</RequireAll>",
                "users = [\"ann\"]",
            ),
            ("<RequireAll>\nRequire user ann\nRequire user bob\n</RequireAll>", "status = 403"),
            (
                "<RequireAll>\nRequire user ann\nRequire ip 10.0.0.0/8\n</RequireAll>\n\
                 <RequireAll>\nRequire user bob\nRequire ip 10.1.0.0/16\n</RequireAll>",
                "status = 403",
            ),
            (
                "<RequireAny>\n<RequireAll>\nRequire user ann\nRequire ip 10.0.0.0/8\n</RequireAll>\n\
                 Require user bob\n</RequireAny>",
                "status = 403",
            ),
            ("<RequireNone>\nRequire user ann\n</RequireNone>", "status = 403"),
            ("Require not user ann", "status = 403"),
            ("Require group staff", "status = 403"),
            ("Require user", "status = 403"),
        ] {
            let found = of(rules);
            assert!(found.contains(wanted), "{rules}:\n{found}");
        }
        let both = "Require ip 10.0.0.0/8\nRequire valid-user";
        let any = |rules: &str| {
            let found = of(rules);
            assert!(!found.contains("status = 403"), "{rules}:\n{found}");
            assert!(found.contains("allow =") && found.contains("basic_auth ="), "{found}");
            found.contains("satisfy = \"any\"")
        };
        assert!(any(both));
        assert!(any(&format!("<RequireAny>\n{both}\n</RequireAny>")));
        assert!(any(&format!("Require all denied\nRequire user ann\n{both}")));
        assert!(any(&format!("Order allow,deny\nAllow from all\n{both}")));
        assert!(!any(&format!("<RequireAll>\n{both}\n</RequireAll>")));
        assert!(!any("Order deny,allow\nDeny from all\nAllow from 10.0.0.0/8\nRequire valid-user"));
        for rules in [
            format!("<RequireAll>\n{both}\n</RequireAll>\nRequire ip 192.0.2.1"),
            format!(
                "<RequireAll>\nRequire ip 10.0.0.0/8\nRequire not ip 10.0.0.1\n</RequireAll>\n{both}"
            ),
        ] {
            let found = of(&rules);
            assert!(found.contains("status = 403"), "{rules}:\n{found}");
        }
        let all = of("Require user ann\nRequire valid-user");
        assert!(all.contains("basic_auth") && !all.contains("users ="), "{all}");
    }

    /// Returns the text of the route of `/a`, or the text of the whole site if there is no such
    /// route.
    fn route(sections: &str) -> String {
        let text = site(sections);
        let found = text.split("[[site.route]]").skip(1).find(|route| route.contains("\"/a"));
        found.unwrap_or(&text).to_owned()
    }

    /// Returns the translation of a site that passes requests to a backend.
    fn site(sections: &str) -> String {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("apache2.conf");
        let text = format!(
            "Listen 8080\n<VirtualHost *:8080>\nServerName a.example\n\
             ProxyPass / http://127.0.0.1:9/\n{sections}\n</VirtualHost>\n"
        );
        std::fs::write(&file, text).unwrap();
        import(Language::Apache, &file).unwrap().toml
    }
}
