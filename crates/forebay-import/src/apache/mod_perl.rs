//! Translates the handlers of mod_perl to applications: of kind `mod-perl`, or of kind `perl-cgi`
//! or `psgi` for the handlers that run scripts and PSGI files.

use super::Cx;
use super::names::is_known;
use super::sections::{all, last};
use super::syntax::{Directive, is, line};
use crate::draft::DraftRoute;
use crate::files;
use crate::value::{Table, Value};

/// Phases, as directives and as keys of `phases`.
const PHASES: [(&str, &str); 16] = [
    ("PerlPostReadRequestHandler", "post_read_request"),
    ("PerlTransHandler", "trans"),
    ("PerlMapToStorageHandler", "map_to_storage"),
    ("PerlInitHandler", "header_parser"),
    ("PerlHeaderParserHandler", "header_parser"),
    ("PerlAccessHandler", "access"),
    ("PerlAuthenHandler", "authen"),
    ("PerlAuthzHandler", "authz"),
    ("PerlTypeHandler", "type"),
    ("PerlFixupHandler", "fixup"),
    ("PerlInputFilterHandler", "input_filter"),
    ("PerlOutputFilterHandler", "output_filter"),
    ("PerlLogHandler", "log"),
    ("PerlCleanupHandler", "cleanup"),
    ("PerlChildInitHandler", "child_init"),
    ("PerlChildExitHandler", "child_exit"),
];

/// What mod_perl has by itself, or what has a key of its own.
const BUILT_IN: [&str; 4] = ["Apache2", "mod_perl2", "Apache2::Reload", "Apache2::SizeLimit"];

/// A larger file is no script.
const MOST_TEXT: u64 = 1 << 20;

/// The modes of `perl-cgi` for the handlers of the family of ModPerl::Registry.
fn registry_mode(handler: &str) -> Option<&'static str> {
    match handler.trim_start_matches('+').trim_end_matches("->handler") {
        "ModPerl::Registry" | "ModPerl::RegistryBB" | "Apache::Registry" => Some("registry"),
        "ModPerl::RegistryPrefork" => Some("registry-prefork"),
        "ModPerl::PerlRun" | "ModPerl::PerlRunPrefork" | "Apache::PerlRun" => Some("perlrun"),
        _ => None,
    }
}

/// Returns true for a directive that [`route`] translates for an application.
pub fn is_of_application(directive: &Directive) -> bool {
    let name = &directive.name;
    name.get(..4).is_some_and(|start| start.eq_ignore_ascii_case("perl")) && is_known(name)
}

/// The line that gives the paths of these layers to mod_perl, unless another handler answers.
pub fn set_handler<'a>(layers: &[&'a [Directive]]) -> Option<&'a Directive> {
    last(layers, "SetHandler")
        .filter(|line| matches!(&*line.arg(0).to_ascii_lowercase(), "perl-script" | "modperl"))
}

/// Returns true if an application of kind `mod-perl` answers for these layers, so that handlers of
/// the access phases need no translation of their own.
pub fn answers(layers: &[&[Directive]]) -> bool {
    let response = handlers(layers, "PerlResponseHandler");
    set_handler(layers).is_some()
        && !response.iter().any(|name| registry_mode(name).is_some() || is_plack(name))
}

/// Returns true if handlers find out who the user is, or decide about lines of `Require`, so that
/// all of `Require` is theirs.
pub fn authenticates(layers: &[&[Directive]]) -> bool {
    !handlers(layers, "PerlAuthenHandler").is_empty()
        || decided_by_provider(layers).is_some()
        || !password_handlers(layers).is_empty()
}

/// Returns the handlers that a directive such as PerlAddAuthzProvider names, by their names in other
/// lines.
fn providers<'a>(layers: &[&'a [Directive]], directive: &str) -> Vec<(&'a str, &'a str)> {
    all(layers, directive).into_iter().rev().map(|line| (line.arg(0), line.arg(1))).collect()
}

/// Returns the handler that a directive such as PerlAddAuthzProvider gives this name.
fn provider<'a>(layers: &[&'a [Directive]], directive: &str, name: &str) -> Option<&'a str> {
    providers(layers, directive)
        .into_iter()
        .find(|(own, _)| *own == name)
        .map(|(_, handler)| handler)
}

/// Returns the first rule that holds, and that a handler decides.
fn decided_by_provider<'a>(layers: &[&'a [Directive]]) -> Option<&'a Directive> {
    let is_decided = |rule: &&Directive| provider(layers, AUTHZ, rule.arg(0)).is_some();
    rules(layers)?.into_iter().find(is_decided)
}

const AUTHZ: &str = "PerlAddAuthzProvider";
const AUTHN: &str = "PerlAddAuthnProvider";

/// Returns the names in AuthBasicProvider that are those of handlers, and the handlers.
fn password_handlers<'a>(layers: &[&'a [Directive]]) -> Vec<(&'a str, &'a str)> {
    let names = last(layers, "AuthBasicProvider").map_or(&[][..], |line| &line.args);
    names.iter().filter_map(|name| Some((name.as_str(), provider(layers, AUTHN, name)?))).collect()
}

/// Handlers that decide about requests which something else than an application of kind `mod-perl`
/// answers.
const DECIDING: [&str; 5] = [
    "PerlInitHandler",
    "PerlHeaderParserHandler",
    "PerlAccessHandler",
    "PerlAuthenHandler",
    "PerlAuthzHandler",
];

/// Handlers that such requests would get, too, but that `perl_gate` does not call.
const UNCALLED: [&str; 6] = [
    "PerlTransHandler",
    "PerlMapToStorageHandler",
    "PerlTypeHandler",
    "PerlFixupHandler",
    "PerlInputFilterHandler",
    "PerlOutputFilterHandler",
];

/// Returns the first line that lets handlers decide.
pub fn deciding<'a>(layers: &[&'a [Directive]]) -> Option<&'a Directive> {
    let decides =
        |line: &&Directive| DECIDING.iter().any(|name| is(line, name)) && !only_reloads(line);
    let of_passwords = last(layers, "AuthBasicProvider");
    let found = layers.iter().copied().flatten().find(decides);
    found
        .or_else(|| decided_by_provider(layers))
        .or(of_passwords.filter(|_| !password_handlers(layers).is_empty()))
}

/// Returns true for a line whose handlers decide nothing.
pub fn only_reloads(line: &Directive) -> bool {
    !line.args.is_empty() && line.args.iter().all(|name| reloads(name))
}

/// Returns true for a handler that loads changed modules again, which `watch` does.
fn reloads(handler: &str) -> bool {
    handler.starts_with("Apache2::Reload")
}

/// Returns the application for `perl_gate`. Fails if the handlers have no translation.
pub fn gate(
    cx: &mut Cx<'_>,
    layers: &[&[Directive]],
    line: &Directive,
    dir: &str,
) -> Result<String, String> {
    let uncalled = UNCALLED.iter().find(|name| !handlers(layers, name).is_empty());
    if let Some(name) = uncalled {
        return Err(format!(
            "`perl_gate` does not call {name}: move its work to PerlAccessHandler"
        ));
    }
    if last(layers, "Satisfy").is_some_and(|line| line.arg(0).eq_ignore_ascii_case("any")) {
        return Err("write the rule with `perl_gate` and `satisfy = \"any\"`".to_owned());
    }
    if !authenticates(layers) && !handlers(layers, "PerlAuthzHandler").is_empty() {
        return Err("PerlAuthzHandler needs a PerlAuthenHandler that finds the user".to_owned());
    }
    let (name, mut table) = application(cx, layers, (line, &[]), dir)?;
    // The pages that handlers name are those of the site.
    if last(layers, "DocumentRoot").is_none() {
        table.remove("root");
    }
    let name = handlers(layers, &line.name).first().map_or(name, |handler| name_of(handler));
    Ok(cx.draft.add_app(&name, table))
}

fn is_plack(handler: &str) -> bool {
    handler.trim_start_matches('+').trim_end_matches("->handler") == "Plack::Handler::Apache2"
}

/// Returns the route for a part of a site that handlers of mod_perl answer. The route is closed if
/// they have no translation.
pub fn route(
    cx: &mut Cx<'_>,
    layers: &[&[Directive]],
    handler: &Directive,
    (url, dir): (&str, &str),
    route: &DraftRoute,
) -> DraftRoute {
    handler.settle();
    let mut route = route.clone();
    let response = settled(layers, "PerlResponseHandler");
    let found = match &response[..] {
        [only] if registry_mode(only).is_some() && !takes_request_object(dir) => {
            scripts(cx, layers, only, dir)
        }
        [only] if is_plack(only) => psgi(cx, layers),
        _ => application(cx, layers, (handler, &response), dir),
    };
    match found {
        Ok((name, mut table)) => {
            let is_own = table.get("kind") == Some(&Value::from("mod-perl"));
            let root = last(layers, "DocumentRoot").map(|root| cx.path(root.arg(0)));
            if is_own
                && root.is_some_and(|root| !is_at(dir, &root, url))
                && files::is_directory(dir)
            {
                table.set("alias", dir);
            }
            if table.get("kind") == Some(&Value::from("perl-cgi")) {
                route.matcher.paths.retain(|path| path.ends_with('*'));
            }
            let name = cx.draft.add_app(&name, table);
            route.keys.set("app", name);
            route
        }
        Err(next) => {
            let comment = cx.note(handler, &next);
            route.closed(comment)
        }
    }
}

/// Returns true if the directory is where `url` leads below `root`, so that no `Alias` leads there.
fn is_at(dir: &str, root: &str, url: &str) -> bool {
    files::joined(root, url.trim_matches('/')).trim_end_matches('/') == dir.trim_end_matches('/')
}

/// Returns true if a script in the directory takes the request object of mod_perl, which scripts of
/// kind `perl-cgi` do not have.
fn takes_request_object(dir: &str) -> bool {
    let takes = |path: std::path::PathBuf| {
        let text = std::fs::read(path).unwrap_or_default();
        let text = String::from_utf8_lossy(&text).replace(char::is_whitespace, "");
        ["$r=shift", "$r)=@_", "Apache2::"].iter().any(|sign| text.contains(sign))
    };
    std::fs::read_dir(dir).into_iter().flatten().flatten().any(|entry| {
        let is_small =
            entry.metadata().is_ok_and(|found| found.is_file() && found.len() < MOST_TEXT);
        is_small && takes(entry.path())
    })
}

type Found = Result<(String, Table), String>;

/// The scripts of ModPerl::Registry and its family.
fn scripts(cx: &mut Cx<'_>, layers: &[&[Directive]], handler: &str, dir: &str) -> Found {
    if !files::is_directory(dir) {
        return Err(format!(
            "there is no directory {dir} here: write an application of kind \"perl-cgi\" with the \
             directory of the scripts"
        ));
    }
    let mut table = Table::default().with("kind", "perl-cgi").with("dir", dir);
    match registry_mode(handler) {
        Some(mode) if mode != "registry" => table.set("mode", mode),
        _ => {}
    }
    for line in all(layers, "PerlOptions") {
        line.settle();
    }
    processes(cx, layers, &mut table);
    Ok((name_of(dir), table))
}

/// Returns true for a section of Perl that loads PSGI applications early, which has no effect here.
pub fn only_preloads(section: &Directive) -> bool {
    let preloads = |code: &Directive| {
        let code = code.name.trim();
        code == "use Plack::Handler::Apache2;"
            || code.starts_with("Plack::Handler::Apache2->preload(") && code.ends_with(");")
    };
    is(section, "Perl") && section.inside().iter().all(preloads)
}

fn psgi(cx: &mut Cx<'_>, layers: &[&[Directive]]) -> Found {
    let next = "write an application of kind \"psgi\" with its `file`";
    let line = all(layers, "PerlSetVar").into_iter().rfind(|line| line.arg(0) == "psgi_app");
    let line = line.ok_or(next)?;
    line.settle();
    let file = cx.path(line.arg(1));
    if !files::is_readable(&file) {
        return Err(format!("the file {file} cannot be read here: {next}"));
    }
    let preloads = all(layers, "Perl").into_iter().filter(|section| only_preloads(section));
    preloads.for_each(Directive::settle_all);
    let mut table = Table::default().with("kind", "psgi").with("file", file.as_str());
    processes(cx, layers, &mut table);
    table.remove("preload");
    Ok((name_of(&file), table))
}

/// Handlers of the application's own.
fn application(
    cx: &mut Cx<'_>,
    layers: &[&[Directive]],
    (handler, response): (&Directive, &[String]),
    dir: &str,
) -> Found {
    let mut table = Table::default().with("kind", "mod-perl");
    let root = last(layers, "DocumentRoot").map_or(dir.to_owned(), |root| cx.path(root.arg(0)));
    if !files::is_directory(&root) {
        return Err(format!(
            "there is no directory {root} here: write an application of kind \
            \"mod-perl\" with `root`"
        ));
    }
    let checked = |names: &[String]| match names.iter().find(|name| !is_handler(name)) {
        Some(other) => Err(format!(
            "{other} does not name a handler: put its code into a module, and write an \
             application of kind \"mod-perl\""
        )),
        None => Ok(()),
    };
    checked(response)?;
    if !response.is_empty() {
        set_names(&mut table, "handler", response.to_vec());
    }
    table.set("root", root);
    processes(cx, layers, &mut table);
    let mut phases = Table::default();
    for (directive, key) in PHASES {
        let names = settled(layers, directive);
        let names: Vec<String> = names.into_iter().filter(|name| !reloads(name)).collect();
        checked(&names)?;
        if names.is_empty() {
            continue;
        }
        let mut before = match phases.get(key) {
            Some(Value::List(list)) => list.clone(),
            Some(one) => vec![one.clone()],
            None => Vec::new(),
        };
        before.extend(names.into_iter().map(Value::from));
        match <[Value; 1]>::try_from(before) {
            Ok([one]) => phases.set(key, one),
            Err(several) => phases.set(key, several),
        }
    }
    if !phases.is_empty() {
        table.set("phases", phases);
    }
    let auth = auth(cx, layers)?;
    if !auth.is_empty() {
        table.set("auth", auth);
    }
    let vars = vars(layers);
    if !vars.is_empty() {
        table.set("set_var", vars);
    }
    let mut options: Vec<String> = Vec::new();
    if handler.arg(0).eq_ignore_ascii_case("modperl") {
        options.extend(["-SetupEnv", "-GlobalRequest"].map(str::to_owned));
    }
    for line in all(layers, "PerlOptions") {
        line.settle();
        const OPTIONS: [&str; 3] = ["GlobalRequest", "SetupEnv", "ParseHeaders"];
        let is_known = |arg: &&String| OPTIONS.contains(&arg.trim_start_matches(['+', '-']));
        options.extend(line.args.iter().filter(is_known).cloned());
    }
    if !options.is_empty() {
        set_names(&mut table, "options", options);
    }
    let name = response.first().map_or("mod-perl", |name| name.trim_start_matches(['+', '$']));
    Ok((name_of(name), table))
}

/// Sets what concerns the processes: modules, directories, variables, switches.
fn processes(cx: &mut Cx<'_>, layers: &[&[Directive]], table: &mut Table) {
    let is_own = table.get("kind") == Some(&Value::from("mod-perl"));
    let (mut lib, mut switches) = (Vec::new(), Vec::new());
    for line in all(layers, "PerlSwitches") {
        line.settle();
        let mut args = line.args.iter();
        while let Some(arg) = args.next() {
            let dir = match arg.strip_prefix("-I") {
                Some("") => args.next().map(|dir| cx.path(dir)),
                Some(dir) => Some(cx.path(dir)),
                None => None,
            };
            match dir {
                Some(dir) if files::is_directory(&dir) => lib.push(dir),
                Some(dir) => note(cx, line, &format!("there is no directory {dir} here")),
                // Several may stand in one word, such as -wT.
                None if is_own && !letters_of(arg).is_empty() => {
                    switches.extend(letters_of(arg).chars().map(|letter| format!("-{letter}")));
                }
                None if arg == "-w" => {}
                None => note(cx, line, "this switch has no key: see `switches` of [app.NAME]"),
            }
        }
    }
    let mut preload = Vec::new();
    let loads = ["PerlModule", "PerlRequire", "PerlConfigRequire", "PerlPostConfigRequire"];
    for line in layers.iter().copied().flatten() {
        if !loads.iter().any(|name| line.name.eq_ignore_ascii_case(name)) {
            continue;
        }
        line.settle();
        for what in &line.args {
            let is_provided = what.starts_with("ModPerl::") || BUILT_IN.contains(&what.as_str());
            match what.as_str() {
                "Apache2::Reload" => note(cx, line, "name the modules' directory in `watch`"),
                "Apache2::SizeLimit" => note(cx, line, "write the limit as `max_memory`"),
                _ if is_provided => {}
                _ if is_module(what) && !line.name.to_ascii_lowercase().ends_with("require") => {
                    preload.push(what.clone());
                }
                _ => {
                    let own = [cx.path(what)];
                    let below = lib.iter().map(|dir| files::joined(dir, what));
                    match own.into_iter().chain(below).find(|file| files::is_readable(file)) {
                        Some(file) => preload.push(file),
                        None => note(cx, line, "this file is not here: write it in `preload`"),
                    }
                }
            }
        }
    }
    if !preload.is_empty() {
        table.set("preload", preload);
    }
    if !lib.is_empty() {
        table.set("lib", lib);
    }
    if !switches.is_empty() {
        table.set("switches", switches);
    }
    let mut env = Table::default();
    for line in all(layers, "PerlSetEnv") {
        line.settle();
        env.set(line.arg(0), line.arg(1));
    }
    if !env.is_empty() {
        table.set("env", env);
    }
    let mut passed = Vec::new();
    for line in all(layers, "PerlPassEnv") {
        if is_own {
            line.settle();
            passed.extend(line.args.iter().cloned());
        }
    }
    if !passed.is_empty() {
        table.set("pass_env", passed);
    }
}

/// Returns the letters of switches such as `-wT`; none if one of them is not for `switches`.
fn letters_of(arg: &str) -> &str {
    let letters = arg.strip_prefix('-').unwrap_or_default();
    if letters.chars().all(|letter| "TtwW".contains(letter)) { letters } else { "" }
}

/// Returns the values of PerlSetVar and PerlAddVar. An inner PerlSetVar replaces outer values.
fn vars(layers: &[&[Directive]]) -> Table {
    let mut vars = Table::default();
    for line in layers.iter().copied().flatten() {
        let adds = line.name.eq_ignore_ascii_case("PerlAddVar");
        if !adds && !line.name.eq_ignore_ascii_case("PerlSetVar") {
            continue;
        }
        line.settle();
        let Some((name, values)) = line.args.split_first() else { continue };
        let before = match vars.get(name) {
            Some(Value::List(list)) if adds => list.clone(),
            Some(one) if adds => vec![one.clone()],
            _ => Vec::new(),
        };
        let new = values.iter().map(|value| Value::from(value.as_str()));
        match <[Value; 1]>::try_from(before.into_iter().chain(new).collect::<Vec<_>>()) {
            Ok([one]) => vars.set(name, one),
            Err(several) => vars.set(name, several),
        }
    }
    vars
}

/// Returns `auth`: the rules, and the handlers that decide about them.
fn auth(cx: &mut Cx<'_>, layers: &[&[Directive]]) -> Result<Table, String> {
    let mut table = Table::default();
    let kind = last(layers, "AuthType").map(|line| line.arg(0));
    table.set_some("type", kind);
    table.set_some("name", last(layers, "AuthName").map(|line| line.arg(0)));
    if !authenticates(layers) {
        // Without rules, handlers read them.
        let is_open = all(layers, "Require").iter().all(|line| line.args == ["all", "granted"]);
        return Ok(if is_open { table } else { Table::default() });
    }
    let next = "write the Require lines here as `auth` of an application of kind \"mod-perl\"";
    let mut rules = rules(layers).ok_or(next)?;
    rules.retain(|rule| !rule.args.join(" ").eq_ignore_ascii_case("all granted"));
    // Without `require`, the handlers would not run.
    if rules.is_empty() {
        return Err(next.to_owned());
    }
    for rule in &rules {
        const OF_APACHE: [&str; 7] =
            ["ip", "host", "forward-dns", "local", "env", "method", "expr"];
        let is_own = provider(layers, AUTHZ, rule.arg(0)).is_none();
        if is_own && OF_APACHE.contains(&rule.arg(0)) {
            note(cx, rule, "`auth` has rules about users and those of handlers: it admits nobody");
        }
    }
    for section in layers.iter().copied().flatten().filter(|line| is_limit(line)) {
        section.settle_all();
        note(cx, section, "the same rules hold for all methods here");
    }
    let texts = rules
        .iter()
        .map(|rule| rule.args.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(" "));
    set_names(&mut table, "require", texts.collect());
    let checked = |handler: &str| {
        let is_known = is_handler(handler);
        is_known.then(|| handler.to_owned()).ok_or(format!("{handler} does not name a handler"))
    };
    let mut deciding = Table::default();
    for rule in &rules {
        if let Some(handler) = provider(layers, AUTHZ, rule.arg(0)) {
            if ["all", "user", "valid-user"].contains(&rule.arg(0)) {
                return Err(format!(
                    "give the rule {} of PerlAddAuthzProvider another name",
                    rule.arg(0)
                ));
            }
            deciding.set(rule.arg(0), checked(handler)?);
        }
    }
    if !deciding.is_empty() {
        table.set("providers", deciding);
    }
    // Beside rules about hosts, all must hold.
    let has_hosts = ["Order", "Allow", "Deny"].iter().any(|name| last(layers, name).is_some());
    let is_alone = !has_hosts && !handlers(layers, "PerlAccessHandler").is_empty();
    let satisfy = last(layers, "Satisfy").map(|line| line.arg(0).to_ascii_lowercase());
    table.set_some("satisfy", satisfy.filter(|word| word == "all" || word == "any" && is_alone));
    let passwords = password_handlers(layers);
    let named = last(layers, "AuthBasicProvider").map_or(0, |line| line.args.len());
    if !passwords.is_empty() && passwords.len() < named {
        return Err(
            "let one kind of provider check passwords: handlers, or `basic_auth`".to_owned()
        );
    }
    let has_authen = !handlers(layers, "PerlAuthenHandler").is_empty();
    let is_basic = kind.is_some_and(|kind| kind.eq_ignore_ascii_case("basic"));
    if !has_authen && kind.is_some() && (!is_basic || passwords.is_empty()) {
        return Err("let a handler of the phase `authen` find the user".to_owned());
    }
    let passwords = passwords.into_iter().map(|(_, handler)| checked(handler));
    let passwords = passwords.collect::<Result<Vec<String>, String>>()?;
    if !passwords.is_empty() {
        set_names(&mut table, "passwords", passwords);
    }
    for name in [AUTHZ, AUTHN, "AuthBasicProvider"] {
        all(layers, name).into_iter().for_each(Directive::settle);
    }
    Ok(table)
}

/// Returns a word as Apache's configuration would have it.
fn quoted(word: &str) -> String {
    let is_plain = |c: char| !c.is_whitespace() && !matches!(c, '"' | '\'' | '\\');
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.to_owned();
    }
    format!("\"{}\"", word.replace('\\', "\\\\").replace('"', "\\\""))
}

/// Returns the lines of `Require` that hold: those of the innermost section that has any, of which
/// one is enough. `None` if they have no translation, and an empty list if there are none.
///
/// Lines within a `Limit` section add alternatives to those outside, which are left out; alone, they
/// hold for all methods here. So no method becomes more open.
fn rules<'a>(layers: &[&'a [Directive]]) -> Option<Vec<&'a Directive>> {
    let is_rule = |line: &Directive| is(line, "Require");
    let is_group = |line: &&Directive| {
        ["RequireAll", "RequireAny", "RequireNone"].iter().any(|name| is(line, name))
    };
    let merges =
        last(layers, "AuthMerging").is_some_and(|line| !line.arg(0).eq_ignore_ascii_case("off"));
    let mut limits = layers.iter().copied().flatten().filter(|line| is_limit(line));
    if merges || limits.any(|limit| !limit.inside().iter().all(is_rule)) {
        return None;
    }
    for layer in layers.iter().rev() {
        if layer.iter().any(|line| is_group(&line)) {
            return None;
        }
        let own: Vec<&Directive> = layer.iter().filter(|line| is_rule(line)).collect();
        let limits: Vec<&Directive> = layer.iter().filter(|line| is_limit(line)).collect();
        match &limits[..] {
            _ if !own.is_empty() => return Some(own),
            [] => {}
            [one] => return Some(one.inside().iter().collect()),
            _ => return None,
        }
    }
    Some(Vec::new())
}

/// Returns true for a section about some methods.
pub fn is_limit(line: &Directive) -> bool {
    is(line, "Limit") || is(line, "LimitExcept")
}

/// Returns the handlers of a phase: those of the innermost section that names any, or with
/// `PerlOptions +MergeHandlers` those of all sections.
fn handlers(layers: &[&[Directive]], phase: &str) -> Vec<String> {
    let own = |layer: &&[Directive]| -> Vec<String> {
        let mut lines = all(&[layer], phase);
        if phase == "PerlResponseHandler" {
            lines.extend(all(&[layer], "PerlHandler"));
        }
        lines.iter().flat_map(|line| line.args.clone()).collect()
    };
    let mut found: Vec<String> = Vec::new();
    for layer in layers {
        let new = own(layer);
        let mut options = all(&[layer], "PerlOptions").into_iter().flat_map(|line| &line.args);
        let merges = options.rfind(|arg| arg.ends_with("MergeHandlers"));
        if !new.is_empty() && merges.is_none_or(|arg| arg.starts_with('-')) {
            found.clear();
        }
        found.extend(new);
    }
    found
}

fn settled(layers: &[&[Directive]], phase: &str) -> Vec<String> {
    all(layers, phase).into_iter().for_each(Directive::settle);
    if phase == "PerlResponseHandler" {
        all(layers, "PerlHandler").into_iter().for_each(Directive::settle);
    }
    handlers(layers, phase)
}

fn set_names(table: &mut Table, key: &str, mut names: Vec<String>) {
    match &names[..] {
        [_] => table.set(key, names.remove(0)),
        _ => table.set(key, names),
    }
}

fn note(cx: &mut Cx<'_>, at: &Directive, next: &str) {
    cx.draft.notes.add(&at.place, &line(at), next);
}

fn is_module(name: &str) -> bool {
    name.split("::").all(|part| {
        part.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
            && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
    })
}

/// Returns true for a handler that is written into the configuration.
fn is_function(handler: &str) -> bool {
    handler.starts_with("sub {") && handler.trim_end().ends_with('}')
}

fn is_handler(name: &str) -> bool {
    if is_function(name) {
        return true;
    }
    let (class, method) = name.split_once("->").unwrap_or((name, "handler"));
    is_module(class.trim_start_matches(['+', '$'])) && is_module(method)
}

/// Returns a name for the application of a file, a directory or a handler.
pub fn name_of(path: &str) -> String {
    if is_function(path) {
        return "mod-perl".to_owned();
    }
    let last = path.trim_end_matches('/').rsplit('/').next().unwrap_or_default();
    let stem = last.strip_suffix(".psgi").unwrap_or(last).replace("::", "-").replace("->", "-");
    let plain = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
    let name: String = stem.chars().map(plain).collect();
    if name.is_empty() { "mod-perl".to_owned() } else { name }
}
