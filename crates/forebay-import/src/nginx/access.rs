//! Translates access rules: addresses, passwords and forward authentication.

use super::auth_copies::{AuthCopy, auth_copies, copied};
use super::backends::STANDARD;
use super::here::Here;
use super::scope::Scope;
use super::server::TranslatedServer;
use super::syntax::Directive;
use super::variables::{Piece, Variables, split};
use super::{Cx, files_of, names};
use crate::draft::DraftRoute;
use crate::files;
use crate::keys::{self, Fixed};
use crate::matcher::Matcher;
use crate::pattern::is_readable;
use crate::template::{join, literal};
use crate::units::duration;
use crate::value::{Table, Value};

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
        let is_known = |line: &&Directive| files_of::followed_links(scope, line).is_some();
        scope.every(name).any(|line| line.arg(0) != "off" && !is_known(&line))
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
    let mut table = match table(cx, scope, directive.arg(0)) {
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

/// Directives of the location that decide about requests themselves. Forebay asks the server
/// directly, so it would ignore these directives.
const DECIDE: [&str; 5] = ["if", "return", "rewrite", "try_files", "limit_except"];

/// Variables whose values belong to nginx's request for the location, not to the client's request.
const OF_SUBREQUEST: [&str; 8] = [
    "args",
    "document_uri",
    "fastcgi_script_name",
    "is_args",
    "query_string",
    "request_body",
    "request_filename",
    "uri",
];

/// Returns the table `forward_auth` for the location with this path, which `auth_request` names.
/// The text of an error says what the user must do.
pub fn table(cx: &Cx<'_>, outer: &Scope<'_>, path: &str) -> Result<Table, String> {
    const NEXT: &str =
        "let a server decide with `forward_auth = { to = \"URL\" }`, if this version has it";
    let mut locations = outer.every("location");
    let location = locations
        .find(|location| location.args.last().is_some_and(|last| last == path))
        .filter(|_| cx.keys.route("forward_auth"))
        .ok_or(NEXT)?;
    location.settle();
    let scope = outer.of(location);
    let is_decision = |name: &str| DECIDE.contains(&name);
    if scope.own().iter().any(|inner| is_decision(&inner.name)) {
        return Err(NEXT.into());
    }
    for kind in ["fastcgi", "scgi", "uwsgi"] {
        if let Some(pass) = scope.of_own(&format!("{kind}_pass")) {
            return program(cx, (outer, &scope), path, (kind, pass.arg(0)));
        }
    }
    let pass = scope.of_own("proxy_pass").ok_or(NEXT)?;
    let url = with_server(&scope, pass.arg(0)).ok_or(NEXT)?;
    let has_path = url.split_once("://").is_some_and(|(_, rest)| rest.contains('/'));
    let url = if has_path { url } else { format!("{url}{path}") };
    if url.contains('$') || !url.starts_with("http") {
        return Err(NEXT.into());
    }
    if scope.value("proxy_pass_request_headers") == Some("off") {
        return Err("the server of `forward_auth` would get the client's fields: check that it \
                    does not believe them, and write `forward_auth`"
            .into());
    }
    // Mark the directive as read: `forward_auth` never sends a body.
    scope.of_own("proxy_pass_request_body");
    let mut table = Table::default().with("to", url);
    let time = scope.value("proxy_read_timeout").and_then(duration).filter(|time| time != "0s");
    table.set_some("timeout", time);
    fields(cx, &scope, &mut table)?;
    Ok(table)
}

/// Parameters whose values nginx takes from the client's request, although its question has the
/// path of the location. Forebay's own values describe the question.
const OF_QUESTION: [&str; 8] = [
    "CONTENT_LENGTH",
    "DOCUMENT_URI",
    "PATH_INFO",
    "PATH_TRANSLATED",
    "QUERY_STRING",
    "REQUEST_METHOD",
    "REQUEST_URI",
    "SCRIPT_NAME",
];

/// Returns the table `forward_auth` for a location with `fastcgi_pass`, `scgi_pass` or
/// `uwsgi_pass`. `outer` is the scope of `auth_request`, and `scope` that of the location. The text
/// of an error says what the user must do.
fn program(
    cx: &Cx<'_>,
    (outer, scope): (&Scope<'_>, &Scope<'_>),
    path: &str,
    (kind, address): (&str, &str),
) -> Result<Table, String> {
    let next = |what: &str| {
        format!("{what} has no translation: write `forward_auth` with `{kind}` and `params`")
    };
    let address = address.strip_prefix("uwsgi://").unwrap_or(address);
    let address = with_server(scope, &format!("tcp://{address}")).ok_or_else(|| next(address))?;
    let address = address.trim_start_matches("tcp://");
    if address.contains(['$', '{']) || address.contains("://") {
        return Err(next(address));
    }
    if scope.value(&format!("{kind}_pass_request_headers")) == Some("off") {
        return Err(next(&format!("{kind}_pass_request_headers")));
    }
    if ["fastcgi_split_path_info", "alias"].iter().any(|name| scope.of_own(name).is_some()) {
        return Err(next("the path of the script"));
    }
    // Mark the directive as read: `forward_auth` never sends a body.
    scope.of_own(&format!("{kind}_pass_request_body"));
    let mut server = Table::default().with("to", address);
    if kind == "fastcgi" {
        server.set("mount", "");
    }
    for (directive, key) in [("uwsgi_modifier1", "modifier1"), ("uwsgi_modifier2", "modifier2")] {
        let number = scope.value(directive).and_then(|text| text.parse::<u8>().ok());
        server.set_some(key, number.map(u64::from).filter(|_| kind == "uwsgi"));
    }
    let mut table = Table::default().with(kind, server).with("path", path);
    let time = scope.value(&format!("{kind}_read_timeout")).and_then(duration);
    table.set_some("timeout", time.filter(|time| time != "0s"));
    let name = scope.value("server_name").filter(|name| !name.contains(['*', '_', '~', '$']));
    let variables =
        Variables { scope, keys: cx.keys, found: None, server_name: name, scheme: None };
    let root = files_of::root(cx, scope);
    let params = scope.all(&format!("{kind}_param"));
    for (at, param) in params.iter().enumerate() {
        let (key, value) = (param.arg(0), param.arg(1));
        // Of two parameters with the same name, applications read the last one.
        if params[at + 1..].iter().any(|later| later.arg(0) == key) {
            continue;
        }
        let standard = STANDARD.iter().find(|(standard, _)| *standard == key);
        let own = standard.filter(|_| !OF_QUESTION.contains(&key) && key != "SCRIPT_FILENAME");
        let whole = param.args[1.min(param.args.len())..].join(" ");
        if own.is_some_and(|(_, usual)| usual.is_empty() || usual.contains(&&*whole)) {
            continue;
        }
        if key == "CONTENT_LENGTH" {
            // The question has no body.
            continue;
        }
        if param.args.len() > 2 {
            return Err(next(key));
        }
        let mut filled = String::new();
        for piece in split(value) {
            let part = match piece {
                Piece::Text(text) => literal(text, cx.keys),
                Piece::Variable("uri" | "document_uri" | "fastcgi_script_name") => {
                    literal(path, cx.keys)
                }
                Piece::Variable("args" | "query_string" | "is_args" | "fastcgi_path_info") => {
                    continue;
                }
                Piece::Variable("document_root" | "realpath_root") => literal(&root, cx.keys),
                Piece::Variable("request_filename") => literal(&format!("{root}{path}"), cx.keys),
                Piece::Variable(name) => {
                    of_client(&variables, (outer, scope), name).map_err(|name| next(&name))?
                }
            };
            join(&mut filled, &part).ok_or_else(|| next(key))?;
        }
        table.table("params").set(key, filled);
    }
    Ok(table)
}

/// Returns the value of a variable in the client's request, as nginx's subrequest for
/// `auth_request` has it. An error is the name of a variable that differs there, or that has no
/// placeholder.
fn of_client(
    variables: &Variables<'_, '_>,
    (outer, scope): (&Scope<'_>, &Scope<'_>),
    name: &str,
) -> Result<String, String> {
    let text = format!("${{{name}}}");
    let is_set_here =
        |set: &super::Directive| set.name == "set" && set.arg(0).strip_prefix('$') == Some(name);
    if scope.own().iter().any(is_set_here) {
        return Err(text);
    }
    // The subrequest has the variables that the client's request has set.
    let of_outer = Variables { scope: outer, ..*variables };
    match of_outer.constant(name) {
        Some("$uri$is_args$args" | "$request_uri") => Ok("{uri}".to_owned()),
        Some(_) => of_outer.fill(&text),
        None if is_of_client(name, scope) => variables.fill(&text),
        None => Err(text),
    }
}

/// Adds the fields that nginx sends to the server. The text of an error says what the user must do.
fn fields(cx: &Cx<'_>, scope: &Scope<'_>, table: &mut Table) -> Result<(), String> {
    let name = scope.value("server_name").filter(|name| !name.contains(['*', '_', '~', '$']));
    let variables =
        Variables { scope, keys: cx.keys, found: None, server_name: name, scheme: None };
    for field in scope.all("proxy_set_header") {
        let (name, value) = (field.arg(0).replace('_', "-"), field.arg(1));
        let next = |unknown: &str| {
            format!("{unknown} in the field {name} has no translation: write `forward_auth`")
        };
        if name.eq_ignore_ascii_case("host") {
            match value {
                "$proxy_host" => {}
                "$host" | "$http_host" => table.set("host", "client"),
                other => return Err(next(other)),
            }
            continue;
        }
        match keys::of(&name, value) {
            Some(Fixed::Sent) => continue,
            Some(Fixed::Own) if value.is_empty() => continue,
            Some(Fixed::Own) => return Err(next(value)),
            Some(Fixed::SentOtherwise) | None => {}
        }
        let of_subrequest = split(value).into_iter().find_map(|piece| match piece {
            Piece::Variable(name) if !is_of_client(name, scope) => Some(name),
            _ => None,
        });
        if let Some(unknown) = of_subrequest {
            return Err(next(unknown));
        }
        let value = variables.fill(value).map_err(|unknown| next(&unknown))?;
        table.table("request_headers").set(&name, value);
    }
    Ok(())
}

/// Returns true if a variable has the same value in the client's request and in nginx's subrequest
/// for `auth_request`.
fn is_of_client(name: &str, scope: &Scope<'_>) -> bool {
    let is_set = |set: &super::Directive| set.arg(0).strip_prefix('$') == Some(name);
    !OF_SUBREQUEST.contains(&name)
        && !name.starts_with("arg_")
        // If a block sets the variable, its value may differ between the two requests.
        && !scope.every("set").any(is_set)
}

/// Replaces the name of an `upstream` in a URL by the address of its server. Returns `None` if the
/// `upstream` does not have exactly one server, or if the URL has no scheme.
fn with_server(scope: &Scope<'_>, url: &str) -> Option<String> {
    let (scheme, rest) = url.split_once("://")?;
    let end = rest.find('/').unwrap_or(rest.len());
    let (name, path) = rest.split_at(end);
    let Some(upstream) = scope.every("upstream").find(|upstream| upstream.arg(0) == name) else {
        return Some(url.to_owned());
    };
    upstream.settle_all();
    let mut servers = upstream.inside().iter().filter(|inner| inner.name == "server");
    match (servers.next(), servers.next()) {
        (Some(only), None) => Some(format!("{scheme}://{}{path}", only.arg(0))),
        _ => None,
    }
}

/// The limit on the methods of a location.
pub struct Limit {
    /// The methods that the location's own rules apply to.
    methods: Matcher,
    /// The rules on other methods.
    pub others: Gate,
}

impl Limit {
    /// Returns the limit on methods of a location. Returns `None` if the location has no
    /// `limit_except`.
    pub fn of(cx: &mut Cx<'_>, scope: &Scope<'_>) -> Option<Self> {
        let limit = scope.of_own("limit_except")?;
        // nginx reads the names of methods without regard to case.
        let mut methods: Vec<String> =
            limit.args.iter().map(|method| method.to_ascii_uppercase()).collect();
        if methods.iter().any(|method| method == "GET") && !methods.iter().any(|m| m == "HEAD") {
            methods.push("HEAD".into());
        }
        let methods = Matcher::default().with_methods(methods);
        let others = gate(cx, &scope.inside(limit.inside()));
        Some(Self { methods, others })
    }

    /// Narrows routes to the methods that the limit names. Removes routes without a remaining
    /// request.
    pub fn narrow(&self, routes: &mut Vec<DraftRoute>) {
        narrow(&self.methods, routes);
    }

    /// Returns the routes for the methods that `limit_except` does not name. In these routes, the
    /// access rules inside `limit_except` replace `rules`, the access rules of the location.
    pub fn rest(
        &self,
        server: &TranslatedServer<'_>,
        here: &Here<'_, '_>,
        routes: Vec<DraftRoute>,
        rules: &Gate,
    ) -> Vec<DraftRoute> {
        if let Some(comment) = self.others.closed.clone() {
            return vec![here.route(server).closed(comment)];
        }
        if self.denies_others() {
            return vec![here.route(server).respond(403)];
        }
        let change = |mut route: DraftRoute| {
            rules.keys.0.iter().for_each(|(key, _)| route.keys.remove(key));
            guard(&mut route, &self.others);
            route
        };
        routes.into_iter().map(change).collect()
    }

    /// Returns true if no client may use the methods that the limit does not name.
    fn denies_others(&self) -> bool {
        let keys = &self.others.keys;
        keys.get("deny") == Some(&Value::from("all")) && keys.get("satisfy").is_none()
    }
}

/// Narrows routes to these methods. Removes routes without a remaining request.
pub fn only(methods: &[String], routes: &mut Vec<DraftRoute>) {
    narrow(&Matcher::default().with_methods(methods.to_vec()), routes);
}

fn narrow(methods: &Matcher, routes: &mut Vec<DraftRoute>) {
    routes.retain_mut(|route| match route.matcher.and(methods) {
        Some(both) => {
            route.matcher = both;
            true
        }
        None => false,
    });
}

/// Returns the matcher of requests with an invalid Referer. Returns `None` if there is no
/// `valid_referers`, or if routes cannot have this condition.
pub fn invalid(cx: &Cx<'_>, server: &TranslatedServer<'_>, scope: &Scope<'_>) -> Option<Matcher> {
    let directives = scope.all("valid_referers");
    let words = || directives.iter().flat_map(|directive| directive.args.iter());
    if !cx.keys.route("when") || directives.is_empty() {
        return None;
    }
    let has = |word: &str| words().any(|other| other == word);
    let mut valid = Vec::new();
    for word in words().filter(|word| !matches!(word.as_str(), "none" | "blocked")) {
        if word == "server_names" {
            let names = server.scope.of_own("server_name").map(|names| &names.args[..]);
            for name in names.unwrap_or_default() {
                valid.push(host(name)?);
            }
        } else {
            valid.push(host(word)?);
        }
    }
    let mut when = Table::default();
    match (has("none"), has("blocked")) {
        (true, false) => when.table("header").set("Referer", true),
        // With `blocked`, a Referer without a scheme is valid, because a proxy may have removed the
        // scheme.
        (true, true) => when.table("header").set("Referer", "~*^https?://"),
        (false, false) => {}
        (false, true) => return None,
    }
    if !valid.is_empty() {
        // The variable joins all Referer fields of a request, so that a second, valid field does
        // not make the first one valid.
        let (key, name) = if cx.keys.has("When", "variable") {
            ("variable", "http_referer")
        } else {
            ("header", "Referer")
        };
        let valid = Table::default().with(name, Value::List(valid));
        when.set("not", Table::default().with(key, valid));
    }
    (!when.is_empty()).then(|| Matcher { when, ..Matcher::default() })
}

/// Returns the expression for a Referer with a host, such as "example.org", "*.example.org",
/// "example.org/path" or "~expression". Returns `None` if a route cannot have it.
fn host(word: &str) -> Option<Value> {
    let text = if let Some(expression) = word.strip_prefix('~') {
        match expression.strip_prefix('^') {
            Some(rest) => format!("~*^https?://{rest}"),
            None => format!("~*^https?://.*{expression}"),
        }
    } else {
        let (name, path) = word.split_once('/').map_or((word, ""), |(name, path)| (name, path));
        let escaped = regex_syntax::escape(name);
        let name = match escaped.strip_prefix("\\*") {
            Some(rest) => format!("[^/]+{rest}"),
            None => match escaped.strip_prefix("\\.") {
                Some(rest) => format!("([^/]+\\.)?{rest}"),
                None => escaped,
            },
        };
        let name = match name.strip_suffix("\\*") {
            Some(start) => format!("{start}[^/:]+"),
            None => name,
        };
        let end = if path.is_empty() {
            "(/|$)".into()
        } else {
            format!("/{}", regex_syntax::escape(path))
        };
        format!("~*^https?://{name}(:[0-9]+)?{end}")
    };
    let is_plain = !word.contains('$') || word.starts_with('~');
    (is_plain && is_readable(text.trim_start_matches("~*"))).then_some(Value::Text(text))
}

#[cfg(test)]
mod tests {
    use crate::{Language, import};

    /// Returns the routes of a server with these directives.
    fn routes_of(text: &str) -> Vec<String> {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("nginx.conf");
        let text =
            format!("events {{}}\nhttp {{ server {{ listen 8080; root /srv;\n{text}\n}} }}\n");
        std::fs::write(&file, text).unwrap();
        let toml = import(Language::Nginx, &file).unwrap().toml;
        toml.split("[[site.route]]").skip(1).map(str::to_owned).collect()
    }

    #[test]
    fn a_return_answers_only_the_methods_of_limit_except_in_any_order() {
        for text in [
            "location = /x { return 200 secret; limit_except GET { deny all; } }",
            "location = /x { limit_except get { deny all; } return 200 secret; }",
        ] {
            let routes = routes_of(text);
            let all: Vec<_> = routes.iter().filter(|route| route.contains("\"/x\"")).collect();
            let open: Vec<_> = all.iter().filter(|route| route.contains("secret")).collect();
            assert_eq!(open.len(), 1, "{routes:?}");
            assert!(open[0].contains("methods = [\"GET\", \"HEAD\"]"), "{routes:?}");
            let last = all.last().unwrap();
            assert!(last.contains("403") && !last.contains("methods"), "{routes:?}");
        }
    }

    #[test]
    fn limit_except_never_adds_methods_that_a_condition_excludes() {
        let routes = routes_of(
            "location /x/ { if ($request_method !~ ^(GET)$) { return 405; }\n\
             limit_except GET POST { deny all; } proxy_pass http://10.0.0.1; }",
        );
        assert!(!routes.iter().any(|route| route.contains("proxy =")), "{routes:?}");
    }
}
