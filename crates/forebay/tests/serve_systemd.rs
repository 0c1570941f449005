//! `forebay serve` under a service manager: sockets that it gets, and states that it reports.

mod support;

use std::net::{Ipv4Addr, SocketAddr};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddr, UnixDatagram};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use forebay_testkit::DEADLINE;
use forebay_testkit::folder::Folder;
use forebay_testkit::http::Client;
use forebay_testkit::peer::installed;
use forebay_testkit::port::free_port;
use forebay_testkit::process::{Process, eventually};
use rustix::process::Signal;
use support::write_configuration;

/// Opens a TCP socket and a Unix socket as a service manager does, and executes the command.
const MANAGER: &str = r#"
    use Socket; use POSIX ();
    $^F = 100;
    my ($port, $path, $names, $count, @command) = @ARGV;
    socket(my $tcp, PF_INET, SOCK_STREAM, 0) or die;
    setsockopt($tcp, SOL_SOCKET, SO_REUSEADDR, 1) or die;
    bind($tcp, pack_sockaddr_in($port, INADDR_LOOPBACK)) or die "bind: $!";
    listen($tcp, 100) or die;
    socket(my $unix, PF_UNIX, SOCK_STREAM, 0) or die;
    bind($unix, pack_sockaddr_un($path)) or die;
    listen($unix, 100) or die;
    my @high = map { POSIX::dup2(fileno($_->[0]), $_->[1]) or die; $_->[1] } [$tcp, 50], [$unix, 51];
    POSIX::dup2(50, 3) or die; POSIX::dup2(51, 4) or die;
    @ENV{qw(LISTEN_FDS LISTEN_FDNAMES LISTEN_PID)} = ($count, $names, $$);
    exec @command or die;
"#;

struct Managed {
    process: Process,
    folder: Folder,
    port: u16,
}

fn managed(count: &str, listen: impl Fn(u16, &str) -> String) -> Managed {
    managed_as("web:control", count, listen)
}

fn managed_as(names: &str, count: &str, listen: impl Fn(u16, &str) -> String) -> Managed {
    let folder = Folder::new();
    let port = free_port();
    let socket = folder.path().join("passed.sock");
    let site = format!(
        "[[site]]\nlisten = {}\n[[site.route]]\nrespond = \"hello\"\n",
        listen(port, socket.to_str().unwrap())
    );
    let file = write_configuration(&folder, &site);
    let mut command = Command::new("perl");
    command.args(["-e", MANAGER, &port.to_string()]).arg(&socket).args([names, count]);
    command.arg(env!("CARGO_BIN_EXE_forebay")).args(["serve", "--threads", "2"]).arg(file);
    Managed { process: Process::start(command), folder, port }
}

#[test]
fn sockets_that_the_manager_opened_are_used() {
    let mut managed =
        managed("2", |port, socket| format!("[\"127.0.0.1:{port}\", \"unix:{socket}\"]"));
    managed.process.wait_for_output("forebay: serving unix:");
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, managed.port));
    for _ in 0..10 {
        assert_eq!(Client::connect(address).get("/").text(), "hello");
        let socket = managed.folder.path().join("passed.sock");
        assert_eq!(Client::connect(&socket).get("/").text(), "hello");
    }
    managed.process.signal(Signal::HUP);
    managed.process.wait_for_output("serving by the configuration as it is now");
    assert_eq!(Client::connect(address).get("/").text(), "hello");
    assert_eq!(managed.process.stop().status.code(), Some(0));
}

#[test]
fn a_socket_that_no_site_listens_on_is_named() {
    let exit = managed("2", |port, _| format!("\"127.0.0.1:{port}\"")).process.wait();
    assert_eq!(exit.status.code(), Some(3), "{}", exit.output);
    assert!(exit.output.contains("passed.sock (control)"), "{}", exit.output);
}

#[test]
fn sockets_are_found_by_name() {
    let mut managed = managed("2", |_, _| "[\"fd:web\", \"fd:control\"]".to_owned());
    managed.process.wait_for_output("forebay: serving unix:");
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, managed.port));
    let socket = managed.folder.path().join("passed.sock");
    managed.process.wait_for_output(&format!("forebay: serving http://{address}"));
    for _ in 0..10 {
        assert_eq!(Client::connect(address).get("/").text(), "hello");
        assert_eq!(Client::connect(&socket).get("/").text(), "hello");
    }
    managed.process.signal(Signal::HUP);
    managed.process.wait_for_output("serving by the configuration as it is now");
    assert_eq!(Client::connect(address).get("/").text(), "hello");
    // A reload cannot get a socket that was not passed.
    let site = "[[site]]\nlisten = [\"fd:web\", \"fd:other\"]\n[[site.route]]\nrespond = \"bye\"\n";
    write_configuration(&managed.folder, site);
    managed.process.signal(Signal::HUP);
    managed.process.wait_for_output("cannot listen on fd:other: the service manager passed no");
    assert_eq!(Client::connect(address).get("/").text(), "hello");
    assert_eq!(managed.process.stop().status.code(), Some(0));
}

#[test]
fn several_sockets_may_have_one_name() {
    let mut managed = managed_as("web:web", "2", |_, _| "\"fd:web\"".to_owned());
    managed.process.wait_for_output("forebay: serving unix:");
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, managed.port));
    let socket = managed.folder.path().join("passed.sock");
    assert_eq!(Client::connect(address).get("/").text(), "hello");
    assert_eq!(Client::connect(&socket).get("/").text(), "hello");
    assert_eq!(managed.process.stop().status.code(), Some(0));
}

#[test]
fn a_name_that_was_not_passed_is_told() {
    let exit = managed("2", |_, _| "[\"fd:web\", \"fd:other\"]".to_owned()).process.wait();
    assert_eq!(exit.status.code(), Some(3), "{}", exit.output);
    assert!(exit.output.contains("cannot listen on fd:other"), "{}", exit.output);
    assert!(exit.output.contains("FileDescriptorName="), "{}", exit.output);
}

#[test]
fn other_files_than_sockets_are_refused() {
    for (count, words) in [("200", "descriptor "), ("x", "LISTEN_FDS=x"), ("-1", "LISTEN_FDS=-1")] {
        let listen = |port, socket: &str| format!("[\"127.0.0.1:{port}\", \"unix:{socket}\"]");
        let exit = managed(count, listen).process.wait();
        assert_eq!(exit.status.code(), Some(3), "{}", exit.output);
        assert!(exit.output.contains(words), "{}", exit.output);
        assert!(!exit.output.contains("panicked"), "{}", exit.output);
    }
}

fn told(socket: &UnixDatagram) -> String {
    let mut bytes = [0; 4096];
    let length = socket.recv(&mut bytes).expect("a state is told");
    String::from_utf8_lossy(&bytes[..length]).into_owned()
}

fn tells_its_states(socket: &UnixDatagram, name: &str) {
    socket.set_read_timeout(Some(DEADLINE)).unwrap();
    let folder = Folder::new();
    let site = "[[site]]\nlisten = \"127.0.0.1:0\"\n[[site.route]]\nrespond = \"hello\"\n";
    let file = write_configuration(&folder, site);
    let mut command = support::command(&["--threads", "1", file.to_str().unwrap()]);
    command.env("NOTIFY_SOCKET", name);
    let mut process = Process::start(command);
    let ready = told(socket);
    assert!(ready.starts_with("READY=1\nSTATUS="), "{ready}");
    assert!(process.output().contains("forebay: serving http://"));
    process.signal(Signal::HUP);
    let reloading = told(socket);
    let micros = reloading.strip_prefix("RELOADING=1\nMONOTONIC_USEC=").expect(&reloading);
    assert!(micros.lines().next().unwrap().parse::<u64>().is_ok(), "{reloading}");
    assert!(told(socket).starts_with("READY=1\n"));
    write_configuration(&folder, "nonsense");
    process.signal(Signal::HUP);
    assert!(told(socket).starts_with("RELOADING=1\n"));
    let failed = told(socket);
    assert!(failed.starts_with("READY=1\n") && failed.contains("failed"), "{failed}");
    process.signal(Signal::TERM);
    assert!(told(socket).starts_with("STOPPING=1\n"));
    assert_eq!(process.wait().status.code(), Some(0));
}

#[test]
fn states_are_told_over_a_path() {
    let folder = Folder::new();
    let path = folder.path().join("notify");
    let socket = UnixDatagram::bind(&path).unwrap();
    tells_its_states(&socket, path.to_str().unwrap());
}

#[test]
fn states_are_told_over_an_abstract_name() {
    let name = format!("forebay-test-{}", std::process::id());
    let address = UnixAddr::from_abstract_name(&name).unwrap();
    let socket = UnixDatagram::bind_addr(&address).unwrap();
    tells_its_states(&socket, &format!("@{name}"));
}

#[test]
fn privileges_are_dropped_before_anything_runs() {
    let folder = Folder::new();
    folder.script(
        "cgi/id.sh",
        "#!/bin/sh\nprintf 'Content-Type: text/plain\\n\\n'; id -un; id -Gn\n",
    );
    let configuration = "[server]\nuser = \"www-data\"\n[[site]]\nlisten = \"127.0.0.1:0\"\n\
                         [[site.route]]\npath = \"/*\"\ncgi = \"cgi\"\n";
    if !rustix::process::geteuid().is_root() {
        let file = write_configuration(&folder, configuration);
        let exit = Process::start(support::command(&[file.to_str().unwrap()])).wait();
        assert_eq!(exit.status.code(), Some(3));
        assert!(exit.output.contains("not started as root"), "{}", exit.output);
        return;
    }
    let forebay = support::serve(folder, configuration);
    // On this machine, the user may have more groups than its own.
    let groups = std::process::Command::new("id").args(["-Gn", "www-data"]).output().unwrap();
    let sorted = |text: &str| {
        let mut words: Vec<_> = text.split_whitespace().map(str::to_owned).collect();
        words.sort();
        words
    };
    let reply = forebay.get("/id.sh");
    let (user, its_groups) = reply.text().split_once('\n').unwrap();
    assert_eq!(user, "www-data");
    assert_eq!(sorted(its_groups), sorted(&String::from_utf8(groups.stdout).unwrap()));
    let status = std::fs::read_to_string(format!("/proc/{}/status", forebay.process.id())).unwrap();
    let ids =
        |key: &str| status.lines().find_map(|line| line.strip_prefix(key)).unwrap().to_owned();
    assert_eq!(ids("Uid:"), "\t33\t33\t33\t33");
    assert_eq!(ids("Gid:"), "\t33\t33\t33\t33");
    let (_, folder) = forebay.stop();
    for (wrong, words) in [
        ("user = \"no-such-user\"", "there is no user no-such-user"),
        ("group = \"no-such-group\"", "there is no group no-such-group"),
    ] {
        let text = configuration.replace("user = \"www-data\"", wrong);
        let file = write_configuration(&folder, &text);
        let exit = Process::start(support::command(&[file.to_str().unwrap()])).wait();
        assert_eq!(exit.status.code(), Some(2), "{}", exit.output);
        assert!(exit.output.contains(words), "{}", exit.output);
    }
}

#[test]
fn server_starter_replaces_the_program_without_a_failed_request() {
    let Some(program) = installed("start_server") else { return };
    let (folder, port) = (Folder::new(), free_port());
    let site = format!(
        "[[site]]\nlisten = [\"127.0.0.1:{port}\", \"unix:{}\"]\n[[site.route]]\nrespond = \"hello\"\n",
        folder.path().join("passed.sock").display()
    );
    let file = write_configuration(&folder, &site);
    let mut command = Command::new(program);
    command.args(["--interval", "0", "--port", &format!("127.0.0.1:{port}"), "--path"]);
    command.arg(folder.path().join("passed.sock")).args(["--", env!("CARGO_BIN_EXE_forebay")]);
    command.args(["serve", "--threads", "2"]).arg(file);
    let mut process = Process::start(command);
    process.wait_for_output("forebay: serving unix:");
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let (over, asked) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for kept in [true, false] {
            let (over, asked) = (&over, &asked);
            scope.spawn(move || {
                let mut client = Client::connect(address);
                while !over.load(Ordering::Relaxed) {
                    let reply = match client.try_get("/") {
                        // The server may close a kept connection between two requests. All clients
                        // then connect again.
                        Err(_) if kept => Client::connect(address).get("/"),
                        reply => reply.unwrap(),
                    };
                    assert_eq!(reply.text(), "hello");
                    if !kept || reply.header("Connection") == Some("close") {
                        client = Client::connect(address);
                    }
                    asked.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        for started in 2..=4 {
            process.signal(Signal::HUP);
            assert!(eventually(|| process.output().matches("serving unix:").count() == started));
            let before = asked.load(Ordering::Relaxed);
            assert!(eventually(|| asked.load(Ordering::Relaxed) > before + 100));
        }
        over.store(true, Ordering::Relaxed);
    });
    process.stop();
}

#[test]
fn a_pair_of_server_starter_without_a_descriptor_is_named() {
    let folder = Folder::new();
    let file = write_configuration(
        &folder,
        "[[site]]\nlisten = \"127.0.0.1:0\"\n[[site.route]]\nrespond = \"x\"\n",
    );
    for (ports, named) in
        [("80", "ADDRESS=DESCRIPTOR"), ("80=x", "80=x"), ("80=77", "descriptor 77")]
    {
        let mut command = Command::new(env!("CARGO_BIN_EXE_forebay"));
        command.arg("serve").arg(&file).env("SERVER_STARTER_PORT", ports);
        let exit = Process::start(command).wait();
        assert_eq!(exit.status.code(), Some(3));
        assert!(exit.output.contains(named), "{}", exit.output);
    }
}
