//! Subcommand `forebay init`: writes the first configuration for an application.

mod compare;
mod detect;
mod look;
mod python;
mod quote;
mod scripts;
mod site;

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

/// Write a site, or a first experiment, for the application in a directory
#[derive(clap::Args)]
pub struct InitArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(clap::Subcommand)]
enum What {
    /// Site that serves what a directory contains: site.toml for `forebay serve`
    ///
    /// Finds files, CGI scripts (cgi-bin, *.cgi), Perl (app.psgi), Python (manage.py, wsgi.py,
    /// asgi.py, main.py), Ruby (config.ru), PHP (index.php, WordPress, Laravel), Node (package.json),
    /// Go (go.mod), Java (WEB-INF) and ASP.NET (*.aspx, web.config). Says what was found, and why the
    /// site is as it is. Routes refuse what .htaccess files refuse. No code of the application runs.
    Site {
        /// Directory of the application. The new file is written there, too
        #[arg(default_value = ".")]
        dir: PathBuf,

        /// Replace an existing site.toml
        #[arg(long)]
        force: bool,
    },
    /// Experiment for an application with app.psgi, wsgi.py, asgi.py, cgi-bin, index.php or
    /// package.json
    Compare {
        /// Directory of the application. The new files are written there, too
        #[arg(default_value = ".")]
        dir: PathBuf,
    },
}

pub fn run(args: &InitArgs) -> ExitCode {
    let written = match &args.what {
        What::Site { dir, force } => site::write(dir, *force),
        What::Compare { dir } => compare::write(dir),
    };
    match written {
        Ok(written) => {
            let _ = writeln!(std::io::stdout(), "{written}");
            ExitCode::SUCCESS
        }
        Err(wrong) => {
            let _ = writeln!(std::io::stderr(), "error: {wrong}");
            ExitCode::from(2)
        }
    }
}
