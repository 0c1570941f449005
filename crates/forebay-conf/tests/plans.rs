//! Plans without a file, files that cannot be read, and the guarantees of a plan.

use std::path::Path;

use forebay_conf::{Action, Address, ConfError, HostPattern, Listen, Listing, Plan, load, schema};

fn listen() -> Listen {
    Listen::parse("127.0.0.1:0").unwrap()
}

fn assert_says<T: std::fmt::Debug>(result: Result<T, ConfError>, texts: &[&str]) {
    let error = result.unwrap_err().plain();
    for text in texts {
        assert!(error.contains(text), "no {text:?} in:\n{error}");
    }
}

#[test]
fn a_directory_is_served_as_files_with_an_index() {
    let dir = tempfile::tempdir().unwrap();
    let plan = Plan::for_directory(dir.path(), listen()).unwrap();
    let (route, found) = plan.sites[0].route(b"GET", b"/a/b.php").unwrap();
    assert_eq!(found.rest, b"a/b.php");
    let Action::Files(files) = &route.action else { panic!("{route:?}") };
    assert_eq!(files.root, dir.path());
    assert_eq!(files.index, ["index.html"]);
    assert_eq!(
        files.listing,
        Listing::BuiltIn,
        "a directory was named: what is in it is meant to be seen"
    );
    assert_eq!(plan.sites[0].hosts, [HostPattern::Any]);
}

#[test]
fn a_directory_has_to_be_one() {
    let dir = tempfile::tempdir().unwrap();
    assert_says(Plan::for_directory(&dir.path().join("x"), listen()), &["no such directory"]);
    let file = dir.path().join("file");
    std::fs::write(&file, "").unwrap();
    assert_says(Plan::for_directory(&file, listen()), &["is not a directory"]);
}

#[test]
fn a_url_is_served_as_a_proxy() {
    let plan = Plan::for_proxy("http://localhost:3000", listen()).unwrap();
    let (route, _) = plan.sites[0].route(b"POST", b"/x").unwrap();
    let Action::Proxy(proxy) = &route.action else { panic!("{route:?}") };
    assert_eq!(proxy.upstream.to[0].address, Address::Tcp("localhost:3000".into()));
    assert_eq!(proxy.upstream.to[0].authority, "localhost:3000");
    assert_says(Plan::for_proxy("localhost:3000", listen()), &["write \"http://localhost:3000\""]);
    let plan = Plan::for_proxy("https://localhost", listen()).unwrap();
    let Action::Proxy(proxy) = &plan.sites[0].routes[0].action else { panic!("{plan:?}") };
    assert!(proxy.upstream.to[0].https);
    assert_eq!(proxy.upstream.to[0].address, Address::Tcp("localhost:443".into()));
}

#[test]
fn listeners_are_read_from_the_command_line() {
    let all: std::net::SocketAddr = "[::]:8080".parse().unwrap();
    for text in ["8080", ":8080", "*:8080", "[::]:8080"] {
        assert_eq!(text.parse::<Listen>().unwrap(), Listen::Tcp(all), "{text}");
    }
    assert_eq!(Listen::parse("fd:web").unwrap(), Listen::Named("web".into()));
    let Listen::Unix(path) = Listen::parse("unix:x.sock").unwrap() else { panic!() };
    assert_eq!(path, std::env::current_dir().unwrap().join("x.sock"));
    assert_says(Listen::parse("localhost"), &["cannot listen on \"localhost\"", "127.0.0.1:8080"]);
}

#[test]
fn paths_are_relative_to_the_file() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("htdocs")).unwrap();
    let file = dir.path().join("site.toml");
    std::fs::write(&file, "[[site]]\nlisten = 0\n[[site.route]]\nfiles = \"htdocs\"\n").unwrap();
    let plan = load(&file).unwrap();
    let Action::Files(files) = &plan.sites[0].routes[0].action else { panic!() };
    assert_eq!(files.root, dir.path().join("htdocs"));
    assert_eq!((plan.sites[0].line, plan.sites[0].routes[0].line), (1, 3));
}

#[test]
fn files_that_cannot_be_read_say_why() {
    let dir = tempfile::tempdir().unwrap();
    assert_says(load(&dir.path().join("none.toml")), &["cannot read", "none.toml", "No such file"]);
    assert_says(load(dir.path()), &["cannot read", "Is a directory"]);

    let latin = dir.path().join("latin.toml");
    std::fs::write(&latin, b"[[site]]\nlisten = \"caf\xe9:80\"\n").unwrap();
    assert_says(load(&latin), &["not text in UTF-8", "latin.toml:2:14", "save the file as UTF-8"]);

    let large = dir.path().join("large.toml");
    std::fs::write(&large, vec![b'#'; 4 * 1024 * 1024 + 1]).unwrap();
    assert_says(load(&large), &["larger than 4 MiB"]);
    assert_says(load(Path::new("/dev/zero")), &["it is not a file"]);
}

#[test]
fn a_byte_order_mark_and_carriage_returns_do_not_move_positions() {
    let text = "[[site]]\nlisten = 8080\n[[site.route]]\nfiles = \"missing\"\n";
    for text in [format!("\u{feff}{text}"), text.replace('\n', "\r\n")] {
        let parsed = forebay_conf::parse(&text, "site.toml", Path::new("/"));
        assert_says(parsed, &["site.toml:4:9", "\n   :         ^^^^|^^^^\n"]);
    }
}

#[test]
fn ten_problems_are_shown_and_others_counted() {
    let routes: String = (0..12)
        .map(|at| format!("[[site.route]]\npath = \"/{at}\"\nfiles = \"missing-{at}\"\n"))
        .collect();
    let text = format!("[server]\nthreads = 0\n[[site]]\nlisten = \"nowhere\"\n{routes}");
    let parsed = forebay_conf::parse(&text, "site.toml", Path::new("/"));
    assert_eq!(parsed.as_ref().unwrap_err().messages().count(), 14);
    assert_says(parsed, &["0 is too small", "missing-7", "\n... and 4 more\n"]);
}

#[test]
fn a_file_with_many_routes_is_read() {
    let mut text = String::from("[[site]]\nlisten = 8080\n");
    for number in 0..3000 {
        text.push_str(&format!("[[site.route]]\npath = \"/{number}/*\"\nrespond = \"ok\"\n"));
    }
    let plan = forebay_conf::parse(&text, "many.toml", Path::new("/")).unwrap();
    assert_eq!(plan.sites[0].routes[2999].line, 3 + 3 * 2999);
}

#[test]
fn a_plan_goes_to_every_thread() {
    fn goes<T: Clone + std::fmt::Debug + Send + Sync + 'static>() {}
    goes::<Plan>();
    goes::<ConfError>();
}

#[test]
fn the_schema_describes_every_key() {
    let schema: serde_json::Value = serde_json::from_str(&schema()).unwrap();
    let tables = schema["$defs"].as_object().unwrap().values().chain([&schema]);
    let mut keys = 0;
    for (key, value) in tables.filter_map(|table| table["properties"].as_object()).flatten() {
        assert!(value["description"].is_string(), "{key} has no description");
        keys += 1;
    }
    assert!(keys > 80, "only {keys} keys");
    let one = serde_json::json!([{"required": ["site"]}, {"required": ["stream"]}]);
    assert_eq!(schema["anyOf"], one);
    assert!(!schema.to_string().contains("null"));
}

#[test]
fn programs_that_speak_http2_are_passed_bodies_as_they_come() {
    for (protocol, keys, buffers) in [
        ("http", "", true),
        ("ajp", "", true),
        ("h2c", "", false),
        ("h2c", "request_buffering = true\n", true),
    ] {
        let text = format!(
            "[[site]]\nlisten = \"127.0.0.1:80\"\n[[site.route]]\napp = \"a\"\n{keys}[app.a]\n\
             kind = \"command\"\nspeaks = \"{protocol}\"\nrun = [\"/bin/true\", \"{{port}}\"]\n"
        );
        let plan = forebay_conf::parse(&text, "test.toml", Path::new("/")).unwrap();
        assert_eq!(plan.sites[0].routes[0].request_buffering, buffers, "{protocol} {keys}");
    }
}

#[test]
fn a_template_of_a_listing_has_a_limit_and_an_encoding() {
    let dir = tempfile::tempdir().unwrap();
    let with = |template: &[u8]| {
        std::fs::write(dir.path().join("list.html"), template).unwrap();
        let text = "[[site]]\nlisten = \"127.0.0.1:1\"\n[[site.route]]\npath = \"/*\"\n\
                    files = { root = \".\", listing = { template = \"list.html\" } }\n";
        forebay_conf::parse(text, "site.toml", dir.path())
    };
    let mut template = b"{entries}{name}{/entries}".to_vec();
    template.resize(256 * 1024, b'x');
    assert!(with(&template).is_ok());
    template.push(b'x');
    assert_says(with(&template), &["list.html: it is too large", "at most 256 KiB"]);
    assert_says(with(b"{entries}\xFF{/entries}"), &["it is not UTF-8", "save it as UTF-8"]);
}

#[test]
fn a_route_keeps_its_fingerprint_until_its_settings_change() {
    const TEXT: &str = r#"
        [defaults]
        compress = true
        [map.kind]
        from = "{header.Accept}"
        "text/html" = "page"
        [upstream.shop]
        to = ["http://127.0.0.1:3000"]
        [[site]]
        listen = "127.0.0.1:80"
        hosts = ["example.org"]
        [[site.route]]
        path = "/shop/*"
        request_headers = { X-Kind = "{map.kind}" }
        cache = { valid = "10m", max_size = "2MiB" }
        proxy = { to = "@shop" }
    "#;
    let of = |text: &str, base: &str| {
        let plan = forebay_conf::parse(text, "site.toml", Path::new(base)).unwrap();
        plan.sites[0].routes[0].fingerprint.to_string()
    };
    let fingerprint = of(TEXT, "/srv");
    // Disks have files with this number: a change of it empties every cache at an upgrade.
    assert_eq!(fingerprint, "0f6a0a5dc72a39bb271f9b94c998a496");
    let same = [
        ("valid = \"10m\", max_size = \"2MiB\"", "max_size = \"2MiB\", valid = \"10m\""),
        ("[[site.route]]", "# A comment.\n\n[[site.route]]"),
        ("listen = \"127.0.0.1:80\"", "listen = \"127.0.0.1:81\""),
    ];
    for (from, to) in same {
        assert_eq!(of(&TEXT.replace(from, to), "/srv"), fingerprint, "{to}");
    }
    let other = [
        ("compress = true", "compress = false"),
        ("= \"page\"", "= \"other\""),
        (":3000", ":3001"),
        ("example.org", "example.com"),
        ("10m", "11m"),
    ];
    for (from, to) in other {
        assert_ne!(of(&TEXT.replace(from, to), "/srv"), fingerprint, "{to}");
    }
    assert_ne!(of(TEXT, "/other"), fingerprint);
}

#[test]
fn two_places_that_are_far_apart_on_one_line_are_not_shown_with_all_between() {
    for length in [10, 3000] {
        let moved = "d".repeat(length);
        let text = format!(
            "[[site]]\nlisten = 8080\n[[site.route]]\nredirect = {{ file = \"{moved}\", to = \"/x\" }}\n"
        );
        let shown = forebay_conf::parse(&text, "far.toml", Path::new("/")).unwrap_err().plain();
        assert!(shown.contains("both `to` and `file`"), "{shown}");
        assert!(shown.lines().all(|line| line.chars().count() < 1000), "{shown:.2000}");
    }
}

/// Returns a plan with the site of each directory below `srv`, which belong to users of every
/// Debian, or the problem.
fn of_owners(folder: &Path, text: &str) -> Result<Plan, String> {
    let text = text.replace("SRV", &folder.join("srv").display().to_string());
    forebay_conf::parse(&text, "site.toml", folder).map_err(|error| error.plain())
}

#[test]
fn each_site_has_the_application_of_its_owner() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    for (host, owner) in [("a.example", 5), ("b.example", 34), ("c.example", 0)] {
        let htdocs = folder.path().join("srv").join(host).join("htdocs");
        std::fs::create_dir_all(&htdocs).unwrap();
        std::os::unix::fs::chown(&htdocs, Some(owner), None).unwrap();
    }
    let site = "[[site]]\nlisten = '127.0.0.1:80'\nhosts_from = 'SRV/*/htdocs'\nkind = 'php'\n\
                root = 'SRV/{host}/htdocs'\n";
    let app = "[app.hosted]\nkind = 'php'\nroot = 'SRV/{host}/htdocs'\nuser = '{owner}'\n\
               limits = { open_files = 99 }\n";
    let plan = of_owners(folder.path(), &format!("{site}app = 'hosted'\n{app}")).unwrap();
    let users: Vec<_> =
        plan.apps.iter().map(|(name, app)| (&**name, app.user.as_deref())).collect();
    let expected = [("hosted@a.example", Some("games")), ("hosted@b.example", Some("backup"))];
    assert_eq!(users, expected, "root's own directory is no site");
    let hosts: Vec<_> = plan.sites.iter().map(|site| format!("{:?}", site.hosts)).collect();
    assert_eq!(hosts, [r#"[Exact("a.example")]"#, r#"[Exact("b.example")]"#]);
    // Whoever chooses the names of hosts gets no application of another owner.
    let dirs = [("one", "x", 34), ("two", "b-x", 5), ("home", "games", 5)];
    for (parent, name, owner) in dirs {
        let dir = folder.path().join(parent).join(name).join("h");
        std::fs::create_dir_all(&dir).unwrap();
        std::os::unix::fs::chown(dir.parent().unwrap(), Some(owner), None).unwrap();
        std::os::unix::fs::chown(&dir, Some(owner), None).unwrap();
    }
    std::fs::create_dir_all(folder.path().join("three/games/h")).unwrap();
    std::os::unix::fs::chown(folder.path().join("three/games/h"), Some(34), None).unwrap();
    let site_of = |dir: &str, app: &str| {
        format!(
            "[[site]]\nlisten = '127.0.0.1:80'\nhosts_from = 'SRV/../{dir}/*/h'\n[[site.route]]\n\
             app = '{app}'\n"
        )
    };
    let users = "[[site]]\nlisten = '127.0.0.1:81'\n[[site.route]]\nusers_from = 'SRV/../home/*/h'\n\
                 path = '/~{owner}/*'\napp = 'a'\n";
    let app_of =
        |name: &str| format!("[app.{name}]\nkind = 'php'\nroot = '.'\nuser = '{{owner}}'\n");
    let all = [site_of("one", "a-b"), site_of("two", "a"), site_of("three", "a"), users.to_owned()]
        .concat();
    let plan = of_owners(folder.path(), &format!("{all}{}{}", app_of("a"), app_of("a-b"))).unwrap();
    let names: Vec<_> =
        plan.apps.iter().map(|(name, app)| (&**name, app.user.as_deref())).collect();
    let (games, backup) = (Some("games"), Some("backup"));
    let expected = [("a-b@x", backup), ("a@b-x", games), ("a@games", backup), ("a~games", games)];
    assert_eq!(names, expected);
    let sockets = format!("{site}fastcgi = 'unix:/run/php/{{owner}}.sock'\n");
    let plan = format!("{:?}", of_owners(folder.path(), &sockets).unwrap());
    assert!(plan.contains("/run/php/games.sock") && plan.contains("/run/php/backup.sock"));
    for (text, expected) in [
        (format!("{site}fastcgi = '127.0.0.1:1'\n{app}"), "nothing says whose it is"),
        (format!("{site}app = 'hosted'\n{app}[app.'hosted@a.example']\nkind = 'php'\nroot = 'SRV'\n"), "there are two [app.hosted@a.example]"),
        ("[[site]]\nlisten = '127.0.0.1:80'\n[[site.route]]\nusers_from = 'SRV/*/htdocs'\npath = '/~x/*'\nfiles = 'SRV'\n".to_owned(), "each user needs a path of their own"),
        ("[[site]]\nlisten = '127.0.0.1:80'\n[[site.route]]\nusers_from = 'SRV'\npath = '/~{owner}/*'\nfiles = 'SRV'\n".to_owned(), "this is no pattern of directories"),
        ("[[site]]\nlisten = '127.0.0.1:80'\n[[site.route]]\nuse = 'a'\nrespond = 'x'\n[set.a]\nusers_from = 'SRV/*'\n".to_owned(), "has no effect in a set"),
    ] {
        let problem = of_owners(folder.path(), &text).unwrap_err();
        assert!(problem.contains(expected), "{problem}");
    }
}
