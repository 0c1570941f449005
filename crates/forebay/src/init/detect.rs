//! Finds out which application a directory contains.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;

use super::look::{Detected, FoundApp, Look, SITE_FILE};
use super::{python, quote, scripts};

/// All marks, for a message.
pub const MARKS: &str = "manage.py, app.psgi, wsgi.py, asgi.py, main.py or app.py with Flask or \
    FastAPI, config.ru, index.php, artisan, package.json with a start script, go.mod, WEB-INF, \
    *.aspx, web.config, cgi-bin, *.cgi, index.html";

/// Returns the applications and files that the directory may serve, the most likely first.
/// Frameworks come before languages, because a Rails or Django application may also have a
/// `package.json`.
pub fn all(look: &Look<'_>) -> Vec<Detected> {
    let one = [servlet, mono, python::django, laravel, wordpress, rack, psgi];
    let mut found: Vec<Detected> = one.iter().filter_map(|find| find(look)).collect();
    found.extend(python::modules(look));
    found.extend([php, go, node, cgi_bin, cgi_files, files].iter().filter_map(|find| find(look)));
    found
}

fn found(app: FoundApp, mark: &str, why: impl Into<String>) -> Option<Detected> {
    Some(Detected { app, mark: mark.to_owned(), why: why.into() })
}

/// Returns true if a configuration file may contain the name: it has no control characters.
fn is_configurable(name: &str) -> bool {
    !name.contains(char::is_control)
}

fn servlet(look: &Look<'_>) -> Option<Detected> {
    if !look.is_dir("WEB-INF") {
        return None;
    }
    let root = Look::at("/".as_ref());
    let homes = ["/usr/share/tomcat11", "/usr/share/tomcat10", "/usr/share/tomcat9"];
    let tomcat = homes.into_iter().find(|home| root.is_file(&format!("{home}/bin/catalina.sh")));
    let why = match tomcat {
        Some(home) => format!("a web application in Java; {home} runs it"),
        None => "a web application in Java; this machine has no Tomcat in /usr/share, so the site \
                 listens on port 8000, and passes requests to port 8080 of a container that \
                 you start"
            .to_owned(),
    };
    found(FoundApp::Servlet { tomcat }, "WEB-INF", why)
}

fn mono(look: &Look<'_>) -> Option<Detected> {
    const ENDS: [&str; 4] = [".aspx", ".ashx", ".asmx", ".asax"];
    let ends = |name: &String| {
        let name = name.to_ascii_lowercase();
        ENDS.iter().any(|end| name.ends_with(end))
    };
    let names = look.names("");
    if let Some(name) = names.iter().find(|name| ends(name)) {
        return found(FoundApp::Mono, name, "an ASP.NET application, which Mono runs");
    }
    // PHP and Node applications may have a web.config for IIS, too, so look for an element of
    // ASP.NET.
    let config = names.iter().find(|name| name.eq_ignore_ascii_case("web.config"))?;
    let is_net = look.text(config).contains("<system.web>");
    is_net.then(|| found(FoundApp::Mono, config, "it has <system.web>: an ASP.NET application"))?
}

fn laravel(look: &Look<'_>) -> Option<Detected> {
    if !look.is_file("public/index.php") {
        return None;
    }
    let (mark, why) = if look.is_file("artisan") {
        ("artisan", "a Laravel application, whose files for clients are in public")
    } else {
        ("public/index.php", "PHP with one entry script; only public is for clients")
    };
    found(FoundApp::Php { root: "public", entry: true, is_wordpress: false }, mark, why)
}

fn wordpress(look: &Look<'_>) -> Option<Detected> {
    let mark = look.first_file(&["wp-login.php", "wp-load.php"])?;
    let why = "WordPress, whose index.php answers all paths without a file";
    found(FoundApp::Php { root: ".", entry: true, is_wordpress: true }, mark, why)
}

fn php(look: &Look<'_>) -> Option<Detected> {
    if look.is_file("index.php") {
        let entry = has_front_controller(&look.text(".htaccess"));
        let why = if entry {
            "a PHP site; its .htaccess has a RewriteRule, so index.php answers paths without a file"
        } else {
            "a PHP site with a script for each path"
        };
        return found(FoundApp::Php { root: ".", entry, is_wordpress: false }, "index.php", why);
    }
    let script = look.names("").into_iter().find(|name| name.ends_with(".php"))?;
    found(FoundApp::Php { root: ".", entry: false, is_wordpress: false }, &script, "PHP scripts")
}

/// Returns true if a rule of the access file sends missing files, or all paths, to `index.php`.
fn has_front_controller(access: &str) -> bool {
    let mut is_missing = false;
    for line in access.to_ascii_lowercase().lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            ["rewritecond", "%{request_filename}", "!-f" | "!-d", ..] => is_missing = true,
            ["rewriterule", pattern, target, ..] => {
                let is_all = ["^", ".", ".*", "(.*)", "^.*$", "^(.*)$", "^.", "^(.+)$"];
                let script = target.split('?').next().unwrap_or_default();
                let is_index = script.trim_start_matches(['.', '/', '"']) == "index.php";
                if is_index && (is_missing || is_all.contains(&pattern)) {
                    return true;
                }
                is_missing = false;
            }
            _ => {}
        }
    }
    false
}

fn rack(look: &Look<'_>) -> Option<Detected> {
    if !look.is_file("config.ru") {
        return None;
    }
    let is_rails = look.is_file("config/application.rb");
    let why = if is_rails { "a Rails application" } else { "a Rack application in Ruby" };
    found(FoundApp::Rack { is_rails }, "config.ru", why)
}

fn psgi(look: &Look<'_>) -> Option<Detected> {
    let names = look.names("");
    let is_fit = |name: &str| name.ends_with(".psgi") && is_configurable(name);
    let named = || names.iter().find(|name| is_fit(name) && look.is_file(name));
    let usual = names.iter().find(|name| *name == "app.psgi");
    let file = usual.or_else(named)?.clone();
    let mark = file.clone();
    found(FoundApp::Psgi { file }, &mark, "a PSGI application in Perl")
}

fn go(look: &Look<'_>) -> Option<Detected> {
    if !look.is_file("go.mod") {
        return None;
    }
    let sources = |dir: &str| -> String {
        let names = look.names(dir);
        let sources =
            names.iter().filter(|name| name.ends_with(".go") && !name.ends_with("_test.go"));
        sources.take(100).map(|name| look.text(&format!("{dir}/{name}"))).collect()
    };
    let is_main = |text: &str| text.lines().any(|line| line.trim_end() == "package main");
    let commands = look.names("cmd").into_iter().filter(|name| is_configurable(name));
    let commands = commands.map(|name| format!("cmd/{name}"));
    let mut packages = std::iter::once(".".to_owned()).chain(commands.take(20));
    let (package, text) = packages
        .find_map(|dir| Some((dir.clone(), sources(&dir))).filter(|(_, text)| is_main(text)))?;
    let reads_port = text.contains("\"PORT\"");
    let package = if package == "." { package } else { format!("./{package}") };
    let why = format!("a program in Go; `go run` builds its package {}", quote::line(&package));
    found(FoundApp::Go { package, reads_port }, "go.mod", why)
}

fn node(look: &Look<'_>) -> Option<Detected> {
    let package: serde_json::Value = serde_json::from_str(&look.text("package.json")).ok()?;
    let start = package["scripts"]["start"].as_str()?;
    let needs = package["dependencies"].as_object().is_some_and(|list| !list.is_empty());
    let start: String = start.chars().take(80).collect();
    let why = format!("its start script is `{}`", quote::line(&start));
    let is_installed = !needs || look.is_dir("node_modules");
    found(FoundApp::Node { start, is_installed }, "package.json", why)
}

fn cgi_bin(look: &Look<'_>) -> Option<Detected> {
    if !look.is_dir("cgi-bin") {
        return None;
    }
    let scripts = scripts::all(&look.path("cgi-bin"));
    let shown: Vec<String> = scripts.iter().take(5).map(|name| quote::line(name)).collect();
    let why = match scripts.len() {
        0 => "a directory for CGI scripts, without a script in Perl or Python".to_owned(),
        1..=5 => format!("CGI scripts: {}", shown.join(", ")),
        count => format!("{count} CGI scripts, such as {}", shown.join(", ")),
    };
    found(FoundApp::CgiBin { scripts }, "cgi-bin", why)
}

/// Finds `.cgi` scripts in the directory itself. Returns `None` if clients may only see the files of
/// a directory below it.
fn cgi_files(look: &Look<'_>) -> Option<Detected> {
    let is_script = |name: &String| {
        let is_executable = |mode: u32| mode & 0o111 != 0;
        let metadata = look.path(name).metadata().ok().filter(Metadata::is_file);
        name.ends_with(".cgi")
            && metadata
                .is_some_and(|data| is_executable(data.mode()) || look.text(name).starts_with("#!"))
    };
    let script = look.names("").into_iter().find(is_script)?;
    let has_root = |app: &FoundApp| matches!(app, FoundApp::Files { root, .. } if *root != ".");
    if files(look).is_some_and(|found| has_root(&found.app)) {
        return None;
    }
    found(FoundApp::CgiFiles, &script, "CGI scripts among other files: paths with .cgi run")
}

/// Directories that may contain a site of files, most likely first.
const ROOTS: [&str; 11] = [
    "dist",
    "build",
    "public",
    "htdocs",
    "public_html",
    "html",
    "www",
    "_site",
    "site",
    "out",
    "static",
];

fn files(look: &Look<'_>) -> Option<Detected> {
    let files = |root, listing, entry| FoundApp::Files { root, listing, entry };
    if look.is_file("package.json") {
        let built = ["dist", "build"];
        let root = built.into_iter().find(|root| look.is_file(&format!("{root}/index.html")));
        if let Some(root) = root {
            let why = "the built pages of a single-page application";
            return found(files(root, false, true), &format!("{root}/index.html"), why);
        }
    }
    let is_application = programs(look).is_some();
    if let Some(mark) = look.first_file(&["index.html", "index.shtml"]).filter(|_| !is_application)
    {
        return found(files(".", false, false), mark, "a site of files");
    }
    let root = ROOTS.into_iter().find(|root| look.is_file(&format!("{root}/index.html")));
    if let Some(root) = root {
        let why = format!("a site of files; only those in {root} are for clients");
        return found(files(root, false, false), &format!("{root}/index.html"), why);
    }
    if is_application {
        return None;
    }
    let is_file = |name: &String| !name.starts_with('.') && look.is_file(name);
    let name = look.names("").into_iter().find(|name| is_file(name) && name != SITE_FILE)?;
    found(files(".", true, false), &name, "files without an index, so clients get a listing")
}

/// Maximum number of files whose beginning is read to find programs.
const MOST_READ: usize = 2_000;

/// Returns the reason why a directory is an application and no site of files: a program without an
/// ending in its name, whose source and data a site of files would send, or access rules that the
/// application's installer has not put in place. Returns `None` if there is none.
pub fn programs(look: &Look<'_>) -> Option<String> {
    let is_hidden = |name: &String| name.starts_with('.');
    let names: Vec<String> = look.names("").into_iter().filter(|name| !is_hidden(name)).collect();
    if let Some(rules) = names.iter().find(|name| name.ends_with("htaccess.txt")) {
        return Some(format!("{} has rules for Apache", quote::line(rules)));
    }
    let below = names
        .iter()
        .filter(|name| look.is_dir(name))
        .flat_map(|dir| look.names(dir).into_iter().map(move |name| format!("{dir}/{name}")));
    let mut all = names.iter().cloned().chain(below).take(MOST_READ);
    let is_program = |name: &String| {
        let last = name.rsplit('/').next().unwrap_or_default();
        !last.contains('.') && look.starts_with(name, b"#!")
    };
    let program = all.find(is_program)?;
    Some(format!("{} is a program", quote::line(&program)))
}

#[cfg(test)]
mod tests {
    use forebay_testkit::folder::Folder;

    use super::*;

    fn first(files: &[(&str, &str)]) -> Detected {
        let folder = Folder::new();
        for (name, text) in files {
            folder.write(name, text);
        }
        all(&Look::at(folder.path())).remove(0)
    }

    #[test]
    fn frameworks_come_before_languages() {
        let node = ("package.json", r#"{"scripts": {"start": "node a.js"}}"#);
        let php = FoundApp::Php { root: "public", entry: true, is_wordpress: false };
        let files = [("artisan", ""), ("public/index.php", ""), ("server.php", ""), node];
        assert_eq!(first(&files).app, php);
        let rails = [("config.ru", ""), ("config/application.rb", ""), node];
        assert_eq!(first(&rails).app, FoundApp::Rack { is_rails: true });
        let django = [
            ("manage.py", "os.environ.setdefault('DJANGO_SETTINGS_MODULE', 'mill.settings.local')"),
            ("mill/wsgi.py", "application = get_wsgi_application()"),
            ("mill/asgi.py", "application = get_asgi_application()"),
            node,
        ];
        let module = "mill.wsgi:application".to_owned();
        let app = FoundApp::Wsgi { module, interpreter: None, is_django: true };
        assert_eq!(first(&django).app, app);
    }

    #[test]
    fn only_a_rule_for_missing_files_is_a_front_controller() {
        let missing = "RewriteCond %{REQUEST_FILENAME} !-f\n";
        for (rules, expected) in [
            (format!("{missing}RewriteRule ^ index.php [L]"), true),
            (format!("  {missing}  RewriteRule ^(.+)x$ /index.php?q=$1 [L,QSA]"), true),
            ("RewriteRule . index.php".to_owned(), true),
            (format!("#{missing}#RewriteRule ^ index.php [L]"), false),
            (format!("{missing}RewriteRule ^x - [F]\nRewriteRule ^y index.php"), false),
            ("RewriteRule ^wiki/ index.php".to_owned(), false),
            ("RewriteRule ^(config|temp)/ - [F]".to_owned(), false),
        ] {
            let files = [("index.php", ""), (".htaccess", &*rules)];
            let app = FoundApp::Php { root: ".", entry: expected, is_wordpress: false };
            assert_eq!(first(&files).app, app, "{rules}");
        }
    }

    #[test]
    fn cgi_scripts_do_not_open_the_directory_around_a_site() {
        let script = ("a.cgi", "#!/bin/sh");
        assert_eq!(first(&[script]).app, FoundApp::CgiFiles);
        assert_eq!(first(&[script, ("index.html", "")]).app, FoundApp::CgiFiles);
        let htdocs = FoundApp::Files { root: "htdocs", listing: false, entry: false };
        assert_eq!(first(&[script, ("htdocs/index.html", "")]).app, htdocs);
        let listing = FoundApp::Files { root: ".", listing: true, entry: false };
        assert_eq!(first(&[("a.cgi", "text")]).app, listing);
    }

    #[test]
    fn an_application_of_programs_is_no_site_of_files() {
        let page = ("index.html", "");
        for file in [
            ("bin/view", "#!/usr/bin/perl -T\n"),
            ("view", "#!/bin/sh\n"),
            ("bin-htaccess.txt", ""),
        ] {
            for files in [vec![file], vec![file, page]] {
                let folder = Folder::new();
                files.iter().for_each(|(name, text)| drop(folder.write(name, text)));
                let look = Look::at(folder.path());
                assert!(all(&look).is_empty() && programs(&look).is_some(), "{files:?}");
            }
            let htdocs = FoundApp::Files { root: "htdocs", listing: false, entry: false };
            assert_eq!(first(&[file, ("htdocs/index.html", "")]).app, htdocs);
        }
        let only_files = FoundApp::Files { root: ".", listing: false, entry: false };
        assert_eq!(first(&[("LICENSE", "text"), ("a.sh", "#!/bin/sh"), page]).app, only_files);
    }

    #[test]
    fn a_mark_that_belongs_to_another_server_is_not_taken() {
        let iis = ("web.config", "<configuration><system.webServer/></configuration>");
        let page = ("index.html", "");
        let only_files = FoundApp::Files { root: ".", listing: false, entry: false };
        assert_eq!(first(&[iis, page]).app, only_files);
        assert_eq!(first(&[("package.json", "{\"scripts\": 1}"), page]).app, only_files);
        assert_eq!(first(&[("package.json", "not json"), page]).app, only_files);
        assert_eq!(first(&[("go.mod", ""), ("a.go", "package shop\n"), page]).app, only_files);
        assert_eq!(first(&[("manage.py", "DJANGO_SETTINGS_MODULE"), page]).app, only_files);
        assert_eq!(first(&[("main.py", "print(1)"), page]).app, only_files);
    }
}
