//! Lines of nginx that a translation could lose silently. Each line is translated, needs no key for
//! a reason that the output states, or is reported.

use forebay_import::{Imported, Language};

use crate::support::{nginx, notes, translated};

/// Returns the translation of a block `http`, which Forebay must accept. `{}` in the text is the
/// directory of the configuration.
fn of(text: &str) -> Imported {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().display().to_string();
    let text = format!("events {{}}\nhttp {{\n{}\n}}\n", text.replace("{}", &root));
    let found = translated(Language::Nginx, dir.path(), "nginx.conf", &text);
    let toml = found.toml.replace(&root, "ROOT");
    Imported { toml, ..found }
}

/// Returns the translation of a server with these lines.
fn server(lines: &str) -> Imported {
    of(&format!("server {{ listen 8080; root /srv;\n{lines}\n}}"))
}

#[test]
fn lines_that_no_translator_reads_are_reported() {
    let pass = "proxy_pass http://127.0.0.1:9;";
    for (lines, wanted) in [
        ("merge_slashes off;".to_owned(), "merge_slashes off;"),
        ("set $limit_rate 10k;".into(), "set $limit_rate 10k;"),
        ("set $args a=1;".into(), "set $args a=1;"),
        ("access_log {}/log combined if=$x;".into(), "access_log"),
        ("access_log {}/log; access_log {}/other;".into(), "/other"),
        ("error_page 497 https://$host$request_uri;".into(), "error_page 497"),
        ("unknown_directive 1;".into(), "unknown_directive 1;"),
        ("add_trailer X-A b;".into(), "add_trailer"),
        ("location / { limit_conn z 1; }".into(), "limit_conn z 1;"),
        ("location / { client_header_timeout 5s; }".into(), "client_header_timeout"),
        ("location / { access_log /none/log; }".into(), "access_log /none/log;"),
        (format!("location / {{ try_files $uri /x; {pass} }}"), "try_files $uri /x;"),
        (format!("location / {{ proxy_cookie_path / /a/; {pass} }}"), "proxy_cookie_path"),
        (
            format!("location / {{ proxy_pass_request_body off; {pass} }}"),
            "proxy_pass_request_body",
        ),
        (
            format!("location / {{ proxy_redirect /a /b; proxy_redirect /c /d; {pass} }}"),
            "proxy_redirect /a /b;",
        ),
        ("location / { fastcgi_connect_timeout 5s; fastcgi_pass 127.0.0.1:9; }".into(), "5s"),
        (
            "location / { fastcgi_pass 127.0.0.1:9; proxy_pass http://127.0.0.1:9; }".into(),
            "proxy_",
        ),
        ("location / { if ($scheme = http) { expires 1d; } }".into(), "expires 1d;"),
        ("location / { return 404; error_page 404 /x; }".into(), "error_page 404 /x;"),
        ("location = /x { location /x { return 200 a; } return 200 b; }".into(), "location /x"),
        (
            "limit_req_zone $x zone=a:1m rate=1r/s; set_real_ip_from proxy.example;".into(),
            "set_real",
        ),
        ("charset $x;".into(), "charset $x;"),
    ] {
        let found = server(&lines);
        let notes = notes(&found);
        assert!(notes.iter().any(|note| note.contains(wanted)), "{lines}:\n{}", found.toml);
        assert!(found.toml.contains("NOT TRANSLATED"), "{lines}:\n{}", found.toml);
    }
}

#[test]
fn lines_without_an_effect_are_not_reported() {
    for lines in [
        "proxy_read_timeout 5s; proxy_set_header A b; proxy_cookie_path / /a/;",
        "ssl_protocols TLSv1.3; ssl_client_certificate /x; gzip_types text/css;",
        "auth_basic_user_file /x; real_ip_header X-Forwarded-For; limit_rate_after 1m;",
        "proxy_cache off; location / { proxy_cache_bypass $http_x; proxy_pass http://127.0.0.1:9; }",
        "set $x 1; merge_slashes on; location @never { own_directive 1; }",
        "location / { return 301 https://a.example/; proxy_pass http://127.0.0.1:9; expires 1d; }",
        "return 301 https://a.example/; location / { own_directive 1; }",
        "location / { break; return 403; }",
        "location / { if ($scheme = https) { own_directive 1; } }",
        "if ($host = other.example) { return 301 https://a.example/; }",
    ] {
        let found = server(&format!("server_name a.example; {lines}"));
        assert_eq!(found.notes, [], "{lines}:\n{}", found.toml);
    }
    // A block that no server uses, and a server that no request reaches.
    let found =
        of("upstream unused { server 127.0.0.1:1; own_directive; } map $a $b { default c; }\n\
         limit_req_zone $a zone=z:1m rate=1r/s; gzip off; add_header A b;\n\
         server { listen 8080; server_name a.example; gzip on; add_header A c; }\n\
         server { listen 8080; server_name a.example; own_directive; }");
    assert_eq!(found.notes, [], "{}", found.toml);
}

#[test]
fn the_output_says_why_a_line_needs_no_key() {
    let found = server("sendfile on; tcp_nopush on; server_tokens off; resolver 127.0.0.1;");
    for text in
        ["sendfile, tcp_nopush: it chooses its buffers", "needs no key for resolver: it resolves"]
    {
        assert!(found.toml.contains(text), "{}", found.toml);
    }
    assert_eq!(found.notes, [], "{}", found.toml);
}

#[test]
fn many_lines_of_one_kind_get_one_note() {
    let locations: String = (0..40)
        .map(|n| {
            format!(
                "location /{n}/ {{ proxy_cookie_path / /a/; proxy_pass http://127.0.0.1:9; }}\n"
            )
        })
        .collect();
    let found = server(&locations);
    let notes = notes(&found);
    assert_eq!(notes.len(), 1, "{notes:?}");
    let wanted =
        "the same holds for the lines 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16 and 27 others";
    assert!(notes[0].contains(":4: proxy_cookie_path") && notes[0].contains(wanted), "{notes:?}");
}

#[test]
fn one_note_names_the_lines_of_a_closed_location() {
    let found = server(
        "location /a/ { auth_jwt on; proxy_set_header A b; limit_req zone=z; proxy_pass http://127.0.0.1:9; }",
    );
    let notes = notes(&found);
    assert_eq!(notes.len(), 2, "{notes:?}");
    assert!(notes.iter().any(|note| note.contains("auth_jwt on")), "{notes:?}");
    let wanted = "write these lines in it: proxy_set_header, limit_req, proxy_pass";
    assert!(notes.iter().any(|note| note.contains(wanted)), "{notes:?}");
}

#[test]
fn further_lines_have_a_translation() {
    for (lines, wanted) in [
        ("location /a/ { access_log {}/a.log; return 204; }", "log = { access = \"ROOT/a.log\" }"),
        ("location / { root {}; max_ranges 3; }", "max_ranges = 3"),
        ("location / { expires 3d; return 200 x; }", "expires = \"3d\""),
        (
            "location / { fastcgi_pass php; fastcgi_connect_timeout 7s; }",
            "connect_timeout = \"7s\"",
        ),
        (
            "location = /auth { internal; proxy_pass http://127.0.0.1:9; proxy_read_timeout 3s; }\n\
             location / { auth_request /auth; proxy_pass http://127.0.0.1:9; }",
            "timeout = \"3s\"",
        ),
    ] {
        let found = of(&format!(
            "upstream php {{ server 127.0.0.1:9; }} server {{ listen 8080;\n{lines}\n}}"
        ));
        assert!(found.toml.contains(wanted), "{lines}:\n{}", found.toml);
        assert_eq!(found.notes, [], "{lines}:\n{}", found.toml);
    }
    let found = of("large_client_header_buffers 4 16k; server { listen 8080; return 204; }");
    assert!(found.toml.contains("head_size = \"65536\"\ntarget = \"16384\""), "{}", found.toml);
    assert_eq!(found.notes, [], "{}", found.toml);
}

#[test]
fn a_location_that_stops_the_rewrites_keeps_its_content() {
    let found = server("location / { break; return 403; proxy_pass http://127.0.0.1:9; }");
    assert!(found.toml.contains("proxy = ") && !found.toml.contains("403"), "{}", found.toml);
}

#[test]
fn variables_of_map_and_geo_become_conditions() {
    for (sets, condition, wanted) in [
        (
            "map $http_user_agent $v { default 0; ~*semrush 1; ~bad 1; Evil/1.0 1; }",
            "$v",
            "http_user_agent = [\"~*^Evil/1\\\\.0$\", \"~*semrush\", \"~bad\"]",
        ),
        ("map $http_x_key $v { default 1; secret 0; }", "$v", "not = { variable = { http_x_key"),
        (
            "map $request_method $v { default 1; GET 0; HEAD 0; }",
            "$v",
            "methods = [\"GET\", \"HEAD\"]",
        ),
        ("map $http_x $v { default a; b c; }", "$v = c", "http_x = \"~*^b$\""),
        ("map $http_x $v { default a; b c; }", "$v != a", "http_x = \"~*^b$\""),
        ("geo $v { default 0; 10.1.2.3/8 1; ::1 1; }", "$v", "client = [\"10.0.0.0/8\", \"::1\"]"),
        ("geo $v { default 1; 10.0.0.0/8 0; }", "$v", "not = { client = [\"10.0.0.0/8\"] }"),
    ] {
        let found = of(&format!(
            "{sets} server {{ listen 8080; if ({condition}) {{ return 403; }}\n\
             location / {{ proxy_pass http://127.0.0.1:9; }} }}"
        ));
        let toml = found.toml.replace("'", "\"").replace("\\.", "\\\\.");
        assert!(toml.contains(wanted), "{sets}:\n{toml}");
        assert!(found.notes.is_empty() && toml.contains("status = 40"), "{sets}:\n{toml}");
    }
    for sets in [
        "map $http_x $v { default 0; ~a 0; ~b 1; }",
        "map $http_x $v { default 1; a 0; b 1; }",
        "map $http_x $v { default 0; a $http_y; }",
        "map $http_x $v { default 0; a 1; include none.map; }",
        "map $unknown $v { default 0; a 1; }",
        "geo $v { default 0; 10.0.0.0/8 1; 10.1.0.0/16 0; }",
        "geo $http_x $v { default 0; 10.0.0.0/8 1; }",
        "geo $v { ranges; default 0; 10.0.0.0-10.0.0.9 1; }",
        "geo $v { proxy 10.0.0.1; default 0; 10.0.0.0/8 1; }",
    ] {
        let found = of(&format!(
            "{sets} server {{ listen 8080; if ($v) {{ return 403; }}\n\
             location / {{ proxy_pass http://127.0.0.1:9; }} }}"
        ));
        assert!(
            !found.notes.is_empty() && !found.toml.contains("proxy ="),
            "{sets}:\n{}",
            found.toml
        );
    }
}

#[test]
fn a_named_location_answers_for_a_status_of_its_own() {
    let named = "location @app { proxy_pass http://127.0.0.1:9; }";
    let found = server(&format!("location /a/ {{ error_page 418 = @app; return 418; }} {named}"));
    assert!(found.toml.contains("proxy = ") && !found.toml.contains("418 }"), "{}", found.toml);
    assert_eq!(found.notes, [], "{}", found.toml);
    for lines in [
        "location /a/ { error_page 418 @app; return 418; }",
        "location /a/ { error_page 418 = @none; return 418; }",
        "location /a/ { error_page 418 = @app; if ($arg_a) { return 403; } return 418; }",
    ] {
        let found = server(&format!("{lines} {named}"));
        assert!(!found.notes.is_empty() && found.toml.contains("418"), "{lines}:\n{}", found.toml);
    }
}

#[test]
fn comments_on_lines_without_a_key_are_true() {
    let toml = of("keepalive_timeout 9s; keepalive_requests 50; server { listen 8080; absolute_redirect off;\n\
                   location / { proxy_ssl_verify on; proxy_cache_min_uses 3; proxy_ssl_protocols TLSv1;\n\
                   proxy_pass https://127.0.0.1:9; } }")
    .toml;
    let comments: String = toml.lines().filter_map(|line| line.strip_prefix('#')).collect();
    for name in ["keepalive_timeout", "keepalive_requests", "proxy_ssl_verify"] {
        assert!(!comments.contains(name), "{name}:\n{toml}");
    }
    for text in [
        "absolute_redirect: it decides this",
        "proxy_cache_min_uses: its cache stores replies to GET",
        "proxy_ssl_protocols: with TLS to backends",
    ] {
        assert!(comments.contains(text), "{text}:\n{toml}");
    }
}

#[test]
fn files_that_answer_for_all_paths_are_named() {
    let found = server("location /a/ { try_files /index.html =404; }");
    let text = "does not look for /index.html, so all paths here get 404";
    assert!(notes(&found).iter().any(|note| note.contains(text)), "{:?}", found.notes);
    let found = server("location /a/ { try_files $uri /b.html =404; }");
    let text = "only the path itself is looked for";
    assert!(notes(&found).iter().any(|note| note.contains(text)), "{:?}", found.notes);
}

#[test]
fn locations_inside_inherit_an_alias() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).display().to_string();
    for name in ["share/zab/sub", "other"] {
        std::fs::create_dir_all(path(name)).unwrap();
    }
    std::fs::write(path("share/zab/one.php"), "<?php").unwrap();
    let php = "fastcgi_pass unix:/run/php.sock; fastcgi_param SCRIPT_FILENAME $request_filename;";
    let translated = |lines: &str| {
        let text = lines.replace("PHP", php).replace("{}", &dir.path().display().to_string());
        server(&text).toml.replace(&dir.path().display().to_string(), "DIR")
    };
    for (lines, wanted) in [
        (
            "location /zab { alias {}/share/zab; location ~ \\.php$ { PHP } }",
            "root = \"DIR/share\" }",
        ),
        (
            "location /z/ { alias {}/share/zab/; location ~ \\.php$ { PHP } }",
            "root = \"DIR/share/zab\", strip_prefix = \"/z\" }",
        ),
        ("location /z { alias {}/share/zab; PHP }", "strip_prefix = \"/z\""),
        (
            "location = /z.php { alias {}/share/zab/one.php; PHP }",
            "fastcgi = { to = \"unix:/run/php.sock\", root = \"DIR/share/zab\"",
        ),
        (
            "location /z/ { alias {}/share/zab/; location /z/sub/ { autoindex on; } }",
            "path = \"/z/sub/*\"\n  files = { root = \"DIR/share/zab/sub\", listing = true",
        ),
        (
            "location /z/ { alias {}/share/zab/; location = /z/one.php { etag on; } }",
            "path = \"/z/one.php\"\n  rewrite = \"/one.php\"\n  files = \"DIR/share/zab\"",
        ),
    ] {
        let toml = translated(lines);
        assert!(toml.contains(wanted), "{lines}:\n{toml}");
    }
    // nginx looks for the file `DIR/share/zabx.php` here.
    let toml = translated("location /z/ { alias {}/share/zab; location ~ \\.php$ { PHP } }");
    assert!(toml.contains("`strip_prefix`") && !toml.contains("fastcgi ="), "{toml}");
}

#[test]
fn links_stay_refused() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().display();
    let of = |line: &str| server(&format!("{line} location /s/ {{ alias {root}/; }}"));
    let found = of("disable_symlinks on;");
    assert!(found.toml.contains("follow_symlinks = \"never\""), "{}", found.toml);
    assert_eq!(found.notes, [], "{}", found.toml);
    let found = of("disable_symlinks if_not_owner;");
    assert!(found.toml.contains("files = ") && found.notes.is_empty(), "{}", found.toml);
    // What HestiaCP and ISPConfig write.
    for from in ["$document_root", "/srv"] {
        let found = of(&format!("root /srv; disable_symlinks if_not_owner from={from};"));
        assert!(found.toml.contains("files = ") && found.notes.is_empty(), "{}", found.toml);
    }
    let found = of("root /srv/a; disable_symlinks on from=/srv;");
    assert!(!found.toml.contains("files = ") && !found.notes.is_empty(), "{}", found.toml);
    let found = of("disable_symlinks on; disable_symlinks off;");
    assert!(!found.toml.contains("NOT TRANSLATED"), "{}", found.toml);
}

#[test]
fn attributes_of_all_cookies_are_kept() {
    let of = |flags: &str| {
        server(&format!(
            "location / {{ proxy_pass http://127.0.0.1:9; proxy_cookie_flags {flags}; }}"
        ))
    };
    let found = of("~ secure samesite=strict");
    let wanted = "cookies = { secure = true, same_site = \"strict\" }";
    assert!(found.toml.contains(wanted), "{}", found.toml);
    for flags in ["one httponly", "~ nosecure"] {
        let found = of(flags);
        assert!(found.toml.contains("NOT TRANSLATED"), "{flags}:\n{}", found.toml);
    }
}

#[test]
fn lifetimes_by_media_type_become_a_table() {
    let of = |lines: &str| {
        nginx(&format!(
            "map $sent_http_content_type $expires {{ {lines} }}\n\
             server {{ listen 8080; expires $expires; location / {{ proxy_pass http://127.0.0.1:9; }} }}"
        ))
    };
    let found = of("default off; text/html epoch; text/css max; ~image/ 30d; application/pdf 42h;");
    for wanted in [
        "\"text/html\" = \"0s\"",
        "\"text/css\" = \"3650d\"",
        "\"image/*\" = \"30d\"",
        "\"application/pdf\" = \"42h\"",
    ] {
        assert!(found.toml.contains(wanted), "{wanted}:\n{}", found.toml);
    }
    assert!(!found.toml.contains("NOT TRANSLATED"), "{}", found.toml);
    for lines in ["default 1h; ~(png|gif) 30d;", "a/b/c 5m;"] {
        let found = of(lines);
        assert!(found.toml.contains("NOT TRANSLATED"), "{}", found.toml);
        assert!(found.toml.contains("proxy ="), "{}", found.toml);
    }
}

#[test]
fn longer_names_of_files_are_extensions() {
    for (checks, has_directories) in [
        ("$uri $uri.html $uri/ =404", true),
        ("$uri $uri/ $uri.html =404", true),
        ("$uri $uri.html /index.html", false),
        ("$document_uri $document_uri.html @app", false),
    ] {
        let found = server(&format!(
            "root /; location / {{ try_files {checks}; }} location @app {{ proxy_pass http://127.0.0.1:9; }}"
        ));
        assert!(found.toml.contains("extensions = [\".html\"]"), "{checks}:\n{}", found.toml);
        assert_eq!(!found.toml.contains("index = []"), has_directories, "{}", found.toml);
        assert!(!found.toml.contains("NOT TRANSLATED"), "{checks}:\n{}", found.toml);
    }
    for checks in [
        "$uri.html $uri =404",
        "$uri/ $uri.html =404",
        "$uri $uri-x.html =404",
        "$uri $uri/a.html =404",
    ] {
        let found = server(&format!("root /; location / {{ try_files {checks}; }}"));
        assert!(found.toml.contains("NOT TRANSLATED"), "{checks}:\n{}", found.toml);
    }
    let found = server("root /; try_files $uri $uri.html =404;");
    assert!(found.toml.contains("extensions = [\".html\"]"), "{}", found.toml);
}

/// The portal of LemonLDAP::NG: what is no file or script goes to the script.
#[test]
fn a_rewrite_of_all_other_paths_closes_nothing() {
    let php = "fastcgi_pass 127.0.0.1:9; fastcgi_param SCRIPT_FILENAME $document_root$sc;";
    // A rewrite with `break` in a condition was once lost without a word.
    let found = server("if ($uri ~ ^/a/) { rewrite ^/a/(.*)$ /b/$1 break; }");
    assert!(found.toml.contains("rewrite = \"/b/{rest}\""), "{}", found.toml);
    let found = server(&format!(
        "if ($uri !~ ^/((static|javascript|favicon).*|.*\\.psgi)) {{ rewrite ^/(.*)$ /index.psgi/$1 \
         break; }}\nlocation ~ ^(?<sc>/.*\\.psgi)(?:$|/) {{ {php} }}\n\
         location / {{ try_files $uri $uri/ =404; }}"
    ));
    let regex = r"path_regex = '!~^/((static|javascript|favicon).*|.*\.psgi)'";
    assert!(found.toml.contains(regex), "{}", found.toml);
    assert!(found.toml.contains("rewrite = \"/index.psgi/{rest}\""), "{}", found.toml);
    assert!(!found.toml.contains("NOT TRANSLATED"), "{}", found.toml);
    // In a location, other conditions and operators.
    for (lines, regex) in [
        ("location /a/ { if ($uri !~* \\.png$) { return 404; } }", "!~*\\.png$"),
        ("if ($document_uri !~ ^/open/) { return 403; }", "!~^/open/"),
    ] {
        let found = server(lines);
        assert!(found.toml.contains(regex), "{lines}:\n{}", found.toml);
    }
}
