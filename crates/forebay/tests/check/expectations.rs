//! Tests of the rules (`expect`), which `check` runs.

use std::path::Path;

use crate::{but_root, check, typed};

/// A site whose rules are tested.
fn with_tests(tests: &str) -> String {
    format!(
        "[[site]]\nlisten = \"127.0.0.1:0\"\nhosts = \"a.example\"\n\
         expect = [{tests}]\n\
         [[site.route]]\npath = \"/old/*\"\nredirect = {{ to = \"/new/{{rest}}\", status = 301 }}\n\
         [[site.route]]\npath = \"/secret/*\"\nallow = \"192.0.2.1\"\nrespond = \"s\"\n\
         [[site.route]]\nname = \"api\"\npath = \"/api/*\"\nproxy = \"http://127.0.0.1:9\"\n\
         [[site.route]]\npath = \"/x/*\"\nrespond = {{ status = 410, body = \"x\" }}\n"
    )
}

#[test]
fn tests_beside_the_rules_are_run_without_starting_anything() {
    let tests = "\"/old/a -> 301 /new/a\", \"POST /old/a -> 301\", \"/secret/x -> 403\", \
                 \"/api/x -> proxy\", \"/api/x -> route api\", \"/api/x -> 200\", \"/x/ -> 410\", \
                 \"/none -> 404\", \"http://a.example/x/ -> respond\"";
    let file = typed("tests-hold.toml", &with_tests(tests));
    let output = check(&[&file]);
    assert_eq!(but_root(output.stderr), "");
    assert_eq!(output.status.code(), Some(0));
    let line = String::from_utf8(output.stdout).unwrap();
    let summary = "ok, 1 site, 4 routes, 0 apps; 8 tests hold, 1 needs --start";
    assert_eq!(line, format!("{file}: {summary}\n"));
}

#[test]
fn a_test_that_fails_is_shown_at_its_line_with_the_route_that_answered() {
    for (test, words) in [
        (
            "/old/a -> 302",
            "GET /old/a: the answer is 301 /new/a: the route on line 7 answers with `redirect`",
        ),
        ("/old/a -> 301 /other", "the answer is 301 /new/a"),
        ("/secret/x -> 200", "GET /secret/x: the answer is 403: the route on line 10"),
        ("/secret/x -> respond", "the answer is 403"),
        ("/api/x -> files", "a route with `proxy` answers: the route on line 14, \"api\""),
        ("POST /x/ -> route api", "POST /x/: another route answers"),
        ("http://b.example/none -> proxy", "GET b.example/none: the answer is 404"),
    ] {
        let file = typed("tests-fail.toml", &with_tests(&format!("\n\"/x/ -> 410\",\n\"{test}\"")));
        let output = check(&[&file]);
        assert_eq!(output.status.code(), Some(2), "{test}");
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(error.contains(words), "{test}: {error}");
        assert!(error.contains("tests-fail.toml:6:1"), "{test}: {error}");
        let line = String::from_utf8(output.stdout).unwrap();
        assert!(line.ends_with("tests-fail.toml: 1 test holds, 1 fails\n"), "{line}");
    }
}

#[test]
fn tests_are_run_against_running_origins_on_request() {
    let folder = forebay_testkit::folder::Folder::new();
    folder.script("cgi/status.sh", "#!/bin/sh\nprintf 'Status: 418\\n\\n'\n");
    folder.script("cgi/to.sh", "#!/bin/sh\nprintf 'Location: https://e.example/x\\n\\n'\n");
    folder.write("htdocs/a.txt", "a");
    let text = |last: &str| {
        format!(
            "[server]\nadmin = \"127.0.0.1:1\"\n[log]\naccess = \"access.log\"\n\
             [[site]]\nlisten = [\"127.0.0.1:0\", \"127.0.0.1:2\"]\nhosts = \"a.example\"\n\
             expect = [\"/status.sh -> 418\", \"/to.sh -> 302 https://e.example/x\", \"/a.txt -> 200\",\n\
             \"/status.sh -> cgi\", \"{last}\"]\n\
             [[site.route]]\nsuffix = \".sh\"\ncgi = \"cgi\"\n[[site.route]]\nfiles = \"htdocs\"\n"
        )
    };
    folder.write("site.toml", text("POST /status.sh -> 418"));
    let file = folder.path().join("site.toml").display().to_string();
    // The port of `admin` is occupied, but the tests do not need it.
    let output = check(&["--start", &file]);
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(0), "{error}");
    let line = String::from_utf8(output.stdout).unwrap();
    assert!(line.ends_with("; 5 tests hold\n"), "{line}");
    let log = std::fs::read_to_string(folder.path().join("access.log")).unwrap_or_default();
    assert_eq!(log, "", "the tests are not in the log");
    folder.write("site.toml", text("/status.sh -> 200"));
    let output = check(&["--start", &file]);
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{error}");
    assert!(
        error.contains("the answer is 418: the route on line 10 answers with `cgi`"),
        "{error}"
    );
    assert!(error.contains("site.toml:9:"), "{error}");
}

#[test]
fn twenty_two_sites_fit_in_110_lines() {
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/sites");
    let text = std::fs::read_to_string(example.join("forebay.toml")).unwrap();
    assert!(text.lines().count() <= 110, "{}", text.lines().count());
    assert_eq!(text.matches("[[site]]").count(), 22);
    let folder = forebay_testkit::folder::Folder::new();
    folder.write("forebay.toml", &text);
    folder.write("htpasswd", "");
    let map = std::fs::read_to_string(example.join("old/company.map")).unwrap();
    folder.write("old/company.map", map);
    for name in [
        "company/index.html",
        "blog/index.php",
        "blog/logo.txt",
        "wiki/index.php",
        "shop/index.php",
        "cloud/index.php",
        "cloud/config/config.php",
        "docs/index.html",
        "spa/index.html",
        "django-static/a.css",
        "rails-public/a.css",
    ] {
        folder.write(name, "x");
    }
    let file = folder.path().join("forebay.toml").display().to_string();
    let output = check(&[&file]);
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(0), "{error}");
    let line = String::from_utf8(output.stdout).unwrap();
    // `www` adds a site.
    assert!(line.contains("ok, 23 sites") && line.contains("tests hold"), "{line}");
    assert!(!line.contains("fail") && !line.contains("--start"), "{line}");
}
