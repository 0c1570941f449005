//! In every host and mode, no bytes of one visitor reach another. Attacks leave behind anything
//! that scripts can leave; victims between them print their own number.
//!
//! Each file in `isolation/perl` and `isolation/python` is an attack, except `victim` and `keeper`.
//! To add a case, add a file. All output of a request has the request's number in angle brackets.
//! `FOREBAY_ISOLATION_SEED` reproduces a run, except the order in which workers become free.
//! `FOREBAY_ISOLATION_REQUESTS=20000` makes the large run. `FOREBAY_ISOLATION_WAYS=python` requests
//! only paths with that text.

mod support;

use std::collections::HashSet;
use std::fs;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{SystemTime, UNIX_EPOCH};

use forebay_testkit::folder::Folder;
use forebay_testkit::http::{Client, Reply};
use forebay_testkit::peer::{self, has_php_fpm};
use support::{Forebay, proc, serve};

const HERE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/isolation");
/// Number of all requests, unless `FOREBAY_ISOLATION_REQUESTS` has another number.
const REQUESTS: usize = 1500;
const CONNECTIONS: usize = 6;
/// About one attack for this many requests of victims.
const VICTIMS: u64 = 4;

/// A way to run scripts, with the path before their names.
struct Way {
    prefix: String,
    suffix: &'static str,
    attacks: Vec<String>,
}

impl Way {
    fn target(&self, name: &str, number: usize) -> String {
        format!("{}{name}{}{number}", self.prefix, self.suffix)
    }
}

/// SplitMix64, which gives the same numbers on every machine.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % end
    }

    fn choose<'a, T>(&mut self, among: &'a [T]) -> &'a T {
        &among[self.below(among.len() as u64) as usize]
    }
}

fn number_from(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable} is a number")))
}

/// Returns the attacks of one language, after copying its scripts to the folder.
fn attacks(folder: &Folder, language: &str, suffix: &str) -> Vec<String> {
    let mut names = Vec::new();
    for entry in fs::read_dir(Path::new(HERE).join(language)).unwrap() {
        let path = entry.unwrap().path();
        let file = path.file_name().unwrap().to_str().unwrap();
        folder.script(&format!("{language}/{file}"), fs::read(&path).unwrap());
        names.extend(file.strip_suffix(suffix).map(str::to_owned));
    }
    names.retain(|name| name != "victim" && name != "keeper");
    names.sort();
    assert!(!names.is_empty(), "{language}");
    names
}

fn scripts(way: &str, language: &str, suffix: &'static str, attacks: &[String]) -> Way {
    let prefix = format!("/{way}-{language}/");
    Way { prefix, suffix, attacks: attacks.to_vec() }
}

fn applications(way: &str, attacks: &[&str]) -> Way {
    let attacks = attacks.iter().map(|&name| name.to_owned()).collect();
    Way { prefix: format!("/{way}/"), suffix: "?", attacks }
}

/// Starts a server with all ways to run scripts.
fn start() -> (Forebay, Vec<Way>) {
    let folder = Folder::new();
    let mut ways = Vec::new();
    let (mut routes, mut apps) = (String::new(), String::new());
    let mut app = |name: &str, keys: &str| {
        routes += &format!("[[site.route]]\npath = \"/{name}/*\"\napp = \"{name}\"\n");
        apps += &format!("[app.{name}]\nworkers = 2\n{keys}\n");
    };
    let mut languages = vec![("perl", ".pl?")];
    if peer::has(&["python3"]) {
        languages.push(("python", ".py?"));
    }
    let mut plain = String::new();
    for (language, suffix) in languages {
        let attacks = attacks(&folder, language, suffix.trim_end_matches('?'));
        let modes: &[&str] = match language {
            "perl" => &["registry", "registry-prefork", "perlrun", "fork", "cgi"],
            _ => &["fresh", "fork"],
        };
        for mode in modes {
            let keys =
                format!("kind = \"{language}-cgi\"\ndir = \"{language}\"\nmode = \"{mode}\"");
            app(&format!("{mode}-{language}"), &keys);
            ways.push(scripts(mode, language, suffix, &attacks));
        }
        app(&format!("bin-{language}"), &format!("kind = \"cgi-bin\"\ndir = \"{language}\""));
        ways.push(scripts("bin", language, suffix, &attacks));
        plain += &format!(
            "[[site.route]]\npath = \"/plain-{language}/*\"\ncgi = {{ dir = \"{language}\" }}\n"
        );
        ways.push(scripts("plain", language, suffix, &attacks));
    }
    for (file, place) in [
        ("app.psgi", "apps/app.psgi"),
        ("app.py", "apps/app.py"),
        ("attacks.php", "apps/php/attacks.php"),
    ] {
        folder.write(place, fs::read(Path::new(HERE).join("apps").join(file)).unwrap());
    }
    app("psgi", "kind = \"psgi\"\nfile = \"apps/app.psgi\"");
    ways.push(applications(
        "psgi",
        &["kept_writer", "child", "child_replies", "background_job", "dies", "ends", "killed"],
    ));
    if peer::has(&["python3"]) {
        app("wsgi", "kind = \"wsgi\"\ndir = \"apps\"\nmodule = \"app:application\"");
        ways.push(applications(
            "wsgi",
            &[
                "kept_write",
                "kept_iterator",
                "late_thread",
                "thread_with_much",
                "child",
                "child_replies",
                "background_job",
                "raises",
                "killed",
            ],
        ));
    }
    if has_php_fpm() {
        let user = if rustix::process::geteuid().is_root() { "user = \"www-data\"" } else { "" };
        app("php", &format!("kind = \"php\"\nroot = \"apps\"\n{user}"));
        let attacks = ["background_job", "kept_handle", "at_shutdown", "finished"];
        let attacks = attacks.map(str::to_owned).to_vec();
        ways.push(Way { prefix: "/php/attacks.php?".to_owned(), suffix: ",", attacks });
    }
    let site = format!("[[site]]\nlisten = \"127.0.0.1:0\"\n{plain}{routes}{apps}");
    (serve(folder, &site), ways)
}

/// Returns the numbers in angle brackets anywhere in a reply.
fn numbers(reply: &Reply) -> Vec<String> {
    let body = String::from_utf8_lossy(&reply.body);
    let fields = reply.headers.iter().map(|(name, value)| format!("{name}: {value}"));
    let text = fields.collect::<Vec<_>>().join("\n") + &body;
    let parts = text.split('<').skip(1).filter_map(|part| part.split_once('>'));
    parts
        .map(|(number, _)| number.to_owned())
        .filter(|number| number.bytes().all(|byte| byte.is_ascii_digit()))
        .collect()
}

fn shown(reply: &Reply) -> String {
    format!("{} {:?} {:?}", reply.status, reply.headers, String::from_utf8_lossy(&reply.body))
}

/// One visitor, whose connections follow each other.
struct Visitor<'a> {
    forebay: &'a Forebay,
    client: Option<Client>,
    served: &'a AtomicUsize,
}

impl Visitor<'_> {
    /// Sends a request over the current connection, or over a new one if it was closed.
    fn ask(&mut self, target: &str) -> io::Result<Reply> {
        self.served.fetch_add(1, Ordering::Relaxed);
        let mut client = match self.client.take() {
            Some(client) => client,
            None => Client::try_connect(&self.forebay.address.into())?,
        };
        let reply = client.try_get(target)?;
        let closes = reply.header("Connection").is_some_and(|value| value == "close");
        self.client = (!closes).then_some(client);
        Ok(reply)
    }

    /// An attack that ends in any way prints only its own number.
    fn attack(&mut self, way: &Way, name: &str, number: usize) -> Result<(), String> {
        let target = way.target(name, number);
        let Ok(reply) = self.ask(&target) else { return Ok(()) };
        let foreign = numbers(&reply).into_iter().find(|other| *other != number.to_string());
        foreign.map_or(Ok(()), |other| Err(format!("{target} got <{other}>: {}", shown(&reply))))
    }

    /// A victim gets its own output, and all of it.
    fn visit(&mut self, way: &Way, number: usize) -> Result<(), String> {
        let target = way.target("victim", number);
        let reply = self.ask(&target).map_err(|error| format!("{target}: {error}"))?;
        let body = format!("victim <{number}>\n");
        let is_own = reply.status == 200
            && reply.body == body.as_bytes()
            && reply.header("Content-Type").is_some_and(|value| value.starts_with("text/plain"))
            && reply.header("Set-Cookie").is_none();
        if is_own { Ok(()) } else { Err(format!("{target}: {}", shown(&reply))) }
    }
}

/// Runs attacks and visits until there are enough.
fn run(visitor: &mut Visitor<'_>, ways: &[Way], mut random: Random, enough: usize) -> Vec<String> {
    let mut wrong = Vec::new();
    while visitor.served.load(Ordering::Relaxed) < enough && wrong.len() < 5 {
        let way = random.choose(ways);
        let name = random.choose(&way.attacks);
        let number = visitor.served.load(Ordering::Relaxed) * CONNECTIONS + 1_000_000;
        let number = number + random.below(1_000_000) as usize * 10;
        if let Err(what) = visitor.attack(way, name, number) {
            wrong.push(what);
        }
        for at in 0..1 + random.below(2 * VICTIMS - 1) as usize {
            if random.below(3) == 0 {
                visitor.client = None;
            }
            if let Err(what) = visitor.visit(way, number + 1 + at) {
                wrong.push(format!("after {}{name}: {what}", way.prefix));
            }
        }
    }
    wrong
}

#[test]
fn a_visitor_gets_its_own_bytes_whatever_others_leave_behind() {
    let (forebay, mut ways) = start();
    let only = std::env::var("FOREBAY_ISOLATION_WAYS").unwrap_or_default();
    ways.retain(|way| way.prefix.contains(&only));
    let enough =
        number_from("FOREBAY_ISOLATION_REQUESTS").map_or(REQUESTS, |number| number as usize);
    let now = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_millis());
    let seed = number_from("FOREBAY_ISOLATION_SEED").unwrap_or_else(|| now() as u64);
    println!("FOREBAY_ISOLATION_SEED={seed}, {} ways, {enough} requests", ways.len());
    let served = AtomicUsize::new(0);
    let wrong: Vec<String> = thread::scope(|scope| {
        let visitors: Vec<_> = (0..CONNECTIONS as u64)
            .map(|at| {
                let mut visitor = Visitor { forebay: &forebay, client: None, served: &served };
                let (ways, random) = (&ways, Random(seed.wrapping_add(at << 32)));
                scope.spawn(move || run(&mut visitor, ways, random, enough))
            })
            .collect();
        visitors.into_iter().flat_map(|visitor| visitor.join().unwrap()).collect()
    });
    assert!(wrong.is_empty(), "seed {seed}, {} wrong:\n{}", wrong.len(), wrong.join("\n"));
    forebay.stop();
}

/// Serves the scripts in `isolation/python`, and these, in one worker for mode `fresh`.
fn one_python_worker(scripts: &[(&str, &str)], keys: &str) -> Option<Forebay> {
    if !peer::has(&["python3"]) {
        return None;
    }
    let folder = Folder::new();
    attacks(&folder, "python", ".py");
    let head = "import os\nprint('Content-Type: text/plain\\n')";
    for (name, text) in scripts {
        // A file in a directory is a module.
        let head = if name.contains('/') { "" } else { head };
        let text = format!("#!/usr/bin/python3\n{head}\n{text}\n");
        folder.script(&format!("python/{name}"), text);
    }
    let app = "[[site]]\nlisten = \"127.0.0.1:0\"\n[[site.route]]\npath = \"/*\"\napp = \"own\"\n\
               [app.own]\nkind = \"python-cgi\"\ndir = \"python\"\nworkers = 1\n";
    Some(serve(folder, &format!("{app}{keys}\n")))
}

const PID: (&str, &str) = ("pid.py", "print(os.getpid(), end='')");

#[test]
fn only_a_process_that_can_write_to_the_client_costs_a_python_worker() {
    let Some(forebay) = one_python_worker(&[PID], "") else { return };
    let pid = || forebay.get("/pid.py").text().to_owned();
    for (name, is_replaced) in [
        ("daemon_that_closes_all", false),
        ("background_job", true),
        ("background_other_descriptor", true),
        ("double_fork", true),
        ("chain_of_forks", true),
        ("daemon_that_keeps_output", true),
        ("late_raw_thread", true),
        ("thread_at_exit", true),
        ("watchdog", false),
        ("timers", false),
        ("kept_duplicate", false),
    ] {
        let before = pid();
        assert!(forebay.get(&format!("/{name}.py?1")).text().starts_with("begun <1>\n"), "{name}");
        assert_eq!(pid() != before, is_replaced, "{name}: {}", forebay.output());
    }
    forebay.stop();
}

#[test]
fn bytes_in_a_kept_handle_reach_their_own_visitor() {
    let Some(forebay) = one_python_worker(&[PID], "") else { return };
    for name in [
        "kept_text_wrapper",
        "kept_duplicate",
        "kept_by_number",
        "kept_subclass",
        "kept_stdout",
        "kept_and_frozen",
        "kept_and_old",
        "kept_pyio",
        "c_library",
        "log_handler",
    ] {
        for number in 1..6 {
            let reply = forebay.get(&format!("/{name}.py?{number}"));
            let own = number.to_string();
            assert!(numbers(&reply).iter().all(|number| *number == own), "{}", shown(&reply));
            // After detaching, nothing more can be printed.
            let most = if name == "kept_stdout" { 1 } else { 2 };
            assert!(numbers(&reply).len() >= most, "{name}: {}", shown(&reply));
            let victim = forebay.get("/victim.py?0");
            assert_eq!(victim.text(), "victim <0>\n", "{name}: {}", shown(&victim));
        }
    }
    forebay.stop();
}

#[test]
fn a_handle_that_cannot_be_written_costs_its_worker() {
    let keep = "import keeper\nkeeper.full = open('/dev/full', 'w')\n\
                keeper.full.write('x')\nprint(os.getpid())";
    let Some(forebay) = one_python_worker(&[("full.py", keep), PID], "") else { return };
    let first = forebay.get("/full.py");
    assert_eq!(first.status, 200);
    assert_ne!(forebay.get("/pid.py").text(), first.text().trim());
    assert!(forebay.output().contains("cannot write what a script has left in a file"));
    forebay.stop();
}

#[test]
fn scripts_that_leak_descriptors_harm_no_other() {
    let leak = "[os.dup(1) for _ in range(100)]\nprint(os.getpid())";
    let scripts = [("leak.py", leak)];
    let Some(forebay) = one_python_worker(&scripts, "limits = { open_files = 256 }") else {
        return;
    };
    let mut pids = HashSet::new();
    for _ in 0..9 {
        let leaked = forebay.get("/leak.py");
        assert_eq!(leaked.status, 200, "{}", forebay.output());
        pids.insert(leaked.text().trim().to_owned());
        assert_eq!(forebay.get("/victim.py?1").text(), "victim <1>\n");
    }
    assert!(pids.len() >= 4, "{pids:?}");
    forebay.stop();
}

#[test]
fn a_python_worker_that_cannot_open_a_script_answers_503_and_is_replaced() {
    let Some(forebay) = one_python_worker(&[("new.py", "print('new')"), PID], "") else { return };
    let pid = || forebay.get("/pid.py").text().to_owned();
    // The worker has no free descriptor, and gets a script that it has not compiled.
    let before = pid();
    proc::fill_descriptors(before.parse().unwrap());
    assert_eq!(forebay.get("/new.py").status, 503, "{}", forebay.output());
    assert_eq!(forebay.get("/new.py").text(), "new\n", "{}", forebay.output());
    assert_ne!(pid(), before);
    forebay.stop();
}

#[test]
fn a_python_worker_that_a_script_has_enclosed_is_replaced() {
    if !rustix::process::geteuid().is_root() {
        return peer::skip("chroot needs root");
    }
    let enclose = "os.mkdir('jail') if not os.path.exists('jail') else None\nos.chroot('jail')";
    let scripts = [("enclose.py", enclose), ("new.py", "print('new')")];
    let Some(forebay) = one_python_worker(&scripts, "") else { return };
    assert_eq!(forebay.get("/enclose.py").status, 200, "{}", forebay.output());
    assert_eq!(forebay.get("/new.py").text(), "new\n", "{}", forebay.output());
    forebay.stop();
}

#[test]
fn a_python_worker_with_other_limits_is_replaced() {
    let limit = "import resource\nprint(os.getpid(), end='')\n\
                 resource.setrlimit(resource.RLIMIT_CPU, (99, 99)) if os.environ['QUERY_STRING'] \
                 else None";
    let Some(forebay) = one_python_worker(&[("limit.py", limit), PID], "") else { return };
    let pid = || forebay.get("/pid.py").text().to_owned();
    let before = pid();
    assert_eq!(forebay.get("/limit.py").text(), before);
    assert_eq!(pid(), before, "{}", forebay.output());
    assert_eq!(forebay.get("/limit.py?set").text(), before);
    assert_ne!(pid(), before, "{}", forebay.output());
    forebay.stop();
}

#[test]
fn signals_that_a_python_script_has_blocked_are_dropped() {
    let block = "import signal\nprint(os.getpid(), end='')\n\
                 for number in signal.SIGUSR1, signal.SIGRTMIN + 2:\n    \
                 signal.signal(number, lambda *a: print('handled'))\n    \
                 signal.pthread_sigmask(signal.SIG_BLOCK, {number})\n    \
                 os.kill(os.getpid(), number)";
    let Some(forebay) = one_python_worker(&[("block.py", block), PID], "") else { return };
    let pid = forebay.get("/pid.py").text().to_owned();
    for _ in 0..3 {
        let reply = forebay.try_get("/block.py").map(|reply| reply.text().to_owned());
        assert_eq!(reply.ok().as_deref(), Some(pid.as_str()), "{}", forebay.output());
    }
    assert_eq!(forebay.get("/pid.py").text(), pid);
    forebay.stop();
}

#[test]
fn an_end_marker_goes_nowhere_but_to_the_client() {
    // The script has its own files at the numbers of the worker's descriptors.
    let text = "import keeper\nprint('mine', flush=True)\nos.closerange(3, 64)\n\
                keeper.files = [open('marks', 'ab', buffering=0) for _ in range(20)]";
    let Some(forebay) = one_python_worker(&[("takes.py", text)], "") else { return };
    for _ in 0..5 {
        assert_eq!(forebay.get("/takes.py").text(), "mine\n", "{}", forebay.output());
        assert_eq!(forebay.get("/victim.py?1").text(), "victim <1>\n", "{}", forebay.output());
    }
    let marks = fs::read(forebay.folder.path().join("python/marks")).unwrap();
    assert!(marks.is_empty(), "{}", marks.escape_ascii());
    forebay.stop();
}

#[test]
fn an_interpreter_that_cannot_see_orphans_gets_a_new_worker_after_a_child() {
    let hidden = ("without/ctypes.py", "raise ImportError('hidden')");
    let keys = "env = { PYTHONPATH = \"{tmp}/python/without\" }";
    let Some(forebay) = one_python_worker(&[hidden, PID], keys) else { return };
    let pid = || forebay.get("/pid.py").text().to_owned();
    let first = pid();
    assert_eq!(pid(), first);
    for _ in 0..3 {
        let before = pid();
        assert_eq!(forebay.get("/background_job.py?1").text(), "begun <1>\n");
        assert_ne!(pid(), before);
    }
    forebay.stop();
}
