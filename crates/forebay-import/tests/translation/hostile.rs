//! Hostile configurations: the import ends soon, with a translation or a clear error.

use std::fmt::Write;
use std::path::Path;

use forebay_import::{ImportError, Imported, Language, Note, import};

const LANGUAGES: [Language; 3] = [Language::Nginx, Language::Apache, Language::Caddy];

fn of(language: Language, text: &[u8]) -> Result<Imported, ImportError> {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("x.conf");
    std::fs::write(&file, text).unwrap();
    import(language, &file)
}

/// Returns the error of an import, and checks that it names the next step.
fn error(language: Language, text: &[u8]) -> String {
    match of(language, text) {
        Ok(found) => panic!("{language:?} accepts this: {}", found.toml),
        Err(error) => {
            let text = error.to_string();
            assert!(text.contains("help: ") && text.len() < 1_000, "{text}");
            text
        }
    }
}

#[test]
fn files_that_are_no_configurations_get_an_error() {
    for language in LANGUAGES {
        assert!(error(language, &vec![b'a'; 10 << 20]).contains("larger than 4 MiB"));
        assert!(error(language, b"a\n b\0c\n").contains("x.conf:2: a zero byte"));
        assert!(import(language, Path::new("/")).is_err());
        assert!(import(language, Path::new("/no/such/file")).is_err());
        error(language, b"");
    }
    assert!(error(Language::Nginx, b"a \"b;\n").contains(":1: the quotation mark"));
    assert!(error(Language::Caddy, b"a \"b\n").contains(":1: the quotation mark"));
    let huge = "x".repeat(1 << 20);
    assert!(error(Language::Nginx, format!("a;\nb {huge};").as_bytes()).contains(":2: this word"));
    assert!(error(Language::Nginx, format!("a '{huge}';").as_bytes()).contains("this word"));
    assert!(error(Language::Caddy, format!("a\n{huge}\n").as_bytes()).contains(":2: this word"));
}

#[test]
fn deep_blocks_and_circles_of_includes_get_an_error() {
    assert!(error(Language::Nginx, "a { ".repeat(500_000).as_bytes()).contains("deep"));
    assert!(error(Language::Nginx, "include x.conf;".as_bytes()).contains("includes itself"));
    assert!(error(Language::Apache, "<A>\n".repeat(100_000).as_bytes()).contains("deep"));
    assert!(error(Language::Apache, "Include x.conf\n".as_bytes()).contains("includes itself"));
    assert!(error(Language::Caddy, "a {\n".repeat(100_000).as_bytes()).contains("deep"));
    assert!(error(Language::Caddy, "import x.conf\n".as_bytes()).contains("back to themselves"));
    assert!(
        error(Language::Caddy, b"(a) {\nimport b\n}\n(b) {\nimport a\n}\nx {\nimport a\n}\n")
            .contains("back to themselves")
    );
    let doubled = |n| format!("(s{}) {{\nimport s{n}\nimport s{n}\n}}\n", n + 1);
    let snippets: String = (0..30).map(doubled).collect();
    let text = format!("(s0) {{\nrespond a\n}}\n{snippets}http://a {{\nimport s30\n}}\n");
    assert!(error(Language::Caddy, text.as_bytes()).contains("more than"));
}

#[test]
fn huge_words_and_odd_bytes_are_no_problem() {
    let huge = "x".repeat(4096);
    for text in [
        format!(
            "server {{ listen 80; server_name {huge}; location /{huge} {{ return 200 {huge}; }} }}"
        ),
        format!("server {{ listen 80; {huge} {huge}; location ~ {huge} {{ deny all; }} }}"),
        format!("server {{ listen 80; location ~ {} {{ deny all; }} }}", "(a".repeat(2_000)),
        format!("server {{ listen 80; if ($x ~ {}) {{ return 403; }} }}", "a|".repeat(2_000)),
        "server { listen 80; location /\u{202e}\u{7f} { return 200 '\u{1b}[31m'; } }".into(),
        "server { listen 99999; server_name \u{130} *.*.a ~^( ~; location = { } location { } }"
            .into(),
    ] {
        let _ = of(Language::Nginx, text.as_bytes());
    }
    for text in [
        format!("http://{huge} {{\nrespond {huge}\n}}\n"),
        format!("http://a {{\n@a path {huge}* /{huge}\nrespond @a 403\n{huge} {huge}\n}}\n"),
        format!("http://a {{\n@a not path /{}\nrespond @a 403\n}}\n", "\u{212a}i".repeat(10_000)),
        format!("http://a {{\n@a path_regexp {}\nrespond @a 403\n}}\n", "(a".repeat(2_000)),
        "http://a, {\n".into(),
        "{\n}\n{\n}\n".into(),
        "http://a {\nreverse_proxy\nredir\nroot\nheader\nlog\nhandle\nuri\nrewrite\nrespond\n}\n"
            .into(),
        "http://a {\nreverse_proxy {\nlb_policy\nheader_up\nheader_down\ntransport\nto\n}\n}\n"
            .into(),
    ] {
        let _ = of(Language::Caddy, text.as_bytes());
    }
    for language in LANGUAGES {
        let bytes: Vec<u8> = (1..=255).cycle().take(100_000).collect();
        let _ = of(language, &bytes);
    }
}

/// Runs an import in a thread, and checks that it ends before a deadline. An import that takes
/// quadratic time needs minutes for the texts of the callers. Returns the notes.
fn in_time(language: Language, text: String) -> Vec<Note> {
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let notes = of(language, text.as_bytes()).map(|found| found.notes);
        sender.send(notes.unwrap_or_default())
    });
    receiver.recv_timeout(std::time::Duration::from_secs(60)).expect("the import takes too long")
}

#[test]
fn long_lists_take_no_quadratic_time() {
    // Beginnings of variables, with and without the end of one.
    for end in ["", "=}"] {
        let text =
            format!("http://a.example {{\nrespond \"x\"\n}}\n# {}{end}\n", "{$".repeat(1 << 20));
        in_time(Language::Caddy, text);
    }
    // Lines without a translation in a closed location.
    let mut text = String::from("server { listen 80; location / { auth_own x;\n");
    for n in 0..160_000 {
        let _ = writeln!(text, "own_{n} x;");
    }
    text.push_str("} }\n");
    let notes = in_time(Language::Nginx, text);
    assert!(notes.iter().any(|note| note.next.contains(" and others")), "{notes:?}");
}

#[test]
fn many_lines_take_no_quadratic_time() {
    let mut text = String::from("http { upstream u { server 127.0.0.1:9; }\n");
    for n in 0..5_000 {
        let _ = writeln!(text, "proxy_own_{n} x; own_{n} x;");
    }
    text.push_str("server { listen 80;\n");
    for n in 0..500 {
        let _ = writeln!(text, "location /{n}/ {{ proxy_own {n}; own {n}; proxy_pass http://u; }}");
    }
    text.push_str("} }\n");
    let found = of(Language::Nginx, text.as_bytes()).unwrap();
    assert!(found.notes.len() > 5_000, "{}", found.notes.len());
    let mut text = String::from("http://a.example {\n");
    for n in 0..300 {
        let _ = writeln!(text, "reverse_proxy /{n}/* 127.0.0.1:9 {{\nown {n}\n}}");
    }
    text.push_str("}\n");
    assert!(of(Language::Caddy, text.as_bytes()).is_ok());
}
