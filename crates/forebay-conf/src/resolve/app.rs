//! Resolves `[app.NAME]`, an application of some kind.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::app_server::{PHP, mount, prefix, script_ends};
use super::effect::{all_have_effect, only_its_own};
use super::mod_perl::{mod_perl, preload};
use super::program::interpreter;
use super::program::{LEAST_MEMORY, at_least, max_processes, watch};
use super::program::{program, ready, ready_variables};
use super::upstream::sticky_cookie;
use super::value::{
    no_control, optional_time_above_zero, required, size_or_unlimited, text, time_above_zero,
    variables, within,
};
use super::{Context, Resolution};
use crate::error::Problem;
use crate::file::{self, At, Kind};
use crate::key::paths::{directory, file};
use crate::key::{check_shared, no_effect, template};
use crate::plan::{
    App, AppKind, PerlMode, Placeholder, PythonMode, Template, TemplatePart, Workers,
};
use crate::suggest;

/// Checks one `[app.NAME]`. A key that has no effect with its `kind` is an error.
pub(super) fn app(context: &Context<'_>, name: &str, typed: &At<file::App>) -> Resolution<App> {
    if name.is_empty() || name.chars().any(char::is_control) {
        return Err(Problem::new(&typed.span, "this app has no usable name")
            .help("name it with letters and digits: [app.shop]"));
    }
    let kind_typed = required(&typed.kind, &typed.span, "kind", "\"perl-cgi\"")?;
    only_its_own(typed, kind_typed.value)?;
    all_have_effect(typed, kind_typed.value)?;
    let kind = kind(context, typed, kind_typed.value)?;
    let dir = match (&kind, &typed.dir) {
        (_, Some(dir)) => directory(context.sources, dir)?,
        (
            AppKind::Psgi { file } | AppKind::Rack { file, .. } | AppKind::Pagi { file, .. },
            None,
        ) => file.parent().unwrap_or(context.base(&typed.span)).to_owned(),
        (AppKind::Wsgi { dir, .. }, None) => dir.clone(),
        (AppKind::Php { root, .. } | AppKind::ModPerl { root, .. }, None) => root.clone(),
        (AppKind::Command { run, .. }, None) if typed.run.is_none() => {
            let file = run.last().map(Path::new).and_then(Path::parent);
            file.unwrap_or(context.base(&typed.span)).to_owned()
        }
        _ => context.base(&typed.span).to_owned(),
    };
    let mut env = variables(&typed.env)?;
    for (name, value) in ready_variables(kind_typed.value) {
        env.entry((*name).to_owned()).or_insert_with(|| (*value).to_owned());
    }
    let fewest = match kind {
        AppKind::Asgi { .. }
        | AppKind::Pagi { .. }
        | AppKind::Command { .. }
        | AppKind::Mono { .. } => Workers { min: 1, max: 1 },
        _ => Workers::default(),
    };
    Ok(App {
        kind,
        workers: typed.workers.as_ref().map_or(Ok(fewest), workers)?,
        max_requests: match &typed.max_requests {
            Some(at) => Some(within(at, 1..=u64::MAX)?),
            None => None,
        },
        max_age: optional_time_above_zero(&typed.max_age)?,
        watch: watch(&dir, typed)?,
        dir,
        request_timeout: time_above_zero(&typed.request_timeout, Duration::from_secs(60))?,
        queue: match &typed.queue {
            Some(at) => within(at, 0..=1_000_000)?,
            None => 1024,
        },
        fair: match &typed.fair {
            Some(at) if at.is_empty() => Template::of(Vec::new()),
            Some(at) => check_shared(template(text(at)?, &at.span, context.scope)?, &at.span)?,
            None => Template::of(vec![TemplatePart::Value(Placeholder::Client)]),
        },
        queue_timeout: time_above_zero(&typed.queue_timeout, Duration::from_secs(10))?,
        env,
        params: variables(&typed.params)?,
        lib: lib(context, typed)?,
        user: match &typed.user {
            Some(at) => Some(text(at)?.to_owned()),
            None => None,
        },
        group: match &typed.group {
            Some(at) => Some(text(at)?.to_owned()),
            None => None,
        },
        limits: typed.limits,
        cgroup: typed.cgroup,
        start_timeout: time_above_zero(&typed.start_timeout, Duration::from_secs(30))?,
        stop_timeout: time_above_zero(&typed.stop_timeout, Duration::from_secs(10))?,
        idle_timeout: time_above_zero(&typed.idle_timeout, Duration::from_secs(60))?,
        max_memory: at_least(&typed.max_memory, LEAST_MEMORY)?,
        max_cpu: optional_time_above_zero(&typed.max_cpu)?,
        max_processes: max_processes(&typed.max_processes)?,
        proves: match kind_typed.value {
            Kind::Psgi => mode(&typed.mode, "psgi", "mode", &KEPT_MODES)?,
            Kind::Wsgi => mode(&typed.mode, "wsgi", "mode", &KEPT_MODES)?,
            _ => false,
        },
        prove_requests: prove_requests(typed)?,
        max_output: size_or_unlimited(&typed.max_output)?.unwrap_or(u64::MAX),
        mount: typed.mount.as_ref().map(mount).transpose()?,
        line: context.line(typed.span.start),
    })
}

fn kind(context: &Context<'_>, typed: &At<file::App>, kind: Kind) -> Resolution<AppKind> {
    let span = &typed.span;
    let dir = || directory(context.sources, required(&typed.dir, span, "dir", "\"DIR\"")?);
    Ok(match kind {
        Kind::CgiBin => AppKind::CgiBin {
            dir: dir()?,
            perl_mode: mode(&typed.perl_mode, "cgi-bin", "perl_mode", &PERL_MODES)?,
            preload: preload(context, typed, &typed.perl_mode)?,
            python_mode: mode(&typed.python_mode, "cgi-bin", "python_mode", &PYTHON_MODES)?,
            python: python(context, typed)?,
        },
        Kind::PerlCgi => AppKind::PerlCgi {
            dir: dir()?,
            mode: mode(&typed.mode, "perl-cgi", "mode", &PERL_MODES)?,
            preload: preload(context, typed, &typed.mode)?,
        },
        Kind::PythonCgi => AppKind::PythonCgi {
            dir: dir()?,
            mode: mode(&typed.mode, "python-cgi", "mode", &PYTHON_MODES)?,
            python: python(context, typed)?,
        },
        Kind::Psgi => {
            let typed = required(&typed.file, span, "file", "\"app.psgi\"")?;
            AppKind::Psgi { file: file(context.sources, typed)? }
        }
        Kind::ModPerl => mod_perl(context, typed)?,
        Kind::Wsgi => wsgi(context, typed)?,
        Kind::Rack => rack(context, typed)?,
        Kind::Asgi => asgi(context, typed)?,
        Kind::Pagi => {
            let typed_file = required(&typed.file, span, "file", "\"app.pl\"")?;
            let (connections, sticky, max_message) = of_many_requests(typed)?;
            let file = file(context.sources, typed_file)?;
            AppKind::Pagi { file, connections, sticky, max_message }
        }
        Kind::Php => {
            let root = required(&typed.root, span, "root", "\"DIR\"")?;
            let (root, scripts) = (directory(context.sources, root)?, php_scripts(typed)?);
            AppKind::Php {
                root,
                scripts,
                strip_prefix: prefix(&typed.strip_prefix)?,
                ini: ini(typed)?,
                version: version(typed)?,
            }
        }
        Kind::Mono => AppKind::Mono {
            dir: dir()?,
            threads: typed.threads.as_ref().map_or(Ok(16), |at| within(at, 1..=1000))?,
            virtual_path: virtual_path(&typed.virtual_path)?,
        },
        Kind::Node => ready(context, typed, &["node"])?,
        Kind::Java => ready(context, typed, &["java", "-jar"])?,
        Kind::Command => program(context, typed)?,
    })
}

/// Checks the keys of a wsgi application. A `file` has an `application`, as with mod_wsgi, and its
/// directory is the default `dir`.
fn wsgi(context: &Context<'_>, typed: &At<file::App>) -> Resolution<AppKind> {
    let (module, default) = match (&typed.file, &typed.module) {
        (Some(at), Some(_)) => {
            return Err(Problem::new(&at.span, "both `file` and `module` name the application")
                .help("keep one of them"));
        }
        (Some(at), None) => {
            let path = file(context.sources, at)?;
            let name = path.to_str().ok_or_else(|| {
                Problem::new(&at.span, "a path that is not UTF-8").help("rename it, or use a link")
            })?;
            (format!("{name}:application"), path.parent().map(Path::to_owned))
        }
        (None, typed_module) => {
            (module(required(typed_module, &typed.span, "module", "\"shop:application\"")?)?, None)
        }
    };
    let default = default.unwrap_or_else(|| context.base(&typed.span).to_owned());
    Ok(AppKind::Wsgi {
        module,
        dir: typed.dir.as_ref().map_or(Ok(default), |dir| directory(context.sources, dir))?,
        python: python(context, typed)?,
    })
}

/// Checks the keys of a rack application. The default `file` is `config.ru` in the application's
/// directory.
fn rack(context: &Context<'_>, typed: &At<file::App>) -> Resolution<AppKind> {
    let default = match &typed.dir {
        Some(dir) => directory(context.sources, dir)?,
        None => context.base(&typed.span).to_owned(),
    };
    let default = typed.with(default.join("config.ru").to_string_lossy().into_owned());
    let threads = typed.threads.as_ref().map_or(Ok(1), |at| within(at, 1..=1000))?;
    Ok(AppKind::Rack {
        file: file(context.sources, typed.file.as_ref().unwrap_or(&default))?,
        ruby: typed.ruby.as_ref().map(|at| interpreter(context, typed, at)).transpose()?,
        threads,
        connections: match &typed.connections {
            Some(at) => within(at, threads..=100_000)?,
            None => threads,
        },
    })
}

/// Checks the keys of an asgi application, except those that all kinds have.
fn asgi(context: &Context<'_>, typed: &At<file::App>) -> Resolution<AppKind> {
    let module_typed = required(&typed.module, &typed.span, "module", "\"chat:application\"")?;
    let (connections, sticky, max_message) = of_many_requests(typed)?;
    Ok(AppKind::Asgi {
        module: module(module_typed)?,
        dir: match &typed.dir {
            Some(dir) => directory(context.sources, dir)?,
            None => context.base(&typed.span).to_owned(),
        },
        python: python(context, typed)?,
        connections,
        sticky,
        max_message,
    })
}

/// Returns `connections`, `sticky` and `max_message` of an application whose processes run many
/// requests at once.
fn of_many_requests(typed: &At<file::App>) -> Resolution<(usize, Option<String>, u64)> {
    let sticky = match &typed.sticky {
        Some(at) => Some(sticky_cookie(&at.cookie, &at.span)?),
        None => None,
    };
    let connections = typed.connections.as_ref();
    let connections = connections.map_or(Ok(1000), |at| within(at, 1..=100_000))?;
    let max_message = at_least(&typed.max_message, 1)?.unwrap_or(16 * 1024 * 1024);
    Ok((connections, sticky, max_message))
}

/// Returns the path of an ASP.NET application: whole segments without a final slash, or the default
/// `/`.
fn virtual_path(typed: &Option<At<String>>) -> Resolution<String> {
    let Some(at) = typed else { return Ok("/".to_owned()) };
    let is_plain = |c: char| !c.is_control() && !matches!(c, '*' | '?' | '#' | '%' | '\\' | ':');
    let segment = |part: &str| !matches!(part, "" | "." | "..") && part.chars().all(is_plain);
    match at.strip_prefix('/') {
        Some("") => Ok("/".to_owned()),
        Some(path) if path.split('/').all(segment) => Ok(at.value.clone()),
        _ => Err(Problem::new(
            &at.span,
            format!("\"{}\" is not the path of an application", at.value),
        )
        .help("write it as its route has it, without the end: \"/shop\" for path = \"/shop/*\"")),
    }
}

fn php_scripts(typed: &file::App) -> Resolution<Vec<String>> {
    match (script_ends(&typed.scripts)?, &typed.scripts) {
        (Some(ends), Some(at)) if ends.is_empty() => {
            Err(Problem::new(&at.span, "PHP would run any file, including an uploaded picture")
                .help("name the ends of scripts, such as [\".php\", \".phtml\"]"))
        }
        (ends, _) => Ok(ends.unwrap_or_else(|| vec![PHP.into()])),
    }
}

/// Returns PHP settings, each as a line of php.ini.
fn ini(typed: &file::App) -> Resolution<Vec<String>> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    let setting = |(name, at): (&String, &At<String>)| {
        if name.is_empty() || !name.chars().all(is_plain) {
            let problem = Problem::new(&at.span, format!("\"{name}\" is not a PHP setting"));
            return Err(problem.help("write its name as in php.ini, such as memory_limit"));
        }
        Ok(format!("{name}={}", no_control(at, at)?))
    };
    typed.ini.iter().map(setting).collect()
}

fn version(typed: &file::App) -> Resolution<Option<String>> {
    let Some(at) = &typed.version else { return Ok(None) };
    let is_number = |text: &str| !text.is_empty() && text.chars().all(|c| c.is_ascii_digit());
    match at.split_once('.') {
        Some((major, minor)) if is_number(major) && is_number(minor) => Ok(Some(at.value.clone())),
        _ => Err(Problem::new(&at.span, format!("\"{}\" is not a version of PHP", at.value))
            .help("write two numbers, such as version = \"8.2\"")),
    }
}

/// Returns directories for modules. Their paths must not contain a colon, because a colon separates
/// the directories in a list.
fn lib(context: &Context<'_>, typed: &file::App) -> Resolution<Vec<PathBuf>> {
    let Some(at) = &typed.lib else { return Ok(Vec::new()) };
    let dir = |item: &At<&String>| {
        let dir = directory(context.sources, item)?;
        if dir.to_string_lossy().contains(':') {
            return Err(Problem::new(&item.span, "a directory with a colon in its path").help(
                "Perl and Python would read it as two directories: rename it, or use a link",
            ));
        }
        Ok(dir)
    };
    at.items().iter().map(dir).collect()
}

fn python(context: &Context<'_>, typed: &At<file::App>) -> Resolution<Option<PathBuf>> {
    typed.python.as_ref().map(|at| interpreter(context, typed, at)).transpose()
}

/// Returns the number of requests after which mode `prove` keeps a script.
fn prove_requests(typed: &file::App) -> Resolution<u64> {
    let Some(at) = &typed.prove_requests else { return Ok(50) };
    let modes = [&typed.mode, &typed.perl_mode, &typed.python_mode];
    if !modes.iter().any(|mode| mode.as_ref().is_some_and(|mode| mode.value == "prove")) {
        let help = "set the mode to \"prove\", or remove this key";
        return Err(no_effect(&at.span, "prove_requests", "in other modes than \"prove\"", help));
    }
    within(at, 5..=1_000_000)
}

const PERL_MODES: [(&str, PerlMode); 6] = [
    ("registry", PerlMode::Registry),
    ("registry-prefork", PerlMode::RegistryPrefork),
    ("perlrun", PerlMode::PerlRun),
    ("fork", PerlMode::Fork),
    ("cgi", PerlMode::Cgi),
    ("prove", PerlMode::Prove),
];

const PYTHON_MODES: [(&str, PythonMode); 3] =
    [("fresh", PythonMode::Fresh), ("fork", PythonMode::Fork), ("prove", PythonMode::Prove)];

/// The modes of kinds that load an application once; true for `prove`.
const KEPT_MODES: [(&str, bool); 2] = [("keep", false), ("prove", true)];

/// Returns the mode with the typed name, or the default mode if the user typed none. `modes` has
/// all modes that this kind of application has for `key`.
fn mode<M: Copy + Default>(
    typed: &Option<At<String>>,
    kind: &str,
    key: &str,
    modes: &[(&str, M)],
) -> Resolution<M> {
    let Some(at) = typed else { return Ok(M::default()) };
    if let Some((_, mode)) = modes.iter().find(|(name, _)| *name == at.value) {
        return Ok(*mode);
    }
    let names = || modes.iter().map(|(name, _)| *name);
    let problem = Problem::new(&at.span, format!("kind \"{kind}\" has no {key} \"{}\"", at.value));
    let problem = problem.help(format!("write {}", suggest::list(names(), "or", '"')));
    Err(match suggest::nearest(&at.value, names()) {
        Some(meant) => problem.label(format!("did you mean \"{meant}\"?")),
        None => problem.label("not one of its modes"),
    })
}

/// Checks a name such as `chat:application`: a module, a colon, and a callable.
fn module(typed: &At<String>) -> Resolution<String> {
    let dotted = |name: &str| {
        name.split('.').all(|part| {
            !part.is_empty()
                && !part.starts_with(|c: char| c.is_ascii_digit())
                && part.chars().all(|c| c.is_alphanumeric() || c == '_')
        })
    };
    match text(typed)?.split_once(':') {
        Some((module, callable))
            if dotted(module) && dotted(callable.strip_suffix("()").unwrap_or(callable)) =>
        {
            Ok(typed.value.clone())
        }
        _ => {
            let message = format!("\"{}\" is not a module and a callable", typed.value);
            let help = "write both with a colon between: module = \"shop:application\"";
            Err(Problem::new(&typed.span, message).help(help))
        }
    }
}

/// Checks `workers`: a fixed number, or a range.
fn workers(typed: &At<file::Workers>) -> Resolution<Workers> {
    let (min, max) = match typed.value {
        file::Workers::Count(count) => (count, count),
        file::Workers::Range(range) => match range.max {
            Some(max) => (range.min.unwrap_or(0), max),
            None => {
                return Err(Problem::new(&typed.span, "`max` is missing")
                    .help("give the largest number: { min = 0, max = 8 }"));
            }
        },
    };
    within(&typed.with(max), 1..=4096)?;
    if min > max {
        return Err(Problem::new(&typed.span, format!("min ({min}) is above max ({max})"))
            .help("swap them, or give one number for both"));
    }
    Ok(Workers { min, max })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::left_out::LeftOut;
    use crate::outside::Outside;
    use crate::plan::Scope;
    use crate::plan::{AppProtocol, HostField, Listening};
    use crate::source::Sources;

    fn resolved(text: &str) -> Result<App, String> {
        let base = tempfile::tempdir().unwrap();
        std::fs::create_dir(base.path().join("shop")).unwrap();
        std::fs::write(base.path().join("shop/app.psgi"), "").unwrap();
        let sources = Sources::one("x", &format!("[app.x]\n{text}"), base.path());
        let plain = |problems| crate::ConfError::in_sources(&sources, problems).plain();
        let mut none = LeftOut::default();
        let whole = crate::whole::read(&sources, &mut Outside::default(), &mut none);
        let whole = whole.map_err(plain)?;
        let app = app(
            &Context::new(&sources, &whole.filled, Scope::default(), &none),
            "x",
            &whole.file.app["x"],
        );
        let app = app.map_err(|problem| plain(vec![problem]))?;
        if whole.problems.is_empty() { Ok(app) } else { Err(plain(whole.problems)) }
    }

    fn refused(text: &str, with: &str) {
        let error = resolved(text).expect_err(text);
        assert!(error.contains(with), "{text}\n{error}");
    }

    #[test]
    fn a_psgi_app_works_in_the_directory_of_its_file() {
        let app = resolved("kind = 'psgi'\nfile = 'shop/app.psgi'").unwrap();
        assert!(app.dir.ends_with("shop"));
        assert!(matches!(app.kind, AppKind::Psgi { file } if file.ends_with("shop/app.psgi")));
        refused("kind = 'psgi'", "`file` is missing");
        refused("kind = 'psgi'\nfile = 'shop'", "is not a file");
        refused("kind = 'psgi'\nfile = 'shop/ap.psgi'", "did you mean \"app.psgi\"?");
    }

    #[test]
    fn a_wsgi_app_has_a_module_and_a_callable() {
        let app = resolved("kind = 'wsgi'\nmodule = 'my.shop:make'\ndir = 'shop'").unwrap();
        assert!(matches!(app.kind, AppKind::Wsgi { module, .. } if module == "my.shop:make"));
        assert!(resolved("kind = 'wsgi'\nmodule = 'shop:create.app()'").is_ok());
        for module in ["shop", "shop:", ":x", "a b:c", "a..b:c", "1a:b"] {
            refused(&format!("kind = 'wsgi'\nmodule = '{module}'"), "module");
        }
        let app = resolved("kind = 'wsgi'\nfile = 'shop/app.psgi'").unwrap();
        assert!(app.dir.ends_with("shop"));
        let AppKind::Wsgi { module, dir, .. } = app.kind else { panic!() };
        assert!(module.ends_with("/shop/app.psgi:application") && dir.ends_with("shop"));
        refused("kind = 'wsgi'", "`module` is missing");
        refused("kind = 'wsgi'\nfile = 'shop/app.psgi'\nmodule = 'a:b'", "keep one of them");
        refused("kind = 'asgi'\nfile = 'shop/app.psgi'\nmodule = 'a:b'", "`file` is not for this");
        let params = "params = { A = 'b' }";
        refused(&format!("kind = 'wsgi'\nmodule = 'a:b'\n{params}"), "`params` is not for this");
        let http = "kind = 'command'\nrun = ['a', '{port}']\nspeaks = 'http'";
        refused(&format!("{http}\n{params}"), "`params` has no effect");
    }

    #[test]
    fn a_rack_app_has_a_file_and_threads() {
        let app = resolved("kind = 'rack'\nfile = 'shop/app.psgi'\nthreads = 3").unwrap();
        assert!(app.dir.ends_with("shop") && app.workers.max == 4);
        let AppKind::Rack { file, ruby: None, threads: 3, connections: 3 } = app.kind else {
            panic!()
        };
        assert!(file.ends_with("shop/app.psgi"));
        let text = "kind = 'rack'\nfile = 'shop/app.psgi'\nlib = 'shop'\nmount = ''\n\
             connections = 9\nstart_timeout = '1s'";
        let app = resolved(text).unwrap();
        assert!(matches!(app.kind, AppKind::Rack { threads: 1, connections: 9, .. }));
        assert_eq!(app.mount.as_deref(), Some(""));
        refused("kind = 'rack'\ndir = 'shop'", "config.ru");
        refused("kind = 'rack'\nfile = 'shop/app.psgi'\nthreads = 2\nconnections = 1", "too small");
        refused("kind = 'rack'\nfile = 'shop/app.psgi'\nmax_output = 1", "`max_output` has no");
        refused("kind = 'psgi'\nfile = 'shop/app.psgi'\nruby = 'shop'", "kind = \"rack\"");
    }

    #[test]
    fn an_asgi_app_is_one_process_with_many_requests() {
        let app = resolved("kind = 'asgi'\nmodule = 'my.chat:app'\ndir = 'shop'").unwrap();
        assert_eq!(app.workers, Workers { min: 1, max: 1 });
        let AppKind::Asgi { module, connections, max_message, sticky, .. } = app.kind else {
            panic!()
        };
        assert_eq!((module.as_str(), connections, max_message), ("my.chat:app", 1000, 16 << 20));
        assert_eq!(sticky, None);
        let text = "kind = 'asgi'\nmodule = 'a:b'\nsticky = { cookie = 'w' }\nlib = 'shop'\n\
             max_message = '1KiB'\nconnections = 3\nstart_timeout = '1s'";
        let AppKind::Asgi { connections: 3, max_message: 1024, sticky: Some(cookie), .. } =
            resolved(text).unwrap().kind
        else {
            panic!()
        };
        assert_eq!(cookie, "w");
        refused("kind = 'asgi'", "`module` is missing");
        refused("kind = 'asgi'\nmodule = 'a:b'\nconnections = 0", "0 is too small");
        refused("kind = 'asgi'\nmodule = 'a:b'\nmax_message = 0", "too small");
        refused("kind = 'asgi'\nmodule = 'a:b'\nmax_output = 1", "`max_output` has no effect");
        refused("kind = 'wsgi'\nmodule = 'a:b'\nmax_message = 1", "kind = \"asgi\"");
    }

    #[test]
    fn an_interpreter_is_for_python() {
        let app = resolved("kind = 'wsgi'\nmodule = 'a:b'\npython = 'shop/app.psgi'").unwrap();
        let AppKind::Wsgi { python: Some(python), .. } = app.kind else { panic!("{app:?}") };
        let text = "kind = 'wsgi'\nmodule = 'a:b'\ndir = 'shop'\npython = 'app.psgi'";
        let AppKind::Wsgi { python: Some(below), .. } = resolved(text).unwrap().kind else {
            panic!()
        };
        assert!(below.ends_with("shop/app.psgi"));
        assert!(python.is_absolute() && python.ends_with("shop/app.psgi"));
        refused("kind = 'wsgi'\nmodule = 'a:b'\npython = 'venv/bin/python'", "venv/bin/python");
        refused("kind = 'php'\nroot = 'shop'\npython = 'shop'", "`python` is not for this kind");
    }

    #[test]
    fn a_command_has_a_program_and_a_protocol() {
        let app = resolved("kind = 'command'\nrun = ['x', '{socket}']\nspeaks = 'scgi'").unwrap();
        let AppKind::Command { run, speaks, listen, host, connections, root, .. } = app.kind else {
            panic!()
        };
        assert_eq!(run, ["x", "{socket}"]);
        assert_eq!((speaks, listen), (AppProtocol::Scgi, Listening::Socket));
        assert_eq!((host, connections, root), (HostField::Client, 1, None));
        assert_eq!(app.workers.max, 1);
        refused("kind = 'command'\nspeaks = 'http'", "`run` is missing");
        refused("kind = 'command'\nrun = ['x']", "`speaks` is missing");
        refused("kind = 'command'\nrun = ['x']\nspeaks = 'http'", "no address to listen on");
        refused("kind = 'command'\nrun = ['{port}{socket}']\nspeaks = 'http'", "keep one of them");
        let text = "kind = 'command'\nrun = ['x']\nspeaks = 'http'\nlisten =";
        refused(&format!("{text} 'socket'"), "{socket} is missing");
        refused(&format!("{text} 'stdin'\nroot = 'shop'"), "has no effect");
        let app = resolved(&format!("{text} 'inherit'")).unwrap();
        assert!(matches!(app.kind, AppKind::Command { listen: Listening::Inherit, .. }));
        let text = "kind = 'command'\nrun = ['x']\nspeaks = 'http'\nenv = { PORT = '{port}' }";
        let app = resolved(text).unwrap();
        let AppKind::Command { listen, connections, .. } = app.kind else { panic!() };
        assert_eq!((listen, connections), (Listening::Port, 100));
        let app = resolved(&format!("{text}\nhost = 'backend'")).unwrap();
        assert!(matches!(app.kind, AppKind::Command { host: HostField::Backend, .. }));
        let text = text.replace("'http'", "'scgi'");
        refused(&format!("{text}\nhost = 'client'"), "`host` has no effect");
        refused("kind = 'php'\nroot = 'shop'\nhost = 'client'", "`host` is not for this kind");
        refused("kind = 'command'\nrun = []\nspeaks = 'http'", "empty");
        refused("kind = 'command'\nrun = ['']\nspeaks = 'http'", "empty");
    }

    #[test]
    fn a_mode_belongs_to_its_kind() {
        let app = resolved("kind = 'python-cgi'\ndir = 'shop'\nmode = 'fork'").unwrap();
        assert!(matches!(app.kind, AppKind::PythonCgi { mode: PythonMode::Fork, .. }));
        let app = resolved("kind = 'perl-cgi'\ndir = 'shop'\nmode = 'perlrun'").unwrap();
        assert!(matches!(app.kind, AppKind::PerlCgi { mode: PerlMode::PerlRun, .. }));
        let perl =
            "write \"registry\", \"registry-prefork\", \"perlrun\", \"fork\", \"cgi\" or \"prove\"";
        refused("kind = 'perl-cgi'\ndir = 'shop'\nmode = 'fresh'", perl);
        let python = "write \"fresh\", \"fork\" or \"prove\"";
        refused("kind = 'python-cgi'\ndir = 'shop'\nmode = 'registry'", python);
        refused("kind = 'php'\nroot = 'shop'\nmode = 'fork'", "`mode` is not for this kind");
        let psgi = "kind = 'psgi'\nfile = 'shop/app.psgi'\nmode = 'prove'";
        assert!(resolved(psgi).unwrap().proves);
        refused(&psgi.replace("prove", "fork"), "write \"keep\" or \"prove\"");
    }

    #[test]
    fn perl_workers_preload_files_and_modules() {
        let text = "kind = 'perl-cgi'\ndir = 'shop'\npreload = ['shop/app.psgi', 'CGI', 'A::B_1']";
        let AppKind::PerlCgi { preload, .. } = resolved(text).unwrap().kind else { panic!() };
        assert!(preload[0].starts_with('/') && preload[0].ends_with("/shop/app.psgi"));
        assert_eq!(preload[1..], ["CGI", "A::B_1"]);
        refused("kind = 'perl-cgi'\ndir = 'shop'\npreload = 'start.pl'", "start.pl");
        refused("kind = 'perl-cgi'\ndir = 'shop'\npreload = 'A::B;system'", "A::B;system");
        let fork = "kind = 'cgi-bin'\ndir = 'shop'\npreload = 'CGI'\nperl_mode = 'fork'";
        refused(fork, "has no effect with mode \"fork\"");
        let prove = "kind = 'perl-cgi'\ndir = 'shop'\nprove_requests = 20\nmode = 'prove'";
        assert_eq!(resolved(prove).unwrap().prove_requests, 20);
        refused("kind = 'perl-cgi'\ndir = 'shop'\nprove_requests = 20", "in other modes");
        refused(&prove.replace("20", "4"), "4");
        refused("kind = 'php'\nroot = 'shop'\npreload = 'CGI'", "is not for this kind");
    }

    #[test]
    fn resources_of_a_process_are_limited() {
        let text = "kind = 'php'\nroot = 'shop'\nwatch = ['lib', '/x/y']\nmax_age = '1h'\n\
             limits = { open_files = 100, memory = '1GiB', cpu_time = '10s', core = 0 }\n\
             cgroup = { cpu_percent = 150 }";
        let app = resolved(text).unwrap();
        assert_eq!(app.watch, [app.dir.join("lib"), "/x/y".into()]);
        assert_eq!(app.max_age, Some(Duration::from_secs(3600)));
        let limits = app.limits;
        assert_eq!((limits.open_files, limits.memory), (Some(100), Some(1 << 30)));
        assert_eq!((limits.cpu_time, limits.processes, limits.core), (Some(10), None, Some(0)));
        assert_eq!(app.cgroup.cpu_percent, Some(150));
        refused("kind = 'php'\nroot = 'shop'\nlimits = { memory = '1KiB' }", "too small");
        refused("kind = 'php'\nroot = 'shop'\nlisten = 'stdin'", "`listen` is not for this kind");
    }

    #[test]
    fn mono_has_a_directory_and_a_path() {
        let app = resolved("kind = 'mono'\ndir = 'shop'").unwrap();
        let AppKind::Mono { dir, threads, virtual_path } = &app.kind else { panic!("{app:?}") };
        assert_eq!((dir, *threads, virtual_path.as_str()), (&app.dir, 16, "/"));
        assert_eq!(app.workers, Workers { min: 1, max: 1 });
        refused("kind = 'mono'", "`dir` is missing");
        refused("kind = 'mono'\ndir = 'shop'\nthreads = 0", "0 is too small");
        refused("kind = 'mono'\ndir = 'shop'\nlib = 'shop'", "`lib` is not for this kind");
        refused("kind = 'psgi'\nfile = 'shop/app.psgi'\nthreads = 2", "kind = \"mono\"");
        for path in ["/", "/shop", "/a/b c"] {
            let text = format!("kind = 'mono'\ndir = 'shop'\nvirtual_path = '{path}'");
            let AppKind::Mono { virtual_path, .. } = resolved(&text).unwrap().kind else {
                panic!()
            };
            assert_eq!(virtual_path, path);
        }
        for path in ["", "shop", "/shop/", "//", "/a/../b", "/*", "/a%20b"] {
            let text = format!("kind = 'mono'\ndir = 'shop'\nvirtual_path = '{path}'");
            refused(&text, "is not the path of an application");
        }
    }

    #[test]
    fn php_has_a_root() {
        let app = resolved("kind = 'php'\nroot = 'shop'").unwrap();
        assert!(matches!(&app.kind, AppKind::Php { root, .. } if *root == app.dir));
        refused("kind = 'php'", "`root` is missing");
    }
}
