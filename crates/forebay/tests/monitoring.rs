//! The metrics, and the files for Prometheus and Grafana in the packages: they name only metrics that exist, and a real
//! Prometheus loads them.

mod support;

use std::collections::BTreeSet;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use forebay_admin::{Kind, METRICS, Metric};
use forebay_net::limit::Limit;
use forebay_testkit::folder::Folder;
use forebay_testkit::http::Client;
use forebay_testkit::peer::installed;
use forebay_testkit::port::free_port;
use forebay_testkit::process::{Process, eventually};
use forebay_testkit::tls::Authority;
use serde_json::Value;
use support::echo::Echo;
use support::{Forebay, serve};

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging/monitoring");

fn packaged(name: &str) -> String {
    fs::read_to_string(Path::new(FOLDER).join(name)).unwrap()
}

/// Copies the rules and the configuration, which reads the metrics from `target`.
fn monitoring(target: &str) -> Folder {
    let folder = Folder::new();
    folder.write("forebay.rules.yml", packaged("forebay.rules.yml"));
    let configuration = packaged("prometheus.yml");
    let (from, interval) = ("127.0.0.1:9900", "scrape_interval: 15s\n  evaluation_interval: 15s");
    assert!(configuration.contains(from) && configuration.contains(interval));
    let fast = "scrape_interval: 1s\n  evaluation_interval: 1s";
    folder.write("prometheus.yml", configuration.replace(from, target).replace(interval, fast));
    folder
}

/// Returns the queries of the board: their text, with values for its variables.
fn board_queries() -> Vec<String> {
    fn collect(value: &Value, found: &mut Vec<String>) {
        match value {
            Value::Object(fields) => {
                for (key, value) in fields {
                    match value {
                        Value::String(text) if key == "expr" => {
                            let text = text.replace("$instance", ".*");
                            found.push(text.replace("$__rate_interval", "1m"));
                        }
                        value => collect(value, found),
                    }
                }
            }
            Value::Array(values) => values.iter().for_each(|value| collect(value, found)),
            _ => {}
        }
    }
    let mut found = Vec::new();
    collect(&serde_json::from_str(&packaged("grafana.json")).unwrap(), &mut found);
    assert!(found.len() > 30 && found.iter().all(|query| !query.contains('$')), "{found:?}");
    found
}

/// Returns the metric of a name in a query, such as that of a histogram's `_bucket`.
fn metric(name: &str) -> Option<&'static Metric> {
    METRICS.iter().find(|metric| match metric.kind {
        Kind::Histogram => name
            .strip_prefix(metric.name)
            .is_some_and(|end| ["_bucket", "_sum", "_count"].contains(&end)),
        _ => metric.name == name,
    })
}

/// Returns the words of a query that begin with one of `starts`.
fn words<'a>(query: &'a str, starts: &'a [&str]) -> impl Iterator<Item = &'a str> {
    let words = query.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.filter(|word| starts.iter().any(|start| word.starts_with(start)))
}

#[test]
fn rules_and_board_name_only_metrics_and_limits_that_exist() {
    let board = board_queries().join("\n");
    let rules = packaged("forebay.rules.yml");
    let mut seen = BTreeSet::new();
    for text in [&board, &rules] {
        for name in words(text, &["forebay_", "process_"]) {
            assert!(metric(name).is_some(), "{name} is no metric");
            seen.insert(metric(name).unwrap().name);
        }
    }
    let values = rules.split("limit=").skip(1).map(|rest| {
        let rest = rest.trim_start_matches(['~', '"']);
        rest.split('"').next().unwrap()
    });
    let limits: Vec<_> = values.flat_map(|value| value.split('|')).collect();
    assert!(limits.len() > 5, "{limits:?}");
    for name in limits {
        assert!(Limit::ALL.iter().any(|limit| limit.name() == name), "{name} is no limit");
    }
    // What nobody sees on the board or gets an alert for is named here.
    let unseen: Vec<_> =
        METRICS.iter().map(|metric| metric.name).filter(|name| !seen.contains(name)).collect();
    assert_eq!(
        unseen,
        [
            "forebay_route_reply_body_bytes_total",
            "forebay_mirror_requests_total",
            "forebay_mirror_active_requests",
            "forebay_cache_disk_replies",
            "forebay_traced_requests_total",
            "forebay_config_last_reload_timestamp_seconds",
            "forebay_config_last_reload_success_timestamp_seconds",
            "forebay_certificate_renewal_timestamp_seconds",
            "forebay_uptime_seconds",
            "process_start_time_seconds",
        ]
    );
}

#[test]
fn the_board_is_complete() {
    let board: Value = serde_json::from_str(&packaged("grafana.json")).unwrap();
    let variables: Vec<_> =
        board["templating"]["list"].as_array().unwrap().iter().map(|v| &v["name"]).collect();
    assert_eq!(variables, ["datasource", "instance"]);
    let (mut ids, mut bottom) = (BTreeSet::new(), 0);
    for panel in board["panels"].as_array().unwrap() {
        let title = panel["title"].as_str().unwrap();
        assert!(ids.insert(panel["id"].as_u64().unwrap()), "{title}");
        let place = |key: &str| panel["gridPos"][key].as_u64().unwrap();
        assert!(place("x") + place("w") <= 24 && place("y") >= bottom, "{title}");
        if place("x") + place("w") == 24 {
            bottom = place("y") + place("h");
        }
        if panel["type"] == "row" {
            continue;
        }
        assert!(["timeseries", "stat"].contains(&panel["type"].as_str().unwrap()), "{title}");
        assert_eq!(panel["datasource"]["uid"], "${datasource}", "{title}");
        assert!(panel["fieldConfig"]["defaults"]["unit"].is_string(), "{title}");
        for target in panel["targets"].as_array().unwrap() {
            assert!(
                target["expr"].as_str().unwrap().contains("instance=~\"$instance\""),
                "{title}"
            );
        }
    }
}

/// `promtool` is in the package of Prometheus.
fn installed_promtool() -> Option<PathBuf> {
    Some(installed("prometheus")?.with_file_name("promtool"))
}

fn promtool(arguments: &[&str], folder: &Folder) -> String {
    let mut command = Command::new(installed_promtool().unwrap());
    command.args(arguments).current_dir(folder.path());
    let output = command.output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8(text).unwrap();
    assert!(output.status.success(), "{arguments:?}: {text}");
    text
}

#[test]
fn promtool_accepts_the_configuration_and_the_rules_and_their_tests_pass() {
    if installed_promtool().is_none() {
        return;
    }
    let folder = monitoring("127.0.0.1:9900");
    promtool(&["check", "config", "--lint-fatal", "prometheus.yml"], &folder);
    promtool(&["check", "rules", "--lint-fatal", "forebay.rules.yml"], &folder);
    let tests = ["rules_test.yml", "certificates_test.yml"];
    let read = |name: &str| {
        fs::read_to_string(
            Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/monitoring").join(name),
        )
    };
    let tested = tests.map(|name| read(name).unwrap());
    for (name, text) in tests.iter().zip(&tested) {
        folder.write(name, text);
    }
    promtool(&["test", "rules", tests[0], tests[1]], &folder);
    let (alerts, tested) = (packaged("forebay.rules.yml"), tested.join("\n"));
    for alert in alerts.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")) {
        assert!(tested.contains(&format!("alertname: {alert}\n")), "{alert} has no test");
    }
}

/// A server that has a value of nearly every metric.
fn busy(admin: SocketAddr, echo: &Echo) -> Forebay {
    let folder = Folder::new();
    let identity = Authority::new("of the test").issue(&["a.example"]);
    folder.write("a.pem", identity.certificate);
    folder.write("a-key.pem", identity.key);
    folder.script("one.pl", "#!/usr/bin/perl\nprint qq{Content-Type: text/plain\\n\\nhello};\n");
    let port = free_port();
    let to = echo.route();
    let forebay = serve(
        folder,
        &format!(
            "[server]\nadmin = \"{admin}\"\ntiming = true\nroute_metrics = true\n\
             [[site]]\nlisten = [\"127.0.0.1:0\", \"https://127.0.0.1:{port}\"]\nhosts = \"a.example\"\n\
             [site.tls]\ncertificate = \"a.pem\"\nkey = \"a-key.pem\"\n\
             [[site.route]]\npath = \"/text\"\nrespond = \"text\"\n\
             mirror = {{ to = \"http://127.0.0.1:1\" }}\n\
             [[site.route]]\nsuffix = [\".pl\"]\napp = \"scripts\"\n{to}cache = {{ valid = \"1m\" }}\n\
             [app.scripts]\nkind = \"perl-cgi\"\ndir = \".\"\n"
        ),
    );
    let mut client = forebay.connect();
    for target in ["/text", "/one.pl", "/echo"] {
        client.send(format!("GET {target} HTTP/1.1\r\nHost: a.example\r\n\r\n"));
        assert_eq!(client.reply().status, 200, "{target}");
    }
    forebay
}

#[test]
fn each_value_belongs_to_a_metric_of_the_table_with_its_labels() {
    let Some(promtool) = installed_promtool() else { return };
    let admin = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let echo = Echo::start();
    let forebay = busy(admin, &echo);
    let text = Client::connect(admin).get("/metrics").text().to_owned();
    let file = forebay.folder.write("metrics", &text);
    let mut command = Command::new(promtool);
    command.args(["check", "metrics"]).stdin(fs::File::open(file).unwrap());
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let mut valued = BTreeSet::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let (name, rest) = line.split_at(line.find(['{', ' ']).unwrap());
        let metric = metric(name).unwrap_or_else(|| panic!("{name} is not in the table"));
        valued.insert(metric.name);
        let labels = rest.rsplit_once('}').map_or("", |(labels, _)| &labels[1..]);
        for label in labels.split("\",").filter_map(|pair| pair.split_once("=\"")).map(|(l, _)| l) {
            let is_known = label == "le" || metric.labels.contains(&label);
            assert!(is_known, "{line}: {label} is not in the table");
        }
    }
    let without: Vec<_> =
        METRICS.iter().map(|metric| metric.name).filter(|name| !valued.contains(name)).collect();
    let expected = [
        "forebay_cache_disk_bytes",
        "forebay_cache_disk_replies",
        "forebay_cache_disk_total",
        // Those of ACME are in serve_acme.rs.
        "forebay_certificate_renewal_timestamp_seconds",
        "forebay_certificate_failed_orders",
    ];
    assert_eq!(without, expected);
}

#[test]
fn a_prometheus_reads_the_metrics_and_evaluates_all_rules_and_queries() {
    let Some(program) = installed("prometheus") else { return };
    let admin = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let echo = Echo::start();
    let _forebay = busy(admin, &echo);
    let folder = monitoring(&admin.to_string());
    let address = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let mut command = Command::new(program);
    command.arg(format!("--config.file={}", folder.path().join("prometheus.yml").display()));
    command.arg(format!("--storage.tsdb.path={}", folder.path().join("data").display()));
    command.arg(format!("--web.listen-address={address}"));
    let mut prometheus = Process::start(command);
    prometheus.wait_until_listening(address);
    let api = |path: &str| -> Value {
        // Until it is ready, the answer is no JSON.
        serde_json::from_str(Client::connect(address).get(path).text()).unwrap_or_default()
    };
    let is_up = || api("/api/v1/targets")["data"]["activeTargets"][0]["health"] == "up";
    assert!(eventually(is_up), "{}", api("/api/v1/targets"));
    let rules = || -> Vec<Value> {
        let answer = api("/api/v1/rules");
        answer["data"]["groups"][0]["rules"].as_array().cloned().unwrap_or_default()
    };
    let are_evaluated = || {
        let rules = rules();
        rules.len() > 10 && rules.iter().all(|rule| rule["health"] == "ok")
    };
    assert!(eventually(are_evaluated), "{:#?}", rules());
    for query in board_queries() {
        let escaped: String = query.bytes().map(|byte| format!("%{byte:02X}")).collect();
        let answer = api(&format!("/api/v1/query?query={escaped}"));
        assert_eq!(answer["status"], "success", "{query}: {answer}");
    }
    assert_eq!(PathBuf::from(FOLDER).read_dir().unwrap().count(), 3);
}
