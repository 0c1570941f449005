//! Scripts of Apache with several handlers. Apache and mod_fcgid gave the answers to compare with.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use forebay_import::{Imported, Language};

use crate::support::{notes, routes, translated};

/// Returns the translation of a host. `{}` in the lines is the directory of these scripts: the
/// programs `x.fcgi`, `sub/y.fcgi` and `run`, and the file `a.php`.
fn host(lines: &str) -> Imported {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("scripts");
    std::fs::create_dir_all(root.join("sub")).unwrap();
    for (name, mode) in [("x.fcgi", 0o755), ("sub/y.fcgi", 0o755), ("run", 0o755), ("a.php", 0o644)]
    {
        std::fs::write(root.join(name), "#!/bin/sh\n").unwrap();
        let mode = std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(root.join(name), mode).unwrap();
    }
    let root = root.display().to_string();
    let text = format!("Listen 8080\n{}\n", lines.replace("{}", &root));
    let found = translated(Language::Apache, dir.path(), "apache2.conf", &text);
    Imported { toml: found.toml.replace(&root, "DIR"), ..found }
}

/// Returns the tables of the applications of kind "command", without their users.
fn apps(toml: &str) -> Vec<String> {
    let apps = toml.split("\n[app.").skip(1).filter(|app| app.contains("\"command\""));
    let apps = apps.map(|app| {
        let lines = app.lines().filter(|line| !line.starts_with("user = ") && !line.is_empty());
        lines.collect::<Vec<_>>().join("\n")
    });
    apps.collect()
}

const RUN: &str = "kind = \"command\"\nrun = [\"DIR/x.fcgi\"]\nspeaks = \"fastcgi\"\n\
                   listen = \"stdin\"\nmount = ";

#[test]
fn fastcgi_programs_become_applications() {
    let alias = "ScriptAlias /rt {}/x.fcgi";
    let by_handler = "LoadModule cgid_module x\nAddHandler fcgid-script fcgi";
    for (lines, mount) in [
        (format!("{alias}\nAddHandler fcgid-script .fcgi"), "/rt"),
        (format!("{alias}\n{by_handler}"), "/rt"),
        (format!("{alias}\nLoadModule fcgid_module x"), "/rt"),
        // The modules are unknown.
        (alias.to_owned(), "/rt"),
        ("ScriptAlias / {}/x.fcgi/".to_owned(), ""),
        (
            "ScriptAlias /rt {}/x.fcgi\n<Location /rt>\nSetHandler fastcgi-script\n</Location>"
                .to_owned(),
            "/rt",
        ),
        (format!("{alias}\n<FilesMatch ^x>\nSetHandler fcgid-script\n</FilesMatch>"), "/rt"),
        (
            "Alias /rt {}/x.fcgi\nAddHandler fcgid-script .fcgi\n<Directory {}>\nOptions ExecCGI\n\
             </Directory>"
                .to_owned(),
            "/rt",
        ),
    ] {
        let found = host(&lines);
        assert_eq!(
            apps(&found.toml),
            [format!("x]\n{RUN}\"{mount}\"")],
            "{lines}:\n{}",
            found.toml
        );
        assert!(!found.toml.contains("cgi = "), "{lines}:\n{}", found.toml);
        let first = routes(&found.toml)[0].to_owned();
        // The default limit of mod_fcgid.
        assert!(first.contains("app = \"x\"\n  max_body = 131072"), "{lines}:\n{}", found.toml);
        assert_eq!(found.notes, [], "{lines}:\n{}", found.toml);
    }
    // Without the module, Apache runs the program as CGI.
    let found = host(&format!("{alias}\nLoadModule cgid_module x"));
    assert!(found.toml.contains("cgi = { program = \"DIR/x.fcgi\" }"), "{}", found.toml);
}

#[test]
fn lines_of_mod_fcgid_become_keys_of_the_application() {
    let found = host(
        "ScriptAlias /rt {}/x.fcgi\nFcgidInitialEnv OWN \"a b\"\nFcgidMaxRequestLen 5000\n\
         <Location /rt/REST>\nRequire ip 10.0.0.0/8\nLimitRequestBody 4000\n</Location>",
    );
    let toml = &found.toml;
    assert_eq!(apps(toml), [format!("x]\n{RUN}\"/rt\"\nenv = {{ OWN = \"a b\" }}")], "{toml}");
    let all = routes(toml);
    // The mount is that of the alias, also for a part of the program.
    assert!(all[0].contains("^/rt/REST(?:/|$)") && all[0].contains("allow = "), "{toml}");
    assert!(all[0].contains("max_body = 4000") && all[1].contains("max_body = 5000"), "{toml}");
    assert_eq!(found.notes, [], "{toml}");
    for (line, wanted) in [
        // The variable would replace that of a request.
        ("FcgidInitialEnv REMOTE_USER root", "`env` of the application"),
        ("FcgidInitialEnv HTTPS on", "`env` of the application"),
        // Forebay would replace the placeholder, and listen at a port.
        ("FcgidInitialEnv OWN {port}", "`env` of the application"),
        ("FcgidInitialEnv OWN", "`env` of the application"),
        ("FcgidMaxRequestLen large", "`max_body`"),
        ("FcgidMaxProcesses 9", "`workers`"),
        ("FcgidWrapper /bin/php-cgi .fcgi", "kind \"command\" with the wrapper"),
    ] {
        let found = host(&format!("ScriptAlias /rt {{}}/x.fcgi\n{line}"));
        let notes = notes(&found).join("\n");
        assert!(notes.contains(line) && notes.contains(wanted), "{line}:\n{notes}");
        assert!(!found.toml.contains("env = "), "{line}:\n{}", found.toml);
    }
    let rule = "FcgidAuthorizer /bin/no";
    let found = host(&format!("ScriptAlias /rt {{}}/x.fcgi\n<Location /rt>\n{rule}\n</Location>"));
    assert!(!found.toml.contains("app = "), "{}", found.toml);
}

#[test]
fn other_handlers_than_cgi_run_no_cgi_script() {
    let php = "<FilesMatch \\.php$>\nSetHandler proxy:fcgi://127.0.0.1:9\n</FilesMatch>";
    for (lines, closed) in [
        (format!("ScriptAlias /p {{}}/a.php\n{php}"), "paths = [\"/p\", \"/p/*\"]"),
        ("ScriptAlias /p {}/run\nSetHandler perl-script".into(), "paths = [\"/p\", \"/p/*\"]"),
        (
            "ScriptAlias /p {}/run.sh\nScriptAlias /q {}/a.php\nAddHandler own .php".into(),
            "[\"/q\"",
        ),
        (format!("ScriptAlias /c/ {{}}/\n{php}"), r"'^/c/(?:.*/)?[^/]*?\.php(?:/|$)'"),
        ("ScriptAlias /c/ {}/\nAddHandler own .php".into(), r"\.(?:fcg|fcgi|php)(?:[./]|$)'"),
        ("ScriptAlias /c/ {}/\n<Files run>\nSetHandler own\n</Files>".into(), "run(?:/|$)"),
        ("ScriptAlias /c/ {}/\nSetHandler own".into(), "path = \"/c/*\""),
        // The expression has no translation.
        (format!("ScriptAlias /c/ {{}}/\n{}", php.replace("\\.", "(?!x).")), "path = \"/c/*\""),
    ] {
        let found = host(&lines);
        let all = routes(&found.toml);
        let at = all.iter().position(|route| route.contains(closed));
        let route = at.map_or("", |at| all[at]);
        assert!(route.contains("respond = { status = 403 }"), "{lines}:\n{}", found.toml);
        let cgi = all.iter().position(|route| route.contains("cgi = "));
        assert!(cgi.is_none() || at < cgi, "{lines}:\n{}", found.toml);
        assert!(!found.notes.is_empty(), "{lines}:\n{}", found.toml);
    }
}

#[test]
fn a_directory_of_scripts_has_an_application_for_each_fastcgi_program() {
    let found = host("ScriptAlias /c/ {}/");
    let all = routes(&found.toml);
    assert!(all[0].contains("paths = [\"/c/sub/y.fcgi\", \"/c/sub/y.fcgi/*\"]"), "{}", found.toml);
    assert!(all[1].contains("paths = [\"/c/x.fcgi\", \"/c/x.fcgi/*\"]"), "{}", found.toml);
    assert!(all[2].contains(r"'~*^/c/.*\.(?:fcg|fcgi)(?:[./]|$)'"), "{}", found.toml);
    assert!(all[2].contains("403") && all[3].contains("cgi = \"DIR\""), "{}", found.toml);
    assert_eq!((apps(&found.toml).len(), found.notes), (2, Vec::new()), "{}", found.toml);
    // In a directory of files, `ExecCGI` is necessary.
    let files = "DocumentRoot {}\nAddHandler fcgid-script .fcgi";
    for (options, count) in [("Options ExecCGI", 2), ("Options Indexes", 0)] {
        let found = host(&format!("{files}\n<Directory {{}}>\n{options}\n</Directory>"));
        let all = routes(&found.toml);
        assert_eq!(apps(&found.toml).len(), count, "{}", found.toml);
        let closed = all.iter().position(|route| route.contains("suffix = \".fcgi\""));
        assert!(closed.is_some_and(|at| all[at].contains("403")), "{}", found.toml);
        let sent = all.iter().position(|route| route.contains("files = "));
        assert!(closed < sent, "{}", found.toml);
        assert_eq!(found.notes, [], "{}", found.toml);
    }
    // A program that the section excludes has no route.
    let section = "<Directory {}/sub>\nOptions None\n</Directory>";
    let open = "<Directory {}>\nOptions ExecCGI\n</Directory>";
    let found = host(&format!("{files}\n{open}\n{section}"));
    let all = routes(&found.toml);
    let closed = all.iter().position(|route| route.contains("path = \"/sub/*\""));
    let program = all.iter().position(|route| route.contains("/sub/y.fcgi"));
    assert!(closed.is_some() && program.is_none_or(|at| closed < Some(at)), "{}", found.toml);
}

#[test]
fn sections_for_the_names_of_scripts_send_no_source() {
    for (handler, options, wanted) in [
        ("SetHandler cgi-script", "ExecCGI", "cgi = "),
        ("SetHandler cgi-script", "None", "403"),
        ("SetHandler fcgid-script", "ExecCGI", "403"),
        ("SetHandler perl-script", "ExecCGI", "403"),
        ("AddHandler own .fcgi", "None", "403"),
    ] {
        for section in ["Files *.fcgi", "FilesMatch \\.fcgi$"] {
            let name = section.split(' ').next().unwrap();
            let section = format!("<{section}>\n{handler}\n</{name}>");
            let found = host(&format!(
                "DocumentRoot {{}}\n<Directory {{}}>\nOptions {options}\n{section}\n</Directory>"
            ));
            let all = routes(&found.toml);
            let at = all.iter().position(|route| route.contains(".fcgi"));
            assert!(at.is_some_and(|at| all[at].contains(wanted)), "{section}:\n{}", found.toml);
            let sent = all.iter().position(|route| route.contains("files = "));
            assert!(at < sent, "{section}:\n{}", found.toml);
        }
    }
}

#[test]
fn hostile_names_of_programs_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["{port}.fcgi", "{socket}.fcgi"] {
        let program = dir.path().join(name);
        std::fs::write(&program, "#!/bin/sh\n").unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
        let found = in_file(dir.path(), &format!("ScriptAlias /a {}", program.display()));
        assert!(!found.toml.contains("\n[app."), "{}", found.toml);
        assert!(notes(&found).join("\n").contains("plain name"), "{}", found.toml);
    }
}

fn in_file(dir: &Path, lines: &str) -> Imported {
    translated(Language::Apache, dir, "apache2.conf", &format!("Listen 8080\n{lines}\n"))
}

#[test]
fn php_runs_below_an_alias_whose_directory_has_another_name() {
    let php = "<FilesMatch \\.php$>\nSetHandler proxy:fcgi://127.0.0.1:9\n</FilesMatch>";
    let strip = "root = \"DIR\", strip_prefix = \"/al\"";
    for (alias, wanted) in [
        ("Alias /al {}", strip),
        ("Alias /al/ {}/", strip),
        ("DocumentRoot /none\nAlias /al {}", "params = { DOCUMENT_ROOT = \"/none\" }"),
        ("Alias /al {}/none", "status = 403"),
        ("Alias \"/a l\" {}", "status = 403"),
    ] {
        let found = host(&format!("{alias}\n{php}"));
        let all = routes(&found.toml);
        let route = all.iter().find(|route| route.contains("suffix = \".php\""));
        let is_there = route.is_some_and(|route| route.contains(wanted));
        assert!(is_there, "{alias}:\n{}", found.toml);
        let notes = notes(&found).join("\n");
        assert_eq!(notes.contains("strip_prefix"), wanted.contains("403"), "{alias}:\n{notes}");
    }
    // The name of the directory is that of the path.
    let found = host(&format!("Alias /scripts {{}}\n{php}"));
    assert!(!found.toml.contains("strip_prefix"), "{}", found.toml);
    // The rules of a directory and of a file inside of the alias apply to its scripts.
    let rule = "Require ip 10.0.0.0/8";
    let found = host(&format!(
        "Alias /al {{}}\n{php}\n<Directory {{}}/sub>\n{rule}\n</Directory>\n\
         <Location /al/a.php>\n{rule}\n</Location>"
    ));
    for path in ["path = \"/al/sub/*\"", "paths = [\"/al/a.php\", \"/al/a.php/*\"]"] {
        let all = routes(&found.toml);
        let route = all.iter().find(|route| route.contains(path) && route.contains("fastcgi = "));
        let is_guarded = |route: &&&str| route.contains("allow = ") && route.contains(strip);
        assert!(route.filter(is_guarded).is_some(), "{path}:\n{}", found.toml);
        let base = all.iter().position(|route| route.contains("path = \"/al/*\"\n  suffix"));
        let own = all.iter().position(|route| route.contains(path));
        assert!(own < base, "{path}:\n{}", found.toml);
    }
}

#[test]
fn only_a_file_with_the_ending_of_scripts_runs() {
    let cgi = "DocumentRoot {}\nAddHandler cgi-script .cgi\n<Directory {}>\nOptions ExecCGI\n\
               Require all granted\n</Directory>\n";
    for rule in ["<Location /run>\nHeader set X y\n</Location>", "Alias /run {}/run"] {
        let found = host(&format!("{cgi}{rule}"));
        assert!(!found.toml.contains("program = "), "{}", found.toml);
        assert!(found.toml.contains("this file is no CGI script"), "{}", found.toml);
    }
    let own = format!("{}Alias /run {{}}/x.fcgi", cgi.replace(".cgi", ".fcgi"));
    assert!(host(&own).toml.contains("cgi = { program = \"DIR/x.fcgi\" }"));
}

#[test]
fn applications_of_mod_wsgi_become_applications_and_keep_their_rules() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().display().to_string();
    for name in ["shop", "lib", "www"] {
        std::fs::create_dir(dir.path().join(name)).unwrap();
    }
    std::fs::write(dir.path().join("shop/wsgi.py"), "application = None\n").unwrap();
    let text = |rule: &str| {
        format!(
            "Listen 8080\nServerName a\nDocumentRoot ROOT/www\n\
             WSGIDaemonProcess shop python-path=ROOT/lib processes=2 threads=3 display-name=x\n\
             WSGIProcessGroup shop\nWSGIPassAuthorization On\n\
             WSGIScriptAlias /shop ROOT/shop/wsgi.py\n\
             <Directory ROOT>\nRequire all denied\n</Directory>\n\
             <Directory ROOT/shop>\n<Files wsgi.py>\n{rule}\n</Files>\n</Directory>\n"
        )
        .replace("ROOT", &root)
    };
    let open = translated(Language::Apache, dir.path(), "a.conf", &text("Require all granted"));
    for part in [
        "paths = [\"/shop\", \"/shop/*\"]\n  app = \"wsgi\"",
        "kind = \"wsgi\"",
        "module = \"wsgi:application\"",
        "workers = 6",
        &format!("lib = [\"{root}/lib\"]"),
    ] {
        assert!(open.toml.contains(part), "{part}: {}", open.toml);
    }
    assert!(open.notes.is_empty(), "{:?}", open.notes);
    let some = translated(Language::Apache, dir.path(), "a.conf", &text("Require ip 10.0.0.0/8"));
    let route = some.toml.split("[[site.route]]").find(|route| route.contains("app = ")).unwrap();
    assert!(route.contains("allow = [\"10.0.0.0/8\"]"), "{}", some.toml);
    let none = text("Require all granted").replace("/wsgi.py\n", "/none.py\n");
    let none = translated(Language::Apache, dir.path(), "a.conf", &none);
    assert!(none.toml.contains("The route is closed") && !none.notes.is_empty(), "{}", none.toml);
}

#[test]
fn a_location_of_an_alias_is_no_place_of_the_document_root() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("scripts")).unwrap();
    let dir = dir.path().display();
    let handler = "SetHandler perl-script\nPerlResponseHandler ModPerl::Registry";
    let found = host(&format!(
        "DocumentRoot {dir}\nAlias /perl/ {dir}/scripts/\n<Location /perl/>\n{handler}\n</Location>"
    ));
    assert!(found.toml.contains("kind = \"perl-cgi\""), "{}", found.toml);
    assert!(!found.toml.contains("NOT TRANSLATED"), "{}", found.toml);
}

#[test]
fn settings_of_handlers_keep_all_their_values() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path().display();
    let found = host(&format!(
        "DocumentRoot {dir}\nPerlSwitches -wT\n<Location /a>\nSetHandler modperl\nPerlResponseHandler My::A\n\
         AuthType none\nAuthName members\nPerlSetVar Hosts a\nPerlAddVar Hosts b c\n</Location>"
    ));
    for text in [
        "Hosts = [\"a\", \"b\", \"c\"]",
        "switches = [\"-w\", \"-T\"]",
        "auth = { type = \"none\", name = \"members\" }",
    ] {
        assert!(found.toml.contains(text), "{text}: {}", found.toml);
    }
}
