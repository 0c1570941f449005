//! The schema agrees with the configuration: the tests write files only from its keys and values.

use std::collections::BTreeMap;
use std::path::Path;

use forebay_conf::schema;
use serde_json::Value;

/// A value for each key that belongs to a kind of application.
const VALUES: &[(&str, &str)] = &[
    ("connections", "5"),
    ("dir", "'scripts'"),
    ("file", "'a-file'"),
    ("host", "'backend'"),
    ("listen", "'socket'"),
    ("max_message", "'1MiB'"),
    ("max_output", "'1MiB'"),
    ("max_processes", "5"),
    ("module", "'shop:application'"),
    ("mount", "'/shop'"),
    ("perl_mode", "'fork'"),
    ("python", "'a-file'"),
    ("python_mode", "'fork'"),
    ("root", "'htdocs'"),
    ("ruby", "'a-file'"),
    ("run", "['server', '{socket}']"),
    ("scripts", "['.x']"),
    ("speaks", "'http'"),
    ("start_timeout", "'5s'"),
    ("stop_timeout", "'5s'"),
    ("strip_prefix", "'/shop'"),
    ("warm_up", "'/'"),
];

fn whole() -> Value {
    serde_json::from_str(&schema()).unwrap()
}

fn base() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/base")
}

/// Parses a file with this application and route. Returns the problem if it is refused.
fn parse(app: &BTreeMap<String, String>, route: &str) -> Result<(), String> {
    let app: String = app.iter().map(|(key, value)| format!("{key} = {value}\n")).collect();
    let app = if app.is_empty() { app } else { format!("[app.a]\n{app}") };
    let text = format!("[[site]]\nlisten = '127.0.0.1:1'\n[[site.route]]\n{route}\n{app}");
    let parsed = forebay_conf::parse(&text, "site.toml", &base());
    parsed.map(drop).map_err(|error| format!("{text}\n{}", error.plain()))
}

fn texts(list: &Value) -> Vec<String> {
    let list = list.as_array().into_iter().flatten();
    list.map(|text| text.as_str().unwrap().to_owned()).collect()
}

/// Returns the values of an enumeration.
fn offered(definition: &Value) -> Vec<String> {
    let mut offered = texts(&definition["enum"]);
    for one in definition["oneOf"].as_array().into_iter().flatten() {
        offered.extend(one["const"].as_str().map(str::to_owned));
        offered.extend(texts(&one["enum"]));
    }
    offered
}

#[test]
fn each_kind_of_application_is_offered_what_it_takes() {
    let schema = whole();
    let app = &schema["$defs"]["App"];
    let kinds = app["oneOf"].as_array().unwrap();
    let mut named: Vec<_> =
        kinds.iter().map(|kind| kind["properties"]["kind"]["const"].as_str().unwrap()).collect();
    let mut all = offered(&schema["$defs"]["Kind"]);
    named.sort_unstable();
    named.dedup();
    all.sort_unstable();
    assert_eq!(named, all);
    for kind in kinds {
        let name = kind["properties"]["kind"]["const"].as_str().unwrap();
        let value =
            |key: &str| VALUES.iter().find(|(k, _)| *k == key).map(|(_, v)| (*v).to_owned());
        let must = texts(&kind["required"]);
        let mut least = BTreeMap::from([("kind".to_owned(), format!("'{name}'"))]);
        least.extend(must.iter().map(|key| (key.clone(), value(key).unwrap())));
        let speaks = texts(&kind["properties"]["speaks"]["enum"]);
        least.extend(speaks.first().map(|speaks| ("speaks".to_owned(), format!("'{speaks}'"))));
        parse(&least, "app = 'a'").unwrap();
        for key in &must {
            let mut without = least.clone();
            without.remove(key);
            parse(&without, "app = 'a'").unwrap_err();
        }
        for (key, of_key) in VALUES.iter().filter(|(key, _)| !least.contains_key(*key)) {
            let mut with = least.clone();
            with.insert((*key).to_owned(), (*of_key).to_owned());
            let needs = texts(&kind["dependentRequired"][key]);
            with.extend(needs.into_iter().map(|key| (key.clone(), value(&key).unwrap())));
            let outcome = parse(&with, "app = 'a'");
            let is_offered = kind["properties"][key] != Value::Bool(false);
            assert_eq!(outcome.is_ok(), is_offered, "{name} and {key}: {outcome:?}");
        }
        let modes = texts(&kind["properties"]["mode"]["enum"]);
        for mode in offered(&schema["$defs"]["Mode"]) {
            let mut with = least.clone();
            with.insert("mode".into(), format!("'{mode}'"));
            let outcome = parse(&with, "app = 'a'");
            assert_eq!(outcome.is_ok(), modes.contains(&mode), "{name} and {mode}: {outcome:?}");
        }
    }
}

#[test]
fn each_value_that_is_offered_is_available() {
    let schema = whole();
    let least = |key: &str, value: &str| {
        let run = ("run".to_owned(), "['server', '{socket}']".to_owned());
        let kind = ("kind".to_owned(), "'command'".to_owned());
        let speaks = ("speaks".to_owned(), "'http'".to_owned());
        let mut app = BTreeMap::from([run, kind, speaks]);
        app.insert(key.to_owned(), format!("'{value}'"));
        app
    };
    let speaks = offered(&schema["$defs"]["AppProtocol"]);
    assert_eq!(speaks, ["http", "h2c", "fastcgi", "scgi", "uwsgi", "ajp"]);
    for value in speaks {
        parse(&least("speaks", &value), "app = 'a'").unwrap();
    }
    let none = BTreeMap::new();
    let mut count = 0;
    for (definition, route) in [
        ("Symlinks", "files = { root = 'htdocs', follow_symlinks = '@' }"),
        ("Precompressed", "files = { root = 'htdocs', precompressed = ['@'] }"),
        ("ContentCoding", "files = 'htdocs'\ncompress = { algorithms = ['@'] }"),
        ("Balance", "proxy = { to = ['http://a', 'http://b'], balance = '@' }"),
        ("HostField", "proxy = { to = 'http://a', host = '@' }"),
        ("Redirects", "proxy = { to = 'http://a', redirect = '@' }"),
        ("Activation", "proxy = { to = [{ url = 'http://a', activation = '@' }, 'http://b'] }"),
        ("Ping", "ajp = { to = '127.0.0.1:1', ping = '@' }"),
        ("HttpVersion", "proxy = { to = 'https://a', http_version = '@' }"),
        ("ProxyHeader", "proxy = { to = 'http://a', send_proxy = '@' }"),
    ] {
        let values = offered(&schema["$defs"][definition]);
        assert!(!values.is_empty(), "{definition}");
        for value in values {
            parse(&none, &route.replace('@', &value)).unwrap();
            count += 1;
        }
    }
    assert!(count > 12, "{count}");
}

#[test]
fn a_route_is_offered_one_answer() {
    let schema = whole();
    let answers = schema["$defs"]["Route"]["oneOf"].as_array().unwrap();
    let answers: Vec<_> = answers.iter().flat_map(|one| texts(&one["required"])).collect();
    let app = BTreeMap::from([
        ("kind".to_owned(), "'psgi'".to_owned()),
        ("file".to_owned(), "'a-file'".to_owned()),
    ]);
    let value = |answer: &str| match answer {
        "files" | "cgi" => "'htdocs'",
        "fastcgi" => "{ to = '127.0.0.1:1', root = 'htdocs' }",
        "scgi" | "uwsgi" => "{ to = '127.0.0.1:1' }",
        "ajp" => "'127.0.0.1:1'",
        "proxy" => "'http://a'",
        "app" => "'a'",
        _ => "'/x'",
    };
    for one in &answers {
        let used = if one == "app" { app.clone() } else { BTreeMap::new() };
        parse(&used, &format!("{one} = {}", value(one))).unwrap();
        // A route may rewrite the path that it answers.
        let is_both = |other: &String| [one, other].iter().any(|answer| *answer == "rewrite");
        for other in answers.iter().filter(|other| *other != one && !is_both(other)) {
            let both = format!("{one} = {}\n{other} = {}", value(one), value(other));
            parse(&app, &both).unwrap_err();
        }
    }
}

/// Files with a gap for one more key of a definition. Each default in the schema must be accepted
/// in one of them, and change nothing.
const PLACES: &[(&str, &[&str])] = &[
    (
        "Acme",
        &[
            "respond = 'x'\n[site.tls.acme]\n@",
            "respond = 'x'\n[site.tls.acme]\nchallenge = 'dns-01'\ndns_hook = 'a-file'\n@",
        ],
    ),
    (
        "Ajp",
        &[
            "[site.route.ajp]\nto = '127.0.0.1:1'\n@",
            "[site.route.ajp]\nto = '127.0.0.1:1'\nbalance = 'hash'\n@",
        ],
    ),
    (
        "App",
        &[
            "app = 'a'\n[app.a]\nkind = 'cgi-bin'\ndir = 'scripts'\n@",
            "app = 'a'\n[app.a]\nkind = 'perl-cgi'\ndir = 'scripts'\nmode = 'prove'\n@",
            "app = 'a'\n[app.a]\nkind = 'psgi'\nfile = 'a-file'\nworkers = { min = 0, max = 4 }\n@",
            "app = 'a'\n[app.a]\nkind = 'wsgi'\nmodule = 'a:b'\n@",
            "app = 'a'\n[app.a]\nkind = 'asgi'\nmodule = 'a:b'\n@",
            "app = 'a'\n[app.a]\nkind = 'php'\nroot = 'htdocs'\n@",
            "app = 'a'\n[app.a]\nkind = 'mono'\ndir = 'htdocs'\n@",
            "app = 'a'\n[app.a]\nkind = 'command'\nspeaks = 'http'\nrun = ['x', '{socket}']\n@",
        ],
    ),
    (
        "Backend",
        &[
            "[[site.route.proxy.to]]\nurl = 'http://a'\n@\n[[site.route.proxy.to]]\nurl = 'http://b'",
        ],
    ),
    ("BackendTls", &["[site.route.proxy]\nto = 'https://a'\n[site.route.proxy.tls]\n@"]),
    ("BasicAuth", &["respond = 'x'\n[site.route.basic_auth]\nfile = 'a-file'\n@"]),
    ("Cache", &["proxy = 'http://a'\n[site.route.cache]\n@"]),
    ("Cgi", &["[site.route.cgi]\ndir = 'scripts'\n@"]),
    ("CookieAttributes", &["respond = 'x'\n[site.route.cookies]\n@"]),
    ("Cors", &["respond = 'x'\n[site.route.cors]\norigins = '*'\n@"]),
    ("Compress", &["files = 'htdocs'\n[site.route.compress]\n@"]),
    (
        "Fastcgi",
        &[
            "[site.route.fastcgi]\nto = '127.0.0.1:1'\nroot = 'htdocs'\n@",
            "[site.route.fastcgi]\nto = '127.0.0.1:1'\nroot = 'htdocs'\nmultiplex = 'auto'\n@",
        ],
    ),
    ("Files", &["[site.route.files]\nroot = 'htdocs'\n@"]),
    ("ForwardAuth", &["respond = 'x'\n[site.route.forward_auth]\nto = 'http://a'\n@"]),
    (
        "Jwt",
        &[
            "respond = 'x'\n[site.route.jwt]\nkey = 'a-file'\n@",
            "respond = 'x'\n[site.route.jwt]\njwks = 'https://a/b'\n@",
        ],
    ),
    ("DigestAuth", &["respond = 'x'\n[site.route.digest_auth]\nfile = 'a-file'\nrealm = 'a'\n@"]),
    ("Health", &["[site.route.proxy]\nto = 'http://a'\n[site.route.proxy.health]\npath = '/'\n@"]),
    ("Levels", &["files = 'htdocs'\n[site.route.compress.levels]\n@"]),
    ("Limits", &["respond = 'x'\n[server.limits]\n@"]),
    ("Log", &["respond = 'x'\n[log]\n@", "respond = 'x'\n[log]\naccess = 'stdout'\n@"]),
    ("LogFile", &["respond = 'x'\n[log]\naccess = 'stdout'\n[site.route.log]\n@"]),
    ("Maintenance", &["respond = 'x'\n[site.route.maintenance]\npage = 'a-file'\n@"]),
    ("BandwidthLimit", &["respond = 'x'\n[site.route.bandwidth_limit]\nrate = '1k'\n@"]),
    ("RouteTimeouts", &["respond = 'x'\n[site.route.timeouts]\n@"]),
    ("Replace", &["respond = 'x'\n[site.route.replace]\ntexts = { a = 'b' }\n@"]),
    ("Ssi", &["respond = 'x'\n[site.route.ssi]\n@"]),
    ("Mirror", &["respond = 'x'\n[site.route.mirror]\nto = 'http://a'\n@"]),
    (
        "Proxy",
        &[
            "[site.route.proxy]\nto = ['http://a', 'http://b']\n@",
            "[site.route.proxy]\nto = ['http://a', 'http://b']\nbalance = 'hash'\n@",
        ],
    ),
    ("ConcurrencyLimit", &["respond = 'x'\n[site.route.concurrency_limit]\nmax = 1\n@"]),
    ("Challenge", &["respond = 'x'\n[site.route.challenge]\n@"]),
    ("Range", &["app = 'a'\n[app.a]\nkind = 'psgi'\nfile = 'a-file'\n[app.a.workers]\nmax = 4\n@"]),
    ("Redirect", &["[site.route.redirect]\nto = '/x'\n@"]),
    ("Relay", &["respond = 'x'\n[[stream]]\nlisten = '127.0.0.1:2'\nto = '127.0.0.1:3'\n@"]),
    ("ReplyField", &["respond = 'x'\n[site.route.set_headers.A]\nvalue = 'x'\n@"]),
    ("RequestField", &["files = 'htdocs'\n[site.route.request_headers.A]\nvalue = 'x'\n@"]),
    ("Respond", &["[site.route.respond]\nbody = 'x'\n@"]),
    ("RateLimit", &["respond = 'x'\n[site.route.rate_limit]\nrate = '1/s'\n@"]),
    ("Rotate", &["respond = 'x'\n[log]\naccess = 'l'\n[log.rotate]\nage = '1d'\n@"]),
    ("Route", &["files = 'htdocs'\n@", "proxy = 'http://127.0.0.1:1'\n@"]),
    ("Scgi", &["[site.route.scgi]\nto = '127.0.0.1:1'\n@"]),
    (
        "Server",
        &[
            "respond = 'x'\n[server]\n@",
            "respond = 'x'\n[server]\ncache_dir = '/c'\n@",
            "respond = 'x'\n[server]\nadmin = 'unix:s'\n@",
        ],
    ),
    (
        "Site",
        &[
            "respond = 'x'\n[[site]]\nlisten = '127.0.0.1:2'\nhosts = 'a'\n@\n[[site.route]]\nrespond = 'y'",
            "respond = 'x'\n[[site]]\nlisten = 'ajp://127.0.0.1:2'\nhosts = 'a'\n@\n[[site.route]]\nrespond = 'y'",
            "respond = 'x'\n[[site]]\nlisten = 'unix:s'\nhosts = 'a'\n@\n[[site.route]]\nrespond = 'y'",
        ],
    ),
    (
        "SignedUrl",
        &["respond = 'x'\n[site.route.signed_url]\nsecret = '0123456789abcdef0123456789abcdef'\n@"],
    ),
    (
        "StatusRetry",
        &["[site.route.proxy]\nto = ['http://a', 'http://b']\n[site.route.proxy.retry]\n@"],
    ),
    (
        "Sticky",
        &["[site.route.proxy]\nto = 'http://a'\n[site.route.proxy.sticky]\ncookie = 'a'\n@"],
    ),
    ("OnDemand", &["respond = 'x'\n[site.tls.acme.on_demand]\nask = 'http://a/'\n@"]),
    ("Timeouts", &["respond = 'x'\n[server.timeouts]\n@"]),
    (
        "Tls",
        &[
            "respond = 'x'\n[site.tls]\ncertificate = 'a-file'\nkey = 'a-file'\nclient_ca = 'a-file'\n@",
        ],
    ),
    ("Metrics", &["respond = 'x'\n[metrics]\nto = 'http://a'\n@"]),
    ("Traces", &["respond = 'x'\n[traces]\nto = 'http://a'\n@"]),
    (
        "Upstream",
        &[
            "proxy = '@a'\n[upstream.a]\nto = ['http://a', 'http://b']\n@",
            "proxy = '@a'\n[upstream.a]\nto = ['http://a', 'http://b']\nbalance = 'hash'\n@",
        ],
    ),
    ("ValueMap", &["respond = 'x'\nset_headers = { A = '{map.a}' }\n[map.a]\nfrom = '{host}'\n@"]),
    ("Uwsgi", &["[site.route.uwsgi]\nto = '127.0.0.1:1'\n@"]),
];

/// Returns the plan of a file without the file's text, or the problem.
fn plan(text: &str) -> Result<String, String> {
    let mut plan = forebay_conf::parse(text, "site.toml", &base()).map_err(|e| e.plain())?;
    plan.file = Default::default();
    Ok(format!("{plan:?}"))
}

#[test]
fn each_default_that_the_schema_names_is_the_default() {
    let schema = whole();
    let mut count = 0;
    let mut wrong = Vec::new();
    // Defaults and sets have the keys of sites and routes again.
    let is_own =
        |(name, _): &(&String, &Value)| !["Defaults", "RouteKeys"].contains(&name.as_str());
    for (definition, of_definition) in schema["$defs"].as_object().unwrap().iter().filter(is_own) {
        let keys = of_definition["properties"].as_object().into_iter().flatten();
        for (key, default) in keys.filter_map(|(key, of_key)| Some((key, of_key.get("default")?))) {
            let places = PLACES.iter().find(|(name, _)| name == definition);
            let (_, places) = places.unwrap_or_else(|| panic!("no place for {definition}.{key}"));
            let line = format!("{key} = {default}");
            let mut refused = Vec::new();
            let taken = places.iter().any(|place| {
                let tls = if place.contains("site.tls") { "https://" } else { "" };
                let text = |line: &str| {
                    let place = place.replacen("\n@", &format!("\n{line}"), 1);
                    format!(
                        "[[site]]\nlisten = '{tls}127.0.0.1:1'\nhosts = 'b.example'\n\
                         [[site.route]]\n{place}\n"
                    )
                };
                // A comment of the same length, because plans contain positions in the file.
                let without = plan(&text(&format!("#{}", "-".repeat(line.len() - 1))));
                match plan(&text(&line)) {
                    Ok(with) => {
                        if Ok(with) != without {
                            wrong.push(format!("{definition}.{key} is not {default}"));
                        }
                        true
                    }
                    Err(error) => {
                        refused.push(error);
                        false
                    }
                }
            });
            if !taken {
                let refused = refused.join("\n");
                wrong.push(format!("{definition}.{key} = {default} is refused:\n{refused}"));
            }
            count += 1;
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(count > 60, "{count}");
}
