//! Subcommand `forebay explain`.

use std::path::PathBuf;
use std::process::ExitCode;

use forebay_gateway::{Question, explain};

use crate::body_file;

/// Explain how a request would be handled, without starting anything
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  forebay explain site.toml http://example.org/cgi-bin/hello.pl
  forebay explain site.toml /shop/ -X POST -H 'Content-Length: 12'
  forebay explain site.toml http://example.org/ -H 'X-Forwarded-For: 192.0.2.1'
  forebay explain site.toml tcp://db.example.org:5432
  forebay explain site.toml /sign-in --body 'user=ann&next=%2Forders'

Prints the site and the reason for its choice, the route with its line in the file, the origin, and
the variables or header lines that it would receive; then the decoded cookies, query and form of the
request. The client's address is 127.0.0.1. Files and scripts are looked up. Nothing is started,
and no backend is connected to.")]
pub struct ExplainArgs {
    /// The configuration file
    file: PathBuf,
    /// A URL, or a path on the first site. tcp://host:port names a stream
    url: String,
    /// Method of the request [default: GET, or POST if there is a body]
    #[arg(short = 'X', long = "method", value_name = "METHOD")]
    method: Option<String>,
    /// Header field of the request; may be repeated
    #[arg(short = 'H', long = "header", value_name = "NAME: VALUE")]
    fields: Vec<String>,
    /// Body of the request: a form such as 'a=b&c=d', unless a Content-Type field names another
    /// type
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    body: Option<String>,
    /// File with the body of the request, at most 64 MiB
    #[arg(long, value_name = "FILE", conflicts_with = "body")]
    body_file: Option<PathBuf>,
}

/// Runs `forebay explain`.
pub fn run(args: ExplainArgs) -> ExitCode {
    let plan = match forebay_conf::load(&args.file) {
        Ok(plan) => plan,
        Err(error) => {
            eprint!("{error}");
            return ExitCode::from(2);
        }
    };
    let body = match (args.body, &args.body_file) {
        (Some(text), _) => Some(text.into_bytes()),
        (None, Some(file)) => match body_file::read(file) {
            Ok(body) => Some(body),
            Err(error) => {
                eprintln!("forebay: --body-file {}: {error}", file.display());
                return ExitCode::from(2);
            }
        },
        (None, None) => None,
    };
    let method = args.method.unwrap_or_else(|| if body.is_some() { "POST" } else { "GET" }.into());
    let question =
        Question { url: &args.url, method: &method, fields: &args.fields, body: body.as_deref() };
    match explain(&plan, &question) {
        Ok(text) => {
            print!("{text}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("forebay: {error}");
            ExitCode::from(2)
        }
    }
}
