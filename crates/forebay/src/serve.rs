//! The `forebay serve` subcommand.

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use forebay_conf::{Listen, Plan};
use forebay_engine::{Server, Settings};
use forebay_origin::Origins;

/// Exit codes of the README: bad usage or configuration, and what could not be started.
const BAD_CONFIGURATION: u8 = 2;
const CANNOT_START: u8 = 3;

/// Serve a site: files, CGI, FastCGI, HTTP backends and persistent applications.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  forebay serve site.toml                       serve what a configuration file says
  forebay serve htdocs                          serve the files of a directory
  forebay serve --to http://127.0.0.1:3000      pass everything to a backend

Ctrl-C and SIGTERM finish the requests under way; a second one ends at once.
SIGUSR1 opens the access log anew.")]
pub struct Args {
    /// A configuration file, or a directory of files to serve.
    #[arg(value_name = "FILE|DIR", required_unless_present = "to")]
    source: Option<PathBuf>,
    /// Listen here instead of where the configuration says: ADDRESS:PORT, :PORT or unix:PATH.
    #[arg(long, value_name = "ADDR")]
    listen: Option<String>,
    /// Pass every request to this backend, without a configuration file.
    #[arg(long, value_name = "URL", conflicts_with = "source")]
    to: Option<String>,
    /// Threads that serve; one per core unless given.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
}

pub fn run(args: Args) -> ExitCode {
    match serve(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure { code, message }) => {
            let _ = write!(io::stderr(), "{message}");
            ExitCode::from(code)
        }
    }
}

struct Failure {
    code: u8,
    /// Ends with a line break.
    message: String,
}

impl Failure {
    fn configuration(error: impl std::fmt::Display) -> Self {
        Self { code: BAD_CONFIGURATION, message: error.to_string() }
    }

    fn start(error: impl std::fmt::Display) -> Self {
        Self { code: CANNOT_START, message: format!("forebay: {error}\n") }
    }
}

fn serve(args: Args) -> Result<(), Failure> {
    let plan = plan(&args)?;
    let threads = args.threads.map(usize::from).or(plan.server.threads).unwrap_or_else(cores);
    let listen = addresses(&plan);
    let settings =
        Settings { timeouts: plan.server.timeouts.clone(), limits: plan.server.limits.clone() };
    let grace = plan.server.grace;
    let server = Server::open(&listen, threads, settings, plan.log.clone(), plan.server.admin)
        .map_err(Failure::start)?;
    let origins = Arc::new(Origins::new(plan, &server.errors()).map_err(Failure::start)?);
    let tables = origins.tables(&listen);
    let opened: Vec<_> = server.addresses().iter().map(url).collect();
    let outcome = server.run(tables, origins.status(), grace, || {
        for address in opened {
            let _ = writeln!(io::stderr(), "forebay: serving {address}");
        }
    });
    origins.stop(grace);
    outcome.map_err(Failure::start)
}

fn plan(args: &Args) -> Result<Plan, Failure> {
    let listen = args
        .listen
        .as_deref()
        .map(|text| {
            Listen::parse(text).map_err(|error| {
                Failure::configuration(format!("forebay: --listen {text} is no address\n{error}"))
            })
        })
        .transpose()?;
    let default = || Listen::parse("127.0.0.1:8080").expect("a valid address");
    match (&args.source, &args.to) {
        (Some(dir), _) if dir.is_dir() => {
            Plan::for_directory(dir, listen.unwrap_or_else(default)).map_err(Failure::configuration)
        }
        (Some(file), _) => {
            let mut plan = forebay_conf::load(file).map_err(Failure::configuration)?;
            if let Some(listen) = listen {
                override_listen(&mut plan, &listen);
            }
            Ok(plan)
        }
        (None, Some(url)) => {
            Plan::for_proxy(url, listen.unwrap_or_else(default)).map_err(Failure::configuration)
        }
        (None, None) => Err(Failure::configuration("forebay: give a FILE, a DIR or --to URL\n")),
    }
}

/// All sites answer on the one address, told apart by host name.
fn override_listen(plan: &mut Plan, listen: &Listen) {
    for site in &mut plan.sites {
        site.listen = vec![listen.clone()];
    }
}

fn addresses(plan: &Plan) -> Vec<Listen> {
    let mut addresses: Vec<Listen> = Vec::new();
    for listen in plan.sites.iter().flat_map(|site| &site.listen) {
        if !addresses.contains(listen) {
            addresses.push(listen.clone());
        }
    }
    addresses
}

fn url(listen: &Listen) -> String {
    match listen {
        Listen::Tcp(address) => format!("http://{address}"),
        Listen::Unix(_) => listen.to_string(),
    }
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}
