//! Subcommand `forebay serve`.

mod live;
mod source;
mod watch;

use std::io::{self, Write};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use forebay_conf::files::{self, Recording};
use forebay_conf::{AccessLog, Level, Listen, Plan, Site};
use forebay_gateway::{
    Origins, SiteTls, Starts, check_spool, expect, make_directories, read_access_files,
    start_helper, usable,
};
use forebay_net::handover::Takeover;
use forebay_net::handover::launcher::{Program, open_for_server};
use forebay_net::privileges::{Identity, hide_memory};
use forebay_net::sys::{keep_from_programs, trim_heap};
use forebay_net::systemd::Inherited;
use forebay_net::thread::Settings;
use forebay_process::{
    end_root, processors_for, record_descriptors, record_processors, run_below_init,
};
use forebay_server::{Server, Wanted};
use rustix::process::{Signal, getpid, kill_process};

use live::Live;
use source::SourceKind;
use watch::Watched;

/// Exit codes of the manual: wrong usage or configuration, and a failed start.
const BAD_CONFIGURATION: u8 = 2;
const CANNOT_START: u8 = 3;

/// Serve a site: files, CGI, FastCGI, HTTP backends and persistent applications.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  forebay serve site.toml                       serve the sites of a configuration file
  forebay serve htdocs                          serve the files of a directory
  forebay serve --to http://127.0.0.1:3000      pass all requests to a backend

Ctrl-C and SIGTERM end Forebay after the active requests; a second signal ends it at once.
SIGHUP reads the configuration again. An error in it changes nothing, and all connections stay
open. SIGUSR1 reopens the access log. SIGUSR2 starts the installed version of Forebay, which takes
over all listeners without losing a request.")]
pub struct ServeArgs {
    /// A configuration file, or a directory of files to serve.
    #[arg(value_name = "FILE|DIR", required_unless_present = "to")]
    source: Option<PathBuf>,
    /// Listen on this address instead of the addresses in the configuration: ADDRESS:PORT, :PORT or
    /// unix:PATH.
    #[arg(long, value_name = "ADDR")]
    listen: Option<String>,
    /// Pass every request to this backend. No configuration file is needed.
    #[arg(long, value_name = "URL", conflicts_with = "source")]
    to: Option<String>,
    /// Number of threads that handle requests [default: one per core].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
    /// Log messages up to this level, instead of the level in `[log]`.
    #[arg(long, value_name = "LEVEL", value_parser = log_level)]
    log_level: Option<Level>,
    /// Read the configuration again, as after SIGHUP, when one of its files has changed. Looks every
    /// second, also at included files, certificates and files of {file.PATH}.
    #[arg(long, requires = "source")]
    watch: bool,
    /// Used by `check --start`: serves the tests of `expect` over Unix sockets in this directory.
    #[arg(long, value_name = "DIR", hide = true, requires = "source")]
    test_sockets: Option<PathBuf>,
}

fn log_level(text: &str) -> Result<Level, String> {
    let levels = [Level::Error, Level::Warn, Level::Info, Level::Debug];
    let found = levels.into_iter().find(|level| level.to_string() == text);
    found.ok_or_else(|| "the levels are error, warn, info and debug".to_owned())
}

pub fn run(args: ServeArgs) -> ExitCode {
    match run_below_init() {
        Ok(None) => {}
        Ok(Some(code)) => return code,
        Err(error) => {
            eprintln!("forebay: cannot run below process 1: {error}");
            return ExitCode::from(CANNOT_START);
        }
    }
    let outcome = serve(args);
    end_root();
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure { code, message }) => {
            let _ = write!(io::stderr(), "{message}");
            ExitCode::from(code)
        }
    }
}

struct Failure {
    code: u8,
    /// Text for standard error, with its final line break.
    message: String,
}

impl Failure {
    fn configuration(error: impl std::fmt::Display) -> Self {
        Self { code: BAD_CONFIGURATION, message: error.to_string() }
    }

    /// Converts the error text of [`source::check`] to a failure with the exit code for a wrong
    /// configuration.
    fn changed(why: String) -> Self {
        Self::configuration(format!("forebay: {why}\n"))
    }

    fn start(error: impl std::fmt::Display) -> Self {
        Self { code: CANNOT_START, message: format!("forebay: {error}\n") }
    }
}

fn serve(args: ServeArgs) -> Result<(), Failure> {
    // Take the inherited sockets before this process opens any file.
    let mut takeover = Takeover::from_environment().map_err(Failure::start)?;
    let inherited = match &mut takeover {
        Some(takeover) => Inherited::from_former(std::mem::take(&mut takeover.listeners))
            .map_err(Failure::start)?,
        None => Inherited::take().map_err(Failure::start)?,
    };
    if let (Some(takeover), Some(source)) = (&takeover, &args.source) {
        source::check(source, SourceKind::parse(&takeover.note)).map_err(Failure::changed)?;
    }
    let kind = SourceKind::of(args.source.as_deref());
    keep_from_programs(3);
    // Hide memory from other processes before the first secret is read.
    hide_memory();
    record_descriptors();
    record_processors();
    // Record the state of the files before they are read, so that `--watch` notices all later
    // changes.
    let watched = match &args.source {
        _ if args.watch => Some(watched(&args)?),
        Some(file) if file.is_file() => Watched::of_hosts(file),
        _ => None,
    };
    let mut plan = plan(&args, |warning| drop(write!(io::stderr(), "{warning}")))?;
    let base = plan.clone();
    let threads = threads(&args, &plan);
    let notes = plan.share_connections(threads).map_err(unshared)?;
    let (user, group) = (plan.server.user.as_deref(), plan.server.group.as_deref());
    let identity = Identity::find(user, group).map_err(Failure::start)?;
    // Read private keys before the change of user, because only root may be able to read them.
    let tls = SiteTls::load(&plan, None).map_err(Failure::configuration)?;
    let of_root = if identity.is_some() {
        files::record(|| read_access_files(&plan)).1
    } else {
        Recording::default()
    };
    let access = plan.server.admin_access.clone();
    let admin = plan.server.admin.clone().map(|listen| (listen, access));
    let mut server = Server::open(wanted(&plan), threads, admin, inherited, identity.as_ref())
        .map_err(Failure::start)?;
    let helper = start_helper(&plan).map_err(|error| format!("cannot start a helper: {error}"));
    helper.map_err(Failure::start)?;
    if args.test_sockets.is_none() {
        match Program::of_this_process(kind.word()) {
            Ok(program) => server.enable_upgrades(program),
            Err(error) => server.errors().warn(&format!("SIGUSR2 will have no effect: {error}")),
        }
    }
    let is_takeover = takeover.is_some();
    server.set_tickets(tls.tickets().clone());
    if let Some(takeover) = takeover {
        // Use the ticket keys of the old process, so that its clients can resume TLS sessions.
        tls.tickets().take_text(&takeover.keys);
        server.take_over(takeover);
    }
    make_directories(&plan);
    if let Some(identity) = &identity {
        server.become_user(identity).map_err(Failure::start)?;
    }
    if plan.server.affinity {
        server.keep_to(processors_for(threads));
    }
    check_spool(&plan).map_err(Failure::configuration)?;
    let grace = plan.server.grace;
    let has_log = plan.log.access != AccessLog::Off || !plan.log.others.is_empty();
    let lacks_log = !has_log && args.test_sockets.is_none();
    let errors = server.errors();
    if args.test_sockets.is_none()
        && let Err(why) = live::run_tests(&base, &errors)
    {
        // An old process can continue to serve, and so refuses this configuration as a reload does. If
        // nothing serves yet, an outage would be worse than a page that differs.
        if is_takeover {
            return Err(Failure::configuration(why));
        }
        errors.error(&format!("serving, although tests of `expect` fail: {}", why.trim_end()));
    }
    notes.iter().for_each(|note| errors.warn(note));
    // In a takeover, all applications must start. If an application does not start, this process
    // fails, and the old process continues to serve.
    let starts = if is_takeover { Starts::All } else { Starts::Later };
    let build = || Origins::new(plan, Arc::new(tls), &errors, starts);
    let origins = files::replay(&of_root, build).map_err(Failure::start)?;
    let origins = Arc::new(origins);
    let tables = origins.tables();
    let opened: Vec<_> = server.addresses().iter().map(url).collect();
    if args.test_sockets.is_some() {
        end_with_input();
    }
    let log = errors.clone();
    let live = Arc::new(Live::new(args, threads, base, origins, (errors, server.root_access())));
    if let Some(watched) = watched {
        watched.start(log, Arc::downgrade(&live));
    }
    let (control, reloads) = live.control();
    // The typed configuration is dropped, but the allocator would keep its memory: with 10,000
    // sites 140 MB.
    trim_heap();
    let outcome = server.run(
        tables,
        Arc::new(control),
        grace,
        || {
            for address in opened {
                let _ = writeln!(io::stderr(), "forebay: serving {address}");
            }
            if lacks_log {
                let text = "forebay: there is no access log; [log] with access = \"stdout\" or a \
                            path writes a line for each request";
                let _ = writeln!(io::stderr(), "{text}");
            }
        },
        reloads,
    );
    live.stop(grace);
    forebay_gateway::wait_for_records();
    outcome.map_err(Failure::start)
}

/// Returns the files that `--watch` watches. Fails for a directory, for a pipe, and without a FILE
/// argument. If no file exists at the path of FILE, [`plan`] reports that error.
fn watched(args: &ServeArgs) -> Result<Watched, Failure> {
    match &args.source {
        // Accept no pipe: it can be read only once, and each reload reads the configuration again.
        Some(file) if file.is_file() || !file.exists() => Ok(Watched::new(file)),
        _ => Err(Failure::configuration(
            "forebay: --watch needs a configuration file; changed files of a directory are served \
             without it\n",
        )),
    }
}

/// Sends SIGTERM to this process when standard input ends. The program that started this server for
/// its tests, such as `forebay check`, has then closed the pipe or ended.
fn end_with_input() {
    std::thread::spawn(|| {
        let _ = io::copy(&mut io::stdin(), &mut io::sink());
        let _ = kill_process(getpid(), Signal::TERM);
    });
}

fn wanted(plan: &Plan) -> Wanted {
    Wanted {
        listen: addresses(plan),
        sockets: plan.socket_accesses(),
        settings: Settings {
            timeouts: plan.server.timeouts.clone(),
            limits: plan.server.limits.clone(),
            timing: plan.server.timing,
            is_timed: plan.server.admin.is_some() || plan.log.metrics.is_some(),
            spool_dir: plan.server.spool_dir.clone(),
            admin_hosts: plan.server.admin_hosts.clone(),
            admin_token: plan.server.admin_token.clone(),
        },
        log: plan.log.clone(),
        drain_delay: plan.server.drain_delay,
    }
}

/// Runs `forebay __read serve ...` for a server that has given up root: writes the files that the
/// server needs for a reload to standard output. Runs none of the configuration's programs.
pub fn read_for_reload(args: &ServeArgs) -> ExitCode {
    hide_memory();
    let ((), recording) = files::record(|| {
        // An error is found by the server, too, which says what is wrong.
        if let Ok(plan) = read_plan(args) {
            let _ = SiteTls::load(&plan, None);
            read_access_files(&plan);
            make_directories(&plan);
        }
    });
    match io::stdout().write_all(&recording.encode()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::from(CANNOT_START),
    }
}

/// Runs `forebay __listen serve ...` for a server that has given up root: opens an address of the
/// configuration.
pub fn listen_for_reload(args: &ServeArgs) -> ExitCode {
    hide_memory();
    let plan = read_plan(args).and_then(|plan| Ok((listen_of(args)?, plan)));
    let listens = match plan {
        Ok((by_argument, mut plan)) => {
            adapt(args, by_argument.as_ref(), &mut plan);
            let Wanted { listen, sockets, .. } = wanted(&plan);
            Ok((listen, sockets))
        }
        Err(_) => Err("the configuration has errors".to_owned()),
    };
    let server = io::stdout().as_fd().try_clone_to_owned();
    match server.and_then(|server| open_for_server(&server, listens)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::from(CANNOT_START),
    }
}

fn threads(args: &ServeArgs, plan: &Plan) -> usize {
    args.threads.map(usize::from).or(plan.server.threads).unwrap_or_else(cores)
}

/// Converts the error text of [`Plan::share_connections`] to a failure with the exit code for a
/// wrong configuration.
fn unshared(why: String) -> Failure {
    Failure::configuration(format!("forebay: {why}\n"))
}

/// Reads the plan that the arguments name. Checks that this machine has everything that the plan
/// needs. Warnings go to `warn`.
fn plan(args: &ServeArgs, warn: impl FnOnce(&str)) -> Result<Plan, Failure> {
    finished(args, read_plan(args)?, warn)
}

/// Applies the command line to a plan.
fn adapt(args: &ServeArgs, listen: Option<&Listen>, plan: &mut Plan) {
    if let Some(listen) = listen.filter(|_| plan.has_file()) {
        override_listen(plan, listen);
    }
    if let Some(dir) = &args.test_sockets {
        expect::isolate(plan, dir);
    }
    if let Some(level) = args.log_level {
        plan.log.level = level;
    }
}

/// Applies the command line to a plan, and checks that this machine has everything that the plan
/// needs.
fn finished(args: &ServeArgs, plan: Plan, warn: impl FnOnce(&str)) -> Result<Plan, Failure> {
    let listen = listen_of(args)?;
    let adapt = |plan: &mut Plan| adapt(args, listen.as_ref(), plan);
    let (plan, warnings) = usable(plan, adapt).map_err(Failure::configuration)?;
    check_listeners(&plan)?;
    if let Some(warnings) = warnings {
        warn(&warnings.to_string());
    }
    Ok(plan)
}

/// Reads the configuration that the arguments name: a file, a directory, or a backend with `--to`.
fn read_plan(args: &ServeArgs) -> Result<Plan, Failure> {
    let listen = listen_of(args)?;
    let default = || Listen::parse("127.0.0.1:8080").expect("a valid address");
    match (&args.source, &args.to) {
        (Some(dir), _) if dir.is_dir() => {
            Plan::for_directory(dir, listen.unwrap_or_else(default)).map_err(Failure::configuration)
        }
        (Some(file), _) => forebay_conf::load(file).map_err(Failure::configuration),
        (None, Some(url)) => {
            Plan::for_proxy(url, listen.unwrap_or_else(default)).map_err(Failure::configuration)
        }
        (None, None) => Err(Failure::configuration("forebay: give a FILE, a DIR or --to URL\n")),
    }
}

/// Returns the address of `--listen`. Returns `None` without `--listen`.
fn listen_of(args: &ServeArgs) -> Result<Option<Listen>, Failure> {
    let parse = |text: &str| {
        Listen::parse(text).map_err(|error| {
            Failure::configuration(format!("forebay: --listen {text} is not an address\n{error}"))
        })
    };
    args.listen.as_deref().map(parse).transpose()
}

/// Makes all sites listen only on the address of `--listen`, so that the host name selects the
/// site.
fn override_listen(plan: &mut Plan, listen: &Listen) {
    for site in &mut plan.sites {
        let beside = listen.beside_for_http3();
        let beside = beside.filter(|_| site.listen.iter().any(Listen::is_http3));
        let all = std::iter::once(listen.clone()).chain(beside).collect();
        Arc::make_mut(site).listen = all;
    }
}

/// Checks that every site can use the address of `--listen`.
fn check_listeners(plan: &Plan) -> Result<(), Failure> {
    let lacks = |site: &Arc<Site>| site.tls.is_none() && site.listen.iter().any(Listen::is_https);
    if plan.sites.iter().any(lacks) {
        return Err(Failure::configuration(
            "forebay: --listen https:// needs a certificate for every site: [site.tls] in a \
             configuration file\n",
        ));
    }
    let lacks = |site: &Arc<Site>| site.ajp.is_none() && site.listen.iter().any(Listen::is_ajp);
    if plan.sites.iter().any(lacks) {
        return Err(Failure::configuration(
            "forebay: --listen cannot enable AJP for a site: write listen = \"ajp://...\" in its \
             configuration file\n",
        ));
    }
    Ok(())
}

fn addresses(plan: &Plan) -> Vec<Listen> {
    let mut addresses: Vec<Listen> = Vec::new();
    let of_streams = plan.relays.iter().flat_map(|relay| &relay.listen);
    for listen in plan.sites.iter().flat_map(|site| &site.listen).chain(of_streams) {
        if !addresses.contains(listen) {
            addresses.push(listen.clone());
        }
    }
    addresses
}

fn url(listen: &Listen) -> String {
    match listen {
        Listen::Tcp(address) => format!("http://{address}"),
        Listen::Stream(socket) => match &**socket {
            Listen::Tcp(address) => format!("tcp://{address}"),
            socket => socket.to_string(),
        },
        _ => listen.to_string(),
    }
}

/// Returns the default number of threads: the number of processors in the affinity mask. If the CPU
/// quota of the control group (cpu.max) allows fewer, the result is smaller.
pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}
