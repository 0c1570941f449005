//! Each directive changes the configuration, or the report names it, in each context.

use std::path::Path;

use crate::draft::Draft;
use crate::keys::Keys;
use crate::nginx::translate;
use crate::print::render;

/// Arguments of directives that the translation reads. `{}` is the directory of the site.
const LINES: &[&str] = &[
    "access_log {}/log;",
    "add_header X-A b;",
    "alias {}/sub/;",
    "allow 10.0.0.0/8;",
    "auth_basic realm; auth_basic_user_file {}/users;",
    "auth_request /auth;",
    "autoindex on;",
    "charset utf-8;",
    "client_body_timeout 7s;",
    "client_header_timeout 7s;",
    "client_max_body_size 7m;",
    "default_type text/x-a;",
    "deny 10.0.0.0/8;",
    "error_page 404 /404.html;",
    "error_page 404 /none.html;",
    "error_page 404 https://other.example/;",
    "error_page 404 @other;",
    "expires 7d;",
    "fastcgi_pass 127.0.0.1:9;",
    "grpc_pass grpc://127.0.0.1:9;",
    "gzip on;",
    "gzip_static on;",
    "index start.html;",
    "internal;",
    "keepalive_requests 7;",
    "keepalive_timeout 7s;",
    "limit_conn zone 7;",
    "limit_except GET { deny all; }",
    "limit_rate 7k;",
    "limit_req zone=z;",
    "merge_slashes off;",
    "mirror /m;",
    "proxy_pass http://127.0.0.1:9;",
    "real_ip_header X-Real-IP;",
    "return 404;",
    "return 301 https://other.example/;",
    "rewrite ^/x$ /y last;",
    "root {}/sub;",
    "satisfy any;",
    "scgi_pass 127.0.0.1:9;",
    "send_timeout 7s;",
    "server_name c.example;",
    "set_real_ip_from 10.0.0.0/8;",
    "ssi on;",
    "stub_status;",
    "sub_filter a b;",
    "try_files $uri /404.html;",
    "types { text/x-a a; }",
    "uwsgi_pass 127.0.0.1:9;",
    "valid_referers none;",
    "own_directive x;",
    "absolute_redirect off;",
    "brotli_static on;",
];

/// Contexts of a line, with the line in place of `@`. `#` is the name of the host.
const CONTEXTS: [&str; 5] = [
    "@ server { listen 8080; server_name #.example; root {}; }",
    "server { listen 8080; server_name #.example; root {};\n@\n}",
    "server { listen 8080; server_name #.example; root {}; location / {\n@\n} }",
    "server { listen 8080; server_name #.example; root {}; location /sub/ {\n@\n} }",
    "server { listen 8080; server_name #.example; root {}; location / { if ($arg_a) {\n@\n} } }",
];

#[test]
fn each_line_changes_the_configuration_or_is_reported() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("www");
    std::fs::create_dir_all(root.join("sub")).unwrap();
    for name in ["404.html", "index.html", "start.html"] {
        std::fs::write(root.join(name), name).unwrap();
    }
    std::fs::write(root.join("users"), "ann:$apr1$abcdefgh$w1Qb7IQwGkhQ9lJrzxXQb.\n").unwrap();
    let of = |context: &str, line: &str| {
        let text = context.replace('@', line).replace('#', "a");
        let text = text.replace("{}", root.to_str().unwrap());
        let file = dir.path().join("nginx.conf");
        std::fs::write(&file, format!("http {{ {text} }}")).unwrap();
        translate(Path::new(&file), Keys::shared())
    };
    let mut lost = Vec::new();
    for context in CONTEXTS {
        let old = keys(&of(context, "").unwrap());
        for line in LINES {
            if has_no_effect(context, line) {
                continue;
            }
            let Ok(new) = of(context, line) else { continue };
            let name = line.split([' ', ';']).next().unwrap();
            let is_named =
                new.notes.0.iter().any(|note| {
                    note.directive.starts_with(name) || note.directive.starts_with("if ")
                });
            if !is_named && keys(&new) == old {
                lost.push(format!("{context}: {line}"));
            }
        }
    }
    assert!(lost.is_empty(), "lost:\n{}", lost.join("\n"));
}

#[test]
fn lines_that_change_no_reply_are_not_reported() {
    let dir = tempfile::tempdir().unwrap();
    let of = |line: &str| {
        let file = dir.path().join("nginx.conf");
        let text = format!(
            "http {{ server {{ listen 8080; keepalive_timeout 5; {line}\nlocation / {{ return 204; \
             keepalive_requests 7; real_ip_header X-Real-IP; }} }} }}"
        );
        std::fs::write(&file, text).unwrap();
        let notes = translate(&file, Keys::shared()).unwrap().notes.0;
        notes.into_iter().map(|note| note.directive).collect::<Vec<_>>()
    };
    assert_eq!(of("keepalive_requests 9;"), [""; 0]);
    // With a trusted proxy, the field has an effect.
    let found = of("real_ip_header X-Forwarded-For; set_real_ip_from 10.0.0.0/8;");
    assert_eq!(found, ["real_ip_header X-Real-IP;"]);
}

/// Returns true for a line that nginx refuses in the context, or that has no effect there.
fn has_no_effect(context: &str, line: &str) -> bool {
    let name = line.split([' ', ';']).next().unwrap();
    let (is_http, is_server) = (context.starts_with('@'), !context.contains("location"));
    match name {
        "alias" => !context.contains("location / {"),
        "internal" | "limit_except" | "try_files" | "return" | "rewrite" | "stub_status"
            if is_http =>
        {
            true
        }
        name if name.ends_with("_pass") => is_http || is_server,
        "limit_except" => is_server,
        "server_name" | "root" => is_http || name != "root" && !is_server,
        // These lines do not change replies.
        "keepalive_requests" | "keepalive_timeout" => !is_http,
        "client_header_timeout" => !is_http && !is_server,
        // Alone, these lines have no effect: they need other lines, such as access rules or
        // redirects.
        "allow" | "satisfy" | "valid_referers" | "real_ip_header" | "absolute_redirect" => true,
        "merge_slashes" => true,
        "rewrite" => context.contains("/sub/"),
        _ => false,
    }
}

/// Returns the tables of a draft, without comments.
fn keys(draft: &Draft) -> String {
    let text = render(draft, Keys::shared());
    let lines = text.lines().filter(|line| !line.trim_start().starts_with('#'));
    lines.map(|line| format!("{line}\n")).collect()
}
