//! Subcommand `forebay import`: translates the configuration of another server to one of Forebay.

mod fetch;
mod verify;

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use forebay_import::{Language, import};

/// Translate a configuration of nginx, Apache or Caddy into one of Forebay
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  forebay import nginx /etc/nginx/nginx.conf > site.toml
  forebay import apache /etc/apache2/sites-enabled/shop.conf > site.toml
  forebay import caddy Caddyfile > site.toml
  forebay check site.toml
  forebay import nginx /etc/nginx/nginx.conf --verify http://shop.example/ http://shop.example/cart > site.toml

The configuration goes to standard output. Each line without a translation is named on standard
error, and in a comment that begins with NOT TRANSLATED, with the next step. If a line that restricts
access has no translation, its paths are answered with 403. Included files are read; nothing is
started or changed. Paths are looked up on this machine: a directory that does not exist becomes a
404, and a site without its certificate listens on 127.0.0.1 only.

With --verify, the translation is also served over private sockets, to the same backends. Each URL is
requested from the old server and from the translation, and differences go to standard error: status,
fields, and body. What the old server changes from one request to the next is not compared.
Differences give exit code 1.")]
pub struct ImportArgs {
    /// Server whose configuration is translated
    language: ImportedServer,
    /// Its configuration file: nginx.conf, apache2.conf, a Caddyfile, or the file of one site
    file: PathBuf,

    /// Request these URLs (GET) from the old server and from the translation, and show differences
    #[arg(long, value_name = "URL", num_args = 1..)]
    verify: Vec<String>,

    /// Address of the old server for --verify, if the host of a URL does not lead to it
    #[arg(long, value_name = "HOST:PORT", requires = "verify")]
    connect: Option<String>,
}

/// Servers whose configuration can be translated.
#[derive(Clone, Copy, clap::ValueEnum)]
enum ImportedServer {
    Nginx,
    Apache,
    Caddy,
}

/// Runs `forebay import`: the configuration goes to standard output, notes to standard error.
pub fn run(args: &ImportArgs) -> ExitCode {
    let language = match args.language {
        ImportedServer::Nginx => Language::Nginx,
        ImportedServer::Apache => Language::Apache,
        ImportedServer::Caddy => Language::Caddy,
    };
    let imported = match import(language, &args.file) {
        Ok(imported) => imported,
        Err(error) => {
            eprintln!("forebay: {error}");
            return ExitCode::from(2);
        }
    };
    let mut stderr = std::io::stderr().lock();
    for note in &imported.notes {
        let _ = writeln!(stderr, "{note}");
    }
    if !imported.notes.is_empty() {
        let lines = if imported.notes.len() == 1 { "line has" } else { "lines have" };
        let _ = writeln!(stderr, "{} {lines} no translation", imported.notes.len());
    }
    match std::io::stdout().write_all(imported.toml.as_bytes()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            let _ = writeln!(stderr, "forebay: cannot print the configuration: {error}");
            ExitCode::from(super::CANNOT_WRITE)
        }
        _ if args.verify.is_empty() => ExitCode::SUCCESS,
        _ => verify::verify(&imported.toml, &args.verify, args.connect.as_deref()),
    }
}
