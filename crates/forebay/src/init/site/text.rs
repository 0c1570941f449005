//! The text of `site.toml`.

use std::path::Path;

use super::{Chosen, FoundApp, SITE_FILE};
use crate::init::{quote, scripts};

const HEAD: &str = "\
# A site for Forebay, written by `forebay init site`. Paths are relative to this file.
#   Serve it:                    forebay serve site.toml
#   Look for mistakes:           forebay check site.toml
#   See what answers a request:  forebay explain site.toml http://127.0.0.1:8080/

[[site]]
listen = [\"127.0.0.1:8080\"]            # only for this machine; \":80\" is for all clients
# hosts = [\"example.org\"]              # the names of the site; without them, every name
# compress = true                      # compress replies
";

/// Tomcat in a private directory that Forebay removes afterwards.
const TOMCAT: &str = r#"
set -e
base=$(dirname "$2")/tomcat
mkdir -p "$base/conf" "$base/logs" "$base/temp" "$base/work" "$base/webapps"
ln -s "$1" "$base/webapps/ROOT"
cp "$3/etc/web.xml" "$base/conf/" 2>/dev/null || cp "$3/conf/web.xml" "$base/conf/"
cat >"$base/conf/server.xml" <<END
<Server port="-1"><Service name="Catalina">
<Connector unixDomainSocketPath="$2"/>
<Engine name="Catalina" defaultHost="localhost"><Host name="localhost" appBase="webapps"/></Engine>
</Service></Server>
END
export CATALINA_HOME="$3" CATALINA_BASE="$base" CATALINA_TMPDIR="$base/temp"
exec "$3/bin/catalina.sh" run
"#;

/// Returns the content of the site's configuration file.
pub fn site(chosen: &Chosen<'_>, site_dir: &Path) -> String {
    let mut head = HEAD.to_owned();
    if matches!(chosen.main.app, FoundApp::Servlet { tomcat: None }) {
        // The servlet container usually listens on port 8080, so Forebay needs another port.
        head = head.replace("127.0.0.1:8080", "127.0.0.1:8000");
    }
    let (routes, apps) = (routes(chosen), apps(chosen, site_dir));
    if chosen.refusals.routes.is_empty() {
        return head + &routes + &apps;
    }
    head +=
        "\n  # The routes with the name of an .htaccess file refuse what it refuses in Apache.\n";
    head += chosen.refusals.routes.trim_start_matches('\n');
    let routes = reached(&head, &routes, &apps, site_dir);
    head + &routes + &apps
}

/// Returns the routes, with those that get no requests as comments, because the routes in `head`
/// refuse these requests. Forebay accepts no route without requests.
fn reached(head: &str, routes: &str, apps: &str, dir: &Path) -> String {
    let mut kept = String::new();
    for route in routes.split_inclusive("\n\n") {
        let site = format!("{head}{kept}{route}{apps}");
        let parsed = forebay_conf::parse(&site, SITE_FILE, dir);
        let is_idle = parsed.is_err_and(|error| error.to_string().contains("no request reaches"));
        if is_idle {
            kept.push_str("\n  # The routes above refuse all requests of this route:\n");
            let lines = route.lines().map(|line| line.trim_start_matches([' ', '#']));
            let lines = lines.filter(|line| !line.is_empty());
            kept.extend(lines.map(|line| format!("  # {line}\n")));
        } else {
            kept += route;
        }
    }
    kept
}

/// Returns the routes of the application and its files.
fn routes(chosen: &Chosen<'_>) -> String {
    let mut text = String::new();
    if chosen.has_cgi_bin || matches!(chosen.main.app, FoundApp::CgiBin { .. }) {
        text += &cgi_route();
    }
    for keys in chosen.idle.refusals() {
        text += &route(
            "The source of scripts is not for clients. To run them as CGI: cgi = \".\" in place of `respond`.",
            &keys,
        );
    }
    text += &match &chosen.main.app {
        FoundApp::CgiBin { .. } => chosen.files.map(files_beside_scripts).unwrap_or_default(),
        FoundApp::CgiFiles => {
            route("CGI scripts.", "suffix = [\".cgi\"]\napp = \"scripts\"")
                + &not_for_clients()
                + &route(
                    "Files. Names that begin with a dot are not sent.",
                    "path = \"/*\"\nfiles = { root = \".\", index = [\"index.cgi\", \"index.html\"] }",
                )
        }
        FoundApp::Files { root, listing, entry } => {
            files(root, *listing && chosen.refusals.allows_listing, *entry)
        }
        FoundApp::Php { root, entry, is_wordpress } => php(chosen, root, *entry, *is_wordpress),
        FoundApp::Servlet { tomcat: None } => route(
            "A servlet container that you start. Its connector listens on port 8080.",
            "path = \"/*\"\nproxy = \"http://127.0.0.1:8080\"",
        ),
        FoundApp::Mono => {
            private(&[])
                + &route("Style sheets, pictures and other files.", &from_files("."))
                + &all()
        }
        FoundApp::Servlet { .. } => private(&[]) + &statics(chosen) + &all(),
        _ => statics(chosen) + &all(),
    };
    text
}

/// Returns the tables of the applications.
fn apps(chosen: &Chosen<'_>, site_dir: &Path) -> String {
    let mut text = String::new();
    let app = app(&chosen.main.app);
    if !app.is_empty() {
        text += "\n[app.app]\n";
        text += &app;
        text += &user(chosen);
    }
    let dir = match chosen.main.app {
        FoundApp::CgiFiles => Some("."),
        FoundApp::CgiBin { .. } => Some("cgi-bin"),
        _ => chosen.has_cgi_bin.then_some("cgi-bin"),
    };
    if let Some(dir) = dir {
        text += &format!(
            "\n[app.scripts]\n\
             kind = \"cgi-bin\"                       # the first line of each script selects what runs it\n\
             dir = \"{dir}\"\nworkers = 4\n"
        );
        if scripts::has_taint_checks(&site_dir.join(dir)) {
            // Only a new perl can switch taint checks on.
            text +=
                "perl_mode = \"cgi\"                      # for -T in the first line of scripts\n";
        }
        text += &user(chosen);
    }
    text
}

/// Returns a route with a comment.
fn route(comment: &str, keys: &str) -> String {
    let lines: String = keys.lines().map(|line| format!("  {line}\n")).collect();
    format!("\n  # {comment}\n  [[site.route]]\n{lines}")
}

/// Returns the route of the application, which takes all paths.
fn all() -> String {
    route("The application answers all other paths.", "path = \"/*\"\napp = \"app\"")
}

fn from_files(root: &str) -> String {
    format!("path = \"/*\"\nfiles = {}\nfallback = true", quote::toml(root))
}

fn cgi_route() -> String {
    route(
        "CGI scripts: /cgi-bin/NAME runs cgi-bin/NAME.",
        "path = \"/cgi-bin/*\"\napp = \"scripts\"",
    )
}

fn files_beside_scripts(root: &str) -> String {
    files(root, false, false)
}

/// Returns routes that answer 404: one for configurations, logs and databases, which have certain
/// suffixes, and one for `paths` unless `paths` is empty.
fn private(paths: &[&str]) -> String {
    let mut text = route(
        "The configuration, logs and data are not for clients.",
        "suffix = [\".toml\", \".log\", \".sql\", \".sqlite\", \".db\", \".lock\"]\n\
         respond = { status = 404 }",
    );
    if !paths.is_empty() {
        let paths: Vec<String> = paths.iter().map(|path| quote::toml(path)).collect();
        let keys = format!("paths = [{}]\nrespond = {{ status = 404 }}", paths.join(", "));
        text += &route("Code of packages is not for clients.", &keys);
    }
    text
}

fn not_for_clients() -> String {
    route("This file is not for clients.", "path = \"/site.toml\"\nrespond = { status = 404 }")
}

fn files(root: &str, listing: bool, entry: bool) -> String {
    let mut text = String::new();
    if root == "." {
        text += &not_for_clients();
    }
    let listing = if listing { ", listing = true" } else { "" };
    let mut keys = format!("path = \"/*\"\nfiles = {{ root = {}{listing} }}", quote::toml(root));
    if entry {
        keys += "\nfallback_to = \"/index.html\"          # the page answers paths without a file";
    }
    text + &route("Files. Names that begin with a dot are not sent.", &keys)
}

fn php(chosen: &Chosen<'_>, root: &str, entry: bool, is_wordpress: bool) -> String {
    let mut text = String::new();
    if root == "." {
        let vendor: &[&str] = if chosen.has_vendor { &["/vendor/*"] } else { &[] };
        text += &private(vendor);
    }
    if is_wordpress {
        text += &route(
            "Uploaded files are never run.",
            "path = \"/wp-content/uploads/*\"\nsuffix = [\".php\"]\nrespond = { status = 404 }",
        );
    }
    text += &route("Scripts.", "suffix = [\".php\"]\napp = \"app\"");
    let mut keys = format!(
        "path = \"/*\"\nfiles = {{ root = {}, index = [\"index.php\", \"index.html\"] }}",
        quote::toml(root)
    );
    if let Some(to) = fallback(chosen, entry) {
        let key = format!("fallback_to = {}", quote::toml(to));
        keys += &format!("\n{key:36} # this script answers paths without a file");
    }
    text + &route("Files. Names that begin with a dot are not sent.", &keys)
}

/// Returns the script for paths without a file: the script that `.htaccess` names, or `index.php`
/// of an application with one entry script.
fn fallback<'a>(chosen: &'a Chosen<'_>, entry: bool) -> Option<&'a str> {
    let of_rules = chosen.refusals.fallback.as_deref();
    of_rules.or_else(|| entry.then_some("/index.php"))
}

/// Returns the route for files that need no application.
fn statics(chosen: &Chosen<'_>) -> String {
    let Some((dir, path)) = chosen.statics else { return String::new() };
    let keys = format!("path = \"{path}\"\nfiles = {}\nfallback = true", quote::toml(dir));
    route("Files that need no application.", &keys)
}

/// Returns the keys of the application's table. Returns an empty text for files, which need no
/// application.
fn app(app: &FoundApp) -> String {
    let python = |module: &str, interpreter: &Option<String>| {
        let mut keys = format!("module = {}\n", quote::toml(module));
        if let Some(interpreter) = interpreter {
            keys += &format!("python = {}\n", quote::toml(interpreter));
        }
        keys
    };
    match app {
        FoundApp::Psgi { file } => {
            format!("kind = \"psgi\"\nfile = {}\n{}", quote::toml(file), workers(4))
        }
        FoundApp::Wsgi { module, interpreter, .. } => {
            format!("kind = \"wsgi\"\n{}{}", python(module, interpreter), workers(4))
        }
        FoundApp::Asgi { module, interpreter } => {
            let keys = python(module, interpreter);
            format!("kind = \"asgi\"\n{keys}{}", workers(2))
        }
        FoundApp::Rack { .. } => format!(
            "kind = \"rack\"\nfile = \"config.ru\"\n{}threads = 1                            # more only if the application is thread-safe\n\
             # env = {{ RACK_ENV = \"production\", RAILS_ENV = \"production\" }}\n",
            workers(2)
        ),
        FoundApp::Php { root, .. } => format!(
            "kind = \"php\"                           # php-fpm, which Forebay starts; else php-cgi\nroot = {}\nworkers = 4\n\
             # ini = {{ upload_max_filesize = \"64M\", post_max_size = \"64M\" }}\n",
            quote::toml(root)
        ),
        FoundApp::Mono => "kind = \"mono\"\ndir = \".\"\n".to_owned(),
        FoundApp::Go { package, .. } => format!(
            "kind = \"command\"\nrun = [\"go\", \"run\", {}]             # builds and runs it; or name the built program\n{}\
             start_timeout = \"5m\"                   # the first build can take long\n",
            quote::toml(package),
            by_port()
        ),
        FoundApp::Node { .. } => {
            format!("kind = \"command\"\nrun = [\"npm\", \"start\"]\n{}", by_port())
        }
        FoundApp::Servlet { tomcat: Some(home) } => format!(
            "kind = \"command\"\n\
             # Starts Tomcat with a private base directory, which Forebay removes afterwards.\n\
             run = [\"sh\", \"-c\", '''{TOMCAT}''', \"tomcat\", \"{{dir}}\", \"{{socket}}\", \"{home}\"]\n\
             speaks = \"http\"\nconnections = 100\nstart_timeout = \"2m\"\n",
        ),
        FoundApp::Servlet { tomcat: None }
        | FoundApp::CgiBin { .. }
        | FoundApp::CgiFiles
        | FoundApp::Files { .. } => String::new(),
    }
}

fn workers(count: usize) -> String {
    format!(
        "workers = {count}\n# watch = [\".\"]                        # replace the workers after a change\n"
    )
}

/// Returns the keys of a program that listens on a port of our choice.
fn by_port() -> &'static str {
    "speaks = \"http\"\nlisten = \"port\"\nenv = { PORT = \"{port}\", HOST = \"127.0.0.1\" }   # the program must listen on this port\n"
}

fn user(chosen: &Chosen<'_>) -> String {
    let Some(user) = &chosen.user else { return String::new() };
    format!("user = {}                      # of the processes\n", quote::toml(user))
}
