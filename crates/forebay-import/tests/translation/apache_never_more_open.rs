//! Translations of configurations of Apache whose rules a careless translation would lose. Each
//! case was compared with the answers of Apache, or with its source.

use std::path::Path;

use forebay_import::{Language, import};

use crate::support::translated;

/// Returns the translation of a file, which Forebay must accept.
fn of(dir: &Path, text: &str) -> String {
    translated(Language::Apache, dir, "apache2.conf", text).toml
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
        ("Listen 81", "name.example:81", r#"listen = ["127.0.0.1:81"]"#),
        ("Listen 127.0.0.2:81", "name.example:81", r#"listen = ["127.0.0.2:81"]"#),
        ("Listen 82", "name.example:81", "no Listen line has"),
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
    // A `Location` section overrides the `Proxy` section.
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
        [("/w/x.txt", "410"), ("\"dump.sql\"", "403"), ("/w/r.txt", "/new"), ("(a|b)", "404")]
    {
        assert!(route(&toml, text).contains(wanted), "{text}\n{toml}");
    }
    let toml = passing("<Location /x>\nRedirect 403 /\nRedirect http://b.example/\n</Location>");
    assert!(route(&toml, "/x").contains("403"), "{toml}");
}

#[test]
fn rewrite_rules_refuse_with_any_status() {
    for (flags, status) in
        [("R=404,L", 404), ("R=403", 403), ("R=451", 451), ("gone", 410), ("forbidden,L", 403)]
    {
        let rule = format!("RewriteEngine on\nRewriteRule ^/?x - [{flags}]\n");
        let wanted = format!("status = {status}");
        let toml = passing(&rule);
        assert!(route(&toml, "x").contains(&wanted), "{flags}\n{toml}");
        let toml = with_htaccess(&rule.replace("/?", ""));
        assert!(route(&toml, "/w/x").contains(&wanted), "{flags}\n{toml}");
    }
}

#[test]
fn patterns_of_directories_match_below_them() {
    let rule = |pattern: &str, conditions: &str| {
        with_htaccess(&format!("RewriteEngine on\n{conditions}\nRewriteRule {pattern} - [F]\n"))
    };
    for (pattern, wanted) in [
        ("(^|/)secret", "path_regex = \"^/w/(|.*?(?:/))secret\""),
        (r"(?:/|^)\.git", r"path_regex = '^/w/(?:|.*?(?:/))\.git'"),
        ("^a|^b", "path_regex = \"^/w/(?:a|b)\""),
        ("^secret/", "path = \"/w/secret/*\""),
        (r"x\.txt$", "suffix = \"x.txt\""),
        ("secret", "path_regex = \"^/w/.*?secret\""),
        ("a|^b", "path = \"/w/*\"\n  respond = { status = 403 }"),
        ("!^ok", "path = \"/w/*\"\n  respond = { status = 403 }"),
        (".", "path = \"/w/*\"\n  respond = { status = 403 }"),
    ] {
        let toml = rule(pattern, "");
        let found = routes(&toml).into_iter().find(|route| route.contains(wanted));
        assert!(found.is_some_and(|route| route.contains("403")), "{pattern}\n{toml}");
        // The directory below it has the same rules.
        let first = routes(&toml).iter().position(|route| route.contains("files"));
        let before = &routes(&toml)[..first.unwrap()];
        assert!(pattern.starts_with('^') || before.iter().any(|r| r.contains("403")), "{toml}");
    }
    for (conditions, wanted) in [
        (r"RewriteCond %{REQUEST_URI} /x\.txt$", r"'/x\.txt$'"),
        (r"RewriteCond %{REQUEST_URI} ^/w/x", "\"/w/x*\""),
        ("RewriteCond %{REQUEST_URI} /x [OR]\nRewriteCond %{REQUEST_METHOD} ^DELETE$", "\"/x\""),
        ("RewriteCond %{REQUEST_METHOD} ^DELETE$ [OR]\nRewriteCond %{REQUEST_URI} /x", "DELETE"),
        ("RewriteCond %{REQUEST_URI} /x [OR]\nRewriteCond %{THE_REQUEST} evil", "\"/w/*\""),
    ] {
        let toml = rule(".*", conditions);
        assert!(route(&toml, wanted).contains("403"), "{conditions}\n{toml}");
        assert!(!routes(&toml)[0].contains("\"/*\""), "{conditions}\n{toml}");
    }
}

#[test]
fn inherited_rules_of_directories_are_kept() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("www");
    std::fs::create_dir_all(root.join("w/sub")).unwrap();
    let rules = "RewriteEngine on\nRewriteRule ^sub/x - [F]\nRewriteRule ^y - [R=404]\n";
    std::fs::write(root.join("w/.htaccess"), rules).unwrap();
    let root = root.display();
    let host = |inner: &str| {
        of(
            dir.path(),
            &format!(
                "DocumentRoot {root}\n<Directory {root}>\nAllowOverride All\n</Directory>\n\
             <Directory {root}/w/sub>\n{inner}\n</Directory>\n"
            ),
        )
    };
    let toml = host("Require ip 10.0.0.0/8");
    assert!(route(&toml, "\"/w/sub/x*\"").contains("403"), "{toml}");
    let own = "RewriteEngine on\nRewriteRule ^z - [F]\n";
    let toml = host(&format!("{own}RewriteOptions Inherit"));
    assert!(route(&toml, "\"/w/sub/y*\"").contains("404"), "{toml}");
    let toml = host(own);
    assert!(!toml.contains("\"/w/sub/y*\""), "{toml}");
}

#[test]
fn conditions_on_the_client_and_its_fields_become_when() {
    for (conditions, wanted) in [
        ("%{HTTP_USER_AGENT} (bad|evil)bot [NC]", r#"header = { User-Agent = "~*(bad|evil)bot" }"#),
        ("%{HTTP_USER_AGENT} ^$", r#"not = { header = { User-Agent = "~." } }"#),
        ("%{HTTP_HOST} ^old\\.example$", "Host = '~^old\\.example$'"),
        ("%{HTTP_COOKIE} bad=1", r#"header = { Cookie = "~bad=1" }"#),
        ("%{HTTP:X-Key} =abc", r#"header = { X-KEY = "abc" }"#),
        ("%{REMOTE_ADDR} ^10\\.", r#"client = ["10.0.0.0/8"]"#),
        ("%{REMOTE_ADDR} !^10\\.", r#"not = { client = ["10.0.0.0/8"] }"#),
        ("%{REMOTE_ADDR} =192.0.2.1", r#"client = ["192.0.2.1"]"#),
        ("%{QUERY_STRING} (^|&)id=", "query = { id = true }"),
        ("%{QUERY_STRING} ^id=5$", r#"query = { id = "5" }"#),
        ("%{REQUEST_METHOD} !^(GET|POST)$", "method = [\"GET\", \"POST\"]"),
        ("%{REQUEST_METHOD} !^(GET|POST)$", "methods = [\"HEAD\"]"),
    ] {
        let lines = format!("RewriteEngine on\nRewriteCond {conditions}\nRewriteRule ^ - [F]");
        let toml = passing(&lines);
        assert!(route(&toml, wanted).contains("403"), "{conditions}\n{toml}");
        assert!(!toml.contains("NOT TRANSLATED"), "{toml}");
    }
    let toml = passing(
        "RewriteEngine on\nRewriteCond %{HTTP_REFERER} !^$\n\
         RewriteCond %{HTTP_REFERER} !^http://a\\.example\n\
         RewriteCond %{HTTP_REFERER} !^http://b\\.example [NC]\nRewriteRule \\.png$ - [F]",
    );
    let found = route(&toml, ".png");
    assert!(found.contains("header = { Referer = \"~.\" }"), "{toml}");
    assert!(
        found.contains(
            r"not = { header = { Referer = ['~^http://a\.example', '~*^http://b\.example'] } }"
        ),
        "{toml}"
    );
    // These conditions have no translation. The note names the line.
    for condition in [
        "%{HTTP_USER_AGENT} .*x?",
        "%{HTTP:X-Role} !^user$",
        "%{REMOTE_ADDR} ^10.",
        "%{QUERY_STRING} evil",
        "%{QUERY_STRING} !(^|&)id=",
        "%{REQUEST_METHOD} PROP",
        "%{HTTP_USER_AGENT} (?!x)",
        "%{HTTP_HOST}%{REQUEST_URI} x",
        "%{ENV:bad} 1",
        "%{TIME_HOUR} >12",
    ] {
        let rule = format!("RewriteEngine on\nRewriteCond {condition}\nRewriteRule ^/x - [F]");
        let toml = passing(&rule);
        let note = format!("RewriteCond {condition} has no translation");
        assert!(toml.replace("\n  #  ", "").contains(&note), "{note}\n{toml}");
        assert!(route(&toml, "/x").contains("403"), "{toml}");
        assert!(!route(&toml, "/x").contains("when"), "{toml}");
    }
}

#[test]
fn sections_with_wildcards_refuse_their_paths() {
    let denied = "Require all denied";
    let toml = passing(&format!(
        "<Location \"/glob/*/adm\">\n{denied}\n</Location>\n\
         <Location \"/q?x/\">\n{denied}\n</Location>\n\
         <LocationMatch \"^/lm/.+/adm\">\n{denied}\n</LocationMatch>\n\
         <Location /if>\n<If \"true\">\n{denied}\n</If>\n</Location>"
    ));
    for regex in ["^/glob/[^/]*/adm$", "^/q[^/]x/$", "^/lm/.+/adm", "\"/if/*\""] {
        assert!(route(&toml, regex).contains("403"), "{toml}");
    }
    assert!(!route(&toml, "/if").contains("\"/*\""), "{toml}");
}

#[test]
fn sections_of_files_and_directories_close_only_their_paths() {
    let toml = with_htaccess(
        "<Files \"?.txt\">\nRequire all denied\n</Files>\n\
         <FilesMatch \"^(xmlrpc|a)\\.php$\">\nRequire all denied\n</FilesMatch>\n\
         <FilesMatch \"^\\.ht|^secret\">\nRequire all denied\n</FilesMatch>\n\
         <Files x.php>\nRedirect 403 /\n</Files>\n",
    );
    for regex in
        [r"/[^/]\.txt(?:/|$)", r"/(xmlrpc|a)\.php(?:/|$)", r"/(?:\.ht|secret)", r"/x\.php(?:/|$)"]
    {
        let found = route(&toml, regex);
        assert!(found.contains("403") && found.contains("\"/w/*\""), "{toml}");
    }
    let closed = routes(&toml).into_iter().filter(|route| route.contains("403"));
    assert!(closed.into_iter().all(|route| route.contains("/w")), "{toml}");
    let toml = with_htaccess("<If \"true\">\nRequire all denied\n</If>\n");
    assert!(route(&toml, "403").contains("path = \"/w/*\""), "{toml}");
    let dir = tempfile::Builder::new().prefix("x").tempdir().unwrap();
    let root = dir.path().join("www");
    std::fs::create_dir_all(root.join("adm")).unwrap();
    let root = root.display();
    let host = |section: &str| {
        let name = section.split(' ').next().unwrap();
        of(
            dir.path(),
            &format!(
                "DocumentRoot {root}\nAlias /other {root}/adm\n\
             <{section}>\nRequire ip 10.0.0.0/8\n</{name}>\n"
            ),
        )
    };
    for (section, wanted) in [
        (format!("DirectoryMatch ^{root}/adm"), "\"^/adm\""),
        (format!("DirectoryMatch ({root}/adm|/usr/share/x)"), "\"/adm*\""),
        (format!("DirectoryMatch ^{root}/.*/x$"), "^/.*/x(?:/|$)"),
        (format!("Directory {root}/*/x"), "^/[^/]*/x(?:/|$)"),
        ("DirectoryMatch /adm".into(), "path_regex = \"/adm\""),
        ("DirectoryMatch (^/nowhere|^/none)".into(), ""),
        ("Directory /usr/share/nowhere*".into(), ""),
        ("DirectoryMatch a.c".into(), "path = \"/*\""),
    ] {
        let toml = host(&section);
        match wanted {
            "" => assert!(!toml.contains("403"), "{section}\n{toml}"),
            wanted => assert!(route(&toml, wanted).contains("403"), "{section}\n{toml}"),
        }
    }
    // Two paths lead to this directory.
    let toml = host(&format!("Directory {root}/adm"));
    assert_eq!(toml.matches("allow = ").count(), 3, "{toml}");
}

#[test]
fn fields_with_a_condition_are_never_sent_to_all_backends() {
    for (line, wanted) in [
        ("RequestHeader set X-Internal 1 env=internal", "X-Internal = \"\""),
        (
            "RequestHeader set X-Internal 1 \"expr=%{REMOTE_ADDR} == '10.0.0.1'\"",
            "X-Internal = \"\"",
        ),
        ("RequestHeader set X-Internal %{who}e", "X-Internal = \"\""),
        ("RequestHeader edit X-Internal a b", "X-Internal = \"\""),
        ("RequestHeader setifempty X-Internal b", "X-Internal = \"\""),
        ("RequestHeader unset X-Internal env=other", "X-Internal = \"\""),
        (
            "RequestHeader set X-Internal 0\nRequestHeader set X-Internal 1 env=a",
            "X-Internal = \"0\"",
        ),
        ("RequestHeader set X-Internal 1", "X-Internal = \"1\""),
        ("RequestHeader set X-Forwarded-Proto https", "X-Forwarded-Proto = \"https\""),
    ] {
        let toml = passing(line);
        let found = route(&toml, "proxy");
        assert!(found.contains(&format!("request_headers = {{ {wanted} }}")), "{line}\n{toml}");
    }
    let toml = passing("Header set X-A 1 env=a\nHeader unset X-B env=b");
    assert!(!route(&toml, "proxy").contains("X-"), "{toml}");
}

#[test]
fn access_files_of_all_directories_are_read() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    let deny = "Require all denied\n";
    for name in ["www/a", "www/b", "cgi/x", "else/y"] {
        std::fs::create_dir_all(path(name)).unwrap();
    }
    for name in ["www/a/.acl", "cgi/x/.acl", "else/y/.acl"] {
        std::fs::write(path(name), deny).unwrap();
    }
    std::os::unix::fs::symlink(path("else"), path("www/b/link")).unwrap();
    // These links form cycles.
    std::os::unix::fs::symlink(path("www"), path("www/b/top")).unwrap();
    std::os::unix::fs::symlink(path("www/a"), path("else/a")).unwrap();
    std::os::unix::fs::symlink(path("www/b"), path("www/a/b")).unwrap();
    let root = dir.path().display();
    let text = format!(
        "AccessFileName .acl\nDocumentRoot {root}/www\nScriptAlias /cgi {root}/cgi\n\
         <Directory {root}>\nAllowOverride All\n</Directory>\n"
    );
    let toml = of(dir.path(), &text);
    for name in ["\"/a/*\"", "\"^/cgi/x/\"", "\"/b/link/y/*\""] {
        assert!(route(&toml, name).contains("deny = \"all\""), "{name}\n{toml}");
    }
    std::fs::write(path(".acl"), deny).unwrap();
    let toml = of(dir.path(), &text);
    assert!(route(&toml, "\"/*\"").contains("deny = \"all\""), "{toml}");
}

#[test]
fn htaccess_files_are_ignored_only_where_apache_ignores_all() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("www");
    std::fs::create_dir_all(root.join("up")).unwrap();
    let (root, above) = (root.display(), dir.path().display());
    let section = |dir: &str, line: &str| format!("<Directory {dir}>\n{line}\n</Directory>\n");
    let none = section(&root.to_string(), "AllowOverride None");
    for (sections, ignores) in [
        (none.clone(), true),
        (section(&above.to_string(), "AllowOverride none"), true),
        (section("/", "AllowOverride None\nAllowOverrideList None"), true),
        // Only this part of the configuration is silent; Debian's main file may not be.
        (String::new(), false),
        (section(&root.to_string(), "AllowOverride AuthConfig"), false),
        (
            section("/", "AllowOverride None") + &section(&root.to_string(), "AllowOverride All"),
            false,
        ),
        (section(&root.to_string(), "AllowOverride None\nAllowOverrideList Require"), false),
        (none.clone() + &section(&format!("{root}/up"), "AllowOverride Limit"), false),
        (none.clone() + &section(&format!("{root}/*"), "AllowOverride Limit"), false),
        (none + "<DirectoryMatch up>\nAllowOverride All\n</DirectoryMatch>\n", false),
    ] {
        let toml = of(dir.path(), &format!("DocumentRoot {root}\n{sections}"));
        assert_eq!(toml.contains("htaccess = \"ignore\""), ignores, "{sections}\n{toml}");
    }
}

#[test]
fn scripts_that_are_turned_off_do_not_run() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("www");
    std::fs::create_dir_all(root.join("up")).unwrap();
    let root = root.display();
    let handler = "<FilesMatch \\.php$>\nSetHandler proxy:fcgi://127.0.0.1:9\n</FilesMatch>";
    for (line, is_off) in [
        ("php_admin_value engine off", true),
        ("php_flag engine 0", true),
        ("RemoveHandler .php .phtml", true),
        ("AddType text/plain .php", true),
        ("SetHandler default-handler", true),
        ("<FilesMatch \\.php$>\nSetHandler none\n</FilesMatch>", true),
        ("php_flag engine on", false),
        ("AddType text/plain .txt", false),
    ] {
        let toml = of(
            dir.path(),
            &format!(
                "DocumentRoot {root}\n{handler}\n<Directory {root}/up>\n{line}\n</Directory>\n"
            ),
        );
        let found = routes(&toml).into_iter().find(|r| r.contains("/up/*"));
        let is_closed = found.is_some_and(|route| route.contains("phtml") && route.contains("403"));
        assert_eq!(is_closed, is_off, "{line}\n{toml}");
        assert!(toml.contains("fastcgi"), "{toml}");
    }
}

#[test]
fn links_and_listings_stay_hidden() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().display();
    for (lines, follows, lists) in [
        ("", true, false),
        ("Options None", false, false),
        ("Options -FollowSymLinks", false, false),
        ("Options +Indexes", true, true),
        ("Options Indexes SymLinksIfOwnerMatch", true, true),
        ("Options Indexes FollowSymLinks\nIndexIgnore .??* *~", true, true),
        ("Options Indexes FollowSymLinks\nIndexIgnore *", true, false),
    ] {
        let text = format!("DocumentRoot {root}\n<Directory {root}>\n{lines}\n</Directory>\n");
        let toml = of(dir.path(), &text);
        assert_eq!(!toml.contains("follow_symlinks = \"never\""), follows, "{lines}\n{toml}");
        assert_eq!(toml.contains("listing = true"), lists, "{lines}\n{toml}");
    }
}

#[test]
fn replies_of_rules_have_the_fields_and_slashes_of_apache() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(dir.path().join("www/dir")).unwrap();
    let root = dir.path().join("www").display().to_string();
    let toml = of(
        dir.path(),
        &format!(
            "LoadModule alias_module x.so\nDocumentRoot {root}\nAlias /smoke {root}/dir\n\
         DirectoryIndex index.php\nRewriteEngine on\nRewriteRule ^/x - [F]\n\
         Header always set X-A 1\nHeader set X-B 1\n"
        ),
    );
    assert!(route(&toml, "path = \"/smoke\"").contains("to = \"/smoke/\", status = 301"), "{toml}");
    let refused = route(&toml, "\"/x*\"");
    assert!(refused.contains("X-A = { value = \"1\", always = true }"), "{toml}");
    // Without a module for PHP, there is no hint about PHP.
    assert!(!toml.contains("PHP"), "{toml}");
}

#[test]
fn filters_and_handlers_of_a_whole_server_close_it() {
    for (line, is_closed) in [
        ("SecRuleEngine On", true),
        ("SecRuleEngine DetectionOnly", false),
        ("PerlAccessHandler \"sub handler\"", true),
        ("PerlAccessHandler My::Rule\nPerlTransHandler My::Trans", true),
        ("LuaHookAccessChecker /x.lua check", true),
    ] {
        let toml = passing(line);
        assert_eq!(!toml.contains("proxy ="), is_closed, "{line}\n{toml}");
    }
    for (line, is_guarded) in [
        ("PerlAccessHandler My::Rule", true),
        ("PerlHeaderParserHandler My::Rule", true),
        ("PerlInitHandler My::Rule", true),
        ("PerlInitHandler Apache2::Reload", false),
    ] {
        let toml = passing(line);
        assert!(toml.contains("proxy ="), "{line}\n{toml}");
        assert_eq!(toml.contains("perl_gate ="), is_guarded, "{line}\n{toml}");
        // A section whose paths have no translation for handlers.
        let toml = passing(&format!("<LocationMatch ^/p[0-9]+$>\n{line}\n</LocationMatch>"));
        assert_eq!(toml.contains("status = 403"), is_guarded, "{line}\n{toml}");
    }
    for (options, access) in [
        ("", "access = \"My::Inner\""),
        ("PerlOptions +MergeHandlers", "access = [\"My::Outer\", \"My::Inner\"]"),
        ("PerlOptions MergeHandlers", "access = [\"My::Outer\", \"My::Inner\"]"),
        ("PerlOptions +MergeHandlers -MergeHandlers", "access = \"My::Inner\""),
    ] {
        let toml = passing(&format!(
            "PerlAccessHandler My::Outer\n<Location /p>\n{options}\nPerlAccessHandler My::Inner\n</Location>"
        ));
        assert!(toml.contains(access), "{options}\n{toml}");
    }
}

#[test]
fn handlers_of_perl_guard_what_something_else_answers() {
    const LOGIN: &str = "AuthType Own\nAuthName x\nPerlAuthenHandler My::Auth->in\n";
    for (lines, is_translated) in [
        ("PerlAccessHandler My::Rule", true),
        ("PerlHeaderParserHandler My::Rule", true),
        ("AuthType Own\nRequire valid-user\nPerlAuthenHandler My::Auth", true),
        ("PerlAccessHandler My::Rule\nRequire ip 10.0.0.0/8", true),
        ("PerlAccessHandler \"sub { 0 }\"", true),
        ("PerlAccessHandler \"sub handler { 0 }\"", false),
        ("PerlAccessHandler My::Rule\nPerlFixupHandler My::Fixup", false),
        ("PerlAccessHandler My::Rule\nSatisfy Any", false),
        ("PerlAuthzHandler My::Rule\nRequire valid-user", false),
        (&format!("{LOGIN}<RequireAll>\nRequire valid-user\n</RequireAll>"), false),
        // Rules for some methods hold for all.
        (&format!("{LOGIN}<Limit POST>\nRequire valid-user\n</Limit>"), true),
        (&format!("{LOGIN}<Limit POST>\nRequire all granted\n</Limit>"), false),
        (
            &format!(
                "{LOGIN}<Limit GET>\nRequire user a\n</Limit>\n<Limit PUT>\nRequire user b\n</Limit>"
            ),
            false,
        ),
        (&format!("{LOGIN}<Limit PUT>\nDeny from all\n</Limit>\nRequire valid-user"), false),
        (&format!("{LOGIN}AuthMerging And\nRequire valid-user"), false),
        ("PerlAddAuthzProvider own My::Rule\nRequire own a", true),
        ("PerlAddAuthzProvider own My::Rule\nAuthType Basic\nRequire own a", false),
        ("PerlAddAuthzProvider own My::Rule\nRequire other a", false),
        ("PerlAddAuthzProvider user My::Rule\nRequire user a", false),
        (&format!("{LOGIN}Require all granted"), false),
        (LOGIN, false),
    ] {
        let toml = passing(&format!("<Location /p>\n{lines}\n</Location>"));
        let guarded = route(&toml, "\"/p/*\"");
        assert_eq!(guarded.contains("proxy ="), is_translated, "{lines}\n{toml}");
        assert_eq!(guarded.contains("perl_gate ="), is_translated, "{lines}\n{toml}");
        assert!(!toml.contains("root ="), "{toml}");
        if lines.contains("Require ip") {
            assert!(guarded.contains("allow = "), "{toml}");
        }
    }
    // The handlers of an application of their own, too.
    let dir = tempfile::tempdir().unwrap();
    let text = format!(
        "DocumentRoot {}\n<Location /p>\nSetHandler perl-script\nPerlResponseHandler My::Page\n\
         {LOGIN}<RequireAll>\nRequire valid-user\n</RequireAll>\n</Location>\n",
        dir.path().display()
    );
    let toml = of(dir.path(), &text);
    assert!(!route(&toml, "\"/p/*\"").contains("app ="), "{toml}");
}

#[test]
fn the_rules_of_a_script_apply_to_its_own_path() {
    let dir = tempfile::tempdir().unwrap();
    let scripts = dir.path().join("scripts");
    std::fs::create_dir_all(scripts.join("sub")).unwrap();
    std::fs::write(scripts.join("x.cgi"), "#!/bin/sh\n").unwrap();
    let scripts = scripts.display();
    let host = |alias: &str, section: &str| {
        let name = section.split(' ').next().unwrap();
        let section = section.replace("{}", &scripts.to_string());
        let text = format!(
            "{}\n<{section}>\nRequire ip 10.0.0.0/8\n</{name}>\n",
            alias.replace("{}", &scripts.to_string())
        );
        of(dir.path(), &text)
    };
    for (alias, section, wanted) in [
        ("ScriptAlias /c/ {}/", "Location /c/x.cgi", r"'^/c/x\.cgi(?:/|$)'"),
        ("ScriptAlias /c {}", "Location /c/x.cgi/admin", r"'^/c/x\.cgi/admin(?:/|$)'"),
        ("ScriptAlias /c/ {}/", "Directory {}/sub", "\"^/c/sub/\""),
        ("ScriptAlias /c {}/x.cgi", "Location /c/admin", "\"^/c/admin(?:/|$)\""),
    ] {
        let toml = host(alias, section);
        let mut all = routes(&toml);
        all.retain(|route| route.contains("cgi = "));
        // The path is that of the alias: it selects the script and sets SCRIPT_NAME.
        assert!(all[0].contains(wanted) && all[0].contains("\"/c/*\""), "{section}:\n{toml}");
        assert!(all[0].contains("allow = "), "{section}:\n{toml}");
        assert!(!all[1].contains("allow = "), "{section}:\n{toml}");
    }
}

#[test]
fn the_rules_of_a_file_apply_to_its_own_path() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("www");
    std::fs::create_dir_all(&root).unwrap();
    for name in ["a.txt", "a.php", "a.own"] {
        std::fs::write(root.join(name), name).unwrap();
    }
    let root = root.display();
    let php = "<FilesMatch \\.php$>\nSetHandler proxy:fcgi://127.0.0.1:9\n</FilesMatch>";
    let cgi =
        format!("AddHandler cgi-script .own\n<Directory {root}>\nOptions ExecCGI\n</Directory>");
    for (lines, path, wanted) in [
        ("", "/al/a.txt", r"'^/al/a\.txt$'"),
        ("", "/al/none", "\"^/al/none$\""),
        ("", "/al/a.txt/info", r"'^/al/a\.txt/info$'"),
        (php, "/a.php", "paths = [\"/a.php\", \"/a.php/*\"]"),
        (php, "/al/a.php", "paths = [\"/al/a.php\", \"/al/a.php/*\"]"),
        ("AddHandler perl-script .own", "/a.own", "paths = [\"/a.own\", \"/a.own/*\"]"),
        (&cgi, "/al/a.own", "program = "),
    ] {
        let section = format!("<Location {path}>\nRequire ip 10.0.0.0/8\n</Location>");
        let toml =
            of(dir.path(), &format!("DocumentRoot {root}\nAlias /al {root}\n{lines}\n{section}\n"));
        let all = routes(&toml);
        let guarded = all.iter().position(|route| route.contains(wanted));
        assert!(guarded.is_some_and(|at| all[at].contains("allow = ")), "{path}:\n{toml}");
        // No route before takes the path without the rule.
        let mut before = all[..guarded.unwrap_or_default()].iter();
        let is_met = |route: &String| path.starts_with("/al") || !route.contains("\"/al");
        let is_guarded = before.all(|route| route.contains("allow = ") || !is_met(route));
        assert!(is_guarded, "{path}:\n{toml}");
        let is_sent = |route: &&String| route.contains("files = ") && route.contains("allow = ");
        assert!(wanted.contains("own") || all.iter().any(|route| is_sent(&route)), "{toml}");
    }
}

#[test]
fn a_closed_directory_is_not_revealed_by_a_redirect() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("www");
    std::fs::create_dir_all(root.join("closed/sub")).unwrap();
    let root = root.display();
    for (alias, path) in [("DocumentRoot", "/closed"), ("Alias /al", "/al/closed")] {
        for (rule, key) in [("Require all denied", "deny = \"all\""), ("Require own x", "403")] {
            let section = format!("<Directory {root}/closed>\n{rule}\n</Directory>");
            let toml = of(dir.path(), &format!("{alias} {root}\n{section}\n"));
            let all = routes(&toml);
            let takes = |route: &&String| route.contains(&format!("\"{path}\""));
            let first = all.iter().find(takes);
            assert!(first.is_some_and(|route| route.contains(key)), "{path}:\n{toml}");
            assert!(all.iter().filter(takes).all(|route| route.contains(key)), "{path}:\n{toml}");
        }
    }
    // The path without a slash is no part of this alias.
    let section = format!("<Directory {root}/closed>\nRequire all denied\n</Directory>");
    let toml = of(dir.path(), &format!("Alias /al/ {root}/closed/\n{section}\n"));
    assert!(!toml.contains("\"/al\""), "{toml}");
}

#[test]
fn php_runs_only_if_apache_has_php() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("www");
    std::fs::create_dir(&root).unwrap();
    std::fs::write(root.join("x.php"), "<?php").unwrap();
    let host = format!(
        "Listen 8080\n<VirtualHost *:8080>\nServerName a.example\nDocumentRoot {}\n",
        root.display()
    );
    let has_app = |lines: &str| {
        let text = format!("{lines}\n{host}</VirtualHost>\n");
        let found = translated(Language::Apache, dir.path(), "apache2.conf", &text);
        let is_reported = found.notes.iter().any(|note| note.next.contains("PHP"));
        let runs = found.toml.contains("app = ");
        assert_ne!(runs, is_reported, "{text}:\n{}", found.toml);
        runs
    };
    let handler = "AddType application/x-httpd-php .php";
    // Without php-fpm, PHP routes are closed on this machine.
    if !has_app("") {
        return;
    }
    assert!(has_app("LoadModule php_module x.so"));
    assert!(has_app(&format!("LoadModule actions_module x.so\n{handler}")));
    assert!(!has_app("LoadModule alias_module x.so"));
    assert!(!has_app(&format!("LoadModule alias_module x.so\n{handler}")));
}

#[test]
fn rules_for_upgrades_become_routes_or_notes() {
    let rule = |condition: &str, rule: &str| {
        passing(&format!("RewriteEngine On\nRewriteCond {condition}\nRewriteRule {rule} [P,L]"))
    };
    for condition in ["%{HTTP:Upgrade} websocket [NC]", "%{HTTP:Upgrade} =websocket [NC]"] {
        for (text, path) in [
            ("^/ws/(.*) ws://127.0.0.1:31/ws/$1", "path = \"/ws/*\""),
            ("/(.*) ws://127.0.0.1:31/$1", "path = \"/*\""),
            ("^/(.*)$ ws://127.0.0.1:31/$1", "path = \"/*\""),
        ] {
            let toml = rule(condition, text);
            let found = route(&toml, "http://127.0.0.1:31");
            let both = [path, "header = { Upgrade = \"~*"];
            assert!(both.iter().all(|part| found.contains(part)), "{condition} {text}:\n{toml}");
        }
    }
    let toml = rule("%{QUERY_STRING} transport=websocket [NC]", "^/(.*) ws://127.0.0.1:31/$1");
    assert!(toml.contains("NOT TRANSLATED") && !toml.contains("403"), "{toml}");
}

#[test]
fn redirects_by_the_forwarded_scheme_close_nothing() {
    for (condition, wanted) in [
        ("!https", "not = { header = { X-Forwarded-Proto = \"~https\" } }"),
        ("!=https", "not = { header = { X-Forwarded-Proto = \"https\" } }"),
        ("=http", "header = { X-Forwarded-Proto = \"http\" }"),
        ("^http$", "header = { X-Forwarded-Proto = \"~^http$\" }"),
    ] {
        let toml = passing(&format!(
            "RewriteEngine On\nRewriteCond %{{HTTP:X-Forwarded-Proto}} {condition}\n\
             RewriteRule ^ https://%{{HTTP_HOST}}%{{REQUEST_URI}} [R=301,L]"
        ));
        assert!(route(&toml, "redirect =").contains(wanted), "{condition}:\n{toml}");
        assert!(!toml.contains("403") && !toml.contains("NOT TRANSLATED"), "{condition}:\n{toml}");
    }
}

#[test]
fn methods_that_all_clients_are_refused_get_their_own_route() {
    for (lines, wanted) in [
        (
            "<LimitExcept GET HEAD POST>\nRequire all denied\n</LimitExcept>",
            "when = { not = { method = [\"GET\", \"HEAD\", \"POST\"] } }",
        ),
        ("<Limit POST PUT>\nDeny from all\n</Limit>", "methods = [\"POST\", \"PUT\"]"),
        ("<Limit POST>\nOrder allow,deny\nDeny from all\n</Limit>", "methods = [\"POST\"]"),
    ] {
        for toml in [with_htaccess(lines), passing(&format!("<Location /w>\n{lines}\n</Location>"))]
        {
            let all = routes(&toml);
            let at = |text: &str| all.iter().position(|route| route.contains(text));
            let refused = at(wanted).unwrap_or_else(|| panic!("{lines}:\n{toml}"));
            assert!(all[refused].contains("403") && all[refused].contains("/w"), "{toml}");
            let open = all.iter().enumerate().skip(refused);
            let mut open = open.filter(|(_, route)| route.contains("/w/*"));
            assert!(open.any(|(_, route)| !route.contains("403")), "{lines}:\n{toml}");
            assert!(!toml.contains("<Limit POST PUT>:") && !toml.contains("POST>:"), "{toml}");
        }
    }
    for rules in ["Require valid-user", "Require all denied\nRequire ip 10.0.0.0/8"] {
        let toml = with_htaccess(&format!("<Limit POST PUT>\n{rules}\n</Limit>"));
        let whole = route(&toml, "\"/w/*\"");
        assert!(whole.contains("403") && !whole.contains("methods"), "{rules}:\n{toml}");
    }
}

#[test]
fn the_note_on_a_closed_site_names_the_line_that_closes_it() {
    let dir = tempfile::tempdir().unwrap();
    let text = "Listen 8080\n<VirtualHost *:8080>\nServerName a.example\n\
                ProxyPass / http://127.0.0.1:9/\nHeader set X-E \"%{FOO}e\"\n\
                <If \"%{HTTP_HOST} == 'b'\">\nRequire all denied\n</If>\n</VirtualHost>\n";
    let found = translated(Language::Apache, dir.path(), "apache2.conf", text);
    let closing: Vec<_> =
        found.notes.iter().filter(|note| note.to_string().contains("closes all of")).collect();
    assert!(closing.len() == 1 && closing[0].line == 6, "{:?}", found.notes);
}

#[test]
fn a_condition_on_the_path_does_not_change_groups() {
    let rules = "RewriteEngine On\nRewriteCond %{REQUEST_URI} ^/old/a\n\
                 RewriteRule ^/old/(.*)$ /new/$1 [R=301,L]";
    let toml = passing(rules);
    let found = route(&toml, "/new/{rest}");
    assert!(found.contains("path = \"/old/*\"") && found.contains("path_regex ="), "{toml}");
}
