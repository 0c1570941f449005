//! Programs that listen themselves (`php`, `mono`, `command`), with another user than the
//! gateway's.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use forebay_testkit::folder::Folder;
use forebay_testkit::peer;
use forebay_testkit::process::eventually;

use crate::support::{self, Forebay};
use crate::{
    APPS, Captive, GATEWAY, command_line, is_root, number_of, of_user, report, runs, status_of,
    stop, who,
};

/// An HTTP server that answers as `WHO_PYTHON` does, on the socket that it gets.
const SERVER: &str = "import os, re, socket, sys\n\
    where = sys.argv[1]\n\
    if where == 'fd': listener = socket.socket(fileno=3)\n\
    elif where == 'stdin': listener = socket.socket(fileno=0)\n\
    elif where.startswith('/'):\n    \
        listener = socket.socket(socket.AF_UNIX)\n    listener.bind(where)\n\
    else:\n    listener = socket.socket()\n    listener.bind(('127.0.0.1', int(where)))\n\
    listener.listen(16)\n\
    while True:\n    \
        connection, _ = listener.accept()\n    \
        request = b''\n    \
        while b'\\r\\n\\r\\n' not in request:\n        \
            piece = connection.recv(65536)\n        \
            if not piece: break\n        \
            request += piece\n    \
        line = request.partition(b'\\r\\n')[0].decode()\n    \
        if 'crash' in line: os.kill(os.getpid(), 9)\n    \
        if 'child' in line: os.system('setsid sleep 1000 </dev/null >/dev/null 2>&1 & true')\n    \
        gateway = re.search('gateway=(\\\\d+)', line)\n    \
        if gateway:\n        \
            try:\n            os.kill(int(gateway[1]), 15)\n            sent = 'sent'\n        \
            except OSError as error: sent = error.errno\n        \
            mask = os.umask(0)\n        os.umask(mask)\n        \
            own = os.environ['OWN'] if mask == 0o22 else 'mask'\n        \
            body = f'{os.getuid()} {os.geteuid()} {os.getpid()} {sent} {own} ok'\n        \
            head = f'HTTP/1.1 200 OK\\r\\nContent-Length: {len(body)}\\r\\nConnection: close\\r\\n\\r\\n'\n        \
            connection.sendall((head + body).encode())\n    \
        connection.close()\n";
const WHO_PHP: &str = "<?php\n\
    header('Content-Type: text/plain');\n\
    if (isset($_GET['crash'])) { posix_kill(posix_getpid(), 9); sleep(60); }\n\
    if (isset($_GET['child'])) { exec('setsid sleep 1000 </dev/null >/dev/null 2>&1 & true'); }\n\
    $sent = posix_kill((int) $_GET['gateway'], 15) ? 'sent' : posix_get_last_error();\n\
    echo posix_getuid(), ' ', posix_geteuid(), ' ', posix_getpid(), \" $sent {$_SERVER['OWN']} ok\";\n";

const COMMANDS: [(&str, &str); 4] =
    [("socket", "{socket}"), ("inherit", "fd"), ("stdin", "stdin"), ("port", "{port}")];

/// Returns a gateway of one user, with commands of another user for each way to listen, and PHP if
/// it is installed. Also returns the targets. `None` if this machine does not allow it.
fn programs() -> Option<(Forebay, Vec<String>)> {
    if !is_root() {
        peer::skip("only root can start a server as another user");
        return None;
    }
    let folder = Folder::new();
    folder.write("server.py", SERVER);
    folder.write("htdocs/php/who.php", WHO_PHP);
    let mut targets: Vec<String> =
        COMMANDS.iter().map(|(name, _)| format!("/{name}/who")).collect();
    let mut text = format!("[server]\nuser = \"{GATEWAY}\"\n[[site]]\nlisten = \"127.0.0.1:0\"\n");
    let mut apps = String::new();
    let mut add = |name: &str, keys: &str| {
        text += &format!("[[site.route]]\npath = \"/{name}/*\"\napp = \"{name}\"\n");
        apps += &format!(
            "[app.{name}]\n{keys}\nuser = \"{APPS}\"\nworkers = 1\nenv = {{ OWN = \"word\" }}\n"
        );
    };
    for (name, argument) in COMMANDS {
        let listen = match name {
            "inherit" | "stdin" => format!("listen = \"{name}\""),
            _ => String::new(),
        };
        let run = format!("run = [\"python3\", \"{{dir}}/server.py\", \"{argument}\"]");
        add(name, &format!("kind = \"command\"\nspeaks = \"http\"\n{run}\n{listen}"));
    }
    if peer::has_php_fpm() {
        add("php", "kind = \"php\"\nroot = \"htdocs\"");
        targets.push("/php/who.php".to_owned());
    }
    Some((support::serve(folder, &(text + &apps)), targets))
}

fn all_answer(forebay: &Forebay, targets: &[String], query: &str) -> Vec<u32> {
    targets.iter().map(|target| who(forebay, target, query)).collect()
}

/// Returns the guardians of the programs, with their private directories.
fn guardians(forebay: &Forebay) -> Vec<(u32, PathBuf)> {
    let all = support::proc::descendants(forebay.process.id());
    let guardian = |pid: u32| {
        let line = command_line(pid);
        let room = line.split('\0').skip_while(|word| *word != "__guardian").nth(1)?;
        Some((pid, PathBuf::from(room)))
    };
    all.into_iter().filter_map(guardian).collect()
}

/// Returns the error number of a connection to this socket as this user, 0 for none.
fn connect(socket: &Path, user: &str) -> i32 {
    let code = "import socket, sys\n\
        try: socket.socket(socket.AF_UNIX).connect(sys.argv[1])\n\
        except OSError as error: sys.exit(error.errno)";
    let mut command = Command::new("python3");
    command.args(["-c", code]).arg(socket).current_dir("/");
    command.uid(number_of(user)).gid(number_of(user));
    command.status().unwrap().code().unwrap()
}

#[test]
fn programs_that_listen_have_a_user_of_their_own_below_a_gateway_without_root() {
    let Some((forebay, targets)) = programs() else { return };
    assert_eq!(status_of(forebay.process.id(), "Uid:"), Some(number_of(GATEWAY)));
    for _ in 0..2 {
        all_answer(&forebay, &targets, "");
    }
    let guardians = guardians(&forebay);
    assert_eq!(guardians.len(), targets.len());
    const REFUSED: i32 = 13;
    for (pid, room) in &guardians {
        assert_eq!(status_of(*pid, "Uid:"), Some(0), "its program could kill it");
        let found = fs::metadata(room).unwrap();
        let whose = (found.uid(), found.gid(), found.permissions().mode() & 0o7777);
        assert_eq!(whose, (number_of(APPS), number_of(GATEWAY), 0o710), "{}", room.display());
        let above = fs::metadata(room.parent().unwrap()).unwrap();
        assert_eq!((above.uid(), above.permissions().mode() & 0o7777), (0, 0o711));
        let socket = room.join("socket");
        let Ok(found) = fs::symlink_metadata(&socket) else { continue };
        assert!(found.file_type().is_socket());
        assert_eq!(connect(&socket, GATEWAY), 0);
        assert_eq!(connect(&socket, "nobody"), REFUSED);
        // Other processes of the program's user have no access to a socket that Forebay passes on.
        if found.uid() == 0 {
            assert_eq!(connect(&socket, APPS), REFUSED);
        }
    }
    stop(forebay);
    assert!(!guardians[0].1.parent().unwrap().exists());
}

#[test]
fn a_helped_program_that_crashes_is_replaced() {
    let Some((mut forebay, targets)) = programs() else { return };
    let is_back = |forebay: &Forebay, target: &str| {
        let target = format!("{target}?gateway={}", forebay.process.id());
        eventually(|| forebay.get(&target).status == 200)
    };
    for target in &targets {
        let before = who(&forebay, target, "");
        let reply = forebay.get(&format!("{target}?gateway=1&crash"));
        assert_eq!(reply.status, 502, "{target}: {}", forebay.output());
        assert!(is_back(&forebay, target), "{target}: {}", forebay.output());
        assert_ne!(before, who(&forebay, target, ""), "{target}");
    }
    assert!(forebay.output().contains("ended, signal 9"), "{}", forebay.output());
    // If a guardian is killed, neither its program nor its directory remains. Children of the
    // program may continue, such as those of php-fpm.
    let targets: Vec<_> = targets.into_iter().filter(|target| !target.contains("php")).collect();
    let before = all_answer(&forebay, &targets, "");
    let mut killed = guardians(&forebay);
    killed.retain(|(pid, _)| command_line(*pid).contains("server.py"));
    killed.iter().for_each(|(pid, _)| support::proc::kill(*pid));
    for (target, before) in targets.iter().zip(&before) {
        assert!(eventually(|| !runs(*before)), "{target}");
        assert!(is_back(&forebay, target), "{target}: {}", forebay.output());
    }
    for (_, room) in &killed {
        assert!(eventually(|| !room.exists()), "{}", room.display());
    }
    // A reload keeps the users, and starts what has changed.
    let file = forebay.folder.path().join("site.toml");
    let text = fs::read_to_string(&file).unwrap();
    fs::write(&file, text.replace("workers = 1", "workers = 1\nqueue = 99")).unwrap();
    let before = guardians(&forebay);
    forebay.signal(rustix::process::Signal::HUP);
    forebay.wait_for_output("serving by the configuration as it is now");
    all_answer(&forebay, &targets, "");
    let have_gone = || before.iter().all(|(pid, room)| !runs(*pid) && !room.exists());
    assert!(eventually(have_gone), "{}", forebay.output());
    all_answer(&forebay, &targets, "");
    stop(forebay);
}

#[test]
fn helped_programs_end_with_the_gateway_and_with_the_helper() {
    for who_ends in ["gateway", "helper", "signal"] {
        let Some((mut forebay, targets)) = programs() else { return };
        all_answer(&forebay, &targets, "child");
        let gateway = forebay.process.id();
        let all = || support::proc::descendants(gateway);
        // Daemons have left the process groups, but they end, too.
        let daemons = || all().into_iter().filter(|pid| command_line(*pid).starts_with("sleep\0"));
        assert!(eventually(|| daemons().count() == targets.len()), "{}", daemons().count());
        let (all, of_apps) = (all(), of_user(&all()));
        let guardians = guardians(&forebay);
        let helper = *all.iter().find(|pid| command_line(**pid).contains("__helper")).unwrap();
        match who_ends {
            "gateway" => support::proc::kill(gateway),
            "helper" => support::proc::kill(helper),
            _ => forebay.signal(rustix::process::Signal::TERM),
        }
        let left = || of_apps.iter().filter(|pid| runs(**pid)).collect::<Vec<_>>();
        assert!(eventually(|| left().is_empty()), "{who_ends}: {:?}", left());
        let rooms = guardians[0].1.parent().unwrap();
        let have_gone = || {
            (who_ends == "helper" || !rooms.exists())
                && !guardians.iter().any(|(pid, _)| runs(*pid))
        };
        assert!(eventually(have_gone), "{who_ends}: {}", rooms.display());
        if who_ends == "helper" {
            // Another helper replaces it, and the programs start again.
            forebay.wait_for_output("replaces it");
            let query = format!("gateway={gateway}");
            let answers = |target| forebay.get(&format!("{target}?{query}")).status == 200;
            let all = || targets.iter().all(answers);
            assert!(eventually(all), "{}", forebay.output());
        } else {
            assert!(eventually(|| !runs(helper)), "{who_ends}");
        }
        drop(forebay);
    }
}

#[test]
fn asp_net_has_a_user_of_its_own_below_a_gateway_without_root() {
    if !is_root() {
        return peer::skip("only root can start a server as another user");
    }
    if !peer::has_mono() {
        return;
    }
    let folder = Folder::new();
    let page = "<%@ Page Language=\"C#\" %><%= System.Environment.UserName %> \
                <%= System.Diagnostics.Process.GetCurrentProcess().Id %>";
    folder.write("site/who.aspx", page);
    let configuration = format!(
        "[server]\nuser = \"{GATEWAY}\"\n[[site]]\nlisten = \"127.0.0.1:0\"\n\
         [[site.route]]\npath = \"/*\"\napp = \"net\"\n\
         [app.net]\nkind = \"mono\"\ndir = \"{{tmp}}/site\"\nstart_timeout = \"120s\"\n\
         queue_timeout = \"120s\"\nuser = \"{APPS}\"\n"
    );
    let forebay = support::serve(folder, &configuration);
    let reply = forebay.get("/who.aspx");
    assert_eq!(reply.status, 200, "{}\n{}", reply.text(), forebay.output());
    let (user, pid) = reply.text().trim().split_once(' ').unwrap();
    assert_eq!(user, APPS);
    assert_eq!(status_of(pid.parse().unwrap(), "Uid:"), Some(number_of(APPS)));
    stop(forebay);
}

#[test]
fn a_gateway_that_was_taken_over_gets_a_room_in_one_place_only() {
    if !is_root() {
        return peer::skip("only root can start processes as another user");
    }
    let folder = Folder::new();
    let rooms = folder.path().join("rooms");
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    folder.write("taken", "mine");
    let mut captive = Captive::start(&rooms);
    let daemon = "--user\x001:daemon\0--only-group\x001\0";
    let start = |room: &str, file: &str, options: &str, text: &str| {
        let null = fs::File::options().read(true).write(true).open("/dev/null").unwrap();
        let (link, its_link) = std::os::unix::net::UnixStream::pair().unwrap();
        let message =
            format!("P{room}\x001\0{file}\0text\0/\x000\0{options}--\0/bin/sh\0-c\0{text}\0");
        use std::os::fd::AsFd;
        let passed = [its_link.as_fd(), null.as_fd(), null.as_fd()];
        let status = captive.send(message.as_bytes(), &passed);
        let report = report(&status);
        (report[0] == b'S').then_some((status, link))
    };
    // The program may damage its directory: the helper and the guardian follow no link.
    let spoil = format!(
        "rm -f {0}/rooms/a1/socket; ln -s {0}/taken {0}/rooms/a1/socket; \
         ln -s {0} {0}/rooms/a1/all; id -u > {0}/rooms/a1/id; sleep 1000",
        folder.path().display()
    );
    let (status, mut link) = start("a1", "a.conf", daemon, &spoil).expect("a room");
    let id = rooms.join("a1/id");
    assert!(eventually(|| fs::read_to_string(&id).is_ok_and(|text| text == "1\n")));
    assert!(start("a1", "b.conf", daemon, ":").is_none(), "it is another program's");
    std::io::Write::write_all(&mut link, b"sss").unwrap();
    for (room, file, options) in [
        ("..", "f", daemon),
        ("a/b", "f", daemon),
        ("", "f", daemon),
        ("b", "../f", daemon),
        ("b", "/etc/f", daemon),
        ("b", "..", daemon),
        ("b", "f", "--user\x000:root\0--only-group\x000\0"),
        ("b", "f", "--only-group\x001\0"),
        ("b", "f", "--user\x001:daemon\0--only-group\x001\0--dir\0/root\0"),
        ("b", "f", "--user\x001:daemon\0--only-group\x001\0--environment\0x\0"),
    ] {
        assert!(start(room, file, options, ":").is_none(), "{room} {file} {options}");
    }
    assert_eq!(fs::read_dir(&rooms).unwrap().count(), 1);
    // A closed socket ends the program, and removes the directory.
    drop((status, link));
    assert!(eventually(|| !rooms.join("a1").exists()));
    let taken = folder.path().join("taken");
    assert_eq!(fs::read_to_string(&taken).unwrap(), "mine");
    assert_eq!(fs::metadata(&taken).unwrap().uid(), 0);
    drop(captive.socket);
    assert!(captive.helper.wait().unwrap().success());
    assert!(!rooms.exists());
}
