//! Translations of Caddyfiles whose rules a careless translation would lose.

use forebay_import::{Imported, Language, import};

use crate::support::{caddy, routes, translated};

/// Returns the translation of a site with these lines.
fn site(lines: &str) -> Imported {
    caddy(&format!(":80 {{\n{lines}\n}}\n"))
}

#[test]
fn matchers_become_conditions() {
    for (matcher, wanted) in [
        ("path *.bak /secret/*", r"path_regex = '~*(?:\.ba(?:k|\xE2\x84\xAA)$|^/secret/)'"),
        ("path /a/*/b", "path_regex = \"~*^/a/[^/]*/b$\""),
        ("path *draft*", "path_regex = \"~*draft\""),
        ("path /Secret/*", "path_regex = \"~*^/Secret/\""),
        ("path *.BAK", r"path_regex = '~*\.BA(?:K|\xE2\x84\xAA)$'"),
        ("header User-Agent *bot*", "header = { User-Agent = \"~bot\" }"),
        ("header X-A b*", "header = { X-A = \"~^b\" }"),
        ("header X-A *", "header = { X-A = \"~.*\" }"),
        ("header !X-A", "header = { X-A = false }"),
        ("header_regexp X-A ^a+$", "header = { X-A = \"~^a+$\" }"),
        ("header_regexp name X-A a|b", "header = { X-A = \"~a|b\" }"),
        ("query a=1 a=2", "query = { a = [\"1\", \"2\"] }"),
        ("query b=*", "query = { b = true }"),
        ("host b.example", r"header = { Host = '~*^b\.example\.?(:[0-9]*)?$' }"),
        ("{\npath /a/*\npath /b/*\n}", "path_regex = \"~*^(?:/a/|/b/)\""),
        ("{\nheader X-A 1\nheader X-A 2\n}", "header = { X-A = [\"1\", \"2\"] }"),
        ("not remote_ip 10.0.0.0/8", "not = { client = [\"10.0.0.0/8\"] }"),
        (
            "not {\nmethod GET\nheader X-A 1\n}",
            "not = { method = [\"GET\"], header = { X-A = \"1\" } }",
        ),
    ] {
        let toml = site(&format!("@b {matcher}\nrespond @b 403\nreverse_proxy 127.0.0.1:9")).toml;
        let all = routes(&toml);
        assert!(all[0].contains(wanted) && all[0].contains("403"), "{matcher}:\n{toml}");
        assert!(all[1].contains("proxy ="), "{matcher}:\n{toml}");
    }
}

#[test]
fn a_matcher_without_a_translation_closes_the_site_and_says_so() {
    for matcher in [
        "path /a[bc]/*",
        "path /a%2fb",
        "expression true",
        "query a=1 b=2",
        "not path /a[bc]/*",
        "header X-A {x}",
    ] {
        let imported = site(&format!("@b {matcher}\nrespond @b 403\nreverse_proxy 127.0.0.1:9"));
        let all = routes(&imported.toml);
        assert!(all[0].contains("403") && all[0].contains("\"/*\""), "{}", imported.toml);
        let notes: Vec<String> = imported.notes.iter().map(ToString::to_string).collect();
        assert!(notes.iter().any(|note| note.contains("this line closes all of :80")), "{notes:?}");
    }
}

#[test]
fn rules_hold_for_other_spellings_of_a_path() {
    let pass = "reverse_proxy 127.0.0.1:9";
    for lines in [
        format!("basic_auth /adm/* {{\na b\n}}\n{pass}"),
        format!("handle /adm/* {{\nbasic_auth {{\na b\n}}\n{pass}\n}}\n{pass}"),
        format!("handle_path /adm/* {{\nerror 404\n}}\n{pass}"),
        format!("waf_plugin /x\n{pass}"),
        format!("request_body {{\nmax_size many\n}}\n{pass}"),
    ] {
        let toml = site(&lines).toml;
        let all = routes(&toml);
        let open = all.iter().position(|route| route.contains("proxy ="));
        let closed = all.iter().position(|route| {
            route.contains("403")
                && (route.contains("path_regex = \"~*^/adm/")
                    || route.contains("\"/*\"")
                    || route.contains("\"/x\""))
        });
        assert!(
            closed.is_some() && open.is_none_or(|open| closed.unwrap() < open),
            "{lines}:\n{toml}"
        );
    }
    let toml = site(&format!("request_body {{\nmax_size 10MB\n}}\n{pass}")).toml;
    assert!(toml.contains("max_body = \"10000000\""), "{toml}");
}

#[test]
fn a_site_listens_only_where_caddy_does() {
    for (bind, wanted) in [
        ("127.0.0.1 ::1", "listen = [\"127.0.0.1:80\", \"[::1]:80\"]"),
        ("localhost", "listen = [\"127.0.0.1:80\"]"),
        ("unix//run/x.sock", "listen = [\"127.0.0.1:80\"]"),
    ] {
        let toml = site(&format!("bind {bind}\nrespond hi")).toml;
        assert!(toml.contains(wanted), "{bind}:\n{toml}");
    }
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("Caddyfile");
    std::fs::write(&file, "{\ndefault_bind 127.0.0.1\n}\nhttp://a.example {\nrespond hi\n}\n")
        .unwrap();
    let toml = import(Language::Caddy, &file).unwrap().toml;
    assert!(toml.contains("listen = [\"127.0.0.1:80\"]"), "{toml}");
}

#[test]
fn no_client_chooses_the_address_that_a_rule_reads() {
    let with = |options: &str| {
        caddy(&format!(
            "{{\nservers {{\n{options}\n}}\n}}\nhttp://a.example {{\n\
             @own client_ip private_ranges\nreverse_proxy @own 127.0.0.1:9\n}}\n"
        ))
        .toml
    };
    let proxies = "trusted_proxies static 10.0.0.0/8";
    let toml = with(proxies);
    assert!(toml.contains("proxy =") && toml.contains("trusted_proxies"), "{toml}");
    for options in [
        format!("{proxies}\nclient_ip_headers X-Real-IP"),
        format!("client_ip_headers X-Real-IP X-Forwarded-For\n{proxies}"),
        "trusted_proxies cloudflare".into(),
        "trusted_proxies static 10.0.0.0/8 many".into(),
    ] {
        let toml = with(&options);
        assert!(!toml.contains("proxy ="), "{options}:\n{toml}");
        assert!(!toml.contains("forwarded =") && !toml.contains("trusted_proxies ="), "{toml}");
        assert!(toml.contains("NOT TRANSLATED"), "{options}:\n{toml}");
    }
}

#[test]
fn rules_after_a_removed_prefix_hold() {
    let pass = "reverse_proxy 127.0.0.1:9";
    // These are translated: the rule precedes the proxy, and has the whole path.
    for (outer, inner) in [
        ("handle_path /x/*", "respond /adm/* 403"),
        ("handle_path /x/*", "handle /adm/* {\nrespond 403\n}"),
        ("handle /x/*", "uri strip_prefix /x\nrespond /adm/* 403"),
    ] {
        let toml = site(&format!("{outer} {{\n{inner}\n{pass}\n}}")).toml;
        let rule = routes(&toml).iter().position(|route| {
            route.contains("403") && route.contains("path_regex = \"~*^/x/adm/\"")
        });
        let open = routes(&toml).iter().position(|route| route.contains("proxy ="));
        assert!(rule.is_some() && open.is_some() && rule < open, "{inner}:\n{toml}");
    }
    let toml = site(&format!("handle_path /x/* {{\nhandle_path /y/* {{\n{pass}\n}}\n}}")).toml;
    assert!(toml.contains("\"/x/y/*\"") && toml.contains("strip_prefix = \"/x/y\""), "{toml}");
    // These have no translation.
    for lines in [
        format!("uri strip_prefix /x\nrespond /adm/* 403\n{pass}"),
        format!("uri strip_prefix /x\nbasic_auth /adm/* {{\na b\n}}\n{pass}"),
        "handle_path /x/* {\n@open not path /adm/*\nreverse_proxy @open :9\n}".to_owned(),
        "handle_path /x/* {\n@open path_regexp ^/x/a\nreverse_proxy @open :9\n}".to_owned(),
        format!("handle_path /x* {{\nrespond /adm/* 403\n{pass}\n}}"),
        format!("handle_path /x/* {{\nuri strip_prefix /y\n{pass}\n}}"),
    ] {
        let found = site(&lines);
        let all = routes(&found.toml);
        let closed = all.iter().position(|route| route.contains("403") && route.contains("*\""));
        let open = all.iter().position(|route| route.contains("proxy ="));
        assert!(
            closed.is_some() && open.is_none_or(|open| closed.unwrap() < open),
            "{lines}:\n{}",
            found.toml
        );
        assert!(!found.notes.is_empty(), "{lines}:\n{}", found.toml);
    }
}

#[test]
fn each_tls_line_may_require_client_certificates() {
    let auth = "tls {\nclient_auth {\nmode require_and_verify\ntrust_pool file /no/ca.pem\n}\n}";
    for lines in [
        format!("tls a@a.example\n{auth}"),
        format!("tls {{\nprotocols tls1.3\n}}\n{auth}"),
        auth.to_owned(),
    ] {
        let found = caddy(&format!("https://a.example {{\n{lines}\nreverse_proxy :9\n}}\n"));
        let toml = &found.toml;
        assert!(toml.contains("listen = [\"127.0.0.1:443\"]"), "{lines}:\n{toml}");
        assert!(toml.matches("[[site]]").count() == 1 && !found.notes.is_empty(), "{toml}");
    }
}

#[test]
fn a_part_of_a_site_sends_the_same_files() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["pub/static/priv", "pub/priv"] {
        std::fs::create_dir_all(dir.path().join(name)).unwrap();
    }
    let root = dir.path().join("pub").display().to_string();
    let of = |lines: &str| {
        let text = format!(":80 {{\nroot * {root}\n{lines}\nfile_server\n}}\n");
        translated(Language::Caddy, dir.path(), "Caddyfile", &text).toml
    };
    let check = "forward_auth /priv/* 127.0.0.1:9 {\nuri /check\n}";
    for line in [
        "header /static/* X-A b",
        "header /static* X-A b",
        "header /static/c.css X-A b",
        "encode /static/* gzip",
        "request_body /static/* {\nmax_size 1MB\n}",
        "@s path /static/* /other/*\nheader @s X-A b",
        "request_header /static/* X-A b",
        "log_skip /static/*",
        check,
        "forward_auth /static* 127.0.0.1:9 {\nuri /check\n}",
    ] {
        for rule in ["respond /priv/* 403", "basicauth /priv/* {\na b\n}", check] {
            let toml = of(&format!("{line}\n{rule}"));
            let sending: Vec<_> =
                routes(&toml).into_iter().filter(|route| route.contains("files =")).collect();
            assert!(!sending.is_empty(), "{line} {rule}:\n{toml}");
            for route in sending {
                // With a narrower path, Forebay would not look for the whole path.
                let is_whole = route.contains("path_regex =") || route.contains("path = \"/*\"");
                assert!(is_whole && route.contains(&format!("{root}\"")), "{line} {rule}:\n{toml}");
            }
        }
    }
    let toml = of("header /static/* X-A b");
    let both = ["path_regex = \"^(?:/static/)\"", "X-A = \"b\"", "files ="];
    assert!(routes(&toml).iter().any(|route| both.iter().all(|key| route.contains(key))), "{toml}");
    // Within a block for a directory, the path of the block stays.
    let text = format!(
        ":80 {{\nroot * {root}\nhandle /static/* {{\nheader /static/priv/* X-A b\nfile_server\n}}\n}}\n"
    );
    let toml = translated(Language::Caddy, dir.path(), "Caddyfile", &text).toml;
    for route in routes(&toml).iter().filter(|route| route.contains("files =")) {
        assert!(route.contains("path = \"/static/*\""), "{toml}");
        assert!(route.contains(&format!("{root}/static\"")), "{toml}");
    }
}
