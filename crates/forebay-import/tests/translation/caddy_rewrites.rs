//! Translations of `rewrite`, `try_files` and `header` of Caddyfiles.

use forebay_import::Imported;

use crate::support::{caddy, routes};

/// Returns the translation of a site with these lines.
fn site(lines: &str) -> Imported {
    caddy(&format!(":80 {{\nroot * .\n{lines}\n}}\n"))
}

const ANSWERS: [&str; 4] = ["proxy =", "files =", "respond =", "redirect ="];

/// Checks that no route leaves the block by searching all routes for a new path.
fn stays(lines: &str, toml: &str) {
    for route in routes(toml).iter().filter(|route| route.contains(" rewrite =")) {
        assert!(ANSWERS.iter().any(|answer| route.contains(answer)), "{lines}:\n{toml}");
    }
}

const LAST: &str = "handle {\nfile_server\n}";

#[test]
fn a_rewrite_of_a_block_stays_in_the_block() {
    let rule = "@need header !X-Tok\nrespond @need 401";
    let proxy = "reverse_proxy 127.0.0.1:9";
    for (lines, wanted) in [
        (format!("handle /rw/* {{\nrewrite * /priv{{path}}\n{proxy}\n}}"), "/priv{path}"),
        (
            format!("handle /rw/* {{\nrewrite * /priv{{path}}?{{query}}&z=1\n{proxy}\n}}"),
            "/priv{path}?{query}&z=1",
        ),
        (format!("handle /rw/* {{\n{rule}\nrewrite * /pub/s.txt\n{proxy}\n}}"), "/pub/s.txt"),
        (format!("route /rw/* {{\nrewrite * /s\n{rule}\n{proxy}\n}}"), "/s"),
        (format!("handle_path /rw/* {{\nrewrite * /v2{{path}}\n{proxy}\n}}"), "/v2/{rest}"),
        (format!("handle /rw/* {{\nrewrite * /s\nhandle {{\n{proxy}\n}}\n}}"), "/s"),
    ] {
        let found = site(&format!("{lines}\n{LAST}"));
        let toml = &found.toml;
        stays(&lines, toml);
        let all = routes(toml);
        let open = all.iter().position(|route| route.contains("proxy =")).unwrap();
        assert!(all[open].contains("\"/rw/*\""), "{lines}:\n{toml}");
        assert!(all[open].contains(&format!(" rewrite = \"{wanted}\"")), "{lines}:\n{toml}");
        assert!(!all[open].contains("strip_prefix"), "{lines}:\n{toml}");
        let refusal = all.iter().position(|route| route.contains("401"));
        assert_eq!(refusal.is_some(), lines.contains("401"), "{lines}:\n{toml}");
        assert!(refusal.is_none_or(|at| at < open), "{lines}:\n{toml}");
        assert_eq!(found.notes, [], "{lines}:\n{toml}");
    }
    // The gates of the block remain.
    let auth = "forward_auth 127.0.0.1:8 {\nuri /auth\n}";
    let toml = site(&format!("{auth}\nhandle /rw/* {{\nrewrite * /s\n{proxy}\n}}\n{LAST}")).toml;
    let open = routes(&toml).into_iter().find(|route| route.contains("proxy =")).unwrap();
    assert!(open.contains("forward_auth") && open.contains("rewrite"), "{toml}");
}

#[test]
fn a_block_that_tests_the_new_path_is_closed() {
    let proxy = "reverse_proxy 127.0.0.1:9";
    for lines in [
        "handle /rw/* {\n@no not remote_ip 10.0.0.0/8\nrewrite * /pub{path}\nrespond @no 403\n\
         file_server\n}"
            .to_owned(),
        format!("handle /rw/* {{\nrewrite * /pub\nrespond /pub 403\n{proxy}\n}}"),
        format!("handle /rw/* {{\nrewrite * /pub\nhandle /pub {{\nerror 404\n}}\n{proxy}\n}}"),
        format!("handle /rw/* {{\nrewrite * /pub\nforward_auth :8 {{\nuri /a\n}}\n{proxy}\n}}"),
        format!("handle /rw/* {{\nrewrite * /p?a=1\n@a query a=1\nrespond @a 403\n{proxy}\n}}"),
        format!("handle /rw/* {{\n@a header X-A 1\nrewrite @a /pub\n{proxy}\n}}"),
        format!("handle /rw/* {{\nrewrite * /pub\nuri strip_prefix /pub\n{proxy}\n}}"),
        format!("handle_path /rw/* {{\nrewrite * /v2{{uri}}\n{proxy}\n}}"),
        format!("handle_path /rw* {{\nrewrite * /v2{{path}}\n{proxy}\n}}"),
        format!("handle /rw/* {{\nrewrite * /x\nhandle {{\nrewrite * /y\n{proxy}\n}}\n}}"),
        "handle /rw/* {\nrewrite * /x\nphp_fastcgi 127.0.0.1:9\n}".to_owned(),
        "route {\nreverse_proxy /b 127.0.0.1:9\nrewrite /rw/* /b\n}".to_owned(),
    ] {
        let found = site(&format!("{lines}\n{LAST}"));
        let toml = &found.toml;
        stays(&lines, toml);
        let all = routes(toml);
        let closed = all.iter().position(|route| route.contains("403") && route.contains("\"/rw"));
        let open =
            all.iter().position(|route| route.contains("proxy =") && route.contains("\"/rw"));
        let is_first = closed.is_some() && open.is_none_or(|open| closed.unwrap() < open);
        assert!(is_first && !found.notes.is_empty(), "{lines}:\n{toml}");
    }
}

#[test]
fn a_rewrite_of_the_whole_site_selects_a_route_for_the_new_path() {
    let lines =
        "rewrite /old/* /new/x\nhandle /new/* {\nrespond new\n}\nhandle {\nrespond other\n}";
    for lines in [lines.to_owned(), format!("route {{\n{lines}\n}}")] {
        let found = site(&lines);
        let all = routes(&found.toml);
        assert!(
            all[0].contains(" rewrite = \"/new/x\"") && !all[0].contains("respond ="),
            "{}",
            found.toml
        );
        assert_eq!(found.notes, [], "{}", found.toml);
    }
}

#[test]
fn a_field_that_is_set_if_missing_stays_so() {
    let found = site("header ?Cache-Control max-age=60\nfile_server");
    let wanted = "Cache-Control = { value = \"max-age=60\", if_missing = true }";
    assert!(found.toml.contains(wanted), "{}", found.toml);
    let found = site("header {\nX-A b\n?X-A c\n}\nfile_server");
    assert!(found.toml.contains("X-A = \"b\""), "{}", found.toml);
    let found = site("reverse_proxy 127.0.0.1:9 {\nheader_down X-A b\nheader_down ?X-A c\n}");
    assert!(found.toml.contains("X-A = \"b\""), "{}", found.toml);
}

#[test]
fn longer_names_of_files_are_extensions() {
    for tries in ["{path} {path}.html {path}/", "{path} {path}.html", "{path} {path}.html =404"] {
        let found = site(&format!("root * /\ntry_files {tries}\nfile_server"));
        assert!(found.toml.contains("extensions = [\".html\"]"), "{tries}:\n{}", found.toml);
        assert!(!found.toml.contains("NOT TRANSLATED"), "{tries}:\n{}", found.toml);
    }
}

#[test]
fn lines_that_ignore_try_files_are_reported() {
    let tries = "try_files {path} {path}/ /index.html";
    for (lines, is_reported) in [
        ("handle /admin {\nrespond adm\n}\nfile_server", true),
        ("reverse_proxy /api/* 127.0.0.1:9\nfile_server", true),
        ("route {\nhandle /api/* {\nreverse_proxy 127.0.0.1:9\n}\nfile_server\n}", true),
        ("respond /health ok\nfile_server", true),
        ("reverse_proxy 127.0.0.1:9", true),
        ("handle {\nrewrite * /x{path}\nfile_server\n}", true),
        ("rewrite /a /b\nfile_server", false),
        ("file_server", false),
        (
            "route {\nreverse_proxy /api/* 127.0.0.1:9\ntry_files {path} /x.html\nfile_server\n}",
            true,
        ),
        ("handle {\nfile_server\n}", false),
        ("respond /secret 403\nfile_server", false),
        ("php_fastcgi 127.0.0.1:9\nfile_server", false),
    ] {
        let found = site(&format!("{tries}\n{lines}"));
        let notes = found.notes.iter().filter(|note| note.directive.ends_with(" /index.html"));
        assert_eq!(notes.count(), usize::from(is_reported), "{lines}:\n{}", found.toml);
        assert!(!found.notes.iter().any(|note| note.directive.ends_with("/x.html")), "{lines}");
    }
}

#[test]
fn each_lost_line_of_a_header_block_is_reported_alone() {
    let found = site(
        "header {\nX-Frame-Options DENY\n?Cache-Control no-store\nX-A {unknown}\nX-B a c\n-Server\n}\n\
         header ?X-C d\nrespond hi",
    );
    assert!(found.toml.contains("X-Frame-Options = \"DENY\""), "{}", found.toml);
    let names: Vec<&str> = found.notes.iter().map(|note| note.directive.as_str()).collect();
    let wanted = ["X-A {unknown}", "X-B a c"];
    assert_eq!(names, wanted, "{}", found.toml);
    let lines: Vec<usize> = found.notes.iter().map(|note| note.line).collect();
    assert_eq!(lines, [6, 7], "{}", found.toml);
}

#[test]
fn a_query_in_a_new_path_replaces_the_query_of_the_client() {
    for (to, wanted) in [
        ("/x?role=guest", "/x?role=guest?"),
        ("/x?role=guest&{query}", "/x?role=guest"),
        ("/x?{query}&z=1", "/x?{query}&z=1"),
        ("/x?a={query.a}", "/x?a={query.a}?"),
        ("/x?", "/x?"),
        ("/x", "/x"),
        ("/x{uri}", "/x{uri}"),
    ] {
        for lines in [
            format!("rewrite /a {to}\nreverse_proxy 127.0.0.1:9"),
            format!("handle /a {{\nrewrite * {to}\nreverse_proxy 127.0.0.1:9\n}}\n{LAST}"),
        ] {
            let toml = site(&lines).toml;
            assert!(toml.contains(&format!(" rewrite = \"{wanted}\"\n")), "{lines}:\n{toml}");
        }
    }
}
