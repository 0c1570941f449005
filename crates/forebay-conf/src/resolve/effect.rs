//! Refuses keys without effect: keys for another kind of application, and keys that another key
//! disables. Without an error, the user would assume that these keys work.

use std::ops::Range;

use super::Resolution;
use crate::error::Problem;
use crate::file::{self, Kind, Range as Processes, Workers};
use crate::key::no_effect;
use crate::plan::AppProtocol;

/// Checks that every key of the application belongs to its kind.
pub(super) fn only_its_own(typed: &file::App, kind: Kind) -> Resolution<()> {
    let cgi = matches!(kind, Kind::PerlCgi | Kind::PythonCgi);
    let mixed = matches!(kind, Kind::CgiBin);
    let command = matches!(kind, Kind::Command);
    let php = matches!(kind, Kind::Php);
    let mono = matches!(kind, Kind::Mono);
    let rack = matches!(kind, Kind::Rack);
    let asgi = matches!(kind, Kind::Asgi | Kind::Pagi);
    let ready = matches!(kind, Kind::Node | Kind::Java);
    let listens = ready || asgi || command || php || mono || rack;
    let mod_perl = matches!(kind, Kind::ModPerl);
    let takes_every_path = rack || asgi || mod_perl || matches!(kind, Kind::Psgi | Kind::Wsgi);
    let rows = [
        (
            "mode",
            typed.mode.as_ref().map(|at| &at.span),
            cgi || matches!(kind, Kind::Psgi | Kind::Wsgi),
            "perl-cgi\", \"python-cgi\", \"psgi\" or \"wsgi",
        ),
        ("perl_mode", typed.perl_mode.as_ref().map(|at| &at.span), mixed, "cgi-bin"),
        ("python_mode", typed.python_mode.as_ref().map(|at| &at.span), mixed, "cgi-bin"),
        (
            "prove_requests",
            typed.prove_requests.as_ref().map(|at| &at.span),
            cgi || mixed || matches!(kind, Kind::Psgi | Kind::Wsgi),
            "perl-cgi\", \"python-cgi\", \"cgi-bin\", \"psgi\" or \"wsgi",
        ),
        (
            "preload",
            typed.preload.as_ref().map(|at| &at.span),
            mixed || mod_perl || matches!(kind, Kind::PerlCgi),
            "perl-cgi\", \"cgi-bin\" or \"mod-perl",
        ),
        (
            "max_processes",
            typed.max_processes.as_ref().map(|at| &at.span),
            cgi || mixed,
            "cgi-bin\", \"perl-cgi\" or \"python-cgi",
        ),
        (
            "file",
            typed.file.as_ref().map(|at| &at.span),
            rack || ready || matches!(kind, Kind::Psgi | Kind::Wsgi | Kind::Pagi),
            "psgi\", \"pagi\", \"wsgi\", \"rack\", \"node\" or \"java",
        ),
        ("handler", typed.handler.as_ref().map(|at| &at.span), mod_perl, "mod-perl"),
        ("alias", typed.alias.as_ref().map(|at| &at.span), mod_perl, "mod-perl"),
        ("phases", typed.phases.all().first().map(|(_, at)| &at.span), mod_perl, "mod-perl"),
        ("auth", typed.auth.as_ref().map(|at| &at.span), mod_perl, "mod-perl"),
        ("set_var", typed.set_var.values().map(|at| &at.span).next(), mod_perl, "mod-perl"),
        ("options", typed.options.as_ref().map(|at| &at.span), mod_perl, "mod-perl"),
        ("switches", typed.switches.as_ref().map(|at| &at.span), mod_perl, "mod-perl"),
        ("pass_env", typed.pass_env.as_ref().map(|at| &at.span), mod_perl, "mod-perl"),
        ("ruby", typed.ruby.as_ref().map(|at| &at.span), rack, "rack"),
        (
            "module",
            typed.module.as_ref().map(|at| &at.span),
            matches!(kind, Kind::Wsgi | Kind::Asgi),
            "wsgi\" or \"asgi",
        ),
        (
            "python",
            typed.python.as_ref().map(|at| &at.span),
            matches!(kind, Kind::PythonCgi | Kind::CgiBin | Kind::Wsgi | Kind::Asgi),
            "python-cgi\", \"cgi-bin\", \"wsgi\" or \"asgi",
        ),
        (
            "root",
            typed.root.as_ref().map(|at| &at.span),
            command || php || mod_perl,
            "php\", \"mod-perl\" or \"command",
        ),
        (
            "scripts",
            typed.scripts.as_ref().map(|at| &at.span),
            command || php,
            "php\" and kind = \"command",
        ),
        ("run", typed.run.as_ref().map(|at| &at.span), command, "command"),
        ("speaks", typed.speaks.as_ref().map(|at| &at.span), command, "command"),
        ("listen", typed.listen.as_ref().map(|at| &at.span), command, "command"),
        ("secret", typed.secret.as_ref().map(|at| &at.span), command, "command"),
        (
            "host",
            typed.host.as_ref().map(|at| &at.span),
            command || ready,
            "command\", \"node\" or \"java",
        ),
        (
            "strip_prefix",
            typed.strip_prefix.as_ref().map(|at| &at.span),
            command || ready || php,
            "php\", \"node\", \"java\" and kind = \"command",
        ),
        (
            "mount",
            typed.mount.as_ref().map(|at| &at.span),
            command || takes_every_path,
            "psgi\", \"mod-perl\", \"wsgi\", \"asgi\", \"pagi\", \"rack\" or \"command",
        ),
        (
            "warm_up",
            typed.warm_up.as_ref().map(|at| &at.span),
            ready || command,
            "node\", \"java\" or \"command",
        ),
        (
            "sticky",
            typed.sticky.as_ref().map(|at| &at.span),
            asgi || ready || command,
            "asgi\", \"pagi\", \"node\", \"java\" or \"command",
        ),
        (
            "params",
            typed.params.values().map(|at| &at.span).next(),
            php || mono || command,
            "php\", \"mono\" or \"command",
        ),
        ("ini", typed.ini.values().map(|at| &at.span).next(), php, "php"),
        ("threads", typed.threads.as_ref().map(|at| &at.span), mono || rack, "mono\" or \"rack"),
        ("virtual_path", typed.virtual_path.as_ref().map(|at| &at.span), mono, "mono"),
        ("version", typed.version.as_ref().map(|at| &at.span), php, "php"),
        (
            "lib",
            typed.lib.as_ref().map(|at| &at.span),
            rack || asgi || !listens,
            "cgi-bin\", \"perl-cgi\", \"python-cgi\", \"psgi\", \"mod-perl\", \"wsgi\", \"asgi\", \"pagi\" or \"rack",
        ),
        (
            "connections",
            typed.connections.as_ref().map(|at| &at.span),
            command || ready || rack || asgi,
            "command\", \"node\", \"java\", \"rack\", \"asgi\" or \"pagi",
        ),
        ("max_message", typed.max_message.as_ref().map(|at| &at.span), asgi, "asgi\" or \"pagi"),
        (
            "stop_timeout",
            typed.stop_timeout.as_ref().map(|at| &at.span),
            listens,
            "command\", \"node\", \"java\", \"php\", \"mono\", \"rack\", \"asgi\" or \"pagi",
        ),
    ];
    for (key, span, own, kind) in rows {
        if let (Some(span), false) = (span, own) {
            let problem = Problem::new(span, format!("`{key}` is not for this kind of app"));
            return Err(problem.help(format!("leave it out: it is for kind = \"{kind}\"")));
        }
    }
    Ok(())
}

/// Checks that each key of the application has an effect beside the other keys. For example,
/// `idle_timeout` has no effect with a fixed number of workers.
pub(super) fn all_have_effect(typed: &file::App, kind: Kind) -> Resolution<()> {
    let is_server = |at: &file::At<AppProtocol>| {
        matches!(at.value, AppProtocol::Http | AppProtocol::H2c | AppProtocol::Ajp)
    };
    let is_server = typed.speaks.as_ref().is_some_and(is_server)
        || matches!(kind, Kind::Rack | Kind::Asgi | Kind::Pagi | Kind::Node | Kind::Java);
    if let Some(at) = typed.max_output.as_ref().filter(|_| is_server) {
        let why = "on rack, asgi, pagi, node, java and a program that speaks http or ajp";
        return Err(no_effect(&at.span, "max_output", why, "leave it out"));
    }
    if let Some(at) = &typed.idle_timeout {
        let workers = typed.workers.as_ref().map_or(Workers::Count(1), |at| at.value);
        match (workers, kind) {
            (Workers::Range(Processes { min, max }), _) if max == Some(min.unwrap_or(0)) => {
                return Err(never_idle(&at.span));
            }
            (Workers::Count(_), _) => return Err(never_idle(&at.span)),
            (Workers::Range(Processes { min: Some(1..), .. }), Kind::Php) => {
                let why = "on PHP unless `min` is 0";
                let help = "leave it out, or say workers = { min = 0, max = 8 }";
                return Err(no_effect(&at.span, "idle_timeout", why, help));
            }
            _ => {}
        }
    }
    match (&typed.queue, &typed.queue_timeout) {
        (Some(queue), Some(at)) if queue.value == 0 => {
            let why = "if no request may wait";
            Err(no_effect(&at.span, "queue_timeout", why, "leave it out, or raise `queue`"))
        }
        _ => Ok(()),
    }
}

fn never_idle(span: &Range<usize>) -> Problem {
    let help = "leave it out, or let the number change: workers = { min = 0, max = 8 }";
    no_effect(span, "idle_timeout", "while there are always as many workers", help)
}
