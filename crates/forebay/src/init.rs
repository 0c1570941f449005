//! Subcommand `forebay init`: writes files for a first experiment.

mod scripts;

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Write files for a first experiment
#[derive(clap::Args)]
pub struct InitArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(clap::Subcommand)]
enum What {
    /// Experiment for an application with app.psgi, wsgi.py, asgi.py, cgi-bin, index.php or
    /// package.json
    Compare {
        /// Directory of the application. The new files are written there, too
        #[arg(default_value = ".")]
        dir: PathBuf,
    },
}

/// Type of application, with the files to write for it.
struct AppTemplate {
    /// File or directory that identifies the type.
    mark: &'static str,
    experiment: &'static str,
    /// Configuration for `forebay serve`, if the type of application needs one.
    site: Option<&'static str>,
}

const KINDS: [AppTemplate; 6] = [
    AppTemplate {
        mark: "app.psgi",
        experiment: include_str!("init/psgi.toml"),
        site: Some(include_str!("init/psgi-site.toml")),
    },
    AppTemplate {
        mark: "wsgi.py",
        experiment: include_str!("init/wsgi.toml"),
        site: Some(include_str!("init/wsgi-site.toml")),
    },
    AppTemplate {
        mark: "asgi.py",
        experiment: include_str!("init/asgi.toml"),
        site: Some(include_str!("init/asgi-site.toml")),
    },
    AppTemplate {
        mark: "cgi-bin",
        experiment: include_str!("init/cgi.toml"),
        site: Some(include_str!("init/cgi-site.toml")),
    },
    AppTemplate {
        mark: "index.php",
        experiment: include_str!("init/php.toml"),
        site: Some(include_str!("init/php-site.toml")),
    },
    AppTemplate { mark: "package.json", experiment: include_str!("init/node.toml"), site: None },
];

const EXPERIMENT: &str = "compare.toml";
const SITE: &str = "compare-site.toml";

pub fn run(args: &InitArgs) -> ExitCode {
    let What::Compare { dir } = &args.what;
    match write(dir) {
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

/// Writes the files for the application in `dir`. Returns a report. Never replaces an existing
/// file.
fn write(dir: &Path) -> Result<String, String> {
    let Some(kind) = KINDS.iter().find(|kind| dir.join(kind.mark).exists()) else {
        let marks: Vec<&str> = KINDS.iter().map(|kind| kind.mark).collect();
        return Err(format!(
            "{}: found none of {}; compare also accepts servers without a file: --url, --cmd",
            dir.display(),
            marks.join(", ")
        ));
    };
    let (experiment, site) =
        scripts::name(&dir.join(kind.mark), kind.experiment, kind.site.unwrap_or_default());
    let files = [(EXPERIMENT, Some(experiment)), (SITE, kind.site.map(|_| site))];
    let files = files.into_iter().filter_map(|(name, text)| Some((dir.join(name), text?)));
    let files: Vec<(PathBuf, String)> = files.collect();
    if let Some((path, _)) = files.iter().find(|(path, _)| path.symlink_metadata().is_ok()) {
        return Err(format!("{} exists already; nothing was written", path.display()));
    }
    for (path, text) in &files {
        File::create_new(path)
            .and_then(|mut file| file.write_all(text.as_bytes()))
            .map_err(|error| format!("cannot write {}: {error}", path.display()))?;
    }
    let path = dir.join(EXPERIMENT);
    Ok(format!(
        "found {}; wrote {path}\nread it, then run: forebay compare {path}",
        kind.mark,
        path = path.display()
    ))
}

#[cfg(test)]
mod tests {
    use forebay_lab::Plan;

    use super::*;

    #[test]
    fn what_is_written_for_each_kind_is_an_experiment() {
        for kind in &KINDS {
            let dir = tempfile::tempdir().unwrap();
            std::fs::create_dir(dir.path().join(kind.mark)).unwrap();
            write(dir.path()).unwrap();
            let plan = Plan::read(&dir.path().join(EXPERIMENT)).unwrap();
            assert!(plan.configurations.len() >= 2, "{}", kind.mark);
            assert_eq!(dir.path().join(SITE).exists(), kind.site.is_some());
            let again = write(dir.path()).unwrap_err();
            assert!(again.contains("exists already"), "{again}");
        }
    }

    #[test]
    fn nothing_is_written_where_nothing_is_found() {
        let dir = tempfile::tempdir().unwrap();
        assert!(write(dir.path()).unwrap_err().contains("found none of app.psgi, wsgi.py"));
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
