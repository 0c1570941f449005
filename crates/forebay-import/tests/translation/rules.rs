//! The rules of all importers: a translation is never more open than its original, no line is lost
//! silently, and no site is closed without need. Each table has the same faults in the languages of
//! all three servers.

use forebay_import::Language::{self, Apache, Caddy, Nginx};

use crate::support::{notes, translated};

/// Returns the translation and its notes. `ROOT` in the text is the directory of the configuration.
fn of(language: Language, text: &str) -> (String, String) {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().display().to_string();
    std::fs::create_dir(dir.path().join("www")).unwrap();
    let found = translated(language, dir.path(), "old.conf", &text.replace("ROOT", &root));
    let shown = |text: &str| text.replace(&root, "ROOT");
    (shown(&found.toml), shown(&notes(&found).join("\n")))
}

fn nginx(text: &str) -> String {
    format!(
        "events {{}}\nhttp {{\nserver {{ listen 8080; server_name a.example; root ROOT/www;\n{text}\n}}\n}}\n"
    )
}

fn apache(text: &str) -> String {
    format!(
        "Listen 8080\nServerName a.example\nDocumentRoot ROOT/www\n<Directory ROOT/www>\nRequire all granted\n</Directory>\n{text}\n"
    )
}

fn caddy(text: &str) -> String {
    format!("http://a.example {{\nroot * ROOT/www\n{text}\nfile_server\n}}\n")
}

#[test]
fn hidden_files_of_a_pattern_are_not_read() {
    for (language, include, line) in [
        (Nginx, "events {}\nhttp { include conf.d/*; }", "server { listen 8080; return NUMBER; }"),
        (
            Apache,
            "Listen 8080\nServerName a\nDocumentRoot /srv\nInclude conf.d/*",
            "Redirect NUMBER /",
        ),
        (Caddy, "import conf.d/*", "http://a.example {\nrespond NUMBER\n}"),
    ] {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("conf.d")).unwrap();
        let write = |name: &str, text: &str| {
            std::fs::write(dir.path().join("conf.d").join(name), text).unwrap();
        };
        write("a.conf", &line.replace("NUMBER", "404"));
        write(".a.conf.swp", &line.replace("NUMBER", "410"));
        write(".gitignore", "{ ( \" <");
        let toml = translated(language, dir.path(), "old.conf", include).toml;
        assert!(toml.contains("404") && !toml.contains("410"), "{language:?}: {toml}");
    }
}

#[test]
fn braces_of_a_text_stay_braces() {
    const TEXT: &str = "{file./etc/hostname}{env.HOME}{host}{{path}{";
    for (language, lines) in [
        (Nginx, nginx("location /a { return 200 \"TEXT\"; }")),
        (Nginx, nginx("location /a { add_header X-A \"TEXT\"; return 204; }")),
        (Nginx, nginx("location /a { return 301 \"https://b.example/TEXT\"; }")),
        (Nginx, nginx("location /a { rewrite ^ \"/TEXT\" last; }")),
        (
            Nginx,
            nginx("location /a { proxy_set_header X-A \"TEXT\"; proxy_pass http://127.0.0.1:9; }"),
        ),
        (Nginx, nginx("location /a { fastcgi_param A \"TEXT\"; fastcgi_pass 127.0.0.1:9; }")),
        (Nginx, nginx("location /a { default_type \"TEXT\"; return 200 a; }")),
        (Apache, apache("Header set X-A \"TEXT\"")),
        (Apache, apache("RequestHeader set X-A \"TEXT\"\nProxyPass / http://127.0.0.1:9/")),
        (Apache, apache("Redirect /a \"https://b.example/TEXT\"")),
        (Apache, apache("ErrorDocument 404 \"TEXT\"")),
        (Apache, apache("FallbackResource \"/TEXT\"")),
        (Caddy, caddy("header X-A `A{file./etc/hostname}`")),
        (Caddy, caddy("respond /a `{file./etc/hostname}`")),
        (Caddy, caddy("respond /a `{env.HOME}`")),
        (Caddy, caddy("redir /a https://b.example/{env.HOME}")),
    ] {
        let (toml, noted) = of(language, &lines.replace("TEXT", TEXT));
        let dir = tempfile::tempdir().unwrap();
        let plan = forebay_conf::parse(&toml.replace("ROOT/www", "/"), "site.toml", dir.path());
        let plan = format!("{:?}", plan.unwrap_or_else(|error| panic!("{toml}{}", error.plain())));
        let home = std::env::var("HOME").unwrap_or_else(|_| "/root".into());
        let host = std::fs::read_to_string("/etc/hostname").unwrap_or_else(|_| "none".into());
        for outside in ["Value(Host)", "Value(Path)", &home, host.trim()] {
            assert!(!plan.contains(outside), "{outside}: {toml}");
        }
        let kept = ["{env.HOME}{host}{{path}{", "%7Benv.HOME%7D%7Bhost%7D%7B%7Bpath%7D%7B"];
        let is_kept = kept.iter().any(|text| plan.contains(text)) || language == Caddy;
        assert!(is_kept || !noted.is_empty(), "{toml}\n{plan}");
    }
}

#[test]
fn a_host_that_no_site_has_gets_no_backend() {
    let found = of(Caddy, "a.example, http://b.example {\nreverse_proxy 127.0.0.1:9\n}\nhttp://c.example {\nreverse_proxy 127.0.0.1:8\n}\n").0;
    for site in found.split("[[site]]").skip(1) {
        let first = site.split("[[site.route]]").nth(1).unwrap();
        let is_later = site.contains("c.example");
        assert_eq!(first.contains("status = 200") && first.contains("not ="), !is_later, "{found}");
    }
    let open = of(
        Caddy,
        ":8080 {\nreverse_proxy 127.0.0.1:9\n}\nhttp://a.example:8080 {\nrespond 404\n}\n",
    )
    .0;
    assert!(!open.contains("status = 200"), "{open}");
}

#[test]
fn names_of_a_site_do_not_come_from_the_client() {
    for (lines, wanted) in [
        (
            "location / { fastcgi_param SERVER_NAME $server_name; fastcgi_pass 127.0.0.1:9; }",
            "params = { SERVER_NAME = \"a.example\" }",
        ),
        (
            "location / { uwsgi_param SERVER_NAME $server_name; uwsgi_pass 127.0.0.1:9; }",
            "params = { SERVER_NAME = \"a.example\" }",
        ),
        (
            "location / { scgi_param HTTP_HOST $server_name; scgi_pass 127.0.0.1:9; }",
            "params = { HTTP_HOST = \"a.example\" }",
        ),
        (
            "location / { proxy_set_header X-Forwarded-Host $server_name; proxy_pass http://127.0.0.1:9; }",
            "X-Forwarded-Host = \"a.example\"",
        ),
        (
            "location / { proxy_set_header Host $server_name; proxy_pass http://127.0.0.1:9; }",
            "NOT TRANSLATED",
        ),
    ] {
        let toml = of(Nginx, &nginx(lines)).0;
        assert!(toml.contains(wanted), "{lines}: {toml}");
    }
}

#[test]
fn an_exception_of_a_proxy_precedes_the_proxy() {
    for lines in [
        "<Location /static>\nProxyPass !\n</Location>\nProxyPass / http://127.0.0.1:9/",
        "ProxyPass / http://127.0.0.1:9/\n<Location /static>\nProxyPass !\n</Location>",
        "<Location />\nProxyPass http://127.0.0.1:9/\n</Location>\n<Location /static>\nProxyPass !\n</Location>",
        "ProxyPass /static !\nProxyPass / http://127.0.0.1:9/",
    ] {
        let (toml, noted) = of(Apache, &apache(lines));
        let first = |text: &str| toml.find(text).unwrap_or_else(|| panic!("{text}: {toml}"));
        assert!(first("/static") < first("proxy ="), "{toml}");
        let routes: Vec<&str> = toml.split("[[site.route]]").skip(1).collect();
        assert!(!routes[0].contains("proxy ="), "{toml}");
        assert_eq!(noted, "", "{toml}");
    }
}

#[test]
fn a_value_that_is_not_sent_as_before_is_reported() {
    let pass = "proxy_pass http://127.0.0.1:9;";
    for (line, wanted) in [
        (
            format!("proxy_set_header X-Forwarded-Proto $http_x_forwarded_proto; {pass}"),
            "X-Forwarded-Proto = \"{header.X-Forwarded-Proto}\"",
        ),
        (
            format!("proxy_set_header X-Forwarded-For $http_x_forwarded_for; {pass}"),
            "X-Forwarded-For = \"{header.X-Forwarded-For}\"",
        ),
        (format!("proxy_set_header X-Forwarded-Scheme $scheme; {pass}"), "X-Forwarded-Scheme = "),
        (
            "fastcgi_param REMOTE_ADDR $http_x_real_ip; fastcgi_pass 127.0.0.1:9;".into(),
            "old.conf:4: fastcgi_param REMOTE_ADDR",
        ),
        (
            "uwsgi_param REMOTE_ADDR $http_x_real_ip; uwsgi_pass 127.0.0.1:9;".into(),
            "old.conf:4: uwsgi_param REMOTE_ADDR",
        ),
        (
            "fastcgi_param REQUEST_URI /x$request_uri; fastcgi_pass 127.0.0.1:9;".into(),
            "old.conf:4: fastcgi_param REQUEST_URI",
        ),
        (
            "fastcgi_param HTTP_HOST $http_x_host; fastcgi_pass 127.0.0.1:9;".into(),
            "old.conf:4: fastcgi_param HTTP_HOST",
        ),
    ] {
        let (toml, noted) = of(Nginx, &nginx(&format!("location / {{ {line} }}")));
        assert!(toml.contains(wanted) || noted.contains(wanted), "{line}: {toml}\n{noted}");
    }
    let usual = "fastcgi_param QUERY_STRING $query_string; fastcgi_param REMOTE_ADDR $remote_addr;\n\
        fastcgi_param HTTPS $https if_not_empty; fastcgi_param SERVER_PROTOCOL $server_protocol;\n\
        fastcgi_param SERVER_SOFTWARE nginx/$nginx_version; fastcgi_param REDIRECT_STATUS 200;";
    let (_, noted) =
        of(Nginx, &nginx(&format!("location / {{ {usual} fastcgi_pass 127.0.0.1:9; }}")));
    assert_eq!(noted, "");
}

#[test]
fn a_site_is_not_closed_without_need() {
    for (language, text, wanted) in [
        (Apache, apache("ProxyPass / http://127.0.0.1:9/\nRequestHeader unset Proxy early"), "proxy = "),
        (Apache, apache("ProxyPass / http://127.0.0.1:9/\nRequestHeader set Expect x"), "proxy = "),
        (Apache, apache("ProxyPass / http://127.0.0.1:9/\n<Perl>\nuse lib '/srv';\nif ($x < 3) { print \"</Foo>\" }\n</Perl>"), "proxy = "),
        (Nginx, nginx("location / { proxy_pass http://octane$suffix; }").replace("http {", "http { upstream octane { server 127.0.0.1:9; }\nmap $http_upgrade $suffix { default ''; }"), "proxy = "),
        (Nginx, nginx("location / { set $suffix ''; if ($uri = /index.php) { set $suffix ?$query_string; } proxy_pass http://127.0.0.1:9$suffix; }"), "proxy = "),
        (Nginx, nginx("location ~ \\.php$ { fastcgi_pass $upstream; }").replace("http {", "http { map '' $upstream { default unix:/run/php.sock; }"), "fastcgi = "),
        (Nginx, nginx("location ~ /\\.(?!well-known) { deny all; }\nlocation / { proxy_pass http://127.0.0.1:9; }"), "proxy = "),
        (Nginx, nginx("location ~ /\\.(?!well-known).* { deny all; }\nlocation / { proxy_pass http://127.0.0.1:9; }"), "proxy = "),
        (Apache, apache("ProxyPass / http://127.0.0.1:9/\nRedirectMatch 404 /\\.(?!well-known)"), "proxy = "),
        (Nginx, "location / { proxy_pass http://127.0.0.1:9; }\nlocation /a/ { root ROOT/www; }".into(), "proxy = "),
        (Caddy, "{\n email a@b.example\n}\na.example\nreverse_proxy 127.0.0.1:9\nencode gzip\nheader X-A b\n".into(), "proxy = "),
    ] {
        let (toml, noted) = of(language, &text);
        assert!(toml.contains(wanted), "{text}\n{toml}");
        let open = toml.split("[[site.route]]").find(|route| route.contains(wanted)).unwrap();
        assert!(!open.contains("403"), "{toml}");
        assert!(!toml.contains("The route is closed"), "{noted}\n{toml}");
    }
}

#[test]
fn the_port_of_the_requested_host_stays_where_the_old_server_keeps_it() {
    const WITH: &str = "{host}{requested_port}";
    let host = |text: String, wanted: &str, keeps: bool| (text, wanted.to_owned(), keeps);
    let nginx_pass = |line: &str| nginx(&format!("location / {{ {line} }}"));
    let apache_pass = |line: &str| apache(&format!("{line}\nProxyPass / http://127.0.0.1:9/"));
    let mut cases = Vec::new();
    for (variable, keeps) in [("$http_host", true), ("$host", false)] {
        for (text, wanted) in [
            (
                nginx_pass(&format!("return 301 https://{variable}$request_uri;")),
                "redirect = { to = \"https://HOST{uri}\"",
            ),
            (
                nginx(&format!("rewrite ^/old/(.*)$ https://{variable}/new/$1 permanent;")),
                "to = \"https://HOST/new/",
            ),
            (nginx_pass(&format!("add_header X-A {variable}; return 204;")), "X-A = \"HOST\""),
            (
                nginx_pass(&format!(
                    "proxy_set_header X-A {variable}; proxy_pass http://127.0.0.1:9;"
                )),
                "X-A = \"HOST\"",
            ),
            (
                nginx_pass("proxy_set_header X-A $m; proxy_pass http://127.0.0.1:9;").replace(
                    "http {",
                    &format!("http {{ map {variable} $m {{ default a; a.example b; }}"),
                ),
                "from = \"HOST\"",
            ),
            (
                nginx_pass(&format!(
                    "proxy_cache z; proxy_cache_key {variable}$uri; proxy_pass http://127.0.0.1:9;"
                ))
                .replace("http {", "http { proxy_cache_path ROOT/www keys_zone=z:1m;"),
                "key = \"HOST{path}\"",
            ),
        ] {
            cases.push((Nginx, host(text, wanted, keeps)));
        }
    }
    for (variable, keeps) in [("%{HTTP_HOST}", true), ("%{SERVER_NAME}", false)] {
        for (text, wanted) in [
            (
                apache(&format!(
                    "RewriteEngine on\nRewriteRule ^ https://{variable}%{{REQUEST_URI}} [R=301,L]"
                )),
                "\"https://HOST{path}",
            ),
            (apache_pass(&format!("RequestHeader set X-A expr={variable}")), "X-A = \"HOST\""),
        ] {
            cases.push((Apache, host(text, wanted, keeps)));
        }
    }
    for (variable, keeps) in [
        ("{hostport}", true),
        ("{http.request.hostport}", true),
        ("{host}", false),
        ("{http.request.host}", false),
    ] {
        for (text, wanted) in [
            (caddy(&format!("redir /a https://{variable}/b")), "\"https://HOST/b"),
            (caddy(&format!("redir /a https://{variable}{{uri}}")), "\"https://HOST{uri}"),
            (caddy(&format!("header X-A {variable}")), "X-A = \"HOST\""),
            (
                caddy(&format!("reverse_proxy 127.0.0.1:9 {{\nheader_up X-A {variable}\n}}")),
                "X-A = \"HOST\"",
            ),
        ] {
            cases.push((Caddy, host(text, wanted, keeps)));
        }
        let own = caddy(&format!("reverse_proxy 127.0.0.1:9 {{\nheader_up Host {variable}\n}}"));
        let (toml, noted) = of(Caddy, &own);
        assert!(!toml.contains("host = \"backend\"") && noted.is_empty(), "{variable}: {toml}");
    }
    cases.push((
        Caddy,
        host(
            caddy("redir /a https://www.{hostport}/b"),
            "https://www.{host}{requested_port}/b",
            true,
        ),
    ));
    for (language, (text, wanted, keeps)) in cases {
        let (toml, noted) = of(language, &text);
        let wanted = wanted.replace("HOST", if keeps { WITH } else { "{host}" });
        assert!(toml.contains(&wanted), "{text}\n{wanted}\n{toml}\n{noted}");
    }
}

#[test]
fn a_backend_gets_no_encoded_slash_that_apache_refuses() {
    let pass = "ProxyPass / http://127.0.0.1:9/";
    let inner = |lines: &str| {
        format!(
            "Listen 8080\n{lines}\n<VirtualHost *:8080>\nServerName a.example\n{pass}\nINNER\n</VirtualHost>\n"
        )
    };
    for (text, refuses) in [
        (apache(pass), true),
        (apache(&format!("AllowEncodedSlashes Off\n{pass}")), true),
        (apache(&format!("AllowEncodedSlashes On\n{pass}")), false),
        (apache("AllowEncodedSlashes NoDecode\nProxyPass / http://127.0.0.1:9/ nocanon"), false),
        (inner("AllowEncodedSlashes nodecode").replace("INNER", ""), false),
        (inner("AllowEncodedSlashes nodecode").replace("INNER", "AllowEncodedSlashes off"), true),
        (inner("").replace("INNER", "AllowEncodedSlashes on"), false),
        // A site of files has no file with a slash in its name.
        (apache(""), false),
    ] {
        let (toml, noted) = of(Apache, &text);
        assert_eq!(toml.contains("encoded_slashes = \"refuse\""), refuses, "{text}\n{toml}");
        assert!(!noted.contains("AllowEncodedSlashes"), "{noted}");
    }
}
