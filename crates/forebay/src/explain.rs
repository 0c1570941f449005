//! The `forebay explain` subcommand.

use std::path::PathBuf;
use std::process::ExitCode;

use forebay_origin::{Question, explain};

/// Say what would become of a request, without starting anything
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  forebay explain site.toml http://example.org/cgi-bin/hello.pl
  forebay explain site.toml /shop/ -X POST -H 'Content-Length: 12'
  forebay explain site.toml http://example.org/ -H 'X-Forwarded-For: 192.0.2.1'

Prints the site and why it is that one, the route with its line in the file, the origin, and the
variables or header lines that it would be sent. The client is taken to be 127.0.0.1. Files and
scripts are looked for; nothing is started, and no backend is connected to.")]
pub struct Args {
    /// The configuration file
    file: PathBuf,
    /// A URL, or a path of the first site
    url: String,
    /// The method
    #[arg(short = 'X', long = "method", value_name = "METHOD", default_value = "GET")]
    method: String,
    /// A header field; may be given several times
    #[arg(short = 'H', long = "header", value_name = "NAME: VALUE")]
    fields: Vec<String>,
}

pub fn run(args: Args) -> ExitCode {
    let plan = match forebay_conf::load(&args.file) {
        Ok(plan) => plan,
        Err(error) => {
            eprint!("{error}");
            return ExitCode::from(2);
        }
    };
    let question = Question { url: &args.url, method: &args.method, fields: &args.fields };
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
