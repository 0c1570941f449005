//! Subcommand `forebay ctl`: shows and changes a running server through its `admin` address.

pub mod client;
pub mod shown;

use std::fs;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use client::{CtlAnswer, CtlServer, FindError};

/// Exit codes of the manual: a refused change or wrong usage, and a server that cannot be reached.
const REFUSED: u8 = 2;
const UNREACHABLE: u8 = 3;

/// Show and change a running server
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  forebay ctl status
  forebay ctl drain 10.0.0.1:8080               no new clients; sessions continue
  forebay ctl weight 10.0.0.1:8080 3
  forebay ctl maintenance on example.org --retry-after 30m --except 10.0.0.0/8
  forebay ctl reload                            read the file again; an error changes nothing

The server is the one of --admin, else of FOREBAY_ADMIN, else of `admin` in --config, else in
/etc/forebay/site.toml. Over TCP, changes need the server's `admin_token`: from --token-file,
FOREBAY_ADMIN_TOKEN or that configuration. Over a Unix socket, its permissions decide.

Changes of backends and sites stay in force over reloads, until they are undone or the server
restarts. Exit code: 0 done, 2 refused (nothing has changed), 3 not reached.")]
pub struct CtlArgs {
    /// Address of the server: unix:PATH or ADDRESS:PORT
    #[arg(long, value_name = "ADDR", global = true)]
    admin: Option<String>,
    /// Configuration file of the server, which has its address and token
    #[arg(long, value_name = "FILE", global = true)]
    config: Option<PathBuf>,
    /// File that contains the admin_token
    #[arg(long, value_name = "FILE", global = true)]
    token_file: Option<PathBuf>,
    /// Print the server's answer as JSON
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    order: CtlOrder,
}

#[derive(clap::Subcommand)]
enum CtlOrder {
    /// Show connections, backends, applications and changes
    Status,
    /// Read the configuration file again
    ///
    /// The file is checked as by `forebay check`, and its `expect` tests run. After an error, the
    /// running configuration stays. Waits for the outcome.
    Reload {
        /// If the configuration has no `admin` that can be used, check it and send SIGHUP to this
        /// process. The outcome is then only in the log
        #[arg(long, value_name = "PID", value_parser = clap::value_parser!(i32).range(1..))]
        or_signal: Option<i32>,
    },
    /// Replace the configuration with another one, until the next reload or restart
    ///
    /// The text is checked as by `forebay check`, and its `expect` tests run. After an error, the
    /// running configuration stays. Relative paths start at the directory of the server's file.
    Replace {
        /// File with the whole configuration, or - for standard input
        file: PathBuf,
        /// Replace only the configuration with this number (see `ctl status`)
        #[arg(long, value_name = "N")]
        generation: Option<u64>,
    },
    /// Send no new clients to a backend
    ///
    /// Clients with a sticky session on the backend keep it. Requests under way are finished.
    Drain {
        /// Address of the backend, as in `ctl status`
        backend: String,
        /// Group of the backend [default: all groups with this address]
        #[arg(long, value_name = "NAME")]
        upstream: Option<String>,
        /// Send clients with a sticky session to other backends, too
        #[arg(long)]
        sessions: bool,
    },
    /// Send clients to a drained backend again
    Undrain {
        /// Address of the backend, as in `ctl status`
        backend: String,
        /// Group of the backend [default: all groups with this address]
        #[arg(long, value_name = "NAME")]
        upstream: Option<String>,
    },
    /// Change the share of requests of a backend
    Weight {
        /// Address of the backend, as in `ctl status`
        backend: String,
        /// New weight, 1 to 256, or `default` for that of the configuration
        weight: String,
        /// Group of the backend [default: all groups with this address]
        #[arg(long, value_name = "NAME")]
        upstream: Option<String>,
    },
    /// Close a site for maintenance, or open it again
    ///
    /// Requests get 503 with Retry-After and the site's page for `maintenance` or status 503.
    Maintenance {
        /// `on` or `off`
        #[arg(value_parser = ["on", "off"])]
        to: String,
        /// Host name of the site, as in the configuration. `*` means all sites
        site: String,
        /// Time after which clients should try again
        #[arg(long, value_name = "TIME", default_value = "10m")]
        retry_after: String,
        /// Address or network of clients that are served as usual; may be repeated
        #[arg(long, value_name = "NETWORK")]
        except: Vec<String>,
    },
    /// Show which scripts are kept in mode `prove`, and why others are not
    ///
    /// A script is proving (in a process of its own for each request), proved (kept in workers) or
    /// refused. Values are described, not shown; `forebay prove` can show them.
    Proofs,
    /// Undo all changes of backends and sites
    Reset,
    /// Print the settings of the running configuration, without secrets
    ///
    /// Files, defaults and sets are one list. Placeholders such as {env.TOKEN} stay as typed.
    Plan,
    /// Print what a reload of the configuration file would change, without secrets
    Diff,
}

pub fn run(args: &CtlArgs) -> ExitCode {
    match order(args) {
        Ok(text) => match io::stdout().write_all(text.as_bytes()) {
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
                fail(UNREACHABLE, &format!("standard output: {error}"))
            }
            _ => ExitCode::SUCCESS,
        },
        Err((code, why)) => fail(code, &why),
    }
}

fn fail(code: u8, why: &str) -> ExitCode {
    let _ = writeln!(io::stderr(), "forebay ctl: {}", why.trim_end());
    ExitCode::from(code)
}

/// Carries out the subcommand of `forebay ctl`. Returns the text for standard output. An error has
/// the exit code and the reason.
fn order(args: &CtlArgs) -> Result<String, (u8, String)> {
    let refused = |why: String| (REFUSED, why);
    let config = args.config.as_deref();
    let server = CtlServer::find(args.admin.as_deref(), config, args.token_file.as_deref());
    let server = match (server, &args.order) {
        (Ok(server), CtlOrder::Reload { or_signal: Some(pid) }) if !server.permits_changes() => {
            return signal(*pid, config);
        }
        (Err(FindError::NoAddress(_)), CtlOrder::Reload { or_signal: Some(pid) }) => {
            return signal(*pid, config);
        }
        (server, _) => server.map_err(|error| refused(error.to_string()))?,
    };
    let post = |what: &str, body: &Value| {
        server.post(&format!("/control/{what}"), "application/json", None, body.to_string())
    };
    let backend = |backend: &str, upstream: &Option<String>, key: &str, value: Value| {
        post("backend", &json!({ "backend": backend, "upstream": upstream, key: value }))
    };
    let answer = match &args.order {
        CtlOrder::Status | CtlOrder::Proofs => server.get("/status.json"),
        CtlOrder::Reload { .. } => post("reload", &json!({})),
        CtlOrder::Reset => post("reset", &json!({})),
        CtlOrder::Plan => server.get("/control/plan"),
        CtlOrder::Diff => post("diff", &json!({})),
        CtlOrder::Replace { file, generation } => {
            let text = read(file).map_err(refused)?;
            server.post("/control/configuration", "application/toml", *generation, text)
        }
        CtlOrder::Drain { backend: address, upstream, sessions } => {
            let state = if *sessions { "down" } else { "drain" };
            backend(address, upstream, "state", state.into())
        }
        CtlOrder::Undrain { backend: address, upstream } => {
            backend(address, upstream, "state", "ready".into())
        }
        CtlOrder::Weight { backend: address, weight, upstream } => {
            let number = weight.parse::<u64>().map(Value::from);
            backend(address, upstream, "weight", number.unwrap_or(weight.as_str().into()))
        }
        CtlOrder::Maintenance { to, site, retry_after, except } => post(
            "maintenance",
            &json!({
                "site": site, "closed": to == "on", "retry_after": retry_after, "except": except,
            }),
        ),
    };
    let CtlAnswer { status, body } = answer.map_err(|why| (UNREACHABLE, why))?;
    let parsed: Value = serde_json::from_str(&body).unwrap_or(Value::Null);
    if status != 200 {
        let why = parsed["error"].as_str().unwrap_or(&body).to_owned();
        let code = if status == 503 { UNREACHABLE } else { REFUSED };
        return Err((code, why));
    }
    if args.json {
        return Ok(body);
    }
    Ok(match &args.order {
        CtlOrder::Status => shown::status(&parsed),
        CtlOrder::Proofs => shown::proofs(&parsed),
        CtlOrder::Plan => shown::plan(&parsed),
        CtlOrder::Diff => shown::difference(&parsed),
        _ => shown::done(&parsed),
    })
}

/// Checks the configuration, and sends SIGHUP to a server that has no usable `admin`.
fn signal(pid: i32, config: Option<&Path>) -> Result<String, (u8, String)> {
    let file = config.unwrap_or(Path::new(client::DEFAULT_FILE));
    let check =
        std::env::current_exe().and_then(|own| Command::new(own).arg("check").arg(file).status());
    let check = check
        .map_err(|error| (UNREACHABLE, format!("cannot check {}: {error}", file.display())))?;
    if !check.success() {
        return Err((REFUSED, format!("{} has an error; nothing has changed", file.display())));
    }
    let sent = Pid::from_raw(pid).map(|pid| kill_process(pid, Signal::HUP));
    if !matches!(sent, Some(Ok(()))) {
        return Err((UNREACHABLE, format!("cannot send SIGHUP to process {pid}")));
    }
    Ok("sent SIGHUP; the outcome is in the log. To see it here, add admin = \
        \"unix:/run/forebay/admin.sock\" to [server], and restart\n"
        .to_owned())
}

/// Reads a file, or standard input for `-`.
fn read(file: &std::path::Path) -> Result<String, String> {
    let mut text = String::new();
    let outcome = if file.as_os_str() == "-" {
        io::stdin().read_to_string(&mut text).map(drop)
    } else {
        fs::read_to_string(file).map(|content| text = content)
    };
    outcome.map(|()| text).map_err(|error| format!("cannot read {}: {error}", file.display()))
}
