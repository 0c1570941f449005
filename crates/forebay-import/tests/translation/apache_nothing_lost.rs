//! Lines of Apache that a translation could lose silently: error pages, front controllers in virtual
//! hosts, and lines in sections. The answers were compared with those of Apache 2.4.

use forebay_import::{Imported, Language};

use crate::support::{notes, translated};

/// Returns the translation of a host with a directory of files, which Forebay must accept.
fn host(lines: &str) -> Imported {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("www");
    std::fs::create_dir_all(root.join("private")).unwrap();
    for name in ["404.html", "front.html", "index.html", "private/500.html", ".hidden.html"] {
        std::fs::write(root.join(name), name).unwrap();
    }
    let root = root.display();
    let text = format!(
        "Listen 8080\n<VirtualHost *:8080>\nServerName a.example\nDocumentRoot {root}\n{}\n\
         </VirtualHost>\n",
        lines.replace("{}", &root.to_string())
    );
    let found = translated(Language::Apache, dir.path(), "apache2.conf", &text);
    let toml = found.toml.replace(&root.to_string(), "ROOT");
    Imported { toml, ..found }
}

#[test]
fn fields_that_keep_those_of_the_application_are_added() {
    for (line, wanted) in [
        ("Header append Vary User-Agent", "add_headers = { Vary = \"User-Agent\" }"),
        ("Header merge Vary User-Agent", "add_headers = { Vary = \"User-Agent\" }"),
        ("Header add Link a", "add_headers = { Link = \"a\" }"),
        ("Header set X-A b", "set_headers = { X-A = \"b\" }"),
        ("Header append Vary A\nHeader append Vary B", "Vary = { value = [\"A\", \"B\"] }"),
        (
            "Header edit Set-Cookie ^(.*)$ $1;HttpOnly;Secure",
            "cookies = { http_only = true, secure = true }",
        ),
        (
            "Header always edit Set-Cookie (.*) \"$1; SameSite=Lax\"",
            "cookies = { same_site = \"lax\" }",
        ),
        (
            "Header always set Strict-Transport-Security max-age=9 \"expr=%{HTTPS} == 'on'\"",
            "Strict-Transport-Security = { value = \"max-age=9\", always = true }",
        ),
        (
            "ExpiresActive on\nExpiresDefault A60\nExpiresByType image/png \"access plus 1 day\"\n\
             ExpiresByType text/html A0",
            "expires = { default = \"1m\", types = { \"image/png\" = \"1d\", \"text/html\" = \"0s\" } }",
        ),
        ("Header setifempty X-A b", "X-A = { value = \"b\", if_missing = true }"),
    ] {
        let found = host(line);
        assert!(found.toml.contains(wanted), "{line}:\n{}", found.toml);
    }
}

#[test]
fn redirects_to_the_other_form_of_the_host_are_translated() {
    for (conditions, rule, wanted) in [
        (
            r"%{HTTP_HOST} ^www\.(.+)$ [NC]",
            "^(.*)$ https://%1$1",
            "https://{bare_host}{requested_port}{path}",
        ),
        (
            r"%{HTTP_HOST} ^(?:www\.)?(.+)$ [NC]",
            "^ https://%1%{REQUEST_URI}",
            "https://{bare_host}{requested_port}{path}",
        ),
        (
            r"%{HTTP_HOST} !^www\. [NC]",
            "^(.*)$ https://www.%{HTTP_HOST}$1",
            "https://www.{host}{requested_port}{path}",
        ),
    ] {
        let lines =
            format!("RewriteEngine on\nRewriteCond {conditions}\nRewriteRule {rule} [R=301,L]");
        let found = host(&lines);
        assert!(found.toml.contains(wanted), "{lines}:\n{}", found.toml);
        assert_eq!(found.notes, [], "{lines}:\n{}", found.toml);
    }
    let found = host("Header set X-A b\nHeader setifempty X-A c");
    assert!(found.toml.contains("set_headers = { X-A = \"b\" }"), "{}", found.toml);
    for line in ["ExpiresByType", "ExpiresByType image A5", "ExpiresByType text/html"] {
        let found = host(&format!("ExpiresActive on\n{line}"));
        assert!(!found.notes.is_empty() && !found.toml.contains("403"), "{line}:\n{}", found.toml);
    }
    let found = host("Header edit Set-Cookie ^(.*)$ \"$1; HttpOnly\" env=nope");
    assert!(!found.notes.is_empty() && !found.toml.contains("cookies ="), "{}", found.toml);
    let found = host("Header set X-Time %D");
    assert!(!found.notes.is_empty() && !found.toml.contains("\"%D\""), "{}", found.toml);
}

#[test]
fn error_documents_become_error_pages_or_are_reported() {
    for (lines, wanted) in [
        ("ErrorDocument 404 /404.html", "error_pages = { 404 = \"ROOT/404.html\" }"),
        (
            "ErrorDocument 404 /404.html\nErrorDocument 500 /front.html",
            "error_pages = { 404 = \"ROOT/404.html\", 500 = \"ROOT/front.html\" }",
        ),
        ("Alias /e {}\nErrorDocument 404 /e/404.html", "404 = \"ROOT/404.html\""),
        (
            "<Directory {}/private>\nErrorDocument 404 /404.html\n</Directory>",
            "  error_pages = { 404 = \"ROOT/404.html\" }",
        ),
        (
            "<Location /private>\nErrorDocument 403 /404.html\n</Location>",
            "  error_pages = { 403 = \"ROOT/404.html\" }",
        ),
        ("ProxyPass /p http://127.0.0.1:9/\nProxyErrorOverride On", "intercept = true"),
    ] {
        let found = host(lines);
        assert!(found.toml.contains(wanted), "{lines}:\n{}", found.toml);
        assert_eq!(found.notes, [], "{lines}:\n{}", found.toml);
    }
    let private = "<Directory {}/private>\nRequire all denied\n</Directory>";
    let files = "<FilesMatch 404>\nRequire all denied\n</FilesMatch>";
    for lines in [
        "ErrorDocument 403 \"Sorry\"",
        "ErrorDocument 403 https://other.example/",
        "ErrorDocument 404 /none.html",
        "ErrorDocument 403 /404.php",
        "ErrorDocument 404 /../404.html",
        "ErrorDocument 404 /.hidden.html",
        "ErrorDocument 404",
        "ErrorDocument x /404.html",
        // Clients must not get files that Apache refuses.
        &format!("{private}\nErrorDocument 500 /private/500.html"),
        &format!("{files}\nErrorDocument 500 /404.html"),
        "<Directory {}/private>\nErrorDocument 403 \"Sorry\"\n</Directory>",
        "<Files *.txt>\nErrorDocument 404 /404.html\n</Files>",
    ] {
        let found = host(lines);
        assert!(!found.toml.contains("error_pages ="), "{lines}:\n{}", found.toml);
        let is_named = found.notes.iter().any(|note| note.directive.starts_with("ErrorDocument"));
        assert!(is_named, "{lines}:\n{}", found.toml);
    }
}

#[test]
fn front_controllers_of_a_virtual_host_answer_as_in_apache() {
    let missing = "RewriteCond %{DOCUMENT_ROOT}%{REQUEST_URI} !-f\n\
                   RewriteCond %{DOCUMENT_ROOT}%{REQUEST_URI} !-d";
    let present = "RewriteCond %{DOCUMENT_ROOT}/%{REQUEST_FILENAME} -f [OR]\n\
                   RewriteCond %{DOCUMENT_ROOT}/%{REQUEST_FILENAME} -d\nRewriteRule ^ - [L]";
    let unmapped = "RewriteCond %{REQUEST_FILENAME} !-f\nRewriteCond %{REQUEST_FILENAME} !-d";
    for (rules, wanted) in [
        // In a virtual host, REQUEST_FILENAME has the path of the URL, which is no file.
        (
            "RewriteCond %{REQUEST_URI} ^/app\nRewriteCond %{REQUEST_FILENAME} !-f\n\
             RewriteRule ^ /front.html [L]",
            "path = \"/app*\"\n  rewrite = \"/front.html\"",
        ),
        (
            &format!("{unmapped}\nRewriteRule ^.*$ /front.html [L]"),
            "path = \"/*\"\n  rewrite = \"/front.html\"",
        ),
        (&format!("{missing}\nRewriteRule ^ /front.html [L]"), "fallback_to = \"/front.html\""),
        (
            &format!("{missing}\nRewriteRule ^/(.*)$ /front.html?q=$1 [L,QSA]"),
            "fallback_to = \"/front.html?q={rest}\"",
        ),
        (
            &format!("{missing}\nRewriteRule ^(.*)$ /front.html?q=$1 [L,QSA]"),
            "fallback_to = \"/front.html?q={path}\"",
        ),
        (
            &format!("{missing}\nRewriteRule ^/app/ /front.html [L]"),
            "path_regex = \"^(?:/app/)\"\n  fallback_to = \"/front.html\"",
        ),
        (&format!("{present}\nRewriteRule ^.*$ /front.html [L]"), "fallback_to = \"/front.html\""),
        (
            &format!("RewriteRule ^/front\\.html$ - [L]\n{missing}\nRewriteRule . /front.html"),
            "fallback_to = \"/front.html\"",
        ),
    ] {
        let found = host(&format!("RewriteEngine On\n{rules}"));
        assert!(found.toml.contains(wanted), "{rules}:\n{}", found.toml);
        // The route of the front controller itself stays.
        assert!(found.toml.contains("files = \"ROOT\""), "{rules}:\n{}", found.toml);
        assert_eq!(found.notes, [], "{rules}:\n{}", found.toml);
    }
}

#[test]
fn rules_that_end_early_are_reported() {
    for rules in [
        "RewriteCond %{DOCUMENT_ROOT}%{REQUEST_URI} !-f\nRewriteRule ^/app/(.*) /front.html?q=$1",
        "RewriteRule ^/api - [L]\nRewriteRule ^ /front.html [L]",
        "RewriteCond %{HTTP_HOST} =b\nRewriteRule ^ - [S=1]\nRewriteRule ^ /front.html",
        "RewriteRule ^/x$ /front.html [CO=a:b:c]",
        "RewriteRule ^ - [E=OWN:1]",
        "RewriteCond %{DOCUMENT_ROOT}%{REQUEST_URI} !-f\nRewriteRule ^ https://b.example/ [R]",
    ] {
        let found = host(&format!("RewriteEngine On\n{rules}"));
        assert!(!found.notes.is_empty(), "{rules}:\n{}", found.toml);
    }
    // Without the stop, the backend would get requests that Apache keeps from it.
    let found = host(
        "RewriteEngine On\nRewriteRule ^/admin - [L]\nRewriteRule ^/(.*)$ http://127.0.0.1:9/$1 [P]",
    );
    let closed = found.toml.find("path_regex = \"~*^/admin\"\n  respond = { status = 403 }");
    assert!(closed < found.toml.find("proxy ="), "{}", found.toml);
    assert!(closed.is_some(), "{}", found.toml);
}

#[test]
fn a_note_on_a_host_does_not_hide_its_lines() {
    // The note on the host is about its certificate.
    let found = host("SSLEngine on\nKeepAliveTimeout 9");
    let names = |name: &str| found.notes.iter().any(|note| note.directive.starts_with(name));
    assert!(names("<VirtualHost") || names("VirtualHost"), "{:?}", found.notes);
    assert!(names("KeepAliveTimeout"), "{:?}", found.notes);
}

#[test]
fn only_tests_for_files_make_a_fallback() {
    let of = |lines: &str| {
        let lines = lines.replace('@', "RewriteCond %{REQUEST_FILENAME}");
        host(&format!("<Directory {{}}>\nRewriteEngine On\n{lines}\n</Directory>"))
    };
    let rule = "RewriteRule ^ front.html [L]";
    for lines in [
        "@ -d\nRewriteRule ^ - [L]",
        "@ -d [OR]\n@ -l\nRewriteRule ^ - [L]",
        "@ -h\nRewriteRule ^ - [L]",
        "@ !-d",
        "@ !-l",
        "@ !-d [OR]\n@ !-l",
        "@ !-f [OR]\n@ !-l",
    ] {
        let found = of(&format!("{lines}\n{rule}"));
        assert!(!found.toml.contains("fallback_to"), "{lines}:\n{}", found.toml);
        assert!(!found.notes.is_empty(), "{lines}:\n{}", found.toml);
    }
    // Each path is no file or no directory.
    let found = of(&format!("@ !-f [OR]\n@ !-d\n{rule}"));
    assert!(found.toml.contains("rewrite = \"/front.html\""), "{}", found.toml);
    assert!(!found.toml.contains("fallback_to"), "{}", found.toml);
    for lines in [
        "@ -s [OR]\n@ -l [OR]\n@ -d\nRewriteRule ^.*$ - [L]",
        "@ -d [OR]\n@ -f\nRewriteRule ^ - [L]",
        "@ !-d\n@ !-f",
        "@ !-l\n@ !-d\n@ !-e",
        "@ !-f [OR]\n@ !-s",
    ] {
        let found = of(&format!("{lines}\n{rule}"));
        assert!(found.toml.contains("fallback_to = \"/front.html\""), "{lines}:\n{}", found.toml);
        assert_eq!(found.notes, [], "{lines}:\n{}", found.toml);
    }
}

#[test]
fn a_stop_for_some_paths_makes_no_fallback() {
    let of = |pattern: &str| {
        let test = "RewriteCond %{DOCUMENT_ROOT}%{REQUEST_URI} -f";
        format!("RewriteEngine On\n{test}\nRewriteRule {pattern} - [L]\nRewriteRule ^ /front.html")
    };
    let in_directory = |pattern| format!("<Directory {{}}>\n{}\n</Directory>", of(pattern));
    let lines = ["^/$", "^/?$", "^.$", "^.?$", "/$", "^(/)$"].map(of).into_iter();
    for lines in lines.chain(["^/", "^/.*", "^/(.*)$", "/"].map(in_directory)) {
        let found = host(&lines);
        assert!(!found.toml.contains("fallback_to"), "{lines}:\n{}", found.toml);
        assert!(!found.notes.is_empty(), "{lines}:\n{}", found.toml);
    }
    let lines = ["^", ".", "^/", "^/?", "^/(.*)$", "(.*)", "^.*$"].map(of).into_iter();
    for lines in lines.chain(["^", ".", "^/?", "^/?(.*)$", "^(.*)$"].map(in_directory)) {
        let found = host(&lines);
        assert!(found.toml.contains("fallback_to = \"/front.html\""), "{lines}:\n{}", found.toml);
    }
}

#[test]
fn a_section_without_the_page_of_the_site_is_reported() {
    let section = "<Directory {}/private>\nErrorDocument 404 default\n</Directory>";
    let found = host(&format!("ErrorDocument 404 /404.html\n{section}"));
    let notes = found.notes.iter().map(|note| &*note.directive).collect::<Vec<_>>();
    assert_eq!(notes, ["ErrorDocument 404 default"], "{}", found.toml);
    // Without a page of the site, the line has no effect.
    assert_eq!(host(section).notes, []);
}

#[test]
fn a_group_is_replaced_by_its_members() {
    let found = host("<Location /private>\nRequire group staff\n</Location>");
    let next = "name the members of the group in `users`";
    assert!(found.notes.iter().any(|note| note.next.starts_with(next)), "{:?}", found.notes);
}

#[test]
fn each_backend_keeps_its_proxy_section() {
    let section =
        |port| format!("<Proxy http://127.0.0.1:{port}/>\nProxySet timeout={port}\n</Proxy>\n");
    let found = host(&format!(
        "ProxyPass /a http://127.0.0.1:1/\nProxyPass /b http://127.0.0.1:2/\n{}{}{}",
        section(1),
        section(2),
        section(3)
    ));
    let mut notes = found.notes.iter().map(|note| &*note.directive).collect::<Vec<_>>();
    notes.sort_unstable();
    // No backend has the third section.
    assert_eq!(notes, ["ProxySet timeout=1", "ProxySet timeout=2"], "{}", found.toml);
}

#[test]
fn a_host_keeps_the_names_that_no_other_host_has() {
    let next = "</VirtualHost>\n<VirtualHost *:8080>\nProxyPass / http://127.0.0.1:9/\n";
    let found = host(&format!("{next}ServerName b.example\nServerAlias a.example"));
    let hosts = found.toml.lines().filter(|line| line.starts_with("hosts =")).collect::<Vec<_>>();
    assert_eq!(hosts, ["hosts = [\"a.example\"]", "hosts = [\"b.example\"]"], "{}", found.toml);
    let is_named = found.notes.iter().any(|note| note.next.ends_with(": a.example"));
    assert!(is_named, "{:?}", found.notes);
    let found = host(&format!("{next}ServerName a.example"));
    assert!(!found.toml.contains("127.0.0.1:9"), "{}", found.toml);
}

#[test]
fn certificates_that_are_not_used_are_reported() {
    let found = host(
        "SSLEngine on\nSSLCertificateFile {}/front.html\nSSLCertificateFile {}/404.html\n\
         SSLCertificateKeyFile {}/index.html",
    );
    assert!(found.toml.contains("certificate = \"ROOT/404.html\""), "{}", found.toml);
    let notes = found.notes.iter().map(|note| &*note.directive).collect::<Vec<_>>();
    assert_eq!(notes.len(), 1, "{notes:?}");
    assert!(notes[0].starts_with("SSLCertificateFile") && notes[0].contains("front"), "{notes:?}");
}

#[test]
fn unreadable_keep_alive_lines_are_reported() {
    let of = |lines: &str| {
        let next = "<VirtualHost *:8080>\nServerName b.example";
        let found = host(&format!("</VirtualHost>\n{lines}\n{next}"));
        found.notes.into_iter().map(|note| note.directive).collect::<Vec<_>>()
    };
    assert_eq!(of("KeepAliveTimeout 9\nMaxKeepAliveRequests 9"), [""; 0]);
    let lines = "KeepAliveTimeout long\nMaxKeepAliveRequests many";
    assert_eq!(of(lines), ["KeepAliveTimeout long", "MaxKeepAliveRequests many"]);
    assert_eq!(of(&format!("KeepAlive Off\n{lines}")), [""; 0]);
}

#[test]
fn the_fallback_of_a_host_precedes_that_of_a_directory() {
    let found = host(
        "RewriteEngine On\nRewriteCond %{DOCUMENT_ROOT}%{REQUEST_URI} !-f\n\
         RewriteRule ^ /front.html [L]\n<Directory {}>\nRewriteEngine On\n\
         RewriteCond %{REQUEST_FILENAME} !-f\nRewriteRule ^ index.html [L]\n</Directory>",
    );
    assert!(found.toml.contains("fallback_to = \"/front.html\""), "{}", found.toml);
    assert!(!found.toml.contains("fallback_to = \"/index.html\""), "{}", found.toml);
}

#[test]
fn an_index_by_script_alias_runs_the_script() {
    let scripts = "ScriptAlias /m/run.cgi {}/front.html\nAlias /m {}/private\n";
    let index = |names: &str| {
        let lines = format!("<Directory {{}}/private>\nDirectoryIndex {names}\n</Directory>");
        let toml = host(&format!("{scripts}{lines}")).toml;
        let rewrite = "path = \"/m/\"\n  rewrite = \"/m/run.cgi\"";
        toml.contains(rewrite)
    };
    assert!(index("run.cgi"));
    assert!(index("none.html run.cgi"));
    assert!(index("/m/run.cgi"));
    assert!(!index("500.html run.cgi"), "the file is the index");
    assert!(!index("other.cgi"));
    assert!(!index("../run.cgi"));
}

#[test]
fn handlers_of_other_servers_are_reported() {
    for lines in [
        "<Directory {}/private>\nSetHandler proxy:http://127.0.0.1:9\n</Directory>",
        "<FilesMatch \\.jsp$>\nSetHandler proxy:http://127.0.0.1:9\n</FilesMatch>",
    ] {
        let found = host(lines);
        let notes = notes(&found).join("\n");
        assert!(notes.contains("write a route with `proxy`"), "{lines}:\n{notes}");
        assert!(found.toml.contains("respond = { status = 403 }"), "{lines}:\n{}", found.toml);
    }
}

#[test]
fn bodies_have_the_limit_of_apache() {
    let proxy = "ProxyPass /p http://127.0.0.1:9/";
    let section = "<Location /p>\nLimitRequestBody 7\n</Location>";
    for (lines, of_site, of_route) in [
        (proxy.to_owned(), true, None),
        ("ScriptAlias /c {}/front.html".to_owned(), true, None),
        (format!("{proxy}\nLimitRequestBody 5"), false, Some("max_body = 5")),
        (format!("{proxy}\nLimitRequestBody 0"), false, Some("max_body = \"unlimited\"")),
        (format!("{proxy}\n{section}"), false, Some("max_body = 7")),
        (format!("{proxy}\nProxyPass /q http://127.0.0.1:9/\n{section}"), true, Some("= 7")),
        // Files take no bodies.
        (String::new(), false, None),
    ] {
        let found = host(&lines);
        let (site, routes) = found.toml.split_once("[[site.route]]").unwrap();
        assert_eq!(site.contains("max_body = \"1GiB\""), of_site, "{lines}:\n{}", found.toml);
        let is_limited = of_route.is_none_or(|wanted| routes.contains(wanted));
        assert!(is_limited, "{lines}:\n{}", found.toml);
        assert!(of_route.is_some() || !routes.contains("max_body"), "{lines}:\n{}", found.toml);
        assert_eq!(found.notes, [], "{lines}:\n{}", found.toml);
    }
}

#[test]
fn lines_about_digests_name_the_key_for_them() {
    let lines = ["AuthType Digest", "AuthDigestDomain /private", "AuthDigestProvider file"];
    let found = host(&format!(
        "<Location /private>\n{}\nAuthName a\nAuthUserFile {{}}/404.html\nRequire valid-user\n\
         </Location>",
        lines.join("\n")
    ));
    for line in lines {
        let note = found.notes.iter().find(|note| note.directive == line);
        let is_named = note.is_some_and(|note| note.next.contains("`digest_auth`"));
        assert!(is_named, "{line}: {:?}", found.notes);
    }
    assert!(found.toml.contains("respond = { status = 403 }"), "{}", found.toml);
}
