//! Subcommand `forebay prove`: runs CGI scripts with given requests, and says whether each of them
//! may be kept in a worker, as mode `prove` of a running server does.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use forebay_admin::proof_json;
use forebay_gateway::proof_row;
use forebay_load::{Part, Url, parse_requests, read_replay};
use forebay_workers::{
    App, AppSpec, Body, Kind, LeaseEvent, PROOF, PerlMode, Proof, PythonMode, Verdict, Workers,
};
use percent_encoding::percent_decode_str;
use serde_json::{Value, json};

use crate::ctl::shown::proof_text;

/// Exit codes: a script is not proved, and wrong usage or a script that cannot be started.
const NOT_PROVED: u8 = 1;
const WRONG: u8 = 2;
/// Number of requests that run in a kept process after a proof. What grows shows only there.
const KEPT_REQUESTS: usize = 20;
/// Time limit for the report about a request, after its reply.
const REPORT: Duration = Duration::from_secs(10);

/// Find out which CGI scripts may be kept in a worker
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  forebay prove cgi-bin/shop.pl --requests requests.txt
  forebay prove cgi-bin --requests /var/log/apache2/access.log --json

The requests really run, with all their effects: use a copy of the data. FILE is an access log (common
or combined format), a HAR file, or a list as for `forebay bench --requests`: one path or URL per
line, with a method, fields and a body if needed. A proof needs at least 5 different requests; those
of different users, by cookie or by the field X-Remote-User (which becomes REMOTE_USER), show most.
They repeat until there are enough.

Exit code: 0 all scripts are proved, 1 at least one is not, 2 wrong usage.")]
pub struct ProveArgs {
    /// A script in Perl or Python, or a directory of them
    path: PathBuf,
    /// File with the requests
    #[arg(long, value_name = "FILE")]
    requests: PathBuf,
    /// Requests without a finding that a proof needs
    #[arg(long, value_name = "N", default_value_t = 50,
        value_parser = clap::value_parser!(u64).range(5..=1_000_000))]
    prove_requests: u64,
    /// Interpreter of Python scripts
    #[arg(long, value_name = "PATH")]
    python: Option<PathBuf>,
    /// Environment variable of the scripts; may be repeated
    #[arg(long, value_name = "NAME=VALUE")]
    env: Vec<String>,
    /// Show the values of variables, which may be secrets of visitors
    #[arg(long)]
    show_values: bool,
    /// Print the outcome as JSON
    #[arg(long)]
    json: bool,
}

pub fn run(args: &ProveArgs) -> ExitCode {
    match prove(args) {
        Ok((text, is_proved)) => {
            let _ = io::stdout().write_all(text.as_bytes());
            if is_proved { ExitCode::SUCCESS } else { ExitCode::from(NOT_PROVED) }
        }
        Err(why) => {
            let _ = writeln!(io::stderr(), "forebay prove: {why}");
            ExitCode::from(WRONG)
        }
    }
}

/// Returns the outcome as text, and true if all scripts are proved.
fn prove(args: &ProveArgs) -> Result<(String, bool), String> {
    let path = fs::canonicalize(&args.path);
    let path = path.map_err(|error| format!("cannot read {}: {error}", args.path.display()))?;
    let mut by_script: BTreeMap<PathBuf, Vec<ScriptRequest>> = BTreeMap::new();
    let mut others = 0;
    for part in requests(&args.requests)? {
        match ScriptRequest::new(&path, part) {
            Some(request) => by_script.entry(request.script.clone()).or_default().push(request),
            None => others += 1,
        }
    }
    if by_script.is_empty() {
        return Err(format!(
            "no request of {} names a script in {}: the path of each must begin with a script's name",
            args.requests.display(),
            path.display()
        ));
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| format!("cannot start: {error}"))?;
    let mut outcomes = Vec::new();
    for (script, requests) in &by_script {
        outcomes.push(runtime.block_on(prove_script(args, script, requests))?);
    }
    let is_proved = outcomes.iter().all(|outcome| outcome["state"] == "proved");
    if args.json {
        let text = json!({ "schema": "forebay.proofs/1", "scripts": outcomes, "skipped": others });
        return Ok((format!("{text}\n"), is_proved));
    }
    let mut text: String = outcomes.iter().map(|one| format!("{}\n", proof_text(one))).collect();
    if others > 0 {
        text.push_str(&format!("{others} requests are for no script there\n"));
    }
    Ok((text, is_proved))
}

/// Reads the requests of a list, an access log or a HAR file.
fn requests(file: &Path) -> Result<Vec<Part>, String> {
    let wrong = |why: String| format!("{}: {why}", file.display());
    let base = Url::parse("http://localhost/").map_err(|error| wrong(error.to_string()))?;
    let open = || File::open(file).map(BufReader::new).map_err(|error| wrong(error.to_string()));
    let mut first = String::new();
    open()?.take(4096).read_line(&mut first).map_err(|error| wrong(error.to_string()))?;
    if first.contains("] \"") || first.trim_start().starts_with('{') {
        let (parts, replay) = read_replay(open()?, &base).map_err(wrong)?;
        drop(replay);
        return Ok(parts);
    }
    let mut text = String::new();
    open()?.read_to_string(&mut text).map_err(|error| wrong(error.to_string()))?;
    parse_requests(&text, &base, file.parent().unwrap_or(Path::new("."))).map_err(wrong)
}

/// A request for a script.
struct ScriptRequest {
    script: PathBuf,
    variables: Vec<(String, String)>,
    body: Vec<u8>,
}

impl ScriptRequest {
    /// Returns the request for the script at `path`, or for one in the directory `path`. `None`: the
    /// request is for no script there.
    fn new(path: &Path, part: Part) -> Option<ScriptRequest> {
        let target = part.url.target();
        let (encoded, query) = target.split_once('?').unwrap_or((target, ""));
        let decoded = percent_decode_str(encoded).decode_utf8().ok()?.into_owned();
        let (script, name, info) = if path.is_dir() {
            let below = decoded.trim_start_matches('/');
            let ends = below.match_indices('/').map(|(at, _)| at).chain([below.len()]);
            let end = ends.into_iter().find(|end| {
                !below[..*end].split('/').any(|part| part == "..")
                    && path.join(&below[..*end]).is_file()
            })?;
            (path.join(&below[..end]), format!("/{}", &below[..end]), below[end..].to_owned())
        } else {
            let name = format!("/{}", path.file_name()?.to_str()?);
            let info = match decoded.find(&name) {
                Some(at) => decoded[at + name.len()..].to_owned(),
                None if path.is_file() => String::new(),
                None => return None,
            };
            (path.to_owned(), name, info)
        };
        let mut variables: Vec<(String, String)> = [
            ("GATEWAY_INTERFACE", "CGI/1.1"),
            ("SERVER_SOFTWARE", "Forebay"),
            ("SERVER_PROTOCOL", "HTTP/1.1"),
            ("SERVER_NAME", "localhost"),
            ("SERVER_PORT", "80"),
            ("REMOTE_ADDR", "127.0.0.1"),
            ("REQUEST_METHOD", &part.method),
            ("REQUEST_URI", target),
            ("QUERY_STRING", query),
            ("SCRIPT_NAME", &name),
            ("SCRIPT_FILENAME", script.to_str()?),
            ("DOCUMENT_ROOT", script.parent()?.to_str()?),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .to_vec();
        let mut set = |name: &str, value: &str| variables.push((name.to_owned(), value.to_owned()));
        if !info.is_empty() {
            set("PATH_INFO", &info);
        }
        if !part.body.is_empty() {
            set("CONTENT_LENGTH", &part.body.len().to_string());
        }
        for (name, value) in &part.headers {
            match name.to_ascii_lowercase().as_str() {
                "content-type" => set("CONTENT_TYPE", value),
                "content-length" | "proxy" => {}
                "x-remote-user" => set("REMOTE_USER", value),
                "x-remote-addr" => set("REMOTE_ADDR", value),
                other => set(&format!("HTTP_{}", other.to_uppercase().replace('-', "_")), value),
            }
        }
        let is_whole = variables.iter().all(|(_, value)| !value.contains('\0'));
        is_whole.then_some(ScriptRequest { script, variables, body: part.body })
    }

    /// Returns the variables for a worker. `proof` comes first.
    fn block(&self, proof: Option<&str>) -> Vec<u8> {
        let proof = proof.map(|proof| (PROOF, proof));
        let others = self.variables.iter().map(|(name, value)| (&**name, &**value));
        let all = proof.into_iter().chain(others);
        all.flat_map(|(name, value)| [name, "\0", value, "\0"].concat().into_bytes()).collect()
    }
}

/// Returns the outcome of one script, as `forebay ctl proofs --json` shows it.
async fn prove_script(
    args: &ProveArgs,
    script: &Path,
    requests: &[ScriptRequest],
) -> Result<Value, String> {
    let app = start(args, script)?;
    let needed = usize::try_from(args.prove_requests).unwrap_or(usize::MAX);
    let count = needed.max(requests.len());
    let mut failed = 0;
    // A value that may depend on one request needs others that leave the same.
    let most = Proof::MOST_ROUNDS as usize * count;
    for (index, request) in requests.iter().cycle().take(most).enumerate() {
        let is_open =
            |proof: &Proof| proof.verdict == Verdict::Proving && proof.has_different_inputs();
        if index >= count && !app.proofs().last().is_some_and(is_open) {
            break;
        }
        failed += u64::from(!send(&app, request, None).await?);
        let proof = await_report(&app, index as u64 + 1).await;
        if proof.is_none_or(|proof| matches!(proof.verdict, Verdict::Refused(_))) {
            break;
        }
    }
    let word = app.proof_of(Some(script));
    if word.as_ref().is_some_and(|word| word.starts_with("keep")) {
        for request in requests.iter().cycle().take(requests.len().max(KEPT_REQUESTS)) {
            failed += u64::from(!send(&app, request, word.as_deref()).await?);
        }
    }
    // All reports have arrived when the worker has ended.
    app.shutdown(REPORT).await;
    let mut outcome = match app.proofs().pop() {
        Some(proof) => proof_json(&proof_row(proof)),
        None => json!({
            "script": script, "state": "refused", "finding": {
                "variable": "the script",
                "why": "it cannot be compiled once for all visitors, or its process was replaced or \
                    ended by a signal, so nothing could be compared",
                "place": "", "values": [], "cure": "See the messages above",
            },
        }),
    };
    outcome["failed_requests"] = failed.into();
    Ok(outcome)
}

fn start(args: &ProveArgs, script: &Path) -> Result<App, String> {
    let mut first = String::new();
    let open =
        File::open(script).map_err(|error| format!("cannot read {}: {error}", script.display()))?;
    let _ = BufReader::new(open.take(256)).read_line(&mut first);
    let dir = script.parent().unwrap_or(Path::new("/")).to_owned();
    let is_python = first.contains("python") || script.extension().is_some_and(|end| end == "py");
    let kind = if is_python {
        Kind::PythonCgi { dir, mode: PythonMode::Prove, python: args.python.clone() }
    } else {
        Kind::PerlCgi { dir, mode: PerlMode::Prove, preload: Vec::new() }
    };
    let mut spec = AppSpec::new("prove", kind);
    spec.workers = Workers { min: 1, max: 1 };
    spec.prove_requests = args.prove_requests;
    spec.shows_values = args.show_values;
    for variable in &args.env {
        let pair = variable.split_once('=');
        let (name, value) = pair.ok_or_else(|| format!("--env {variable}: write NAME=VALUE"))?;
        spec.env.push((name.to_owned(), value.to_owned()));
    }
    App::start(spec, |_, line| {
        let _ = writeln!(io::stderr(), "{line}");
    })
    .map_err(|error| error.to_string())
}

/// Runs a request. Returns true if the script ended normally.
async fn send(app: &App, request: &ScriptRequest, proof: Option<&str>) -> Result<bool, String> {
    let block = request.block(proof);
    let body = if request.body.is_empty() { Body::Empty } else { Body::Bytes(&request.body) };
    let lease = app.checkout_for(&block, body).await;
    let mut lease = lease.map_err(|error| format!("{}: {error}", request.script.display()))?;
    if lease.send(&block, body).await.is_err() {
        return Ok(false);
    }
    let mut output = Vec::new();
    loop {
        output.clear();
        match lease.read(&mut output).await {
            Ok(LeaseEvent::Output(_)) => {}
            Ok(LeaseEvent::End(kind)) => return Ok(kind == forebay_workers::EndKind::Ok),
            Err(_) => return Ok(false),
        }
    }
}

/// Waits for the report about the request with this number. Returns `None` if there is none.
async fn await_report(app: &App, number: u64) -> Option<Proof> {
    let deadline = Instant::now() + REPORT;
    while Instant::now() < deadline {
        let proof = app.proofs().pop();
        match proof {
            Some(proof)
                if proof.requests >= number || matches!(proof.verdict, Verdict::Refused(_)) =>
            {
                return Some(proof);
            }
            _ => tokio::time::sleep(Duration::from_millis(1)).await,
        }
    }
    None
}
