//! Files that include others, and values that come from the environment and from files.

use std::fs;
use std::path::{Path, PathBuf};

use forebay_conf::{Action, ConfError, Plan, load};

const SITE: &str =
    "[[site]]\nlisten = 8080\nhosts = \"a.example\"\n[[site.route]]\nrespond = \"a\"\n";

struct Dir(tempfile::TempDir);

impl Dir {
    fn of(files: &[(&str, &str)]) -> Self {
        let dir = Self(tempfile::tempdir().unwrap());
        files.iter().for_each(|(name, text)| dir.write(name, text));
        dir
    }

    fn write(&self, name: &str, text: &str) {
        let path = self.0.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn load(&self) -> Result<Plan, ConfError> {
        load(&self.path("main.toml"))
    }

    /// Returns the error with the directory removed from names.
    fn refused(&self) -> String {
        let error = self.load().expect_err("a refused file").plain();
        error.replace(&format!("{}/", self.0.path().display()), "")
    }
}

fn assert_says(error: &str, texts: &[&str]) {
    for text in texts {
        assert!(error.contains(text), "no {text:?} in:\n{error}");
    }
}

fn hosts(plan: &Plan) -> Vec<String> {
    plan.sites.iter().map(|site| format!("{:?}", site.hosts[0])).collect()
}

fn site(host: &str, keys: &str) -> String {
    format!("[[site]]\nlisten = 8080\nhosts = \"{host}\"\n{keys}[[site.route]]\nrespond = \"x\"\n")
}

#[test]
fn files_of_a_pattern_follow_in_alphabetical_order() {
    let dir = Dir::of(&[
        ("main.toml", &format!("include = [\"conf.d/*.toml\", \"none/*.toml\"]\n{SITE}")),
        ("conf.d/20.toml", &site("c.example", "")),
        ("conf.d/10.toml", &site("b.example", "")),
        ("conf.d/.hidden.toml", "no TOML"),
        ("conf.d/notes.txt", "no TOML"),
        ("conf.d/dir.toml/x.toml", "no TOML"),
    ]);
    let plan = dir.load().unwrap();
    let names = ["a", "b", "c"].map(|name| format!("Exact(\"{name}.example\")"));
    assert_eq!(hosts(&plan), names);
    let files: Vec<_> = plan.sites.iter().map(|site| site.file.as_deref()).collect();
    let shown = |name: &str| Some(dir.path(name).display().to_string());
    assert_eq!(files[0], None);
    assert_eq!(files[1].map(str::to_owned), shown("conf.d/10.toml"));
    assert_eq!((plan.sites[2].line, plan.sites[2].routes[0].line), (1, 4));
}

#[test]
fn paths_are_relative_to_the_file_that_has_them() {
    let dir = Dir::of(&[
        ("main.toml", "include = \"sub/site.toml\"\n"),
        (
            "sub/site.toml",
            "include = \"more.toml\"\n[[site]]\nlisten = 8080\n[[site.route]]\nfiles = \"htdocs\"\n",
        ),
        ("sub/more.toml", "[app.x]\nkind = \"psgi\"\nfile = \"app.psgi\"\n"),
        ("sub/htdocs/a", ""),
        ("sub/app.psgi", ""),
    ]);
    let plan = dir.load().unwrap();
    let Action::Files(files) = &plan.sites[0].routes[0].action else { panic!("{plan:?}") };
    assert_eq!(files.root, dir.path("sub/htdocs"));
    assert_eq!(plan.apps["x"].dir, dir.path("sub"));
}

#[test]
fn an_error_names_the_included_file_its_line_and_the_other_place() {
    let dir = Dir::of(&[
        ("main.toml", &format!("include = \"conf.d/*.toml\"\n{SITE}")),
        (
            "conf.d/a.toml",
            "# One\n[[site]]\nlisten = 8080\nhosts = \"a.example\"\n[[site.route]]\nrespond = \"x\"\n",
        ),
    ]);
    let error = dir.refused();
    assert_says(
        &error,
        &["conf.d/a.toml:4:9", "is taken already", "first given here: main.toml:4"],
    );
    dir.write("conf.d/a.toml", "[[site]\n");
    assert_says(&dir.refused(), &["conf.d/a.toml:1:", "not valid TOML"]);
    dir.write("conf.d/a.toml", "[sevrer]\n");
    assert_says(&dir.refused(), &["conf.d/a.toml:1:2", "did you mean `server`?"]);
    dir.write("conf.d/a.toml", "[[site]]\nlisten = true\n");
    assert_says(&dir.refused(), &["conf.d/a.toml:2:10", "wrong type"]);
    // A default of the main file is wrong for a route of another file.
    dir.write("main.toml", "include = \"conf.d/*.toml\"\n[defaults]\nexpires = \"soon\"\n");
    dir.write("conf.d/a.toml", SITE);
    assert_says(&dir.refused(), &["main.toml:3:11", "the duration \"soon\""]);
}

#[test]
fn findings_about_an_included_file_are_shown_there() {
    let dir = Dir::of(&[
        ("main.toml", &format!("include = \"other.toml\"\n{SITE}")),
        ("other.toml", &site("b.example", "")),
    ]);
    let plan = dir.load().unwrap();
    let key = ["site", "1", "route", "0", "respond"].map(str::to_owned).into();
    let finding = forebay_conf::Finding { key, message: "what".into(), help: "advice".into() };
    assert_says(&plan.refuse(&[finding]).plain(), &["other.toml:5:11"]);
}

#[test]
fn a_changed_included_file_is_seen_at_the_next_load() {
    let dir = Dir::of(&[
        ("main.toml", "include = \"conf.d/*.toml\"\n"),
        ("conf.d/a.toml", &site("a.example", "")),
    ]);
    assert_eq!(dir.load().unwrap().sites.len(), 1);
    dir.write("conf.d/b.toml", &site("b.example", ""));
    assert_eq!(dir.load().unwrap().sites.len(), 2);
}

#[test]
fn loops_of_includes_are_refused() {
    let dir = Dir::of(&[("main.toml", "include = \"main.toml\"\n")]);
    assert_says(&dir.refused(), &["main.toml includes itself", "main.toml:1:11"]);
    dir.write("main.toml", "include = \"a.toml\"\n");
    dir.write("a.toml", "include = \"b.toml\"\n");
    dir.write("b.toml", "include = \"./a.toml\"\n");
    assert_says(&dir.refused(), &["a.toml includes itself", "b.toml:1:11"]);
    std::os::unix::fs::symlink("a.toml", dir.path("c.toml")).unwrap();
    dir.write("b.toml", "include = \"c.toml\"\n");
    assert_says(&dir.refused(), &["includes itself", "b.toml:1:11"]);
}

#[test]
fn includes_are_nested_ten_files_deep_at_most() {
    let dir = Dir::of(&[("main.toml", "include = \"1.toml\"\n")]);
    for number in 1..12 {
        dir.write(&format!("{number}.toml"), &format!("include = \"{}.toml\"\n", number + 1));
    }
    dir.write("12.toml", "");
    assert_says(&dir.refused(), &["more than 10 files deep", "10.toml:1:11"]);
}

#[test]
fn a_thousand_files_are_read() {
    let dir = Dir::of(&[("main.toml", "include = \"conf.d/*.toml\"\n")]);
    for number in 0..1000 {
        dir.write(&format!("conf.d/{number:04}.toml"), &site(&format!("h{number}.example"), ""));
    }
    let plan = dir.load().unwrap();
    assert_eq!(plan.sites.len(), 1000);
    assert_eq!(plan.sites[999].hosts, [forebay_conf::HostPattern::Exact("h999.example".into())]);
}

#[test]
fn includes_that_cannot_be_read_say_why() {
    let dir = Dir::of(&[("main.toml", ""), ("large.toml", &"#".repeat(4 * 1024 * 1024 + 1))]);
    fs::write(dir.path("latin.toml"), b"# \xe9\n").unwrap();
    for (typed, texts) in [
        ("/dev/zero", &["cannot read /dev/zero: it is not a file"][..]),
        ("none.toml", &["cannot read none.toml: No such file", "main.toml:1:11"]),
        ("large.toml", &["larger than 4 MiB"]),
        ("latin.toml", &["not text in UTF-8", "latin.toml:1:3"]),
        ("a[", &["is not a pattern"]),
        ("", &["not the path of a file"]),
        ("\\u0000", &["not the path of a file"]),
        ("{env.FOREBAY_SURELY_UNSET}", &["the environment has no variable", "main.toml:1:11"]),
    ] {
        dir.write("main.toml", &format!("include = \"{typed}\"\n"));
        assert_says(&dir.refused(), texts);
    }
    let error = dir.refused();
    assert!(!error.contains('\u{0}'));
}

/// The value of `HOME`, which every machine that runs tests has. Tests cannot set variables without
/// `unsafe`.
fn home() -> String {
    std::env::var("HOME").unwrap()
}

#[test]
fn values_of_the_environment_and_of_files_are_filled_in_and_never_shown() {
    let secret = "s3cret \"quoted\" 'value' \\ {client}";
    let dir = Dir::of(&[("token", &format!("{secret}\r\n")), ("sub/token", "other")]);
    dir.write(
        "main.toml",
        "include = \"sub/site.toml\"\n[[site]]\nlisten = 8080\nhosts = \"a.example\"\n\
         [[site.route]]\npath = \"/a\"\nrespond = \"{file.token} in {env.HOME}\"\n\
         [[site.route]]\nuse = \"x\"\nrespond = \"{\\\"a\\\": {}}\"\n[set.x]\n\
         basic_auth = { file = \"token\", realm = \"{file.token}\" }\n",
    );
    let of_sub = "[[site]]\nlisten = 8080\nhosts = \"b.example\"\n\
                  [[site.route]]\nrespond = \"{file.token}\"\n";
    dir.write("sub/site.toml", of_sub);
    let plan = dir.load().unwrap();
    let body = |site: usize, route: usize| match &plan.sites[site].routes[route].action {
        Action::Respond(respond) => respond.body.clone(),
        action => panic!("{action:?}"),
    };
    assert_eq!(body(0, 0), format!("{secret} in {}", home()));
    assert_eq!(body(0, 1), "{\"a\": {}}");
    assert_eq!(body(1, 0), "other");
    let realm = plan.sites[0].routes[1].access.basic_auth.as_ref().unwrap().realm.clone();
    assert_eq!(realm, secret);
    let inherited = &plan.sites[0].routes[1].inherited;
    assert!(inherited.iter().any(|key| key.typed == "\"{file.token}\""), "{inherited:?}");
    assert!(!format!("{inherited:?}").contains("s3cret"));
    assert_eq!(plan.file.hide(&format!("X: {secret}.")), "X: {file.token}.");
    let key = ["site", "0", "route", "0"].map(str::to_owned).into();
    let message = format!("cannot use {secret}");
    let finding = forebay_conf::Finding { key, message, help: format!("not {secret}") };
    let shown = plan.refuse(&[finding]).plain();
    assert!(!shown.contains("s3cret") && shown.contains("cannot use {file.token}"), "{shown}");
}

#[test]
fn errors_about_a_value_from_outside_do_not_show_it() {
    let dir = Dir::of(&[("token", "hunter2hunter2\nsecond")]);
    for keys in [
        "expires = \"{file.token}\"",
        "set_headers = { \"X-A\" = \"a {file.token}\" }",
        "path = \"{file.token}\"",
        "methods = \"{file.token}\"",
        "app = \"{file.token}\"",
        "fallback = \"{file.token}\"",
        "max_body = \"{file.token}\"",
        "files = \"{file.token}\"",
        "redirect = \"{file.token}\"",
        "redirect = \"/{file.token}{unknown}\"",
    ] {
        let text = format!("[[site]]\nlisten = 8080\n[[site.route]]\n{keys}\n");
        let answer = ["app", "files", "redirect"].iter().any(|key| keys.starts_with(key));
        let answer = if answer { "" } else { "respond = \"x\"\n" };
        dir.write("main.toml", &format!("{text}{answer}"));
        let error = dir.refused();
        assert!(!error.contains("hunter"), "{error}");
        assert_says(&error, &["main.toml:4:", "{file.token}"]);
    }
}

#[test]
fn numbers_and_booleans_may_come_from_outside() {
    let dir = Dir::of(&[("port", "8081\n"), ("yes", "true"), ("status", "404"), ("number", "12x")]);
    dir.write(
        "main.toml",
        "[server]\nthreads = \"{file.number2}\"\nadmin_token = \"{file.token}\"\n\
         admin = \"127.0.0.1:{file.port}\"\n[[site]]\nlisten = \"127.0.0.1:{file.port}\"\n[[site.route]]\n\
         log = \"{file.yes}\"\nrespond = { status = \"{file.status}\", body = \"{file.status}\" }\n",
    );
    dir.write("number2", "3");
    dir.write("token", "1234567890123456");
    // The admin address is the address of the site.
    assert_says(&dir.refused(), &["a site listens on"]);
    dir.write("port", "0");
    let plan = dir.load().unwrap();
    assert_eq!(plan.server.threads, Some(3));
    assert_eq!(plan.server.admin_token.as_deref(), Some("1234567890123456"));
    let route = &plan.sites[0].routes[0];
    let Action::Respond(respond) = &route.action else { panic!("{route:?}") };
    assert_eq!((respond.status, &*respond.body, route.log), (404, "404", true));
    dir.write("number2", "12x");
    let error = dir.refused();
    assert_says(&error, &["main.toml:2:11", "a whole number"]);
}

#[test]
fn values_without_an_end_are_refused() {
    let dir = Dir::of(&[("large", &"x".repeat(65 * 1024)), ("x", &"x".repeat(64 * 1024))]);
    for (typed, text) in [
        ("{file./dev/zero}", "it is not a file"),
        ("{file.large}", "larger than 64 KiB"),
        ("{file.}", "has no path"),
        ("{file.none}", "No such file"),
        ("{env.}", "cannot name a variable"),
    ] {
        let route = format!("[[site]]\nlisten = 8080\n[[site.route]]\nrespond = \"{typed}\"\n");
        dir.write("main.toml", &route);
        assert_says(&dir.refused(), &[text, "main.toml:4:11"]);
    }
    let many = "{file.x}".repeat(300);
    dir.write(
        "main.toml",
        &format!("[[site]]\nlisten = 8080\n[[site.route]]\nrespond = \"{many}\"\n"),
    );
    assert_says(&dir.refused(), &["more than 16 MiB"]);
}

#[test]
fn defaults_that_would_fill_the_memory_are_refused() {
    let keys: String = (0..2000).map(|n| format!("\"X-{n}\" = \"{n}\"\n")).collect();
    let routes: String =
        (0..1000).map(|n| format!("[[site.route]]\npath = \"/{n}\"\nrespond = \"x\"\n")).collect();
    let text = format!("[defaults.set_headers]\n{keys}[[site]]\nlisten = 8080\n{routes}");
    let error = forebay_conf::parse(&text, "many.toml", Path::new("/")).unwrap_err().plain();
    assert_says(&error, &["more than a million keys"]);
}

#[test]
fn one_wrong_default_is_reported_once() {
    let routes: String =
        (0..50).map(|n| format!("[[site.route]]\npath = \"/{n}\"\nrespond = \"x\"\n")).collect();
    let text = format!("[defaults]\nexpires = \"soon\"\n[[site]]\nlisten = 8080\n{routes}");
    let error = forebay_conf::parse(&text, "x.toml", Path::new("/")).unwrap_err();
    assert_eq!(error.messages().count(), 1, "{error:?}");
}
