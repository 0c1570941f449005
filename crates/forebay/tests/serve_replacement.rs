//! SIGUSR2 replaces `forebay serve` by a new process. No request is lost, and a process that does
//! not start changes nothing.

mod support;

use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddr, UnixDatagram};
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use forebay_testkit::folder::Folder;
use forebay_testkit::http::Client;
use forebay_testkit::process::{Process, eventually};
use forebay_testkit::scripted::{ScriptStep, ScriptedBackend};
use forebay_testkit::stream::{Address, TestStream};
use forebay_testkit::tls::{Authority, Identity, connect};
use rustix::process::{Pid, Signal, kill_process};
use rustls::HandshakeKind;
use support::load::Stop;
use support::{
    Forebay, command, http3, is_alive, proc, program, serve, serve_command, write_configuration,
};

const SERVES: &str = " serves from now on";

/// Returns the processes that took over from the first one, in their order.
fn successors(forebay: &Forebay) -> Vec<u32> {
    let output = forebay.output();
    let found = output.split(SERVES).filter_map(|before| before.rsplit(' ').next()?.parse().ok());
    found.collect()
}

/// A process that the test has not started itself. It ends with the test.
struct Successor(u32);

impl Successor {
    fn signal(&self, signal: Signal) {
        let id = Pid::from_raw(self.0.cast_signed()).unwrap();
        let _ = kill_process(id, signal);
    }

    fn is_alive(&self) -> bool {
        is_alive(&self.0.to_string())
    }
}

impl Drop for Successor {
    fn drop(&mut self) {
        self.signal(Signal::KILL);
    }
}

/// Sends SIGUSR2 to the process that serves, and waits for its successor.
fn upgrade(forebay: &mut Forebay, current: Option<&Successor>) -> Successor {
    let count = successors(forebay).len();
    match current {
        None => forebay.signal(Signal::USR2),
        Some(current) => current.signal(Signal::USR2),
    }
    assert!(eventually(|| successors(forebay).len() > count), "{}", forebay.output());
    Successor(successors(forebay)[count])
}

/// Ends all, and checks that the first process ended well and alone.
fn stop(forebay: Forebay, last: Successor) -> String {
    last.signal(Signal::TERM);
    assert!(eventually(|| !last.is_alive()), "{}", forebay.output());
    let exit = forebay.process.wait();
    assert_eq!(exit.status.code(), Some(0), "{}", exit.output);
    assert!(exit.survivors.is_empty(), "{:?}", exit.survivors);
    assert!(!exit.output.contains("panicked"), "{}", exit.output);
    exit.output
}

fn configuration(reply: &str) -> String {
    format!(
        "[server]\nadmin = \"127.0.0.1:0\"\n\
         [[site]]\nlisten = [\"127.0.0.1:0\", \"unix:{{tmp}}/s\"]\n\
         [[site.route]]\nrespond = \"{reply}\"\n"
    )
}

/// Sends requests until the end, over connections that carry as many requests as the server allows.
/// Any failure ends the test.
fn ask(address: &Address, over: &AtomicBool, asked: &AtomicUsize) {
    let connect = || Client::try_connect(address).expect("the listener never closes");
    let mut client = connect();
    while !over.load(Ordering::Relaxed) {
        let reply = client.try_get("/").expect("a reply");
        assert_eq!((reply.status, reply.text()), (200, "hello"));
        if reply.header("Connection") == Some("close") {
            client = connect();
        }
        asked.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn no_request_fails_while_the_process_is_replaced() {
    let mut forebay = serve(Folder::new(), &configuration("hello"));
    let (over, asked) = (AtomicBool::new(false), AtomicUsize::new(0));
    let addresses =
        [Address::from(forebay.address), Address::from(&forebay.folder.path().join("s"))];
    let url = format!("h2c://{}/", forebay.address);
    let last = thread::scope(|scope| {
        let stopping = Stop(&over);
        for address in &addresses {
            scope.spawn(|| ask(address, &over, &asked));
        }
        // The load generator counts requests that were resent or lost as failures.
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                let mut bench = Command::new(program());
                bench.args(["bench", "-n", "1000", "-c", "4", &url]);
                let exit = Process::start(bench).wait();
                assert_eq!(exit.status.code(), Some(0), "{}", exit.output);
                asked.fetch_add(1000, Ordering::Relaxed);
            }
        });
        // An earlier one may still finish requests, and ends with the test.
        let mut all: Vec<Successor> = Vec::new();
        for _ in 0..3 {
            let before = asked.load(Ordering::Relaxed);
            assert!(eventually(|| asked.load(Ordering::Relaxed) > before + 1500));
            all.push(upgrade(&mut forebay, all.last()));
        }
        let before = asked.load(Ordering::Relaxed);
        assert!(eventually(|| asked.load(Ordering::Relaxed) > before + 1500));
        drop(stopping);
        let last = all.pop().unwrap();
        assert!(eventually(|| all.iter().all(|earlier| !earlier.is_alive())));
        last
    });
    stop(forebay, last);
}

/// Adds a script that waits for a line in a FIFO. Returns the path of the FIFO.
fn slow_script(folder: &Folder) -> PathBuf {
    folder.script(
        "cgi/slow",
        "#!/bin/sh\necho $$ > \"$WHERE/pid\"\nread x < \"$WHERE/go\"\n\
         printf 'Content-Type: text/plain\\n\\nfinished'\n",
    );
    let fifo = folder.path().join("go");
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    fifo
}

#[test]
fn a_request_under_way_and_an_application_end_with_the_old_process() {
    let folder = Folder::new();
    let fifo = slow_script(&folder);
    folder.write("app.psgi", "sub { [200, [], [\"pid $$\"]] };\n");
    let mut forebay = serve(
        folder,
        "[[site]]\nlisten = \"127.0.0.1:0\"\n\
         [[site.route]]\npath = \"/cgi/*\"\ncgi = { dir = \"cgi\", env = { WHERE = \"{tmp}\" } }\n\
         [[site.route]]\npath = \"/*\"\napp = \"a\"\n\
         [app.a]\nkind = \"psgi\"\nfile = \"app.psgi\"\nworkers = 1\n",
    );
    let old_worker = forebay.get("/").text().to_owned();
    let mut client = forebay.connect();
    client.send("GET /cgi/slow HTTP/1.1\r\nHost: h\r\n\r\n");
    let pid = forebay.folder.path().join("pid");
    assert!(eventually(|| fs::read_to_string(&pid).is_ok_and(|pid| pid.ends_with('\n'))));
    let last = upgrade(&mut forebay, None);
    let has_own = eventually(|| forebay.get("/").text() != old_worker);
    assert!(has_own, "the new process has its own worker");
    assert!(!forebay.process.has_ended());
    // A further upgrade waits for the end of the first process.
    last.signal(Signal::USR2);
    forebay.wait_for_output("the upgrade waits for the end of the old process");
    fs::write(&fifo, "\n").unwrap();
    let reply = client.reply();
    assert_eq!((reply.status, reply.text()), (200, "finished"));
    assert!(client.is_closed());
    assert!(eventually(|| forebay.process.has_ended()), "{}", forebay.output());
    let old_worker = old_worker.trim_start_matches("pid ");
    assert!(eventually(|| !is_alive(old_worker)), "its worker has ended, too");
    assert!(eventually(|| successors(&forebay).len() == 2), "{}", forebay.output());
    let third = Successor(successors(&forebay)[1]);
    assert!(eventually(|| !last.is_alive()));
    assert_eq!(forebay.get("/").status, 200);
    stop(forebay, third);
}

#[test]
fn the_new_process_serves_when_all_its_workers_have_started() {
    let folder = Folder::new();
    // Each worker writes a line when it loads the application. The fifth and later ones wait.
    folder.write(
        "app.psgi",
        "open(my $log, '>>', \"$ENV{DIR}/loaded\") or die; syswrite $log, \"$$\\n\";\n\
         open(my $lines, '<', \"$ENV{DIR}/loaded\") or die; my $count = () = <$lines>;\n\
         until ($count < 5 || -e \"$ENV{DIR}/go\") { select undef, undef, undef, 0.01 }\n\
         sub { [200, [], [\"$$\"]] };\n",
    );
    let mut forebay = serve(
        folder,
        "[[site]]\nlisten = \"127.0.0.1:0\"\n[[site.route]]\npath = \"/*\"\napp = \"a\"\n\
         [app.a]\nkind = \"psgi\"\nfile = \"app.psgi\"\nworkers = 3\nenv = { DIR = \"{tmp}\" }\n",
    );
    let file = forebay.folder.path().join("loaded");
    let loaded = || fs::read_to_string(&file).map_or(0, |pids| pids.lines().count());
    assert!(eventually(|| loaded() == 3), "{}", forebay.output());
    let old = fs::read_to_string(&file).unwrap();
    let is_old = |forebay: &Forebay| old.lines().any(|pid| pid == forebay.get("/").text());
    forebay.signal(Signal::USR2);
    // The first worker of the new process is ready, and the others wait.
    assert!(eventually(|| loaded() == 6), "{}", forebay.output());
    for _ in 0..10 {
        assert!(is_old(&forebay), "{}", forebay.output());
    }
    assert!(successors(&forebay).is_empty());
    forebay.folder.write("go", "");
    assert!(eventually(|| successors(&forebay).len() == 1), "{}", forebay.output());
    let last = Successor(successors(&forebay)[0]);
    assert!(!is_old(&forebay));
    stop(forebay, last);
}

#[test]
fn a_client_resumes_its_tls_session_with_the_new_process() {
    let authority = Authority::new("x");
    let Identity { certificate, key } = authority.issue(&["h.example"]);
    let folder = Folder::new();
    folder.write("c.pem", certificate);
    folder.write("k.pem", key);
    let mut forebay = serve(
        folder,
        "[[site]]\nlisten = \"https://127.0.0.1:0\"\n\
         tls = { certificate = \"c.pem\", key = \"k.pem\" }\n\
         [[site.route]]\nrespond = \"hello\"\n",
    );
    let (address, config) = (forebay.address, Arc::new(authority.client()));
    let kind = || {
        let mut client = connect(address, "h.example", config.clone()).unwrap();
        assert_eq!(client.get("/").text(), "hello");
        let TestStream::Tls(stream) = client.stream() else { unreachable!() };
        stream.conn.handshake_kind()
    };
    assert_eq!(kind(), Some(HandshakeKind::Full));
    assert_eq!(kind(), Some(HandshakeKind::Resumed));
    let last = upgrade(&mut forebay, None);
    assert!(eventually(|| forebay.process.has_ended()), "{}", forebay.output());
    assert_eq!(kind(), Some(HandshakeKind::Resumed));
    stop(forebay, last);
}

#[test]
fn a_process_that_does_not_come_up_changes_nothing() {
    let mut forebay = serve(Folder::new(), &configuration("hello"));
    let mut kept = forebay.connect();
    assert_eq!(kept.get("/").text(), "hello");
    write_configuration(&forebay.folder, "nonsense");
    forebay.signal(Signal::USR2);
    forebay.wait_for_output(
        "keeps serving: the new process ended before it was ready (exit status: 2)",
    );
    assert_eq!(kept.get("/").text(), "hello");
    // An application that does not start.
    let app = "[[site.route]]\npath = \"/*\"\napp = \"a\"\n\
               [app.a]\nkind = \"psgi\"\nfile = \"app.psgi\"\n";
    forebay.folder.write("app.psgi", "die 'broken';\n");
    let broken = configuration("bye").replace("[[site.route]]\nrespond = \"bye\"\n", app);
    write_configuration(&forebay.folder, &broken);
    forebay.signal(Signal::USR2);
    forebay.wait_for_output(
        "keeps serving: the new process ended before it was ready (exit status: 3)",
    );
    assert_eq!(kept.get("/").text(), "hello");
    assert_eq!(forebay.get("/").text(), "hello");
    write_configuration(&forebay.folder, &configuration("bye"));
    let last = upgrade(&mut forebay, None);
    // The first process may take a connection at the moment when it stops.
    assert!(eventually(|| forebay.get("/").text() == "bye"), "{}", forebay.output());
    stop(forebay, last);
}

/// Serves one connection after another, as a backend with a single process does.
fn serve_one_by_one(listener: &TcpListener) {
    while let Ok((mut stream, _)) = listener.accept() {
        let mut received = Vec::new();
        let mut part = [0; 4096];
        while let Ok(size @ 1..) = stream.read(&mut part) {
            received.extend_from_slice(&part[..size]);
            if received.ends_with(b"\r\n\r\n") {
                received.clear();
                let reply = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello";
                if stream.write_all(reply).is_err() {
                    break;
                }
            }
        }
    }
}

#[test]
fn the_old_process_keeps_no_idle_connection_to_a_backend() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let backend = listener.local_addr().unwrap();
    thread::spawn(move || serve_one_by_one(&listener));
    let mut forebay = serve(
        Folder::new(),
        &format!(
            "[[site]]\nlisten = \"127.0.0.1:0\"\n[[site.route]]\nproxy = \"http://{backend}\"\n"
        ),
    );
    // A request without its end keeps the old process alive.
    let mut slow = forebay.connect();
    slow.send("GET /slow HTTP/1.1\r\n");
    assert_eq!(forebay.get("/").text(), "hello");
    let successor = upgrade(&mut forebay, None);
    assert_eq!(forebay.get("/").text(), "hello");
    assert!(!forebay.process.has_ended(), "{}", forebay.output());
    drop(slow);
    stop(forebay, successor);
}

#[test]
fn another_kind_of_source_changes_nothing() {
    let folder = Folder::new();
    folder.write("htdocs/secret.txt", "nobody may read this");
    let mut forebay = serve(folder, &configuration("hello"));
    let file = forebay.folder.path().join("site.toml");
    let is_refused = |forebay: &mut Forebay, why: &str, count: usize| {
        forebay.signal(Signal::USR2);
        forebay.wait_for_output(why);
        let ended = "the new process ended before it was ready (exit status: 2)";
        assert!(eventually(|| forebay.output().matches(ended).count() == count));
    };
    // Without the check, the new process would serve the files of the directory.
    fs::remove_file(&file).unwrap();
    fs::rename(forebay.folder.path().join("htdocs"), &file).unwrap();
    is_refused(&mut forebay, "site.toml is a directory, not a configuration file", 1);
    assert_eq!(forebay.get("/secret.txt").text(), "hello");
    // Without the check, the new process would wait for a writer.
    fs::remove_dir_all(&file).unwrap();
    assert!(Command::new("mkfifo").arg(&file).status().unwrap().success());
    is_refused(&mut forebay, "site.toml is a pipe or a device", 2);
    fs::remove_file(&file).unwrap();
    is_refused(&mut forebay, "site.toml: No such file", 3);
    assert_eq!(forebay.get("/").text(), "hello");
    write_configuration(&forebay.folder, &configuration("bye"));
    let last = upgrade(&mut forebay, None);
    // The first process may take a connection at the moment when it stops.
    assert!(eventually(|| forebay.get("/").text() == "bye"), "{}", forebay.output());
    stop(forebay, last);
}

#[test]
fn a_program_that_cannot_be_started_or_hangs_changes_nothing() {
    let folder = Folder::new();
    let copy = folder.path().join("forebay");
    fs::copy(program(), &copy).unwrap();
    let file = write_configuration(&folder, &configuration("hello"));
    let mut command = Command::new(&copy);
    command.args(["serve", "--threads", "2"]).arg(file);
    let mut forebay = serve_command(folder, command);
    fs::remove_file(&copy).unwrap();
    forebay.signal(Signal::USR2);
    forebay.wait_for_output("keeps serving: cannot start the new process");
    assert_eq!(forebay.get("/").text(), "hello");
    // A program that neither takes over nor ends. A signal to stop does not wait for it.
    forebay.folder.script("forebay", "#!/bin/sh\necho hangs\nexec sleep 1000\n");
    forebay.signal(Signal::USR2);
    forebay.wait_for_output("hangs");
    assert_eq!(forebay.get("/").text(), "hello");
    forebay.stop();
}

#[test]
fn the_new_process_has_the_users_that_the_old_one_gave_up_root_for() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let folder = Folder::new();
    folder.script("cgi/id", "#!/bin/sh\nprintf 'Content-Type: text/plain\\n\\n'; id -un\n");
    let mut forebay = serve(
        folder,
        "[server]\nuser = \"www-data\"\n[[site]]\nlisten = \"127.0.0.1:0\"\n\
         [[site.route]]\npath = \"/cgi/*\"\ncgi = { dir = \"cgi\", user = \"nobody\" }\n\
         [[site.route]]\nrespond = \"hello\"\n",
    );
    fs::set_permissions(forebay.folder.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755))
        .unwrap();
    let user = |forebay: &Forebay| {
        let reply = forebay.get("/cgi/id");
        assert_eq!(reply.status, 200, "{}", forebay.output());
        reply.text().to_owned()
    };
    assert_eq!(user(&forebay), "nobody\n");
    let mut last = upgrade(&mut forebay, None);
    for _ in 0..2 {
        assert_eq!(user(&forebay), "nobody\n");
        let status = fs::read_to_string(format!("/proc/{}/status", last.0)).unwrap();
        assert!(status.contains("\nUid:\t33\t33\t33\t33\n"), "{status}");
        last = upgrade(&mut forebay, Some(&last));
    }
    stop(forebay, last);
}

#[test]
fn a_launcher_that_hangs_does_not_delay_a_stop() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let mut forebay = serve(
        Folder::new(),
        "[server]\nuser = \"www-data\"\n[[site]]\nlisten = \"127.0.0.1:0\"\n\
         [[site.route]]\nrespond = \"hello\"\n",
    );
    let is_launcher = |id: &u32| {
        fs::read(format!("/proc/{id}/cmdline"))
            .is_ok_and(|line| line.split(|&byte| byte == 0).nth(1) == Some(b"__upgrade".as_slice()))
    };
    let launcher = proc::descendants(forebay.process.id()).into_iter().find(is_launcher).unwrap();
    proc::signal(launcher, Signal::STOP);
    forebay.signal(Signal::USR2);
    // A request proves that the process still serves while it waits for the launcher.
    assert_eq!(forebay.get("/").text(), "hello");
    // Other signals are answered in the log meanwhile. If the process takes both signals at once, it
    // begins with SIGHUP, and SIGUSR2 waits.
    forebay.signal(Signal::HUP);
    forebay.wait_for_output(" waits: ");
    if forebay.output().contains("SIGHUP waits") {
        forebay.signal(Signal::USR2);
        forebay.wait_for_output("SIGUSR2 has no effect");
    }
    forebay.signal(Signal::TERM);
    let has_ended = eventually(|| forebay.process.has_ended());
    proc::signal(launcher, Signal::CONT);
    assert!(has_ended, "{}", forebay.output());
    assert!(eventually(|| !is_alive(&launcher.to_string())));
}

#[test]
fn the_service_manager_follows_the_new_process() {
    let name = format!("forebay-test-{}", std::process::id());
    let socket = UnixDatagram::bind_addr(&UnixAddr::from_abstract_name(&name).unwrap()).unwrap();
    socket.set_read_timeout(Some(forebay_testkit::DEADLINE)).unwrap();
    let told = || {
        let mut bytes = [0; 4096];
        let length = socket.recv(&mut bytes).expect("a state is reported");
        String::from_utf8_lossy(&bytes[..length]).into_owned()
    };
    let folder = Folder::new();
    let file = write_configuration(&folder, &configuration("hello"));
    let mut command = command(&["--threads", "1", file.to_str().unwrap()]);
    command.env("NOTIFY_SOCKET", format!("@{name}"));
    let mut forebay = serve_command(folder, command);
    assert!(told().starts_with("READY=1\n"));
    let last = upgrade(&mut forebay, None);
    assert_eq!(told(), "STATUS=starting a new process");
    assert!(told().starts_with(&format!("MAINPID={}\nREADY=1\n", last.0)));
    assert!(eventually(|| forebay.process.has_ended()));
    last.signal(Signal::TERM);
    // The old process does not report that the service stops.
    assert!(told().starts_with("STOPPING=1\n"));
    stop(forebay, last);
}

/// Waits for `done`, while the tasks of the test's clients continue.
async fn until(mut done: impl FnMut() -> bool) {
    let limit = tokio::time::Instant::now() + forebay_testkit::DEADLINE;
    while !done() {
        assert!(tokio::time::Instant::now() < limit, "it never happened");
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
}

#[test]
fn http3_connections_of_both_processes_are_served() {
    let folder = Folder::new();
    let fifo = slow_script(&folder);
    let tmp: PathBuf = folder.path().to_owned();
    let routes = "[[site.route]]\npath = \"/cgi/*\"\n\
                  cgi = { dir = \"cgi\", env = { WHERE = \"{tmp}\" } }\n\
                  [[site.route]]\nrespond = \"hello\"\n";
    let (mut forebay, authority) = http3::site(folder, routes);
    let last = http3::run(async {
        let old = http3::Client::connect(forebay.address, &authority).await;
        assert_eq!(old.get("/").await.text(), "hello");
        let request = old.request(http::Method::GET, "/cgi/slow").body(()).unwrap();
        let mut slow = old.requests.clone().send_request(request).await.unwrap();
        slow.finish().await.unwrap();
        until(|| fs::read_to_string(tmp.join("pid")).is_ok_and(|id| id.ends_with('\n'))).await;
        let last = upgrade(&mut forebay, None);
        for _ in 0..10 {
            let new = http3::Client::connect(forebay.address, &authority).await;
            assert_eq!(new.get("/").await.text(), "hello");
        }
        assert!(!forebay.process.has_ended(), "{}", forebay.output());
        fs::write(&fifo, "\n").unwrap();
        assert_eq!(http3::reply_to(&mut slow).await.text(), "finished");
        drop((slow, old));
        until(|| forebay.process.has_ended()).await;
        let kept = http3::Client::connect(forebay.address, &authority).await;
        until(|| forebay.output().contains("the old process has ended")).await;
        for _ in 0..10 {
            assert_eq!(kept.get("/").await.text(), "hello");
            let new = http3::Client::connect(forebay.address, &authority).await;
            assert_eq!(new.get("/").await.text(), "hello");
        }
        last
    });
    stop(forebay, last);
}

#[test]
fn http3_is_served_after_the_old_process_is_killed() {
    let (mut forebay, authority) =
        http3::site(Folder::new(), "[[site.route]]\nrespond = \"hello\"\n");
    let mut last: Option<Successor> = None;
    for _ in 0..2 {
        let next = http3::run(async {
            let old = http3::Client::connect(forebay.address, &authority).await;
            assert_eq!(old.get("/").await.text(), "hello");
            let next = upgrade(&mut forebay, last.as_ref());
            let ended = forebay.output().matches("the old process has ended").count();
            match &last {
                None => forebay.signal(Signal::KILL),
                Some(last) => last.signal(Signal::KILL),
            }
            let has_ended =
                || forebay.output().matches("the old process has ended").count() > ended;
            until(has_ended).await;
            for _ in 0..10 {
                let new = http3::Client::connect(forebay.address, &authority).await;
                assert_eq!(new.get("/").await.text(), "hello");
            }
            next
        });
        last = Some(next);
    }
    let last = last.unwrap();
    last.signal(Signal::TERM);
    assert!(eventually(|| !last.is_alive()), "{}", forebay.output());
}

const ASK: &str = "GET / HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";
const SWITCHED: &[u8] = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\
    Connection: Upgrade\r\n\r\n";
/// A close frame of a server with the code 1001.
const GOING_AWAY: [u8; 4] = [0x88, 2, 0x03, 0xe9];
/// A close frame of a client with the code 1001, masked with zeros.
const CLIENT_LEAVES: [u8; 8] = [0x88, 0x82, 0, 0, 0, 0, 0x03, 0xe9];

#[test]
fn a_websocket_is_closed_in_order_and_opened_again_at_the_new_process() {
    const HELLO: &[u8] = b"\x81\x05hello";
    let steps = |last: ScriptStep| {
        vec![ScriptStep::ReadHead, ScriptStep::send([SWITCHED, HELLO].concat()), last]
    };
    let backend = ScriptedBackend::tcp([
        steps(ScriptStep::ReadToEnd),
        steps(ScriptStep::Read(CLIENT_LEAVES.len())),
        steps(ScriptStep::ReadToEnd),
    ]);
    let route = format!("[[site.route]]\nproxy = \"http://127.0.0.1:{}\"\n", backend.port());
    let mut forebay = serve(Folder::new(), &format!("[[site]]\nlisten = \"127.0.0.1:0\"\n{route}"));
    let connect = |forebay: &Forebay| {
        let mut client = forebay.connect();
        client.send(ASK);
        assert_eq!(client.reply().status, 101);
        assert_eq!(client.bytes(HELLO.len()), HELLO);
        client
    };
    let (mut silent, mut polite) = (connect(&forebay), connect(&forebay));
    let last = upgrade(&mut forebay, None);
    assert_eq!(polite.bytes(GOING_AWAY.len()), GOING_AWAY);
    polite.send(CLIENT_LEAVES);
    assert!(polite.is_closed());
    assert_eq!(silent.rest(), GOING_AWAY, "a client need not answer");
    assert!(eventually(|| forebay.process.has_ended()), "{}", forebay.output());
    drop(connect(&forebay));
    let received = backend.finish();
    assert!(received[1].received.ends_with(&CLIENT_LEAVES), "the backend learns of the end");
    stop(forebay, last);
}

#[test]
fn a_websocket_over_http3_is_closed_in_order_and_opened_again() {
    const HELLO: &[u8] = b"\x81\x05hello";
    let steps = || {
        let greeting = [SWITCHED, HELLO].concat();
        vec![ScriptStep::ReadHead, ScriptStep::send(greeting), ScriptStep::ReadToEnd]
    };
    let backend = ScriptedBackend::tcp([steps(), steps()]);
    let route = format!("[[site.route]]\nproxy = \"http://127.0.0.1:{}\"\n", backend.port());
    let (mut forebay, authority) = http3::site(Folder::new(), &route);
    let last = http3::run(async {
        let ask = http3::raw::headers(&[
            (":method", "CONNECT"),
            (":protocol", "websocket"),
            (":scheme", "https"),
            (":authority", "localhost"),
            (":path", "/chat"),
        ]);
        let open = async |client: &http3::Client| {
            let (mut send, mut receive) = client.quic.open_bi().await.unwrap();
            send.write_all(&ask).await.unwrap();
            let mut came = Vec::new();
            while !came.ends_with(HELLO) {
                came.extend(receive.read_chunk(1000, true).await.unwrap().unwrap().bytes);
            }
            (send, receive)
        };
        let old = http3::Client::connect(forebay.address, &authority).await;
        // The sending side stays open: the client need not answer a close frame.
        let (_send, mut receive) = open(&old).await;
        let last = upgrade(&mut forebay, None);
        let rest = receive.read_to_end(1000).await.unwrap();
        assert_eq!(rest.strip_prefix(&[0, 4]), Some(&GOING_AWAY[..]), "{rest:x?}");
        let new = http3::Client::connect(forebay.address, &authority).await;
        open(&new).await;
        until(|| forebay.process.has_ended()).await;
        last
    });
    stop(forebay, last);
    backend.finish();
}

#[test]
fn the_administrators_unix_socket_belongs_to_the_new_process() {
    let mut forebay = serve(
        Folder::new(),
        "[server]\nadmin = \"unix:{tmp}/admin.sock\"\n[[site]]\nlisten = \"127.0.0.1:0\"\n\
         hosts = [\"h.example\", \"*\"]\n[[site.route]]\nrespond = \"old\"\n",
    );
    let admin = format!("--admin=unix:{}", forebay.folder.path().join("admin.sock").display());
    let ctl = |arguments: &[&str]| {
        let output =
            Command::new(program()).args(["ctl", &admin]).args(arguments).output().unwrap();
        String::from_utf8([output.stdout, output.stderr].concat()).unwrap()
    };
    assert!(ctl(&["maintenance", "on", "h.example"]).contains("configuration 2 runs"));
    assert_eq!(forebay.get("/").status, 503);
    let last = upgrade(&mut forebay, None);
    assert!(eventually(|| ctl(&["status"]).contains(&format!("process {},", last.0))));
    // The change ends with the process that it was made in.
    assert_eq!(forebay.get("/").status, 200);
    assert!(ctl(&["maintenance", "on", "*"]).contains("configuration 2 runs"));
    assert_eq!(forebay.get("/").status, 503);
    stop(forebay, last);
}
