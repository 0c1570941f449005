//! Lines of a Caddyfile that a translation could lose silently. Each line is translated, needs no
//! key, or is reported.

use forebay_import::{Imported, Language, import};

use crate::support::{notes, translated};

/// Returns the translation of a Caddyfile, which Forebay must accept. `{}` in the text is the
/// directory of the file.
fn of(text: &str) -> Imported {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().display().to_string();
    for name in ["cert.pem", "key.pem", "ca.pem"] {
        std::fs::write(dir.path().join(name), "").unwrap();
    }
    let text = text.replace("{}", &root);
    let found = translated(Language::Caddy, dir.path(), "Caddyfile", &text);
    let toml = found.toml.replace(&root, "ROOT");
    Imported { toml, ..found }
}

/// Returns the translation of a site with these lines.
fn site(lines: &str) -> Imported {
    of(&format!(":80 {{\n{lines}\n}}\n"))
}

#[test]
fn lines_that_no_translator_reads_are_reported() {
    let pass = "reverse_proxy 127.0.0.1:9";
    for (lines, wanted) in [
        (format!("tracing {{\nspan x\n}}\n{pass}"), "tracing { ... }"),
        (format!("push /style.css\n{pass}"), "push /style.css"),
        (format!("vars a b\n{pass}"), "vars a b"),
        (format!("bind 127.0.0.1\nbind 127.0.0.2\n{pass}"), "bind 127.0.0.2"),
        (format!("encode {{\ngzip\nmatch status 200\n}}\n{pass}"), "match status 200"),
        (format!("header {{\nX-A b\nmatch status 200\n}}\n{pass}"), "match status 200"),
        (format!("header X-A b c\n{pass}"), "header X-A b c"),
        (format!("request_body {{\nmax_size 1MB\nread_timeout 3s\n}}\n{pass}"), "read_timeout 3s"),
        (format!("{pass} {{\nheader_down X-A b c\n}}"), "header_down"),
        (format!("{pass} {{\nheader_down X-A {{x}}\n}}"), "header_down"),
        (format!("{pass} {{\nheader_up X-Forwarded-For {{header.CF-IP}}\n}}"), "header_up"),
        (format!("{pass} {{\nmax_fails {{x}}\n}}"), "max_fails"),
        (format!("{pass} {{\ntransport http {{\nresolvers 127.0.0.1\n}}\n}}"), "resolvers"),
        (format!("{pass} {{\ntransport http {{\ndial_timeout {{x}}\n}}\n}}"), "dial_timeout"),
        ("root * {}\ntry_files {path} {path}/x.html /index.html\nfile_server".into(), "try_files"),
        ("root * {}\nfile_server {\nbrowse page.html\n}".into(), "browse page.html"),
        (format!("try_files {{path}} /index.html\n{pass}"), "try_files"),
        ("root * {}\nphp_fastcgi 127.0.0.1:9 {\nsplit .php5\n}".into(), "split .php5"),
        ("respond hi {\nown\n}".into(), "own"),
    ] {
        let found = site(&lines);
        let notes = notes(&found);
        assert!(notes.iter().any(|note| note.contains(wanted)), "{lines}:\n{}", found.toml);
        assert!(found.toml.contains("NOT TRANSLATED"), "{lines}:\n{}", found.toml);
    }
}

#[test]
fn lines_that_need_no_key_are_not_reported() {
    for lines in [
        "reverse_proxy 127.0.0.1:9 {\nflush_interval -1\nlb_retries 2\ntransport http {\nkeepalive 3s\n}\n}",
        "@unused {\npath /x\nown 1\n}\nrespond hi",
        "header {\n-Server\ndefer\n}\nrespond hi",
        "root * {}\nphp_fastcgi 127.0.0.1:9 {\nsplit .php\nresolve_root_symlink\n}",
        "@a method GET\nhandle @a {\n@b method POST\nrespond @b no\nrespond yes\n}",
    ] {
        let found = site(lines);
        assert_eq!(found.notes, [], "{lines}:\n{}", found.toml);
    }
    let found = of("{\nadmin off\ndebug\n}\nhttp://a.example {\nrespond hi\n}\n");
    assert_eq!(found.notes, [], "{}", found.toml);
}

#[test]
fn further_lines_have_a_translation() {
    let tls = "https://a.example {\ntls {}/cert.pem {}/key.pem {\n@\n}\nrespond hi\n}\n";
    let options = "{\n@\n}\nhttp://a.example {\nrespond hi\n}\n";
    let pass = "http://a.example {\nreverse_proxy 127.0.0.1:1 127.0.0.1:2 {\n@\n}\n}\n";
    for (text, line, wanted) in [
        (tls, "protocols tls1.3", "min_version = \"1.3\""),
        (tls, "client_auth {\nmode require_and_verify\ntrust_pool file {}/ca.pem\n}", "client_ca"),
        (options, "grace_period 7s", "grace = \"7s\""),
        (options, "shutdown_delay 7s", "drain_delay = \"7s\""),
        (options, "servers {\nmax_header_size 64kib\n}", "head_size = \"65536\""),
        (options, "servers {\ntimeouts {\nidle 7s\n}\n}", "keep_alive = \"7s\""),
        (
            options,
            "servers {\ntrusted_proxies static 10.1.0.0/16\n}",
            "trusted_proxies = [\"10.1.0.0/16\"]\nforwarded = \"x-forwarded\"",
        ),
        (pass, "lb_policy first", "{ url = \"http://127.0.0.1:2\", backup = true }"),
        (
            pass,
            "lb_policy weighted_round_robin 3 1",
            "{ url = \"http://127.0.0.1:1\", weight = 3 }",
        ),
        (
            "http://a.example {\nroot * {}\nphp_fastcgi 127.0.0.1:9 {\n@\n}\n}\n",
            "read_timeout 7s",
            "reply_timeout = \"7s\"",
        ),
        (
            "http://a.example {\nencode {\n@\n}\nrespond hi\n}\n",
            "minimum_length 7",
            "min_size = \"7\"",
        ),
    ] {
        let found = of(&text.replace('@', line));
        assert!(found.toml.contains(wanted), "{line}:\n{}", found.toml);
        assert_eq!(found.notes, [], "{line}:\n{}", found.toml);
    }
}

#[test]
fn rules_of_lines_without_a_translation_close_their_routes() {
    let pass = "reverse_proxy 127.0.0.1:9";
    for lines in [
        format!("{pass} {{\ntransport fastcgi {{\nroot /srv\n}}\n}}"),
        format!("invoke protected\n{pass}"),
        format!("method GET\n{pass}"),
    ] {
        let found = site(&lines);
        assert!(found.toml.contains("403") && !found.toml.contains("proxy ="), "{}", found.toml);
    }
    // A rule on the proxy's own address has no translation beside trusted proxies.
    let found = of("{\nservers {\ntrusted_proxies static 10.0.0.1\n}\n}\nhttp://a.example {\n\
         @a remote_ip 10.0.0.1\nrespond @a 403\nreverse_proxy 127.0.0.1:9\n}\n");
    assert!(!found.toml.contains("client = "), "{}", found.toml);
    assert!(found.toml.contains("this line closes all of a.example"), "{}", found.toml);
    // The leaf certificates restrict the clients of the authority.
    let found = of("https://a.example {\ntls {}/cert.pem {}/key.pem {\nclient_auth {\n\
         trusted_ca_cert_file {}/ca.pem\ntrusted_leaf_cert_file {}/ca.pem\n}\n}\nrespond hi\n}\n");
    assert!(!found.toml.contains("client_ca =") && found.toml.contains("127.0.0.1:443"));
}

#[test]
fn each_import_of_a_snippet_reports_its_own_lines() {
    let found = of("(common) {\nreverse_proxy 127.0.0.1:9 {\nown 1\n}\n}\n\
         http://a.example {\nimport common\n}\nhttp://b.example {\nredir https://a.example\nimport common\n}\n");
    assert_eq!(found.notes.len(), 1, "{:?}", found.notes);
    // The first site uses the line, and the second one has no use for it.
    for sites in
        [["https://a.example", "http://b.example"], ["http://b.example", "https://a.example"]]
    {
        let text = |site| format!("{site} {{\nimport common\nrespond x\n}}\n");
        let all: String = sites.into_iter().map(text).collect();
        let found = of(&format!("(common) {{\ntls {{\nprotocols tls1.2\n}}\n}}\n{all}"));
        assert_eq!(found.notes.len(), 1, "{:?}", found.notes);
    }
}

#[test]
fn letters_beyond_ascii_do_not_pass_a_rule() {
    use forebay_conf::Regex;
    let regex_of = |toml: &str| {
        let line = toml.lines().find(|line| line.contains("path_regex")).unwrap_or_default();
        let text = line.split_once('=').unwrap().1.trim().trim_matches(['"', '\'']).to_owned();
        Regex::new(text.strip_prefix("~*").unwrap(), true).unwrap()
    };
    // Caddy reads the Kelvin sign as k, and the capital I with a dot as i.
    let found = site("respond /kid/* 403\nreverse_proxy 127.0.0.1:9");
    let regex = regex_of(&found.toml);
    for path in ["/kid/", "/KID/x", "/\u{212a}id/", "/k\u{130}d/"] {
        assert!(regex.is_match(path.as_bytes()), "{path}:\n{}", found.toml);
    }
    // A matcher that excludes such a path does not take these spellings either.
    let found = site("@open not path /kid/*\nreverse_proxy @open 127.0.0.1:9");
    let first = found.toml.split("[[site.route]]").nth(1).unwrap();
    assert!(first.contains("403") && first.contains("request_uri"), "{}", found.toml);
    assert!(regex_of(first).is_match("/\u{212a}id/".as_bytes()), "{}", found.toml);
    let others = first.split_once("request_uri = '~*").unwrap().1.split('\'').next().unwrap();
    let others = Regex::new(others, true).unwrap();
    for target in ["/%C4%B0d", "/k%c4%b0d/x?y", "/%E2%84%AAid", "/\u{212a}id", "/a\u{130}?x"] {
        assert!(others.is_match(target.as_bytes()), "{target}:\n{}", found.toml);
    }
    for target in ["/kid/x?q=%C3%A9", "/%C3%A9", "/\u{e9}", "/x?q=\u{130}", "/x?%C4%B0"] {
        assert!(!others.is_match(target.as_bytes()), "{target}:\n{}", found.toml);
    }
    let found = site("@open not path /a/*\nreverse_proxy @open 127.0.0.1:9");
    assert!(!found.toml.contains("request_uri"), "{}", found.toml);
}

#[test]
fn a_redirect_may_add_to_the_host() {
    let found = of("http://a.example, http://b.example {\nredir https://www.{host}{uri}\n}\n");
    assert!(found.toml.contains("https://www.{host}{uri}"), "{}", found.toml);
    let found = of("http://a.example {\nredir https://x.{host}{uri}\n}\n");
    assert!(found.toml.contains("https://x.a.example{uri}"), "{}", found.toml);
    let found = of("http://a.example, http://b.example {\nredir https://x.{host}{uri}\n}\n");
    assert!(!found.notes.is_empty() && found.toml.contains("403"), "{}", found.toml);
}

#[test]
fn the_site_for_all_hosts_answers_for_unknown_hosts() {
    let found = of("http://a.example {\nrespond a\n}\nhttp:// {\nrespond other 404\n}\n");
    let first = found.toml.split("[[site]]").nth(1).unwrap();
    assert!(first.contains("404") && !first.contains("hosts ="), "{}", found.toml);
}

#[test]
fn variables_of_the_environment_may_be_empty_or_have_several_words() {
    let text =
        "http://a.example {\n{$NONE_OF_THIS_NAME}\nheader {$NO:X-A b}\nrespond {$NO:hi}\n}\n";
    let found = of(text);
    assert_eq!(found.notes, [], "{}", found.toml);
    assert!(found.toml.contains("X-A = \"b\"") && found.toml.contains("body = \"hi\""));
}

#[test]
fn a_site_without_tls_keeps_its_routes_beside_one_with_client_certificates() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["cert.pem", "key.pem", "ca.pem"] {
        std::fs::write(dir.path().join(name), "x").unwrap();
    }
    let secure = "https://a.example {\ntls cert.pem key.pem {\nclient_auth {\n\
                  mode require_and_verify\ntrust_pool file ca.pem\n}\n}\nrespond secure\n}\n";
    let plain = "http://a.example {\nrespond plain\n}\n";
    let file = dir.path().join("Caddyfile");
    for text in [format!("{plain}{secure}"), format!("{secure}{plain}")] {
        std::fs::write(&file, &text).unwrap();
        let toml = import(Language::Caddy, &file).unwrap().toml;
        assert_eq!(toml.matches("[[site]]").count(), 2, "{text}:\n{toml}");
        assert!(toml.contains("\"plain\"") && !toml.contains("308"), "{text}:\n{toml}");
    }
    std::fs::write(&file, secure).unwrap();
    let toml = import(Language::Caddy, &file).unwrap().toml;
    assert!(toml.contains("308") && toml.contains("client_ca"), "{toml}");
}
