//! Writes `site.toml` for the application of a directory: `forebay init site`.

mod text;

use std::fs::Permissions;
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use forebay_import::Refusals;

use super::look::{Detected, FoundApp, Look, SITE_FILE};
use super::scripts::IdleScripts;
use super::{detect, quote};

/// Detects the application or the files in `dir`, and writes a site for them to `dir`. Returns a
/// report for the user. An existing site is an error, unless `force` is true.
pub fn write(dir: &Path, force: bool) -> Result<String, String> {
    let shown = quote::line(&dir.to_string_lossy());
    if !dir.is_dir() {
        return Err(format!("{shown} is not a directory"));
    }
    let look = Look::at(dir);
    let all = detect::all(&look);
    let Some((main, others)) = all.split_first() else {
        if let Some(why) = detect::programs(&look) {
            return Err(format!(
                "{shown}: found an application, but not what it needs: {why}. A site of files would \
                 send its source and its data. Write a site.toml with a route for its programs, such \
                 as kind = \"cgi-bin\" with dir = \"bin\", and one for each directory of files"
            ));
        }
        return Err(format!("{shown}: found nothing to serve; looked for {}", detect::MARKS));
    };
    let mut chosen = Chosen::of(main, others, &look);
    chosen.idle = chosen.idle_scripts(&look);
    chosen.refusals = forebay_import::refusals(dir, &chosen.mounts(), &chosen.scripts())
        .map_err(|error| format!("cannot read the .htaccess files of {shown}: {error}"))?;
    let file = dir.join(SITE_FILE);
    let existed = file.symlink_metadata().is_ok();
    save(dir, &file, &text::site(&chosen, dir), force)
        .map_err(|error| not_saved(&file, &error, existed))?;
    Ok(report(&chosen, others, &file, existed))
}

/// The parts of a site.
struct Chosen<'a> {
    main: &'a Detected,
    /// True if a cgi-bin directory is beside another application.
    has_cgi_bin: bool,
    /// Scripts that the site does not run.
    idle: IdleScripts,
    /// Directory of the files beside CGI scripts.
    files: Option<&'static str>,
    /// A directory of files that the server sends without asking the application, and the route's
    /// path.
    statics: Option<(&'static str, &'static str)>,
    /// True if the directory has packages of Composer.
    has_vendor: bool,
    /// The user of the application's processes.
    user: Option<String>,
    /// The rules of the `.htaccess` files.
    refusals: Refusals,
}

impl<'a> Chosen<'a> {
    fn of(main: &'a Detected, others: &[Detected], look: &Look<'_>) -> Self {
        let files = others.iter().find_map(|found| match &found.app {
            FoundApp::Files { root, .. } => Some(*root),
            _ => None,
        });
        let is_cgi = matches!(main.app, FoundApp::CgiBin { .. });
        let statics = match main.app {
            FoundApp::Rack { .. } => look.first_dir(&["public"]).map(|dir| (dir, "/*")),
            FoundApp::Wsgi { .. } | FoundApp::Asgi { .. } => {
                look.first_dir(&["staticfiles", "static"]).map(|dir| (dir, "/static/*"))
            }
            _ => None,
        };
        Self {
            main,
            has_cgi_bin: others.iter().any(|found| matches!(found.app, FoundApp::CgiBin { .. })),
            idle: IdleScripts::default(),
            files: files.filter(|_| is_cgi),
            statics,
            has_vendor: look.is_dir("vendor"),
            user: user(look, &main.app),
            refusals: Refusals::default(),
        }
    }

    /// Returns the scripts that the site runs: an ending of their names, or their path.
    fn scripts(&self) -> Vec<&'static str> {
        let of_app = match &self.main.app {
            FoundApp::Php { .. } => Some(".php"),
            FoundApp::CgiFiles => Some(".cgi"),
            _ => None,
        };
        let is_cgi = self.has_cgi_bin || matches!(self.main.app, FoundApp::CgiBin { .. });
        of_app.into_iter().chain(is_cgi.then_some("/cgi-bin/")).collect()
    }

    /// Returns the scripts below the directory at `/` that no route runs.
    fn idle_scripts(&self, look: &Look<'_>) -> IdleScripts {
        let mounts = self.mounts();
        let Some((_, root)) = mounts.iter().find(|(path, _)| *path == "/") else {
            return IdleScripts::default();
        };
        let mut skipped = self.scripts();
        skipped.extend(skipped.contains(&"/cgi-bin/").then_some("cgi-bin"));
        let is_php = matches!(self.main.app, FoundApp::Php { .. });
        skipped.extend((self.has_vendor && is_php).then_some("vendor"));
        IdleScripts::find(look, root, &skipped)
    }

    /// Returns the URL paths whose directories Forebay serves itself, with these directories.
    fn mounts(&self) -> Vec<(&'a str, &'a str)> {
        let root = match &self.main.app {
            FoundApp::Files { root, .. } | FoundApp::Php { root, .. } => Some(*root),
            FoundApp::CgiBin { .. } => self.files,
            FoundApp::Mono | FoundApp::CgiFiles => Some("."),
            _ => None,
        };
        let mut mounts: Vec<_> = root.map(|root| ("/", root)).into_iter().collect();
        mounts.extend(self.statics.map(|(dir, path)| match path.trim_end_matches("/*") {
            "" => ("/", dir),
            path => (path, dir),
        }));
        let is_cgi = self.has_cgi_bin || matches!(self.main.app, FoundApp::CgiBin { .. });
        if is_cgi && root != Some(".") {
            mounts.push(("/cgi-bin", "cgi-bin"));
        }
        mounts
    }
}

/// Returns the user of the application. If this command runs as root, the user is the owner of the
/// directory. An owner without a name becomes `www-data`. If root owns the directory, PHP and `.cgi`
/// scripts run as `www-data`, because they must not run as root. In all other cases, the result is
/// `None`, and the site sets no user.
fn user(look: &Look<'_>, app: &FoundApp) -> Option<String> {
    if !rustix::process::geteuid().is_root() || matches!(app, FoundApp::Files { .. }) {
        return None;
    }
    let owner = look.path("").metadata().map_or(0, |metadata| metadata.uid());
    let users = Look::at("/etc".as_ref()).text("passwd");
    let name = users.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        let id: u32 = fields.nth(1)?.parse().ok()?;
        (id == owner && id != 0).then(|| name.to_owned())
    });
    let needs_user = owner != 0 || matches!(app, FoundApp::Php { .. } | FoundApp::CgiFiles);
    name.or_else(|| needs_user.then(|| "www-data".to_owned()))
}

/// Writes the file atomically, so that an error leaves no incomplete file. If `force` is false, an
/// existing file is an error. If `force` is true, replaces an existing file. Replaces a symbolic
/// link itself, not its target.
fn save(dir: &Path, file: &Path, text: &str, force: bool) -> std::io::Result<()> {
    let permissions = Permissions::from_mode(0o666);
    let mut new =
        tempfile::Builder::new().prefix(".site-").permissions(permissions).tempfile_in(dir)?;
    new.write_all(text.as_bytes())?;
    let saved = if force { new.persist(file) } else { new.persist_noclobber(file) };
    saved.map(drop).map_err(|error| error.error)
}

fn not_saved(file: &Path, error: &std::io::Error, existed: bool) -> String {
    let shown = quote::line(&file.to_string_lossy());
    if existed && error.kind() == std::io::ErrorKind::AlreadyExists {
        return format!("{shown} exists already; nothing was written. --force replaces it");
    }
    format!("cannot write {shown}: {error}")
}

fn report(chosen: &Chosen<'_>, others: &[Detected], file: &Path, existed: bool) -> String {
    let mut lines = Vec::new();
    let found = |found: &Detected| format!("found {}: {}", quote::line(&found.mark), found.why);
    lines.push(found(chosen.main));
    let is_part = |other: &&Detected| match &other.app {
        FoundApp::CgiBin { .. } => chosen.has_cgi_bin,
        FoundApp::Files { .. } => chosen.files.is_some(),
        _ => false,
    };
    lines.extend(others.iter().filter(is_part).map(found));
    // A site lists files only if the directory has no application. If there is an application, the
    // report therefore does not name the listing as "not used".
    let is_rival = |other: &&Detected| {
        let is_listing = matches!(other.app, FoundApp::Files { listing: true, .. });
        // The route of files beside `.cgi` scripts sends these files.
        let is_beside =
            chosen.main.app == FoundApp::CgiFiles && matches!(other.app, FoundApp::Files { .. });
        !is_part(other) && !is_listing && !is_beside && other.mark != chosen.main.mark
    };
    let rest: Vec<String> =
        others.iter().filter(is_rival).map(|other| quote::line(&other.mark)).collect();
    if !rest.is_empty() {
        let first = quote::line(&chosen.main.mark);
        lines.push(format!("not used, because {first} comes first: {}", rest.join(", ")));
    }
    let refusals = &chosen.refusals;
    lines.extend(refusals.files.iter().map(|file| {
        format!("read {}, the access rules of Apache", quote::line(&file.to_string_lossy()))
    }));
    if let (FoundApp::Php { entry: false, .. }, Some(to)) = (&chosen.main.app, &refusals.fallback) {
        lines.push(format!("found .htaccess: {} answers paths without a file", quote::line(to)));
    }
    let refused = refusals
        .notes
        .iter()
        .map(|note| format!("note: the site refuses more than Apache: {}", quote::line(note)));
    lines.extend(refused);
    lines.extend(
        refusals.lost.iter().map(|line| format!("note: not translated: {}", quote::line(line))),
    );
    if refusals.refuses_all {
        lines.push("note: one route refuses all requests; replace it before you serve".to_owned());
    }
    lines.extend(notes(chosen).map(|note| format!("note: {note}")));
    let verb = if existed { "replaced" } else { "wrote" };
    lines.push(format!("{verb} {}", quote::line(&file.to_string_lossy())));
    lines.push(format!("next: forebay serve {}", quote::shell(file)));
    lines.join("\n")
}

/// Returns notes about steps that the user may still have to carry out.
fn notes(chosen: &Chosen<'_>) -> impl Iterator<Item = String> {
    let of_app = match &chosen.main.app {
        FoundApp::Node { is_installed: false, .. } => {
            Some("there is no node_modules; run `npm install` first".to_owned())
        }
        FoundApp::Go { reads_port: false, .. } => Some(
            "the program does not mention the variable PORT; it must listen on that port, or get \
             {port} in `run`"
                .to_owned(),
        ),
        FoundApp::Wsgi { is_django: true, .. } if chosen.statics.is_none() => Some(
            "`manage.py collectstatic` copies style sheets to STATIC_ROOT; with the directory \
             staticfiles, `init site` adds a route for them"
                .to_owned(),
        ),
        FoundApp::Files { listing: true, .. } if chosen.refusals.allows_listing => {
            Some("every client can list and read these files".to_owned())
        }
        _ => None,
    };
    let user = chosen.user.as_ref().map(|user| {
        format!("the application runs as {}, who must be able to read it", quote::line(user))
    });
    let idle = chosen.idle.first.as_ref().map(|first| {
        format!(
            "the source of {} and of other scripts is not sent (404); site.toml says how to run them",
            quote::line(first)
        )
    });
    of_app.into_iter().chain(user).chain(idle)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use forebay_testkit::folder::Folder;

    use super::*;

    const DJANGO: &str = "os.environ.setdefault(\"DJANGO_SETTINGS_MODULE\", \"mill.settings\")";
    const WSGI: &str = "application = get_wsgi_application()";
    const NODE: &str =
        r#"{"scripts": {"start": "node 'a\"\n\u001b[31m.js'"}, "dependencies": {"a": "1"}}"#;

    /// Directories, each with the word that its report has.
    const KINDS: [(&str, &[(&str, &str)]); 23] = [
        ("a site of files", &[("index.html", "")]),
        ("only those in htdocs", &[("htdocs/index.html", "")]),
        ("clients get a listing", &[("it's \"quoted\"\n.txt", "")]),
        ("single-page", &[("package.json", "{}"), ("dist/index.html", "")]),
        (
            "CGI scripts: a.pl, b.py",
            &[("cgi-bin/a.pl", ""), ("cgi-bin/b.py", ""), ("index.html", "")],
        ),
        ("paths with .cgi run", &[("a.cgi", "#!/bin/sh"), ("README", "")]),
        ("not used, because index.php", &[("index.php", ""), ("a.cgi", "#!/bin/sh")]),
        ("PSGI", &[("app.psgi", "")]),
        ("PSGI", &[("it's \"my\" \\.psgi", ""), ("a\n\u{1b}[31m.psgi", "")]),
        ("mill.wsgi", &[("manage.py", DJANGO), ("mill/wsgi.py", WSGI), ("static/a.css", "")]),
        ("mill.asgi", &[("manage.py", DJANGO), ("mill/asgi.py", "import channels")]),
        ("`application` in", &[("wsgi.py", WSGI), ("cgi-bin/a.pl", "")]),
        ("`app` in", &[("asgi.py", "app = x")]),
        ("FastAPI", &[("main.py", "api = FastAPI()")]),
        ("Flask", &[("app.py", "def create_app():\n    return Flask(__name__)\n")]),
        ("Rails", &[("config.ru", ""), ("config/application.rb", ""), ("public/404.html", "")]),
        ("WordPress", &[("wp-login.php", ""), ("index.php", "")]),
        ("Laravel", &[("artisan", ""), ("public/index.php", "")]),
        (
            "RewriteRule",
            &[("index.php", ""), (".htaccess", "rewriterule . index.php"), ("vendor/a", "")],
        ),
        ("npm install", &[("package.json", NODE)]),
        ("./cmd/it's \"x\"", &[("go.mod", ""), ("cmd/it's \"x\"/main.go", "package main\n")]),
        ("in Java", &[("WEB-INF/web.xml", "")]),
        ("ASP.NET", &[("Default.aspx", ""), ("web.config", "")]),
    ];

    #[test]
    fn the_file_for_each_kind_is_a_site() {
        for (holds, files) in KINDS {
            let folder = Folder::new();
            for (name, text) in files {
                folder.write(name, text);
            }
            let report = write(folder.path(), false).unwrap();
            assert!(report.contains(holds), "{holds}: {report}");
            let is_odd = |c: char| c.is_control() && c != '\n';
            assert!(!report.contains(is_odd), "{report:?}");
            let file = folder.path().join(SITE_FILE);
            let text = fs::read_to_string(&file).unwrap();
            let plan = forebay_conf::load(&file).unwrap_or_else(|error| panic!("{error}\n{text}"));
            assert!(!plan.sites[0].routes.is_empty(), "{text}");
            assert!(report.ends_with(&format!("next: forebay serve {}", file.display())));
        }
    }

    #[test]
    fn an_existing_file_is_replaced_only_by_force() {
        let folder = Folder::new();
        let other = folder.write("other", "kept");
        folder.write("index.html", "");
        let file = folder.path().join(SITE_FILE);
        symlink("other", &file).unwrap();
        let error = write(folder.path(), false).unwrap_err();
        assert!(error.contains("exists already"), "{error}");
        assert!(write(folder.path(), true).unwrap().contains("replaced "));
        assert!(!file.is_symlink());
        assert_eq!(fs::read_to_string(other).unwrap(), "kept");
        assert!(write(folder.path(), false).is_err());
        let names = fs::read_dir(folder.path()).unwrap();
        assert_eq!(names.count(), 3, "no other file is left");
    }

    #[test]
    fn nothing_is_written_for_an_empty_directory() {
        let folder = Folder::new();
        let error = write(folder.path(), false).unwrap_err();
        assert!(error.contains("found nothing to serve; looked for manage.py"), "{error}");
        assert!(write(&folder.path().join("none"), false).unwrap_err().contains("not a directory"));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_pipe_in_place_of_a_file_is_not_opened() {
        let folder = Folder::new();
        for name in ["manage.py", "package.json", "main.py", "web.config"] {
            let path = folder.path().join(name);
            let made = std::process::Command::new("mkfifo").arg(path).status().unwrap();
            assert!(made.success());
        }
        assert!(write(folder.path(), false).unwrap_err().contains("nothing to serve"));
    }
}
