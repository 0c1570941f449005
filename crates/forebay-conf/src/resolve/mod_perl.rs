//! Resolves the keys of an application of kind `mod-perl` to the directives of mod_perl.

use super::value::text;
use super::{Context, Resolution};
use crate::error::Problem;
use crate::file::{self, At, OneOrMany};
use crate::key::no_effect;
use crate::key::paths::{directory, file as existing_file};
use crate::plan::{AppKind, Satisfy};
use crate::suggest;

/// The options of PerlOptions that a handler can notice.
const OPTIONS: [&str; 5] =
    ["GlobalRequest", "SetupEnv", "ParseHeaders", "MergeHandlers", "Autoload"];
const SWITCHES: [&str; 5] = ["-T", "-t", "-w", "-W", "-X"];

pub(super) fn mod_perl(context: &Context<'_>, typed: &At<file::App>) -> Resolution<AppKind> {
    let root = match typed.root.as_ref().or(typed.dir.as_ref()) {
        Some(dir) => directory(context.sources, dir)?,
        None => context.base(&typed.span).to_owned(),
    };
    let mut directives = Vec::new();
    let mut add = |directive: &str, arguments: Vec<String>| {
        directives.push(std::iter::once(directive.to_owned()).chain(arguments).collect());
    };
    // Without `root`, no file is sent: the default directory may be that of the configuration.
    if typed.root.is_some() {
        add("DocumentRoot", vec![root.to_string_lossy().into_owned()]);
    }
    if let Some(at) = &typed.alias {
        let dir = directory(context.sources, at)?;
        add("Alias", vec![dir.to_string_lossy().trim_end_matches('/').to_owned()]);
    }
    if let Some(at) = &typed.handler {
        add("PerlResponseHandler", each(at, handler)?);
    }
    for (directive, at) in typed.phases.all() {
        add(directive, each(at, handler)?);
    }
    for (name, at) in &typed.set_var {
        let values = each(at, |at| Ok(at.value.clone()))?;
        add("PerlSetVar", std::iter::once(name.clone()).chain(values).collect());
    }
    if let Some(at) = &typed.options {
        add("PerlOptions", each(at, option)?);
    }
    if let Some(auth) = &typed.auth {
        for (directive, at) in [("AuthType", &auth.type_), ("AuthName", &auth.name)] {
            if let Some(at) = at {
                add(directive, vec![text(at)?.to_owned()]);
            }
        }
        if let Some(at) = &auth.require {
            add("Require", each(at, |at| Ok(text(at)?.to_owned()))?);
        }
        if let Some(at) = &auth.satisfy {
            add(
                "Satisfy",
                vec![String::from(if at.value == Satisfy::Any { "any" } else { "all" })],
            );
        }
        for (kind, at) in &auth.providers {
            let name = handler(&at.with(&at.value))?;
            add("PerlAddAuthzProvider", vec![provider(kind, at)?, name]);
        }
        if let Some(at) = &auth.passwords {
            // Each handler is a provider of its own name.
            let names = each(at, handler)?;
            for name in &names {
                add("PerlAddAuthnProvider", vec![name.clone(), name.clone()]);
            }
            add("AuthBasicProvider", names);
        }
    }
    Ok(AppKind::ModPerl {
        root,
        preload: preload(context, typed, &None)?,
        switches: typed.switches.as_ref().map_or(Ok(Vec::new()), |at| each(at, switch))?,
        pass_env: typed.pass_env.as_ref().map_or(Ok(Vec::new()), |at| each(at, variable))?,
        directives,
    })
}

fn each(
    at: &At<OneOrMany<String>>,
    check: fn(&At<&String>) -> Resolution<String>,
) -> Resolution<Vec<String>> {
    at.items().iter().map(check).collect()
}

/// Returns the items of `preload`: absolute paths of Perl files, and names of modules such as
/// `CGI`. In the modes `fork` and `cgi`, the key `preload` is an error, because each script has its
/// own process.
pub(super) fn preload(
    context: &Context<'_>,
    typed: &file::App,
    mode: &Option<At<String>>,
) -> Resolution<Vec<String>> {
    let Some(at) = &typed.preload else { return Ok(Vec::new()) };
    if let Some(mode) =
        mode.as_ref().filter(|mode| matches!(mode.as_str(), "fork" | "cgi" | "prove"))
    {
        let why = format!("with mode \"{}\": it runs each script in a perl of its own", mode.value);
        let help =
            "remove it; in mode \"fork\", modules that a script loads with `use` are loaded once";
        return Err(no_effect(&at.span, "preload", &why, help));
    }
    let item = |item: &At<&String>| {
        if item.value.split("::").all(is_word) {
            return Ok(item.value.clone());
        }
        Ok(existing_file(context.sources, &item.with(item.value.clone()))?
            .to_string_lossy()
            .into_owned())
    };
    at.items().iter().map(item).collect()
}

/// Returns true for a part of the name of a module: a word of Perl.
fn is_word(part: &str) -> bool {
    part.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && part.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

/// Checks a handler: the name of a module or a function, a class and a method, or a function itself.
fn handler(at: &At<&String>) -> Resolution<String> {
    let (class, method) = at.value.split_once("->").unwrap_or((at.value, "handler"));
    let class = class.trim_start_matches(['+', '$']);
    let is_function = at.value.starts_with("sub {") && at.value.trim_end().ends_with('}');
    if is_function || class.split("::").all(is_word) && is_word(method) {
        return Ok(at.value.clone());
    }
    let message = format!("\"{}\" does not name a handler", at.value);
    Err(Problem::new(&at.span, message).help(
        "write a module (\"My::Handler\"), a function (\"My::Handler::page\" or \"sub { ... }\") or \
         a method (\"My::Handler->page\")",
    ))
}

/// Checks the first word of lines of `require` that a provider decides.
fn provider(kind: &str, at: &At<String>) -> Resolution<String> {
    const OWN: [&str; 3] = ["all", "user", "valid-user"];
    let is_word = |c: char| c.is_ascii_graphic() && !matches!(c, '"' | '\'' | '\\');
    if kind.is_empty() || !kind.chars().all(is_word) {
        let problem =
            Problem::new(&at.span, format!("\"{kind}\" cannot begin a line of `require`"));
        return Err(problem.help("write a word, such as `staff = \"My::Staff->check\"`"));
    }
    if OWN.iter().any(|own| kind.eq_ignore_ascii_case(own)) {
        let problem =
            Problem::new(&at.span, format!("`require` has a meaning of its own for {kind}"));
        return Err(problem.help("write another word, here and in `require`"));
    }
    Ok(kind.to_owned())
}

fn option(at: &At<&String>) -> Resolution<String> {
    let name = at.value.trim_start_matches(['+', '-']);
    if OPTIONS.contains(&name) {
        return Ok(at.value.clone());
    }
    let problem = Problem::new(&at.span, format!("mod_perl has no option \"{name}\" for handlers"));
    let problem =
        problem.help(format!("write {}, with + or - before", suggest::list(OPTIONS, "or", '"')));
    Err(match suggest::nearest(name, OPTIONS) {
        Some(meant) => problem.label(format!("did you mean \"{meant}\"?")),
        None => problem,
    })
}

fn switch(at: &At<&String>) -> Resolution<String> {
    if SWITCHES.contains(&at.value.as_str()) {
        return Ok(at.value.clone());
    }
    let (what, help) = match at.value.strip_prefix("-I") {
        Some(_) => ("directories of modules have a key of their own", "write them as `lib`"),
        None => ("this switch of perl cannot be set here", "the switches are -T, -t, -w, -W, -X"),
    };
    Err(Problem::new(&at.span, what).help(help))
}

fn variable(at: &At<&String>) -> Resolution<String> {
    if at.value.is_empty() || at.value.contains(['=', '\0']) {
        let message = format!("\"{}\" cannot name a variable", at.value);
        return Err(Problem::new(&at.span, message).help("write a name such as \"ORACLE_HOME\""));
    }
    Ok(at.value.clone())
}
