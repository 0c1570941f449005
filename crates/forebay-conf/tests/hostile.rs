//! Any input gives a plan or an error. Nothing panics, and errors contain no control characters.

use std::path::Path;

#[allow(dead_code)] // The test `golden` uses the rest.
mod case;

use proptest::prelude::*;
use proptest::sample::{Index, select};

/// However many mistakes there are, some are shown, and none is taken for a table that need not be
/// whole.
#[test]
fn many_mistakes_are_refused_with_words() {
    let route = "[[site]]\nlisten = '127.0.0.1:1'\n[[site.route]]\nrespond = 'x'\n";
    let partial = "[[site]]\nlisten = '127.0.0.1:1'\n[site.defaults]\n\
                   bandwidth_limit = { after = '1M' }\n[[site.route]]\nrespond = 'x'\n\
                   bandwidth_limit = false\n";
    let keys = |count| (0..count).map(|at| format!("nope{at} = 1\n")).collect::<String>();
    for (text, expected) in [
        (format!("{route}expire = '1h'\n").repeat(150), "unknown key `expire`"),
        (format!("{route}{}", keys(150)), "unknown key `nope0`"),
        (format!("{route}max_body = true\n").repeat(150), "expected a number of bytes"),
        (format!("{route}bandwidth_limit = '0'\n").repeat(150), "no reply would end"),
        (format!("{route}allow = [{}]\n", "1.5, ".repeat(150)), "expected a string"),
        (
            partial.repeat(120)
                + &partial.replace("bandwidth_limit = { after = '1M' }", "max_body = true"),
            "expected a number of bytes",
        ),
        (partial.repeat(120) + route + "expire = '1h'\n", "unknown key `expire`"),
    ] {
        let error = forebay_conf::parse(&text, "site.toml", &case::base()).unwrap_err();
        assert!(error.plain().contains(expected), "{expected}\n{}", error.plain());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_text(text in any::<String>()) {
        check(&text);
    }

    #[test]
    fn any_bytes_in_a_file(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("site.toml");
        std::fs::write(&path, bytes).unwrap();
        if let Err(error) = forebay_conf::load(&path) {
            check_shown(&error.plain());
        }
    }

    #[test]
    fn valid_files_with_a_few_edits(
        file in any::<Index>(),
        edits in proptest::collection::vec(edit(), 1..6),
    ) {
        let files = golden();
        let mut text = files[file.index(files.len())].clone();
        for edit in &edits {
            edit.apply(&mut text);
        }
        check(&text);
    }

    #[test]
    fn known_keys_with_any_value(
        lines in proptest::collection::vec((select(KEYS), value()), 1..8),
    ) {
        let line = |(key, value): &(&str, String)| match key.strip_suffix(']') {
            Some(_) => format!("{key}\n"),
            None => format!("{key} = {value}\n"),
        };
        check(&lines.iter().map(line).collect::<String>());
    }

    #[test]
    fn any_argument(text in any::<String>()) {
        let listen = forebay_conf::Listen::parse("127.0.0.1:0").unwrap();
        let shown = [
            forebay_conf::Listen::parse(&text).err(),
            forebay_conf::Plan::for_proxy(&text, listen.clone()).err(),
            forebay_conf::Plan::for_directory(Path::new(&text), listen).err(),
        ];
        for error in shown.into_iter().flatten() {
            check_shown(&error.plain());
        }
    }

    #[test]
    fn patterns_take_a_path_and_give_its_end(
        patterns in proptest::collection::vec("/[a-c/]{0,4}\\*?", 0..3),
        suffixes in proptest::collection::vec("\\.[a-c]{0,2}", 0..2),
        path in "(/[a-c./]{0,8})|\\PC{0,6}",
    ) {
        use forebay_conf::{Matcher, PathPattern};
        let pattern = |typed: &String| match typed.strip_suffix('*') {
            Some(prefix) => PathPattern::Prefix(prefix.into()),
            None => PathPattern::Exact(typed.clone()),
        };
        let paths = patterns.iter().map(pattern).collect();
        let matcher = Matcher { paths, suffixes, ..Matcher::default() };
        let path = path.as_bytes();
        if let Some(found) = matcher.matches(b"GET", path) {
            prop_assert!(path.ends_with(found.rest));
            let clean = !found.rest.starts_with(b"/") || !path.starts_with(b"/");
            prop_assert!(clean || found.by_suffix);
        }
    }
}

fn check(text: &str) {
    if let Err(error) = forebay_conf::parse(text, "hostile.toml", &case::base()) {
        let shown = error.plain();
        // An edit may write a pattern of `include` that matches other files, which have mistakes.
        let has_place = ["hostile.toml:", ".inc:"].iter().any(|file| shown.contains(file));
        assert!(has_place, "no place in:\n{shown:.2000}");
        check_shown(&shown);
    }
}

fn check_shown(shown: &str) {
    assert!(!shown.trim().is_empty());
    let control = shown.chars().find(|c| c.is_control() && *c != '\n');
    assert_eq!(control, None, "{shown:.2000?}");
    assert!(shown.lines().all(|line| line.chars().count() < 1000), "{shown:.2000}");
}

fn golden() -> Vec<String> {
    case::files().iter().flat_map(|(_, cases)| cases).map(case::Case::text).collect()
}

/// A change to a text, at positions given as fractions of its length.
#[derive(Clone, Debug)]
enum Edit {
    Delete(Index, Index),
    Insert(Index, String),
    Move(Index, Index, Index),
    Repeat(Index, usize),
}

fn edit() -> impl Strategy<Value = Edit> {
    let index = any::<Index>;
    prop_oneof![
        (index(), index()).prop_map(|(from, to)| Edit::Delete(from, to)),
        (index(), any::<String>()).prop_map(|(at, text)| Edit::Insert(at, text)),
        (index(), select(PIECES)).prop_map(|(at, text)| Edit::Insert(at, text.into())),
        (index(), index(), index()).prop_map(|(from, to, at)| Edit::Move(from, to, at)),
        (index(), 1..2000_usize).prop_map(|(at, times)| Edit::Repeat(at, times)),
    ]
}

impl Edit {
    fn apply(&self, text: &mut String) {
        let place = |text: &str, index: &Index| {
            let ends: Vec<_> = text.char_indices().map(|(at, _)| at).chain([text.len()]).collect();
            ends[index.index(ends.len())]
        };
        let range = |text: &str, from: &Index, to: &Index| {
            let (a, b) = (place(text, from), place(text, to));
            a.min(b)..b.max(a)
        };
        match self {
            Self::Delete(from, to) => text.replace_range(range(text, from, to), ""),
            Self::Insert(at, piece) => text.insert_str(place(text, at), piece),
            Self::Move(from, to, at) => {
                let piece: String = text.drain(range(text, from, to)).collect();
                text.insert_str(place(text, at), &piece);
            }
            Self::Repeat(at, times) => {
                let at = place(text, at);
                let Some(c) = text[at..].chars().next() else { return };
                text.insert_str(at, &c.to_string().repeat(*times));
            }
        }
    }
}

fn value() -> impl Strategy<Value = String> {
    prop_oneof![
        any::<String>().prop_map(|text| format!("{text:?}")),
        any::<i64>().prop_map(|number| number.to_string()),
        select(PIECES).prop_map(str::to_owned),
        select(TEXTS).prop_map(|text| format!("\"{text}\"")),
        proptest::collection::vec(select(TEXTS), 0..3).prop_map(|texts| format!("{texts:?}")),
        (select(KEYS), select(TEXTS)).prop_map(|(key, text)| format!("{{ {key} = \"{text}\" }}")),
    ]
}

const PIECES: &[&str] = &[
    "\"",
    "'",
    "[",
    "]",
    "[[",
    "{",
    "}",
    "=",
    "#",
    "\n",
    "\r\n",
    "\u{feff}",
    "\\",
    ",",
    ".",
    "\t",
    "\u{1b}[2J",
    "\0",
    "\u{202e}",
    "日本",
    "e\u{301}",
    "true",
    "-1",
    "1e9",
    "2024-01-01",
    "[site]",
    "[[site]]\n",
    "[[site.route]]\n",
    "[app.x]\n",
    "\"\"\"\n\n\"\"\"",
    "0x7fffffffffffffff",
    "nan",
];

const TEXTS: &[&str] = &[
    "",
    "/",
    "*",
    "/*",
    "/a/*",
    ".php",
    "GET",
    "htdocs",
    "cgi-bin",
    "scripts",
    "perl-cgi",
    "psgi",
    "127.0.0.1:8080",
    ":8080",
    "8080",
    "unix:x",
    "unix:",
    "[::1]:80",
    "[",
    "]:1",
    "::1",
    "host:1",
    "http://127.0.0.1",
    "https://x",
    "http://[::1]:99999",
    "http://",
    "http:///",
    "10.0.0.0/8",
    "::/0",
    "0.0.0.0/0",
    "1s",
    "1ms1h",
    "99999999999999999999d",
    "8k",
    "9999999999999999g",
    "off",
    "unlimited",
    "%h",
    "日本",
    "*.example.org",
    "*.",
    ".",
    "..",
    "a.b.",
    "\\u001b[2J",
    "\\n",
];

const KEYS: &[&str] = &[
    "[server]",
    "[server.timeouts]",
    "[server.limits]",
    "[log]",
    "[[site]]",
    "[[site.route]]",
    "[app.a]",
    "[app.b]",
    "[map.a]",
    "from",
    "default",
    "charset",
    "signed_url",
    "challenge",
    "concurrency_limit",
    "max",
    "allow_methods",
    "open_methods",
    "internal",
    "internal_redirects",
    "error_pages",
    "set_headers",
    "threads",
    "admin",
    "grace",
    "head",
    "keep_alive",
    "head_size",
    "target",
    "max_body",
    "access",
    "format",
    "listen",
    "hosts",
    "trusted_proxies",
    "proxy_protocol",
    "group",
    "path",
    "paths",
    "suffix",
    "methods",
    "files",
    "cgi",
    "fastcgi",
    "scgi",
    "uwsgi",
    "ajp",
    "secret",
    "packet_size",
    "ping",
    "mount",
    "modifier1",
    "proxy",
    "app",
    "respond",
    "redirect",
    "log",
    "expires",
    "set_headers",
    "add_headers",
    "remove_headers",
    "request_headers",
    "always",
    "path_regex",
    "when",
    "not",
    "rewrite",
    "fallback_to",
    "error_pages",
    "intercept",
    "maintenance",
    "cors",
    "cache",
    "forward_auth",
    "jwt",
    "digest_auth",
    "jwks",
    "secret",
    "algorithms",
    "audience",
    "require",
    "satisfy",
    "copy",
    "private_cookies",
    "rate_limit",
    "mirror",
    "bandwidth_limit",
    "timeouts",
    "after",
    "refresh",
    "server_tls",
    "percent",
    "credentials",
    "rate",
    "burst",
    "root",
    "dir",
    "to",
    "index",
    "balance",
    "sticky",
    "health",
    "max_fails",
    "fail_timeout",
    "recover_time",
    "url",
    "weight",
    "distance",
    "route",
    "kind",
    "mode",
    "file",
    "module",
    "run",
    "speaks",
    "workers",
    "max_requests",
    "env",
    "user",
    "max_memory",
    "site",
    "server",
];
