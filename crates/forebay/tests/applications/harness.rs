//! Sends the same requests to Forebay and to a model server, and compares the parts of the replies
//! that must agree.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use forebay_testkit::folder::Folder;
use forebay_testkit::http::{Client, Reply};
use forebay_testkit::peer::{self, Peer};
use forebay_testkit::process::Process;
use forebay_testkit::stream::Address;

use crate::support::{Forebay, serve};

/// Number of requests for each URL.
const TIMES: usize = 30;
/// Number of clients, which is also the number of workers.
const CLIENTS: usize = 4;

/// A URL of an application.
pub struct Row {
    pub target: &'static str,
    /// Status of the model's reply. The check fails if the application is not set up correctly.
    pub status: u16,
    /// Text in the body.
    pub holds: &'static str,
}

pub const fn row(target: &'static str, status: u16, holds: &'static str) -> Row {
    Row { target, status, holds }
}

/// The texts before and after a part that may differ between two replies.
pub type Mask = (&'static str, &'static str);

/// The requests, and the rules for the comparison.
#[derive(Default)]
pub struct Requests<'a> {
    /// `{tmp}` in their targets is `tmp`.
    pub rows: &'a [Row],
    pub tmp: &'a str,
    /// Additional lines of the request's head. `{port}` stands for the server's port.
    pub fields: String,
    pub masks: &'a [Mask],
}

/// Sends each URL once to the model and thirty times to Forebay, then ends Forebay.
///
/// # Panics
/// Panics if a reply differs.
pub fn compare(what: &str, requests: &Requests<'_>, model: &Address, forebay: Forebay) {
    // Each URL twice, because the session lists visited pages from the second time on.
    requests.rows.iter().for_each(|row| drop(ask(model, requests, row.target)));
    let expected: Vec<String> =
        requests.rows.iter().map(|row| requests.model(row, model)).collect();
    let address = Address::from(forebay.address);
    let (asked, wrong) = (AtomicUsize::new(0), Mutex::new(BTreeMap::<usize, Vec<String>>::new()));
    thread::scope(|scope| {
        for _ in 0..CLIENTS {
            scope.spawn(|| {
                loop {
                    let number = asked.fetch_add(1, Ordering::Relaxed);
                    if number >= TIMES * requests.rows.len() {
                        return;
                    }
                    // Each round begins with another URL, so that a worker gets the URLs in many
                    // orders.
                    let row = (number + number / requests.rows.len() * 3) % requests.rows.len();
                    let seen = requests.seen(&ask(&address, requests, requests.rows[row].target));
                    if seen != expected[row] {
                        wrong.lock().unwrap().entry(row).or_default().push(seen);
                    }
                }
            });
        }
    });
    let wrong = wrong.into_inner().unwrap();
    let mut report = String::new();
    for (row, replies) in &wrong {
        let (target, first) = (requests.rows[*row].target, &replies[0]);
        let difference = difference(&expected[*row], first);
        writeln!(report, "{target}: {} of {TIMES} differ\n{difference}", replies.len()).unwrap();
    }
    assert!(wrong.is_empty(), "{what}:\n{report}\n{}", tail(&forebay.output()));
    forebay.stop();
}

impl Requests<'_> {
    fn model(&self, row: &Row, model: &Address) -> String {
        let reply = ask(model, self, row.target);
        let seen = self.seen(&reply);
        assert_eq!(reply.status, row.status, "the model's reply to {}: {seen}", row.target);
        assert!(seen.contains(row.holds), "the model's reply to {}: {seen}", row.target);
        seen
    }

    /// Returns the parts of a reply that come from the application.
    fn seen(&self, reply: &Reply) -> String {
        let mut seen = reply.status.to_string();
        for name in ["Content-Type", "Location", "Content-Disposition", "X-Powered-By"] {
            write!(seen, "\n{name}: {:?}", reply.headers_named(name)).unwrap();
        }
        write!(seen, "\n{}", String::from_utf8_lossy(&reply.body)).unwrap();
        self.masks.iter().fold(seen, |text, mask| masked(&text, *mask))
    }
}

fn ask(address: &Address, requests: &Requests<'_>, target: &str) -> Reply {
    let mut client = Client::connect(address);
    let target = target.replace("{tmp}", requests.tmp);
    let fields = match address {
        Address::Tcp(address) => requests.fields.replace("{port}", &address.port().to_string()),
        Address::Unix(_) => requests.fields.clone(),
    };
    client.send(format!(
        "GET {target} HTTP/1.1\r\nHost: localhost\r\nUser-Agent: test\r\n{fields}Connection: close\r\n\r\n"
    ));
    client.reply()
}

fn masked(text: &str, (start, end): Mask) -> String {
    let mut parts = text.split(start);
    let mut masked = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let rest = part.find(end).map_or("", |at| &part[at..]);
        write!(masked, "{start}*{rest}").unwrap();
    }
    masked
}

/// Returns the first line that differs, and the one before.
fn difference(expected: &str, seen: &str) -> String {
    let lines = expected.lines().zip(seen.lines());
    let same = lines.take_while(|(expected, seen)| expected == seen).count();
    let show = |text: &str| -> String {
        let lines = text.lines().skip(same.saturating_sub(1)).take(4);
        lines.map(|line| format!("    {line:.300}\n")).collect()
    };
    format!("  expected:\n{}  seen:\n{}", show(expected), show(seen))
}

fn tail(text: &str) -> String {
    let lines: Vec<_> = text.lines().collect();
    lines[lines.len().saturating_sub(30)..].join("\n")
}

/// Compares Perl scripts in each of these modes with plain CGI.
pub fn compare_modes(scripts: &Scripts<'_>, requests: &Requests<'_>, modes: &[&str]) {
    let Some(model) = scripts.plain_cgi() else { return };
    for mode in modes {
        let forebay = scripts.forebay(&format!("kind = \"perl-cgi\"\nmode = \"{mode}\""));
        compare(mode, requests, model.address(), forebay);
    }
}

/// Returns the line of an application's table that names its user. Empty if root does not run the
/// test.
pub fn user() -> &'static str {
    if rustix::process::geteuid().is_root() { "user = \"www-data\"\n" } else { "" }
}

/// The scripts that both sides run.
pub struct Scripts<'a> {
    /// The directory of `/cgi-bin/`.
    pub dir: &'a str,
    pub env: &'a [(&'a str, String)],
}

impl Scripts<'_> {
    /// Starts Apache, which runs a process for each request.
    pub fn plain_cgi(&self) -> Option<Peer> {
        let dir = self.dir;
        let env = self.env.iter().map(|(name, value)| format!("SetEnv {name} \"{value}\"\n"));
        let env: String = env.collect();
        peer::apache(
            &["alias", "cgi", "env"],
            &format!(
                "{env}KeepAlive Off\nUseCanonicalName Off\nScriptAlias /cgi-bin/ \"{dir}/\"\n\
                 <Directory \"{dir}\">\nOptions ExecCGI FollowSymLinks\nRequire all granted\n\
                 </Directory>\n"
            ),
        )
    }

    /// Starts Forebay with an application of these keys.
    pub fn forebay(&self, keys: &str) -> Forebay {
        let env = self.env.iter().map(|(name, value)| format!("{name} = {value:?}"));
        let env: Vec<_> = env.collect();
        serve(
            Folder::new(),
            &format!(
                "[[site]]\nlisten = \"127.0.0.1:0\"\n[[site.route]]\npath = \"/cgi-bin/*\"\n\
                 app = \"scripts\"\n[app.scripts]\ndir = {:?}\nworkers = {CLIENTS}\n\
                 env = {{ {} }}\n{}{keys}\n",
                self.dir,
                env.join(", "),
                user()
            ),
        )
    }
}

/// Makes a directory that the application's user may write to.
pub fn writable(folder: &Folder, name: &str) -> String {
    let path = folder.path().join(name);
    fs::create_dir_all(&path).unwrap();
    fs::set_permissions(&path, Permissions::from_mode(0o777)).unwrap();
    path.to_str().unwrap().to_owned()
}

/// Starts MariaDB on the socket `database.sock` in the folder, with an empty database.
pub fn mariadb(folder: &Folder, name: &str) -> Process {
    let data = writable(folder, "database");
    let root = rustix::process::geteuid().is_root();
    let user: &[&str] = if root { &["--user=root"] } else { &[] };
    run(Command::new("mariadb-install-db")
        .args(["--no-defaults", "--skip-test-db", "--auth-root-authentication-method=normal"])
        .arg(format!("--datadir={data}"))
        .args(user));
    let socket = folder.path().join("database.sock");
    let start = folder.write("start.sql", format!("CREATE DATABASE IF NOT EXISTS {name};\n"));
    let mut command = forebay_testkit::process::command("mariadbd");
    command.arg("--no-defaults").arg(format!("--datadir={data}")).args(user).args([
        "--skip-networking",
        "--skip-grant-tables",
        "--innodb-buffer-pool-size=16M",
        "--innodb-flush-log-at-trx-commit=0",
    ]);
    command.arg(format!("--socket={}", text(&socket)));
    command.arg(format!("--init-file={}", text(&start)));
    let mut process = Process::start(command);
    process.wait_until_listening(Address::Unix(socket));
    process
}

/// Runs a command of the set-up.
///
/// # Panics
/// Panics if the command fails.
pub fn run(command: &mut Command) {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {output:?}");
}

pub fn text(path: &Path) -> &str {
    path.to_str().expect("temporary folders have plain names")
}
