//! The schema offers what the configuration takes: files made from its keys and values alone.

use std::collections::BTreeMap;
use std::path::Path;

use forebay_conf::schema;
use serde_json::Value;

/// A value of each key that belongs to a kind of application.
const VALUES: &[(&str, &str)] = &[
    ("connections", "5"),
    ("dir", "'scripts'"),
    ("file", "'a-file'"),
    ("host", "'backend'"),
    ("listen", "'socket'"),
    ("max_output", "'1MiB'"),
    ("max_processes", "5"),
    ("module", "'shop:application'"),
    ("perl_mode", "'fork'"),
    ("python", "'a-file'"),
    ("python_mode", "'fork'"),
    ("root", "'htdocs'"),
    ("run", "['server', '{socket}']"),
    ("scripts", "['.x']"),
    ("speaks", "'http'"),
    ("start_timeout", "'5s'"),
    ("stop_timeout", "'5s'"),
];

fn whole() -> Value {
    serde_json::from_str(&schema()).unwrap()
}

fn base() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/base")
}

/// Whether a file with this application and route is taken, and why not.
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

/// The values that an enumeration offers.
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
        ("Coding", "files = 'htdocs'\ncompress = { algorithms = ['@'] }"),
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
        "scgi" | "uwsgi" | "ajp" => "{ to = '127.0.0.1:1' }",
        "proxy" => "'http://a'",
        "app" => "'a'",
        _ => "'/x'",
    };
    for one in &answers {
        let used = if one == "app" { app.clone() } else { BTreeMap::new() };
        parse(&used, &format!("{one} = {}", value(one))).unwrap();
        for other in answers.iter().filter(|other| *other != one) {
            let both = format!("{one} = {}\n{other} = {}", value(one), value(other));
            parse(&app, &both).unwrap_err();
        }
    }
}
