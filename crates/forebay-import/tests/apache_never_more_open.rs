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

/// Returns the routes of a translation, without comments.
fn routes(toml: &str) -> Vec<String> {
    let lines = toml.lines().filter(|line| !line.trim_start().starts_with('#'));
    let text = lines.collect::<Vec<_>>().join("\n");
    text.split("[[site.route]]").skip(1).map(str::to_owned).collect()
}

/// Returns the first route that contains a text.
fn route(toml: &str, text: &str) -> String {
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

#[test]
fn sections_for_backends_restrict_the_routes_to_them() {
    let rule = "Require ip 10.0.0.0/8";
    for (section, wanted) in [
        ("Proxy http://127.0.0.1:9/", r#"allow = ["10.0.0.0/8"]"#),
        ("Proxy http://127.0.0.1:9", r#"allow = ["10.0.0.0/8"]"#),
        ("Proxy *", r#"allow = ["10.0.0.0/8"]"#),
        ("Proxy http://127.*", r#"allow = ["10.0.0.0/8"]"#),
        (r#"ProxyMatch "^http://127""#, r#"allow = ["10.0.0.0/8"]"#),
        (r#"Proxy ~ "^http://127""#, r#"allow = ["10.0.0.0/8"]"#),
        ("Proxy http://127.0.0.1:9/admin", "status = 403"),
        ("Proxy http://*:9/", "status = 403"),
        (r#"ProxyMatch "9/x$""#, "status = 403"),
        ("Proxy http://10.0.0.1/", "proxy = "),
        (r#"ProxyMatch "^ftp:""#, "proxy = "),
    ] {
        let name = section.split(' ').next().unwrap();
        let toml = passing(&format!("<{section}>\n{rule}\n</{name}>"));
        let is_guarded = !wanted.contains("proxy");
        assert!(route(&toml, "\"/*\"").contains(wanted), "{section}:\n{toml}");
        assert!(
            !is_guarded
                || !routes(&toml)
                    .iter()
                    .any(|route| route.contains("proxy") && !route.contains("allow")),
            "{section}:\n{toml}"
        );
    }
    // A section by path overrides it.
    let toml = passing(
        "<Proxy *>\nRequire all granted\n</Proxy>\n<Location /adm>\nRequire all denied\n</Location>",
    );
    assert!(route(&toml, "/adm").contains("deny"), "{toml}");
}

#[test]
fn a_backend_of_a_rewrite_rule_has_the_rules_of_its_paths() {
    let toml = passing(
        "RewriteEngine on\nRewriteRule ^/x/(.*)$ http://127.0.0.1:8/$1 [P]\n\
         <Location /x/adm>\nRequire all denied\n</Location>\n\
         <Files *.bak>\nRequire all denied\n</Files>\n\
         <Proxy http://127.0.0.1:8/>\nRequire ip 10.0.0.0/8\n</Proxy>",
    );
    let all = routes(&toml);
    assert!(all[0].contains(".bak") && all[0].contains("403"), "{toml}");
    assert!(all[1].contains("/x/adm") && all[1].contains("deny = \"all\""), "{toml}");
    assert!(route(&toml, "path = \"/x/*\"").contains("allow = "), "{toml}");
}

#[test]
fn a_host_inherits_no_rewrite_rules() {
    let dir = tempfile::tempdir().unwrap();
    let rules = "RewriteEngine on\nRewriteRule ^/x http://127.0.0.1:8/x [P]\n";
    for (options, has) in [("", false), ("RewriteOptions Inherit\n", true)] {
        let toml = of(
            dir.path(),
            &format!(
                "{rules}<VirtualHost *:80>\nServerName a.example\nRewriteEngine on\n{options}\
             ProxyPass / http://127.0.0.1:9/\n</VirtualHost>\n"
            ),
        );
        assert_eq!(toml.contains("127.0.0.1:8"), has, "{toml}");
    }
}

#[test]
fn redirects_of_directories_are_kept() {
    let toml = with_htaccess(
        "Redirect gone /w/x.txt\nRedirectMatch 403 dump\\.sql$\nRedirect 301 /w/r.txt /new\n\
         RedirectMatch 404 ^/w/(a|b)\\.txt$\n",
    );
    for (text, wanted) in
        [("/w/x.txt", "410"), ("\"dump.sql\"", "403"), ("/w/r.txt", "/new"), ("/w/a.txt", "404")]
    {
        assert!(route(&toml, text).contains(wanted), "{text}\n{toml}");
    }
    let toml = passing("<Location /x>\nRedirect 403 /\nRedirect http://b.example/\n</Location>");
    assert!(route(&toml, "/x").contains("403"), "{toml}");
}
