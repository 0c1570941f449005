//! Tests of the keys that an experiment file may contain, and of the messages about rejected files.
//!
//! `refused/NAME.toml` is an experiment file with one mistake, and `refused/NAME.txt` is the
//! complete message. To accept changed messages, run with `FOREBAY_ACCEPT=1` and read the
//! difference.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use forebay_lab::{Amount, Plan};

#[test]
fn every_mistake_is_explained_at_its_line() {
    let mut mistakes: Vec<PathBuf> =
        fs::read_dir("tests/refused").unwrap().map(|entry| entry.unwrap().path()).collect();
    mistakes.retain(|path| path.extension().is_some_and(|extension| extension == "toml"));
    mistakes.sort();
    assert!(mistakes.len() > 15);
    for path in mistakes {
        let problem = Plan::read(&path).expect_err(&path.display().to_string()).plain();
        let golden = path.with_extension("txt");
        if std::env::var_os("FOREBAY_ACCEPT").is_some() {
            fs::write(&golden, &problem).unwrap();
        }
        let expected = fs::read_to_string(&golden).unwrap_or_default();
        assert_eq!(problem, expected, "the message for {}", path.display());
    }
}

#[test]
fn a_file_that_is_not_there_is_named() {
    let problem = Plan::read(Path::new("tests/refused/absent.toml")).unwrap_err().to_string();
    assert!(problem.contains("tests/refused/absent.toml"), "{problem}");
}

fn parse(text: &str) -> Plan {
    Plan::parse(Path::new("tests/experiment.toml"), text).unwrap_or_else(|p| panic!("{p}"))
}

const SMALLEST: &str = r#"
    [load]
    [[configuration]]
    name = "one"
    start = ["server"]
    url = "http://127.0.0.1:{port}"
"#;

#[test]
fn the_smallest_experiment_has_sensible_defaults() {
    let plan = parse(SMALLEST);
    assert_eq!((plan.rounds, plan.load.connections, plan.check.status), (10, 10, 200));
    assert_eq!(plan.load.path, "/");
    assert_eq!(plan.load.method, "GET");
    assert_eq!(plan.load.amount, Amount::Duration(Duration::from_secs(3)));
    assert_eq!(plan.load.warmup, Some(Amount::Duration(Duration::from_secs(1))));
    assert!(plan.load.keepalive);
    let configuration = &plan.configurations[0];
    assert!(configuration.baseline, "the first is the baseline");
    assert_eq!(configuration.ready_timeout, Duration::from_secs(30));
    assert_eq!(configuration.cwd, "{dir}");
    assert!(plan.dir.is_absolute() && plan.dir.ends_with("tests"));
}

#[test]
fn every_key_is_taken() {
    let plan = parse(
        r#"
        title = "All keys"
        [load]
        path = "/a?b=c"
        connections = 3
        requests = 700
        rounds = 2
        threads = 2
        keepalive = false
        method = "POST"
        headers = { Accept = "text/plain", X-Test = "1" }
        body = "a=1"
        timeout = "2s"
        warmup = 50
        steady = "20s"
        rate = 12.5
        cpus = [0]
        [check]
        status = 201
        body_contains = "made"
        [[configuration]]
        name = "one"
        start = ["sh", "-c", "awk '{print}'"]
        url = "http://127.0.0.1:{port}/"
        requires = ["sh"]
        env = { ROOT = "{dir}" }
        before = ["true"]
        after = ["rm", "-r", "{tmp}/x"]
        cwd = "{tmp}"
        templates = ["experiment_file.rs"]
        ready_timeout = "1m 30s"
        stop_timeout = "250ms"
        version = ["sh", "--version"]
        notes = "a note"
        cpus = [1]
        [[configuration]]
        name = "two"
        baseline = true
        start = ["server"]
        url = "http://[::1]:{port}"
    "#,
    );
    assert_eq!(plan.title, "All keys");
    assert_eq!(plan.load.amount, Amount::Requests(700));
    assert_eq!(plan.load.warmup, Some(Amount::Requests(50)));
    assert_eq!((plan.load.rate, plan.load.threads), (Some(12.5), 2));
    assert_eq!(plan.load.headers.len(), 2);
    assert_eq!(plan.check.body_contains.as_deref(), Some("made"));
    assert_eq!(plan.baseline().name, "two");
    assert_eq!(plan.load.steady, Some(Duration::from_secs(20)));
    let one = &plan.configurations[0];
    assert_eq!((one.before.len(), one.after.len()), (1, 3));
    assert_eq!(one.ready_timeout, Duration::from_secs(90));
    assert_eq!((one.cpus.as_slice(), one.templates.len()), ([1].as_slice(), 1));
}

#[test]
fn no_warmup_is_a_choice() {
    let plan = parse(&SMALLEST.replace("[load]", "[load]\nwarmup = 0"));
    assert_eq!(plan.load.warmup, None);
}

#[test]
fn only_keeps_the_baseline_and_names_what_is_unknown() {
    let mut text = SMALLEST.to_owned();
    for name in ["two", "three"] {
        text += &SMALLEST.replace("[load]", "").replace("one", name);
    }
    let mut plan = parse(&text);
    assert_eq!(plan.keep_only(&["tow".to_owned()]), Err("tow".to_owned()));
    plan.keep_only(&["three".to_owned()]).unwrap();
    let names: Vec<&str> = plan.configurations.iter().map(|c| c.name.as_str()).collect();
    assert_eq!(names, ["one", "three"]);
}

#[test]
fn an_experiment_against_itself_has_the_baseline_twice() {
    let mut plan =
        parse(&(SMALLEST.to_owned() + &SMALLEST.replace("[load]", "").replace("one", "two")));
    plan.against_itself();
    let names: Vec<&str> = plan.configurations.iter().map(|c| c.name.as_str()).collect();
    assert_eq!(names, ["one", "one (again)"]);
    assert_eq!(plan.baseline().name, "one");
}

const MATRIX: &str = "[load]\nconnections = 9\nthreads = 3\n[matrix]\nconnections = [2, 64]\nsize = [\"s\", 7]\n\
    [[configuration]]\nname = \"one\"\nstart = [\"x\", \"{size}\"]\nurl = \"http://h/\"\n\
    [[configuration]]\nname = \"two\"\nbaseline = true\nurl = \"http://h/{size}\"\n";

#[test]
fn a_matrix_has_each_configuration_under_each_combination() {
    let mut plan = parse(MATRIX);
    let names: Vec<&str> = plan.configurations.iter().map(|c| c.name.as_str()).collect();
    let cells = ["connections 2, size s", "connections 64, size s", "connections 2, size 7"];
    assert_eq!(names.len(), 8);
    assert_eq!(names[..2], [format!("one [{}]", cells[0]), format!("two [{}]", cells[0])]);
    assert_eq!(names[2], format!("one [{}]", cells[1]));
    let (first, third) = (&plan.configurations[0], &plan.configurations[4]);
    assert_eq!((&*first.start[1], &*third.start[1]), ("s", "7"));
    assert_eq!(plan.configurations[5].url, "http://h/7");
    let load = |index: usize| plan.load_of(&plan.configurations[index]);
    assert_eq!((load(0).connections, load(0).threads, load(2).connections), (2, 2, 64));
    // Each configuration is compared with the baseline of its own cell.
    let reference = |index: usize| plan.reference(&plan.configurations[index]);
    assert_eq!(reference(0), Some(&*format!("two [{}]", cells[0])));
    assert_eq!(reference(4), Some(&*format!("two [{}]", cells[2])));
    assert_eq!([reference(1), reference(3), reference(5)], [None; 3]);
    plan.keep_only(&["one [connections 64, size 7]".to_owned()]).unwrap();
    assert_eq!(plan.configurations.len(), 3, "itself, its baseline, and that of the whole");
}

#[test]
fn a_wrong_matrix_is_explained() {
    let explained = |line: &str, why: &str| {
        let text = MATRIX.replace("size = [\"s\", 7]", line);
        let problem = Plan::parse(Path::new("tests/experiment.toml"), &text).unwrap_err().plain();
        assert!(problem.contains(why), "{problem}");
    };
    explained("rate = []", "list one value or more");
    explained("rate = [-1]", "give a number from 0");
    explained("connections_ = [[1]]", "not a value of a matrix");
    explained("port = [1]", "not a placeholder's name");
    explained("http2 = [1]", "list true, false or both");
    explained("http3 = [1]", "list true, false or both");
    let many: Vec<String> = (0..33).map(|n| n.to_string()).collect();
    explained(&format!("size = [{}]", many.join(", ")), "64 combinations at most");
}

#[test]
fn a_service_itself_may_be_what_a_configuration_loads() {
    let of_a_service = r#"
    [load]
    [[service]]
    name = "container"
    start = ["server"]
    [[configuration]]
    name = "directly"
    url = "h2c://127.0.0.1:{container.port}"
"#;
    let plan = parse(of_a_service);
    assert_eq!(plan.configurations[0].url, "h2c://127.0.0.1:{container.port}");
    let of_another = of_a_service.replace("{container.port}", "{contaner.port}");
    let problem = Plan::parse(Path::new("tests/experiment.toml"), &of_another).unwrap_err();
    assert!(problem.to_string().contains("not a URL to load"), "{problem}");
    for (scheme, path) in [("grpc:", "path = \"/a.B/C\""), ("tcp:", "path = \"/\"")] {
        let other =
            of_a_service.replace("h2c:", scheme).replace("[load]", &format!("[load]\n{path}"));
        let problem = Plan::parse(Path::new("tests/experiment.toml"), &other).unwrap_err();
        let problem = problem.to_string();
        let why = format!("compare does not load {} servers", scheme.trim_end_matches(':'));
        assert!(problem.contains(&why), "{problem}");
    }
}
