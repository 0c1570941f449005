//! Writes `compare.toml` for the application of a directory: `forebay init compare`.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use super::look::{Detected, FoundApp, Look};
use super::{detect, quote, scripts};

/// Files to write for a type of application.
struct ExperimentTemplate {
    experiment: &'static str,
    /// Configuration for `forebay serve`, if the type of application needs one.
    site: Option<&'static str>,
}

const PSGI: ExperimentTemplate = ExperimentTemplate {
    experiment: include_str!("psgi.toml"),
    site: Some(include_str!("psgi-site.toml")),
};
const WSGI: ExperimentTemplate = ExperimentTemplate {
    experiment: include_str!("wsgi.toml"),
    site: Some(include_str!("wsgi-site.toml")),
};
const ASGI: ExperimentTemplate = ExperimentTemplate {
    experiment: include_str!("asgi.toml"),
    site: Some(include_str!("asgi-site.toml")),
};
const CGI: ExperimentTemplate = ExperimentTemplate {
    experiment: include_str!("cgi.toml"),
    site: Some(include_str!("cgi-site.toml")),
};
const PHP: ExperimentTemplate = ExperimentTemplate {
    experiment: include_str!("php.toml"),
    site: Some(include_str!("php-site.toml")),
};
const NODE: ExperimentTemplate =
    ExperimentTemplate { experiment: include_str!("node.toml"), site: None };

/// Kinds of applications that there are templates for.
const MARKS: &str = "app.psgi, wsgi.py, asgi.py, manage.py, cgi-bin, index.php, package.json with a \
    start script";

const EXPERIMENT: &str = "compare.toml";
const SITE: &str = "compare-site.toml";

/// Detects the application in `dir`. Writes an experiment for this application, and a site if the
/// experiment needs one, to `dir`. Returns a report for the user. An existing file is an error.
pub fn write(dir: &Path) -> Result<String, String> {
    let all = detect::all(&Look::at(dir));
    let Some((found, (experiment, site))) =
        all.iter().find_map(|found| Some((found, texts(found, dir)?)))
    else {
        return Err(format!(
            "{}: found none of {MARKS}; compare also accepts servers without a file: --url, --cmd",
            quote::line(&dir.to_string_lossy())
        ));
    };
    let files = [(EXPERIMENT, Some(experiment)), (SITE, site)];
    let files = files.into_iter().filter_map(|(name, text)| Some((dir.join(name), text?)));
    let files: Vec<(PathBuf, String)> = files.collect();
    let shown = |path: &Path| quote::line(&path.to_string_lossy());
    if let Some((path, _)) = files.iter().find(|(path, _)| path.symlink_metadata().is_ok()) {
        return Err(format!("{} exists already; nothing was written", shown(path)));
    }
    for (path, text) in &files {
        File::create_new(path)
            .and_then(|mut file| file.write_all(text.as_bytes()))
            .map_err(|error| format!("cannot write {}: {error}", shown(path)))?;
    }
    let path = dir.join(EXPERIMENT);
    Ok(format!(
        "found {}: {}\nwrote {}\nread it, then run: forebay compare {}",
        quote::line(&found.mark),
        found.why,
        shown(&path),
        quote::shell(&path)
    ))
}

/// Returns the content of the experiment file, and of the site file if the experiment needs one.
/// Returns `None` if there is no template for the application.
fn texts(found: &Detected, dir: &Path) -> Option<(String, Option<String>)> {
    let own = |template: ExperimentTemplate, from: &str, to: &str| {
        let named = |text: &str| text.replace(from, to);
        (named(template.experiment), template.site.map(named))
    };
    Some(match &found.app {
        // The commands in the template contain `app.psgi` without quotes, so the template is only
        // for this file name.
        FoundApp::Psgi { file } if file == "app.psgi" => own(PSGI, "", ""),
        FoundApp::Wsgi { module, .. } => own(WSGI, "wsgi:application", module),
        FoundApp::Asgi { module, .. } => own(ASGI, "asgi:application", module),
        FoundApp::Php { root: ".", .. } => own(PHP, "", ""),
        FoundApp::Node { .. } => own(NODE, "", ""),
        FoundApp::CgiBin { .. } => {
            let site = CGI.site.unwrap_or_default();
            let (experiment, site) = scripts::name(&dir.join("cgi-bin"), CGI.experiment, site);
            (experiment, Some(site))
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use forebay_lab::Plan;
    use forebay_testkit::folder::Folder;

    use super::*;

    #[test]
    fn the_file_for_each_kind_is_an_experiment() {
        let start = r#"{"scripts": {"start": "node a.js"}}"#;
        for (mark, text) in [
            ("app.psgi", ""),
            ("wsgi.py", ""),
            ("asgi.py", ""),
            ("main.py", "app = FastAPI()"),
            ("cgi-bin/a.pl", ""),
            ("index.php", ""),
            ("package.json", start),
        ] {
            let folder = Folder::new();
            folder.write(mark, text);
            write(folder.path()).unwrap();
            let plan = Plan::read(&folder.path().join(EXPERIMENT)).unwrap();
            assert!(plan.configurations.len() >= 2, "{mark}");
            let site = folder.path().join(SITE);
            assert_eq!(site.exists(), mark != "package.json");
            if site.exists() {
                forebay_conf::load(&site).unwrap_or_else(|error| panic!("{error}"));
            }
            let again = write(folder.path()).unwrap_err();
            assert!(again.contains("exists already"), "{again}");
        }
    }

    #[test]
    fn nothing_is_written_where_nothing_is_found() {
        let folder = Folder::new();
        let error = write(folder.path()).unwrap_err();
        assert!(error.contains("found none of app.psgi, wsgi.py"), "{error}");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
