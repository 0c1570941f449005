//! Translations of configurations of nginx whose rules a careless translation would lose. Each case
//! was compared with the answers of nginx.

use crate::support::{nginx, notes, routes};

/// Returns the translation of a server with these directives.
fn server(text: &str) -> String {
    of(&format!("server {{ listen 8080; root /srv;\n{text}\n}}"))
}

/// Returns the translation of a block `http`.
fn of(text: &str) -> String {
    nginx(text).toml
}

#[test]
fn a_method_that_the_server_refuses_stays_refused_in_each_location() {
    for lines in [
        "if ($request_method !~ ^(GET|HEAD)$) { return 405; }\n\
         location /api { limit_except POST { deny all; } proxy_pass http://127.0.0.1:9; }",
        "location / { if ($request_method != GET) { return 405; }\n\
         if ($request_method !~ ^(GET|POST)$) { return 405; } proxy_pass http://127.0.0.1:9; }",
    ] {
        let toml = server(lines);
        for route in routes(&toml).iter().filter(|route| route.contains("proxy =")) {
            assert!(route.contains("methods = ") && !route.contains("POST"), "{toml}");
        }
    }
}

#[test]
fn a_rewrite_of_the_server_passes_no_rule_of_a_location() {
    let toml = server(
        "rewrite ^/(?!static) /index.php last;\n\
         location /static/private { deny all; }\n\
         location ~ \\.php$ { fastcgi_pass 127.0.0.1:9; }",
    );
    let all = routes(&toml);
    let is_open = |route: &&&str| !route.contains("403") && !route.contains("404");
    let open: Vec<_> = all.iter().filter(is_open).filter(|r| r.contains("static")).collect();
    assert!(open.is_empty() && toml.contains("NOT TRANSLATED"), "{toml}");
}

#[test]
fn inner_locations_inherit_internal() {
    let toml = server(
        "location /a/ { internal; return 200 outer;\n\
         location /a/b/ { return 200 inner; } location ~ /a/.*x$ { return 200 other; } }",
    );
    for text in ["outer", "inner", "other"] {
        let all = routes(&toml);
        let found: Vec<_> = all.iter().filter(|route| route.contains(text)).collect();
        assert!(!found.is_empty(), "{toml}");
        assert!(found.iter().all(|route| route.contains("internal = true")), "{toml}");
    }
}

#[test]
fn conditions_on_the_host_hold_in_any_spelling() {
    for (condition, wanted) in [
        ("$host = adm.example", r#"Host = '~*^adm\.example\.?(:[0-9]*)?$'"#),
        ("$host ~ ^(a|b).example$", r#"Host = '~*^(a|b).example\.?(:[0-9]*)?$'"#),
        ("$host !~ ^b", "not = { header = { Host = \"~*^b\" } }"),
        ("$http_host = a:80", "host = \"a:80\""),
        ("$http_x_key = \"\"", "when = { variable = { http_x_key = \"\" } }"),
        ("$http_x_key != \"\"", "not = { variable = { http_x_key = \"\" } }"),
        ("$cookie_a = \"\"", "when = { variable = { cookie_a = \"\" } }"),
    ] {
        let toml = server(&format!(
            "location /h {{ if ({condition}) {{ return 403; }} return 200 open; }}"
        ));
        assert!(toml.contains(wanted), "{condition}:\n{toml}");
    }
    for condition in ["$host ~ a$|b$", "$host ~ a\\$", "$host = \"\""] {
        let toml = server(&format!(
            "location /h {{ if ({condition}) {{ return 403; }} return 200 open; }}"
        ));
        assert!(!toml.contains("body = \"open\""), "{condition}:\n{toml}");
    }
}

#[test]
fn conditions_on_raw_values_compare_what_nginx_compares() {
    for (condition, wanted) in [
        (
            "$request_uri ~* \"union.*select|%3cscript\"",
            "when = { variable = { request_uri = \"~*union.*select|%3cscript\" } }",
        ),
        ("$request_uri ~ \\.bak$", "variable = { request_uri = '~\\.bak$' }"),
        ("$query_string ~ drop", "variable = { query_string = \"~drop\" }"),
        ("$arg_role != \"user\"", "not = { variable = { arg_role = \"user\" } }"),
        ("$http_x_role != user", "not = { variable = { http_x_role = \"user\" } }"),
        ("$cookie_role !~ ^u", "not = { variable = { cookie_role = \"~^u\" } }"),
        ("$arg_debug", "when = { variable = { arg_debug = \"~^([^0]|0.)\" } }"),
        // A condition on the path closes more spellings of it.
        ("$request_uri ~ ^/h/adm", "path = \"/h/adm*\""),
    ] {
        let toml = server(&format!(
            "location /h {{ if ({condition}) {{ return 403; }} return 200 open; }}"
        ));
        let first = routes(&toml)[0];
        assert!(first.contains(wanted) && first.contains("403"), "{condition}:\n{toml}");
    }
    let toml = server("if ($request_uri ~ ^/old/(.*)$) { return 301 /new/$1; } root /srv;");
    assert!(toml.contains("/old/*"), "{toml}");
}

#[test]
fn a_location_that_decides_itself_is_no_server_of_forward_auth() {
    let with = |auth: &str| {
        of(&format!(
            "upstream one {{ server 10.0.0.1:4180; }}\n\
             upstream two {{ server 10.0.0.1:1; server 10.0.0.2:1; }}\n\
             server {{ listen 8080; location = /auth {{ internal; {auth} }}\n\
             location / {{ auth_request /auth; return 200; proxy_pass http://127.0.0.1:9; }}\n\
             location /p {{ auth_request /auth; proxy_pass http://127.0.0.1:9; }} }}"
        ))
    };
    let toml = with("proxy_pass http://one/verify;");
    assert!(toml.contains("to = \"http://10.0.0.1:4180/verify\""), "{toml}");
    for auth in [
        "if ($cookie_out) { return 403; } proxy_pass http://one;",
        "proxy_pass http://two;",
        "return 401;",
    ] {
        let toml = with(auth);
        assert!(!toml.contains("proxy ="), "{auth}:\n{toml}");
    }
}

#[test]
fn the_server_of_forward_auth_gets_the_fields_of_its_location() {
    let with = |outer: &str, auth: &str| {
        server(&format!(
            "{outer} location = /auth {{ internal; proxy_pass http://127.0.0.1:9/v; {auth} }}\n\
             location / {{ auth_request /auth; proxy_set_header A b; proxy_pass http://127.0.0.1:9; }}"
        ))
    };
    let uri = "proxy_set_header X-Original-URI $request_uri;";
    for (outer, auth, wanted) in [
        ("", uri, "X-Original-URI = \"{uri}\""),
        (uri, "", "X-Original-URI = \"{uri}\""),
        (
            "",
            "proxy_set_header X_Original_Method $request_method;",
            "X-Original-Method = \"{method}\"",
        ),
        (
            "",
            "proxy_set_header X-Original-URL $scheme://$http_host$request_uri;",
            "X-Original-URL = \"{scheme}://{host}{requested_port}{uri}\"",
        ),
        (
            "",
            "proxy_set_header Content-Length \"\"; proxy_set_header Host $host;",
            "host = \"client\"",
        ),
        ("", "proxy_set_header X-Real-IP $remote_addr;", "X-Real-IP = \"{client}\""),
        ("", "proxy_set_header Remote-User \"\";", "Remote-User = \"\""),
    ] {
        let toml = with(outer, auth);
        let forward = toml.lines().find(|line| line.contains("http://127.0.0.1:9/v"));
        let route = toml.split("forward_auth").nth(1).unwrap_or_else(|| panic!("{toml}"));
        assert!(forward.is_some() && route.contains(wanted), "{auth}:\n{toml}");
    }
    for auth in [
        "proxy_set_header X-Path $uri;",
        "proxy_set_header X-Role $arg_role;",
        "proxy_set_header X-A $unknown;",
        "proxy_set_header Host auth.internal;",
        "proxy_pass_request_headers off;",
    ] {
        let toml = with("", auth);
        assert!(!toml.contains("proxy =") && toml.contains("NOT TRANSLATED"), "{auth}:\n{toml}");
    }
}

#[test]
fn an_exception_opens_no_deeper_match() {
    let toml = server(
        "location ~ /\\.(?!well-known).* { deny all; }\n\
         location / { proxy_pass http://127.0.0.1:9; }",
    );
    let deeper = toml.find(r"^/\.well\-known.*(?:/\..*)").unwrap_or_else(|| panic!("{toml}"));
    let except = toml.find("\"/.well-known/*\"").unwrap_or_else(|| panic!("{toml}"));
    assert!(deeper < except, "{toml}");
    let closed = routes(&toml)[0];
    assert!(closed.contains("403") && closed.contains("well"), "{toml}");
}

#[test]
fn copies_of_scripts_are_sent_to_no_client() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().display();
    let toml = of(&format!(
        "server {{ listen 8080; root {root}; location ~ \\.php {{ fastcgi_pass 127.0.0.1:9; }} }}"
    ));
    let all = routes(&toml);
    let closed = all.iter().position(|route| route.contains("404")).unwrap_or(usize::MAX);
    let files = all.iter().position(|route| route.contains("files =")).unwrap_or(0);
    assert!(all.get(closed).is_some_and(|route| route.contains(r"path_regex = '\.php'")), "{toml}");
    assert!(closed < files, "{toml}");
    let toml = of(&format!(
        "server {{ listen 8080; root {root}; location ~* \\.php$ {{ fastcgi_pass 127.0.0.1:9; }} }}"
    ));
    assert!(!toml.contains("404"), "{toml}");
}

#[test]
fn an_alias_of_an_expression_opens_no_directory() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().display();
    let toml = server(&format!("location /a/ {{ return 200; location ~ x$ {{ alias {root}; }} }}"));
    assert!(!toml.contains(&format!("{root}\"")) && toml.contains("404"), "{toml}");
}

#[test]
fn fields_about_the_client_keep_fixed_values() {
    let toml = server(
        "location / { proxy_set_header X-Forwarded-Proto https;\n\
         proxy_set_header X-Forwarded-Host $host;\n\
         proxy_set_header X-Forwarded-For $unknown; proxy_pass http://127.0.0.1:9; }",
    );
    assert!(toml.contains("request_headers = { X-Forwarded-Proto = \"https\" }"), "{toml}");
    assert!(toml.contains("NOT TRANSLATED") && toml.contains("its own value"), "{toml}");
}

#[test]
fn rules_on_addresses_alone_need_no_satisfy() {
    let toml = server(
        "satisfy any; allow 10.0.0.0/8; deny 192.0.2.1; deny all; \
         location / { proxy_pass http://127.0.0.1:9; }",
    );
    assert!(toml.contains("allow = [\"10.0.0.0/8\"]") && !toml.contains("satisfy"), "{toml}");
}

#[test]
fn a_table_of_values_has_nothing_of_one_location() {
    let toml = of("map $http_a $b { ~^(.)$ $1; default x; }\n\
         server { listen 8080; location ~ ^/(.)x$ { add_header B $b; proxy_pass http://127.0.0.1:9; } }");
    assert!(!toml.contains("{g1}") && toml.contains("NOT TRANSLATED"), "{toml}");
}

#[test]
fn a_prefix_whose_alias_is_a_file_sends_this_file() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("icon.ico"), "icon").unwrap();
    let root = dir.path().display();
    let toml = server(&format!(
        "location /static/favicon.ico {{ alias {root}/icon.ico; }} location / {{ proxy_pass http://127.0.0.1:9; }}"
    ));
    let all = routes(&toml);
    assert!(all[0].contains("path = \"/static/favicon.ico\"\n"), "{toml}");
    assert!(
        all[0].contains(&format!("files = \"{root}\"")) && all[0].contains("/icon.ico"),
        "{toml}"
    );
    assert!(all[1].contains("path = \"/static/favicon.ico*\"") && all[1].contains("404"), "{toml}");
}

#[test]
fn a_backend_answers_no_path_that_only_files_have() {
    for lines in [
        "location / { if (!-e $request_filename) { return 405; } proxy_pass http://127.0.0.1:9; }",
        "if (!-f $request_filename) { return 404; } location / { proxy_pass http://127.0.0.1:9; }",
    ] {
        let toml = server(lines);
        assert!(!toml.contains("proxy =") && toml.contains("403"), "{toml}");
    }
}

#[test]
fn directories_are_left_to_the_end_of_try_files() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().display();
    for (checks, has_index) in
        [("$uri", false), ("$uri $uri/", true), ("$uri $uri/index.html", true)]
    {
        let toml = of(&format!(
            "server {{ listen 8080; root {root}; location / {{ try_files {checks} @app; }}\n\
             location @app {{ proxy_pass http://127.0.0.1:9; }} }}"
        ));
        assert_eq!(!toml.contains("index = []"), has_index, "{toml}");
    }
}

#[test]
fn requests_of_a_break_get_the_rules_of_the_location() {
    let toml = server("location /a { if ($arg_k = 1) { break; } deny all; return 200 open; }");
    let all = routes(&toml);
    assert!(all[0].contains("when = ") && all[0].contains("403"), "{toml}");
    assert!(all[1].contains("body = \"open\""), "{toml}");
}

#[test]
fn a_return_after_a_condition_on_the_method_answers_only_its_methods() {
    for (before, after) in [("", ""), ("location / { ", " }")] {
        let toml = server(&format!(
            "{before}if ($request_method !~ ^(GET|HEAD)$) {{ return 405; }} return 200 open;{after}"
        ));
        let all = routes(&toml);
        let open = all.iter().find(|route| route.contains("body = \"open\"")).unwrap();
        assert!(open.contains("methods = [\"GET\", \"HEAD\"]") && toml.contains("405"), "{toml}");
    }
}

#[test]
fn an_inner_location_takes_no_path_of_a_longer_prefix_beside_its_block() {
    let toml = server(
        "location /a/ { location = /a/b/ { return 200 exact; } location /a/b/c/ { return 200 inner; } }\n\
         location /a/b/ { deny all; }",
    );
    assert!(!toml.contains("exact\"") && !toml.contains("inner\""), "{toml}");
}

#[test]
fn an_end_matches_before_a_line_feed() {
    let pass = "location / { proxy_pass http://127.0.0.1:9; }";
    for (lines, is_closed) in [
        ("location ~ \\.(bak|sql)$ { deny all; }", true),
        ("location ~ \\.bak$ { return 404; }", true),
        ("location ~ \\.bak$ { allow 10.0.0.1; deny all; proxy_pass http://127.0.0.1:9; }", true),
        ("location ~ /\\.ht { deny all; }", false),
        ("location ~ \\.js$ { proxy_pass http://127.0.0.1:9; }", false),
    ] {
        let toml = server(&format!("{lines} {pass}"));
        let all = routes(&toml);
        let closed = all.iter().position(|route| route.contains("path_regex = '\\n$'"));
        let open = all.iter().position(|route| route.contains("path = \"/*\"")).unwrap();
        assert_eq!(closed.is_some_and(|at| at < open), is_closed, "{lines}:\n{toml}");
    }
}

#[test]
fn a_backend_gets_no_fields_that_nginx_withholds() {
    for lines in [
        "proxy_pass_request_headers off; proxy_pass http://127.0.0.1:9;",
        "fastcgi_pass_request_headers off; fastcgi_pass 127.0.0.1:9;",
        "proxy_method GET; proxy_pass http://127.0.0.1:9;",
        "disable_symlinks on from=/other; proxy_pass http://127.0.0.1:9;",
        "shib_request /shib; proxy_pass http://127.0.0.1:9;",
    ] {
        let toml = server(&format!("location / {{ {lines} }}"));
        assert!(toml.contains("403") && !toml.contains("127.0.0.1:9\""), "{lines}:\n{toml}");
    }
    let toml =
        server("location / { auth_delay 1s; limit_conn c 1; proxy_pass http://127.0.0.1:9; }");
    assert!(toml.contains("127.0.0.1:9\"") && toml.contains("limit_conn"), "{toml}");
}

#[test]
fn paths_beside_an_alias_stay_in_its_location() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().display();
    let toml = server(&format!(
        "location /docs {{ alias {root}; deny 192.0.2.1; }} location / {{ proxy_pass http://127.0.0.1:9; }}"
    ));
    let all = routes(&toml);
    let proxy = all.iter().position(|route| route.contains("proxy =")).unwrap();
    let before =
        |text: &str| all.iter().position(|r| r.contains(text)).is_some_and(|at| at < proxy);
    assert!(before("path = \"/docs/*\"") && before("path = \"/docs*\""), "{toml}");
    assert!(before("\"/docs/\""), "{toml}");
}

#[test]
fn fixed_parameters_and_statuses_are_kept() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("x.html"), "x").unwrap();
    let root = dir.path().display();
    let toml = server(&format!(
        "root {root}; error_page 404 =200 /x.html; location ~ \\.php$ {{ fastcgi_param HTTPS on; \
         fastcgi_param HTTP_PROXY \"\"; fastcgi_pass 127.0.0.1:9; }}"
    ));
    assert!(toml.contains("params = { HTTPS = \"on\" }"), "{toml}");
    assert!(toml.contains("404 = { file") && toml.contains("status = 200"), "{toml}");
    let toml =
        server("location ~ \\.php$ { fastcgi_param HTTPS $proto; fastcgi_pass 127.0.0.1:9; }");
    assert!(toml.contains("NOT TRANSLATED") && !toml.contains("params ="), "{toml}");
}

#[test]
fn names_with_underscores_pass_only_if_nginx_passes_them() {
    let proxy = "location / { proxy_pass http://127.0.0.1:9; }";
    for (lines, passes) in [
        ("", false),
        ("underscores_in_headers off; ignore_invalid_headers on;", false),
        ("underscores_in_headers on;", true),
        ("ignore_invalid_headers off;", true),
    ] {
        for toml in [
            server(&format!("{lines} {proxy}")),
            of(&format!("{lines} server {{ listen 8080; {proxy} }}")),
        ] {
            assert!(!toml.contains("NOT TRANSLATED"), "{toml}");
            assert_eq!(toml.contains("underscores_in_headers = true"), passes, "{toml}");
        }
    }
}

#[test]
fn files_that_nginx_does_not_look_for_are_not_sent() {
    let named = "location @app { proxy_pass http://127.0.0.1:9; }";
    for (lines, wanted) in [
        ("location /a/ { try_files /dev/null @app; }", "proxy ="),
        ("location /a/ { allow 10.0.0.1; deny all; try_files /dev/null @app; }", "allow ="),
        ("location /a/ { try_files /cache$uri.html @app; }", "proxy ="),
        ("location /a/ { try_files /dev/null /index.php?$args; }", "rewrite = \"/index.php"),
        ("location /a/ { allow 10.0.0.1; deny all; try_files /dev/null /b; }", "status = 403"),
        ("location /a/ { try_files /dev/null =410; }", "status = 410"),
        ("location /a/ { try_files /dev/null =404; }", "status = 404"),
    ] {
        let toml = server(&format!("{lines} {named} location / {{ return 204; }}"));
        let all = routes(&toml);
        let own: Vec<_> = all.iter().filter(|route| route.contains("\"/a/*\"")).collect();
        assert!(own.iter().any(|route| route.contains(wanted)), "{lines}:\n{toml}");
        assert!(!own.iter().any(|route| route.contains("files =")), "{lines}:\n{toml}");
        assert!(
            !lines.contains("allow") || !own[0].contains("proxy =") || own[0].contains("allow")
        );
    }
}

#[test]
fn a_refusal_beside_other_lines_of_its_condition_stays() {
    let pass = "location / { proxy_pass http://127.0.0.1:9; }";
    for lines in [
        format!("if ($http_x) {{ access_log off; return 403; }} {pass}"),
        format!("if ($http_x) {{ own_directive 1; return 403; }} {pass}"),
        format!("if ($http_x) {{ expires 1d; return 403; }} {pass}"),
    ] {
        let toml = server(&lines);
        let all = routes(&toml);
        assert!(all[0].contains("http_x") && all[0].contains("403"), "{lines}:\n{toml}");
        assert!(!lines.contains("own") || toml.contains("NOT TRANSLATED"), "{lines}:\n{toml}");
    }
    let toml = server(&format!("if ($http_x) {{ access_log off; return 403; }} {pass}"));
    assert!(routes(&toml)[0].contains("log = false") && !toml.contains("NOT TRANSLATED"), "{toml}");
    let toml = server("location / { if ($http_x) { root /a; rewrite ^ /b last; } return 204; }");
    assert!(!toml.contains("status = 204"), "{toml}");
}

#[test]
fn a_variable_of_a_map_that_another_line_changes_closes_the_site() {
    let with = |change: &str| {
        of(&format!(
            "map $http_x $bot {{ default 0; evil 1; }}\n\
             server {{ listen 8080; {change} if ($bot) {{ return 403; }}\n\
             location / {{ proxy_pass http://127.0.0.1:9; }} }}"
        ))
    };
    assert!(with("").contains("proxy ="), "{}", with(""));
    for change in [
        "set $bot 0; if ($uri ~ ^/admin) { set $bot 1; }",
        "if ($uri ~ ^/admin) { set $bot 1; }",
        "location ~ ^/(?<bot>adm) { set $bot 1; }",
        "if ($uri ~ ^/(?<bot>adm)) { add_header A b; }",
    ] {
        let toml = with(change);
        assert!(!toml.contains("proxy =") && toml.contains("NOT TRANSLATED"), "{change}:\n{toml}");
    }
}

#[test]
fn a_condition_that_is_always_true_refuses_every_request() {
    for map in ["default 1;", "default 1; volatile;"] {
        let toml = of(&format!(
            "map $request_method $v {{ {map} }}\n\
             server {{ listen 8080; if ($v) {{ return 403; }}\n\
             location / {{ proxy_pass http://127.0.0.1:9; }} }}"
        ));
        let first = routes(&toml)[0];
        assert!(first.contains("403") && first.contains("\"/*\""), "{map}:\n{toml}");
        assert!(!first.contains("methods") && !first.contains("when"), "{map}:\n{toml}");
    }
}

#[test]
fn a_named_location_passes_no_rule_of_the_location_before_it() {
    let app = "location @app { proxy_pass http://127.0.0.1:9; }";
    let pass = "error_page 418 = @app; return 418;";
    let toml = server(&format!("location /b/ {{ {pass} }} {app}"));
    assert!(toml.contains("proxy ="), "{toml}");
    let toml =
        server(&format!("location ~ ^/b/ {{ {pass} location ~ secret {{ deny all; }} }} {app}"));
    assert!(!toml.contains("proxy =") && toml.contains("NOT TRANSLATED"), "{toml}");
    let toml = server(&format!("location /b/ {{ {pass} limit_except GET {{ deny all; }} }} {app}"));
    for route in routes(&toml).iter().filter(|route| route.contains("proxy =")) {
        assert!(route.contains("methods = [\"GET\""), "{toml}");
    }
}

#[test]
fn an_expression_for_methods_admits_no_further_method() {
    let with = |condition: &str| {
        server(&format!(
            "location / {{ if ($request_method {condition}) {{ return 403; }}\n\
             proxy_pass http://127.0.0.1:9; }}"
        ))
    };
    for condition in
        ["~ ^PO", "~ DEL", "~* ^POST", "~ POST$", "~ ^POST|PUT$", "~ ^(POST|PUT)", "!~ ^PO"]
    {
        let toml = with(condition);
        assert!(!toml.contains("proxy ="), "{condition}:\n{toml}");
    }
    for condition in ["~ ^POST$", "~* ^(?:POST)$", "~ ^(POST|PUT)$", "= POST"] {
        let toml = with(condition);
        let first = routes(&toml)[0];
        assert!(first.contains("methods = [\"POST\"") && first.contains("403"), "{toml}");
        assert!(toml.contains("proxy ="), "{condition}:\n{toml}");
    }
    let toml = of("map $request_method $v { default 0; ~DEL 1; }\n\
                   server { listen 8080; if ($v) { return 403; }\n\
                   location / { proxy_pass http://127.0.0.1:9; } }");
    assert!(!toml.contains("proxy ="), "{toml}");
}

#[test]
fn a_rule_of_an_inner_location_precedes_the_return_around_it() {
    for outer in ["return 200 open;", "if ($http_x) { return 200 open; } return 204;"] {
        let toml =
            server(&format!("location ~ ^/b/ {{ {outer} location ~ secret {{ deny all; }} }}"));
        let rule = routes(&toml).iter().position(|r| r.contains("secret") && r.contains("403"));
        let open = routes(&toml).iter().position(|route| route.contains("\"open\""));
        assert!(rule.is_some() && rule < open, "{outer}:\n{toml}");
    }
}

#[test]
fn a_program_decides_by_the_parameters_that_nginx_sends_it() {
    let with = |auth: &str| {
        nginx(&format!(
            "upstream one {{ server 10.0.0.1:9000; }} upstream two {{ server 10.0.0.1:9; server 10.0.0.2:9; }}\n\
             server {{ listen 8080; server_name a.example; root /srv;\n\
             location = /auth {{ internal; {auth} }}\n\
             location / {{ auth_request /auth; set $asked $uri$is_args$args;\n\
             auth_request_set $u $upstream_http_x_user; proxy_pass http://127.0.0.1:9; }} }}"
        ))
    };
    for kind in ["fastcgi", "scgi", "uwsgi"] {
        let param = |name: &str, value: &str| format!("{kind}_param {name} {value}; ");
        let usual = [
            param("QUERY_STRING", "$query_string"),
            param("REQUEST_METHOD", "$request_method"),
            param("REQUEST_URI", "$request_uri"),
            param("DOCUMENT_URI", "$document_uri"),
            param("CONTENT_LENGTH", "''"),
            param("HTTPS", "\"$https if_not_empty\"").replace('"', ""),
            param("REMOTE_ADDR", "$remote_addr"),
            param("X_ORIGINAL_URI", "$asked"),
            param("HOST", "$http_host"),
            param("REALM", "shop"),
        ]
        .concat();
        let mut lines = format!(
            "{kind}_pass one; {kind}_pass_request_body off; {kind}_read_timeout 3s; {usual}"
        );
        if kind == "fastcgi" {
            lines += "fastcgi_param SCRIPT_FILENAME $document_root$fastcgi_script_name;";
        }
        let found = with(&lines);
        let toml = &found.toml;
        assert_eq!(notes(&found), [""; 0], "{toml}");
        let auth = toml.split("forward_auth").nth(1).unwrap_or_else(|| panic!("{toml}"));
        for wanted in [
            format!("{kind} = {{ to = \"10.0.0.1:9000\""),
            "path = \"/auth\"".into(),
            "timeout = \"3s\"".into(),
            "QUERY_STRING = \"\"".into(),
            "REQUEST_METHOD = \"{method}\"".into(),
            "REQUEST_URI = \"{uri}\"".into(),
            "DOCUMENT_URI = \"/auth\"".into(),
            "X_ORIGINAL_URI = \"{uri}\"".into(),
            "HOST = \"{host}{requested_port}\"".into(),
            "REALM = \"shop\"".into(),
        ] {
            assert!(auth.contains(&wanted), "{wanted}\n{toml}");
        }
        assert!(!auth.contains("REMOTE_ADDR") && !auth.contains("HTTPS"), "{toml}");
        assert_eq!(auth.contains("SCRIPT_FILENAME = \"/srv/auth\""), kind == "fastcgi", "{toml}");
        for closed in [
            format!("{kind}_pass two;"),
            format!("{kind}_pass $u;"),
            format!("{kind}_pass one; {kind}_pass_request_headers off;"),
            format!("{kind}_pass one; {}", param("A", "$arg_a")),
            format!("{kind}_pass one; {}", param("A", "$unknown")),
            format!("{kind}_pass one; {}", param("A", "$http_x if_not_empty")),
            format!("set $asked /open; {kind}_pass one; {}", param("A", "$asked")),
            format!("if ($cookie_out) {{ return 403; }} {kind}_pass one;"),
        ] {
            let toml = with(&closed).toml;
            assert!(
                !toml.contains("proxy =") && toml.contains("NOT TRANSLATED"),
                "{closed}\n{toml}"
            );
        }
    }
    let found =
        nginx("server { listen 8080; location / { scgi_param SCGI 1; scgi_pass 127.0.0.1:9; } }");
    assert!(!found.toml.contains("SCGI ="), "{}", found.toml);
}

#[test]
fn redirects_of_a_map_close_nothing() {
    for condition in ["$n", "$n != \"\""] {
        let toml = nginx(&format!(
            "map $uri $n {{ default \"\"; ~^/old/(\\d+)$ /n/$1; ~*^/x/(.*) /y/$1; /a /b; }}\n\
             server {{ listen 8080; if ({condition}) {{ return 301 $n; }}\n\
             location / {{ proxy_pass http://127.0.0.1:9; }} }}"
        ))
        .toml;
        for (path, to) in [
            ("path = \"/a\"", "\"/b?\""),
            ("path_regex = '^/old/(?<g1>\\d+)$'", "\"/n/{g1}?\""),
            ("^/x/", "\"/y/{"),
        ] {
            let is_it = |route: &&str| route.contains(path) && route.contains(to);
            assert!(routes(&toml).iter().any(is_it), "{condition} {path}:\n{toml}");
        }
        assert!(toml.contains("proxy =") && !toml.contains("403"), "{condition}:\n{toml}");
    }
}

#[test]
fn only_the_closed_location_of_a_line_is_said_to_be_closed() {
    let found = nginx(
        "limit_conn_zone $binary_remote_addr zone=z:1m;\nserver { listen 8080; \
         location /a { auth_ldap x; proxy_pass http://127.0.0.1:9; } \
         location /b { proxy_pass_request_body off; proxy_pass http://127.0.0.1:9; } \
         location / { limit_conn z 10; proxy_pass http://127.0.0.1:9; } }",
    );
    let all = notes(&found);
    let is_closed = |note: &&String| note.contains("a route of this location is closed");
    let closed: Vec<_> = all.iter().filter(is_closed).collect();
    assert!(closed.len() == 1 && closed[0].contains("location /a"), "{all:?}");
    let line = "proxy_pass_request_body off";
    assert!(all.iter().any(|note| note.contains(&format!(": {line}"))), "{line}: {all:?}");
    let limit = "concurrency_limit = { max = 10, key = \"{client}\" }";
    assert!(found.toml.contains(limit), "{}", found.toml);
}

#[test]
fn a_condition_on_the_path_does_not_change_groups() {
    for location in [
        "location /old/ { if ($request_uri ~ ^/old/a) { rewrite ^/old/(.*)$ /new/$1 FLAG; } \
         proxy_pass http://127.0.0.1:9; }",
        "location /old/a/ { rewrite ^/old/(.*)$ /new/$1 FLAG; proxy_pass http://127.0.0.1:9; }",
    ] {
        for flag in ["permanent", "last", "break"] {
            let toml =
                nginx(&format!("server {{ listen 8080; {} }}", location.replace("FLAG", flag)))
                    .toml;
            let all = routes(&toml);
            let found = all.iter().find(|route| route.contains("/new/{rest}"));
            let found = found.unwrap_or_else(|| panic!("{location} {flag}:\n{toml}"));
            let is_kept = found.contains("path = \"/old/*\"") && found.contains("path_regex =");
            assert!(is_kept, "{location} {flag}:\n{toml}");
        }
    }
}

#[test]
fn files_of_a_new_path_are_below_the_whole_root() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(dir.path().join("a/b")).unwrap();
    let root = dir.path().display();
    for location in [
        "location /a/ { rewrite ^/a/(.*)$ /x/$1 break; }",
        "location /a/b/ { rewrite ^/a/(.*)$ /x/$1 break; }",
        "location /a/ { if ($request_uri ~ ^/a/b) { rewrite ^/a/(.*)$ /x/$1 break; } }",
    ] {
        let toml = nginx(&format!("server {{ listen 8080; root {root}; {location} }}")).toml;
        let all = routes(&toml);
        let found = all.iter().find(|route| route.contains("/x/{rest}"));
        let found = found.unwrap_or_else(|| panic!("{location}:\n{toml}"));
        assert!(found.contains(&format!("files = \"{root}\"")), "{location}:\n{toml}");
    }
}
