//! Translates the handlers of mod_perl to applications: of kind `mod-perl`, or of kind `perl-cgi`
//! or `psgi` for the handlers that run scripts and PSGI files.

use super::Cx;
use super::names::is_known;
use super::sections::{all, last};
use super::syntax::{Directive, line};
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

/// Returns true if handlers find out who the user is, so that `Require` is theirs, too.
pub fn authenticates(layers: &[&[Directive]]) -> bool {
    !handlers(layers, "PerlAuthenHandler").is_empty()
}

/// Handlers that decide about requests which something else than an application of kind `mod-perl`
/// answers.
const DECIDING: [&str; 4] =
    ["PerlHeaderParserHandler", "PerlAccessHandler", "PerlAuthenHandler", "PerlAuthzHandler"];

/// Handlers that such requests would get, too, but that `perl_gate` does not call.
const UNCALLED: [&str; 6] = [
    "PerlTransHandler",
    "PerlMapToStorageHandler",
    "PerlTypeHandler",
    "PerlFixupHandler",
    "PerlInputFilterHandler",
    "PerlOutputFilterHandler",
];

/// Returns the first line of a section that lets handlers decide.
pub fn deciding<'a>(inner: &[&'a [Directive]]) -> Option<&'a Directive> {
    inner
        .iter()
        .copied()
        .flatten()
        .find(|line| DECIDING.iter().any(|name| line.name.eq_ignore_ascii_case(name)))
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
    (handler, dir): (&Directive, &str),
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
        Ok((name, table)) => {
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

fn psgi(cx: &mut Cx<'_>, layers: &[&[Directive]]) -> Found {
    let next = "write an application of kind \"psgi\" with its `file`";
    let line = all(layers, "PerlSetVar").into_iter().rfind(|line| line.arg(0) == "psgi_app");
    let line = line.ok_or(next)?;
    line.settle();
    let file = cx.path(line.arg(1));
    if !files::is_readable(&file) {
        return Err(format!("the file {file} cannot be read here: {next}"));
    }
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
        let names: Vec<String> =
            names.into_iter().filter(|name| !name.starts_with("Apache2::Reload")).collect();
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
    match auth(layers) {
        Some(auth) => table.set("auth", auth),
        // Without `auth`, the handlers would not run.
        None if !handlers(layers, "PerlAuthenHandler").is_empty() => {
            return Err("write the Require lines here as `auth` of an application of kind \
                        \"mod-perl\""
                .to_owned());
        }
        // Without rules, handlers read them.
        None if all(layers, "Require").iter().all(|line| line.args == ["all", "granted"]) => {
            let mut names = Table::default();
            names.set_some("type", last(layers, "AuthType").map(|line| line.arg(0)));
            names.set_some("name", last(layers, "AuthName").map(|line| line.arg(0)));
            if !names.is_empty() {
                table.set("auth", names);
            }
        }
        None => {}
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

/// Returns `auth` for handlers that find out who the user is.
fn auth(layers: &[&[Directive]]) -> Option<Table> {
    if handlers(layers, "PerlAuthenHandler").is_empty() {
        return None;
    }
    // Rules within others have no translation.
    let has_nested = |layer: &&[Directive]| {
        let names = ["RequireAll", "RequireAny", "RequireNone", "Limit", "LimitExcept"];
        names.iter().any(|name| !all(&[layer], name).is_empty())
    };
    if layers.iter().any(has_nested) {
        return None;
    }
    let requires = layers.iter().rev().find_map(|layer| {
        let found = all(&[layer], "Require");
        (!found.is_empty()).then(|| found.iter().map(|line| line.args.join(" ")).collect())
    });
    let mut requires: Vec<String> = requires?;
    requires.retain(|rule| !rule.eq_ignore_ascii_case("all granted"));
    if requires.is_empty() {
        return None;
    }
    let mut table = Table::default();
    table.set_some("type", last(layers, "AuthType").map(|line| line.arg(0)));
    table.set_some("name", last(layers, "AuthName").map(|line| line.arg(0)));
    set_names(&mut table, "require", requires);
    Some(table)
}

/// Returns the handlers of a phase: those of the innermost section that names any.
fn handlers(layers: &[&[Directive]], phase: &str) -> Vec<String> {
    let lines = |layer: &&[Directive]| {
        let lines = all(&[layer], phase);
        (!lines.is_empty()).then(|| lines.iter().flat_map(|line| line.args.clone()).collect())
    };
    layers.iter().rev().find_map(lines).unwrap_or_default()
}

fn settled(layers: &[&[Directive]], phase: &str) -> Vec<String> {
    all(layers, phase).into_iter().for_each(Directive::settle);
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

fn is_handler(name: &str) -> bool {
    let (class, method) = name.split_once("->").unwrap_or((name, "handler"));
    is_module(class.trim_start_matches(['+', '$'])) && is_module(method)
}

/// Returns a name for the application of a file, a directory or a module.
/// Returns a name for an application at this path.
pub fn name_of(path: &str) -> String {
    let last = path.trim_end_matches('/').rsplit('/').next().unwrap_or_default();
    let stem = last.strip_suffix(".psgi").unwrap_or(last).replace("::", "-").replace("->", "-");
    let plain = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
    let name: String = stem.chars().map(plain).collect();
    if name.is_empty() { "mod-perl".to_owned() } else { name }
}
