//! Translations of configurations of nginx whose variables and groups a careless translation would
//! misread. Each case was compared with the answers of nginx.

use crate::support::nginx;

/// Returns the translation of a server with these directives, and with directives before it.
fn server(before: &str, text: &str) -> String {
    nginx(&format!("{before}\nserver {{ listen 8080; root /srv;\n{text}\n}}")).toml
}

#[test]
fn a_map_of_several_variables_closes_its_condition() {
    for source in [
        "$http_user_agent$http_referer",
        "$http_x_a$http_x_b",
        "\"$http_host$uri\"",
        "$arg_role$cookie_x",
        "$arg_a$request_uri",
        "$cookie_role:$arg_x",
        "${http_x}y",
        "http_x",
    ] {
        let toml = server(
            &format!("map {source} $m {{ default 0; ~*evil 1; }}"),
            "if ($m) { return 403; } location / { proxy_pass http://127.0.0.1:9; }",
        );
        let is_closed = !toml.contains("proxy =") && toml.contains("NOT TRANSLATED");
        assert!(is_closed, "{source}:\n{toml}");
    }
    let toml = server(
        "map $http_user_agent $m { default 0; ~*evil 1; }",
        "if ($m) { return 403; } location / { proxy_pass http://127.0.0.1:9; }",
    );
    assert!(toml.contains("variable = { http_user_agent") && toml.contains("proxy ="), "{toml}");
}

#[test]
fn an_expression_for_hosts_takes_no_further_hosts() {
    let with = |name: &str| {
        let text = format!("server_name {name}; location / {{ proxy_pass http://127.0.0.1:9; }}");
        server("", &text)
    };
    for name in [
        r"~^(?<u>\w+)\.users\.example$",
        r"~^([^.]+)\.users\.example$",
        r"~^(?!www)(.+)\.users\.example$",
        r"~^(.+)\.users\.example",
        r"~^(a|b)\.users\.example$",
        r"~users\.example$",
    ] {
        let toml = with(name);
        assert!(!toml.contains("*.users.example\""), "{name}:\n{toml}");
        assert!(toml.contains("NOT TRANSLATED"), "{name}:\n{toml}");
    }
    for name in [r"~^(?<u>.+)\.users\.example$", r"~^(.*)\.users\.example$"] {
        let toml = with(name);
        assert!(toml.contains("\"*.users.example\""), "{name}:\n{toml}");
    }
}

#[test]
fn a_reply_that_nginx_does_not_store_is_not_stored() {
    let with = |lines: &str| {
        server(
            "proxy_cache_path /tmp/c keys_zone=z:1m;",
            &format!("location / {{ proxy_cache z; {lines} proxy_pass http://127.0.0.1:9; }}"),
        )
    };
    for lines in [
        "proxy_no_cache $cookie_sess;",
        "proxy_cache_bypass $cookie_sess; proxy_no_cache $cookie_sess;",
        "proxy_no_cache $nc;",
        "proxy_no_cache 0; proxy_no_cache $cookie_sess;",
        "proxy_no_cache $http_pragma $cookie_a$cookie_b;",
    ] {
        let toml = with(lines);
        let is_stored = toml.lines().any(|line| line.trim_start().starts_with("cache"));
        assert!(!is_stored && toml.contains("NOT TRANSLATED"), "{lines}:\n{toml}");
        assert!(toml.contains("proxy ="), "{lines}:\n{toml}");
    }
    for lines in ["", "proxy_no_cache 0;", "proxy_cache_bypass $cookie_sess;"] {
        let toml = with(lines);
        assert!(
            toml.lines().any(|line| line.trim_start().starts_with("cache =")),
            "{lines}:\n{toml}"
        );
    }
}

#[test]
fn a_path_with_variables_in_proxy_pass_replaces_the_whole_path() {
    for (lines, rewrite) in [
        ("location ~ ^/p2/(.*)$ { proxy_pass http://127.0.0.1:9/n/$1; }", "/n/{rest}?"),
        ("location ~ ^/p2/(.*)$ { proxy_pass http://127.0.0.1:9/n/$1?$args; }", "/n/{rest}"),
        (
            "location ~ ^/re/([a-z]+)/([a-z]+)$ { proxy_pass http://127.0.0.1:9/r?x=$1&y=$2; }",
            "/r?x={g1}&y={g2}?",
        ),
        ("location /a/ { proxy_pass http://127.0.0.1:9/n$uri; }", "/n{path}?"),
        ("location /a/ { proxy_pass http://127.0.0.1:9/n$request_uri; }", "/n{uri}"),
        ("set $b 127.0.0.1:9; location /a/ { proxy_pass http://$b/n/; }", "/n/?"),
    ] {
        let toml = server("", lines);
        let line = format!("rewrite = \"{rewrite}\"");
        assert!(toml.lines().any(|found| found.trim() == line), "{lines}:\n{toml}");
        assert!(toml.contains("proxy ="), "{lines}:\n{toml}");
    }
    for line in [
        "proxy_pass http://127.0.0.1:9/n/$unknown;",
        "proxy_pass http://127.0.0.1:9/n/$1$2;",
        "proxy_pass http://$unknown/n/$1;",
        "rewrite ^/p2/(a+)/b /c break; proxy_pass http://127.0.0.1:9/n/$1;",
    ] {
        let toml = server("", &format!("location ~ ^/p2/(.*)$ {{ {line} }}"));
        assert!(!toml.contains("proxy =") || toml.contains("respond"), "{line}:\n{toml}");
        assert!(toml.contains("NOT TRANSLATED"), "{line}:\n{toml}");
    }
    let toml = server("", "location /a/ { proxy_pass http://127.0.0.1:9$request_uri; }");
    assert!(!toml.contains("rewrite") && toml.contains("proxy ="), "{toml}");
}

#[test]
fn a_field_with_the_old_path_is_reported_if_the_path_is_replaced() {
    for lines in [
        "location ~ ^/p2/(.*)$ { proxy_set_header X-A $1; proxy_pass http://127.0.0.1:9/n/$1; }",
        "location /a/ { proxy_set_header X-A $uri; proxy_pass http://127.0.0.1:9/n/; }",
    ] {
        let toml = server("", lines);
        let is_removed = toml.contains("request_headers = { X-A = \"\" }");
        assert!(is_removed && toml.contains("NOT TRANSLATED"), "{lines}:\n{toml}");
    }
    let lines = "location /a/ { rewrite ^/a/(.*)$ /$1 break; proxy_set_header X-A $uri; \
                 proxy_pass http://127.0.0.1:9; }";
    let toml = server("", lines);
    assert!(toml.contains("request_headers = { X-A = \"{path}\" }"), "{toml}");
}

#[test]
fn a_refusal_of_an_ending_holds_before_a_line_feed() {
    let php = "if ($uri ~ \"\\.(php|PHP)$\") { return 403; }";
    let map = "map $uri $m { default 0; ~\\.php$ 1; }";
    for (before, lines) in [
        ("", format!("{php} location / {{ proxy_pass http://127.0.0.1:9; }}")),
        ("", format!("location /23/ {{ {php} proxy_pass http://127.0.0.1:9; }}")),
        ("", format!("location ~ ^/2(.+)x {{ {php} proxy_pass http://127.0.0.1:9; }}")),
        ("", format!("location ~ ^/2(.+)x$ {{ {php} proxy_pass http://127.0.0.1:9; }}")),
        (map, "if ($m) { return 403; } location / { proxy_pass http://127.0.0.1:9; }".into()),
    ] {
        let toml = server(before, &lines);
        let routes: Vec<&str> = toml.split("[[site.route]]").skip(1).collect();
        let refused = routes.iter().position(|route| route.contains("n$") && route.contains("403"));
        match routes.iter().position(|route| route.contains("proxy =")) {
            // In Forebay, the location with `x$` does not take these paths.
            Some(_) if lines.contains("x$") => assert!(refused.is_some(), "{toml}"),
            Some(open) => assert!(refused.is_some_and(|refused| refused < open), "{toml}"),
            None => assert!(toml.contains("NOT TRANSLATED"), "{toml}"),
        }
    }
}

#[test]
fn a_refusal_of_other_methods_than_get_refuses_head() {
    for condition in ["$m", "$request_method !~ ^(GET|POST)$"] {
        let toml = server(
            "map $request_method $m { default 1; GET 0; POST 0; }",
            &format!(
                "location / {{ if ({condition}) {{ return 405; }} proxy_pass http://127.0.0.1:9; }}"
            ),
        );
        let first = toml.split("[[site.route]]").nth(1).unwrap();
        assert!(first.contains("[\"HEAD\"]") && first.contains("405"), "{toml}");
    }
}

#[test]
fn an_application_without_script_files_gets_its_path_info() {
    let munin = "fastcgi_split_path_info ^(/munin)(.*); fastcgi_param PATH_INFO $fastcgi_path_info; \
                 fastcgi_param SCRIPT_NAME $fastcgi_script_name; ";
    let whole = "fastcgi_param SCRIPT_NAME $fastcgi_script_name; fastcgi_param SCRIPT_NAME \"\"; \
                  fastcgi_param PATH_INFO $fastcgi_script_name; ";
    for (location, lines, mount) in [("/munin/", munin, "/munin"), ("/", whole, "")] {
        let text =
            format!("location ^~ {location} {{ {lines} fastcgi_pass unix:/run/fcgi-graph.sock; }}");
        let toml = server("", &text);
        assert!(toml.contains(&format!("mount = \"{mount}\"")), "{toml}");
        assert!(!toml.contains("scripts = ") && !toml.contains("split_path_info"), "{toml}");
    }
    for (location, lines) in [
        ("/", "fastcgi_split_path_info ^(/munin)(.*); fastcgi_param PATH_INFO $fastcgi_path_info;"),
        ("~ ^/x(.*)$", "fastcgi_param PATH_INFO $1;"),
        ("/", "fastcgi_split_path_info ^(/[a-z]+)(.*);"),
    ] {
        let text = format!("location {location} {{ {lines} fastcgi_pass unix:/run/f.sock; }}");
        let toml = server("", &text);
        assert!(toml.contains("NOT TRANSLATED") && !toml.contains("mount ="), "{toml}");
    }
    let usual = "location ~ \\.php(/|$) { fastcgi_split_path_info ^(.+\\.php)(/.*)$; \
                 fastcgi_param PATH_INFO $fastcgi_path_info; fastcgi_pass unix:/run/php.sock; }";
    let toml = server("", usual);
    assert!(!toml.contains("NOT TRANSLATED"), "{toml}");
}
