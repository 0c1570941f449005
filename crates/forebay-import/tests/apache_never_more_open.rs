//! Translations of configurations of Apache whose rules a careless translation would lose. Each
//! case was compared with the answers of Apache, or with its source.

use std::path::Path;

use forebay_import::{Language, import};

/// Returns the translation of a file, which Forebay must accept.
fn of(dir: &Path, text: &str) -> String {
    let file = dir.join("apache2.conf");
    std::fs::write(&file, text).unwrap();
    let toml = import(Language::Apache, &file).unwrap().toml;
    if let Err(error) = forebay_conf::parse(&toml, "site.toml", dir) {
        panic!("{toml}\n{}", error.plain());
    }
    toml
}

/// Returns the translation of a host that passes requests to a backend.
fn passing(lines: &str) -> String {
    let dir = tempfile::tempdir().unwrap();
    let text = format!(
        "Listen 8080\n<VirtualHost *:8080>\nServerName a.example\n\
         ProxyPass / http://127.0.0.1:9/\n{lines}\n</VirtualHost>\n"
    );
    of(dir.path(), &text)
}

/// Returns the translation of a host with a directory `/w` that has this `.htaccess`.
fn with_htaccess(lines: &str) -> String {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("www");
    std::fs::create_dir_all(root.join("w/sub")).unwrap();
    std::fs::write(root.join("w/.htaccess"), lines).unwrap();
    std::fs::write(root.join("w/sub/.htaccess"), "ErrorDocument 404 /x\n").unwrap();
    let root = root.display();
    let text = format!(
        "Listen 8080\n<VirtualHost *:8080>\nServerName a.example\nDocumentRoot {root}\n\
         <Directory {root}>\nAllowOverride All\n</Directory>\n</VirtualHost>\n"
    );
    of(dir.path(), &text)
}

/// Returns the routes of a translation.
fn routes(toml: &str) -> Vec<&str> {
    toml.split("[[site.route]]").skip(1).collect()
}

/// Returns the first route that contains a text.
fn route<'a>(toml: &'a str, text: &str) -> &'a str {
    let found = routes(toml).into_iter().find(|route| route.contains(text));
    found.unwrap_or_else(|| panic!("no route has {text}:\n{toml}"))
}

#[test]
fn a_host_listens_only_at_the_addresses_of_listen() {
    let dir = tempfile::tempdir().unwrap();
    for (listen, host, wanted) in [
        ("Listen 127.0.0.1:8080", "*:8080", r#"listen = ["127.0.0.1:8080"]"#),
        ("Listen 127.0.0.1:8080", "_default_:8080", r#"listen = ["127.0.0.1:8080"]"#),
        ("Listen 127.0.0.1:8080", "*", r#"listen = ["127.0.0.1:8080"]"#),
        ("Listen 81\nListen [::1]:82", "*", r#"listen = [":81", "[::1]:82"]"#),
        ("Listen 81", "127.0.0.1:81", r#"listen = ["127.0.0.1:81"]"#),
        ("Listen 81", "*:*", r#"listen = [":81"]"#),
        ("Listen 10.0.0.1:81", "10.0.0.2:81", "no Listen line has"),
        ("Listen 81", "*:82", "no Listen line has"),
        ("Listen 81", "name.example:81", "no Listen line has"),
        ("", "*:82", r#"listen = [":82"]"#),
        ("", "10.0.0.1", r#"listen = ["10.0.0.1:80"]"#),
    ] {
        let lines = "ServerName a.example\nProxyPass / http://127.0.0.1:9/\n</VirtualHost>";
        let file = dir.path().join("apache2.conf");
        std::fs::write(&file, format!("{listen}\n<VirtualHost {host}>\n{lines}\n")).unwrap();
        let toml = import(Language::Apache, &file).unwrap().toml;
        assert!(toml.contains(wanted), "{listen}, {host}:\n{toml}");
    }
}
