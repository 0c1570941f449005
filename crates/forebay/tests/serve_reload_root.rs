//! A server that has given up root, and what only root may read: a reload can do what a start could.

mod support;

use std::fs;
use std::net::{Ipv4Addr, TcpListener, UdpSocket};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::Path;
use std::process::Command;

use forebay_testkit::folder::Folder;
use forebay_testkit::http::Client;
use forebay_testkit::peer;
use forebay_testkit::process::{Process, eventually};
use forebay_testkit::stream::Address;
use forebay_testkit::tls::{Authority, connect};
use rustix::process::Signal;
use support::{Forebay, proc, program, serve};

const DONE: &str = "serving by the configuration as it is now";
const REFUSED: &str = "not reloaded, the old configuration stays in use";

fn is_root() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        peer::skip("only root can start a server as another user");
    }
    is_root
}

/// Sends SIGHUP, and waits until the output says `word` once more.
fn hang_up(forebay: &mut Forebay, word: &str) {
    let before = forebay.output().matches(word).count();
    forebay.signal(Signal::HUP);
    forebay
        .process
        .wait_until(word, |process| process.output().matches(word).count() > before)
        .unwrap_or_else(|error| panic!("{error}"));
}

/// Makes everything below a directory readable for root alone.
fn hide(dir: &Path) {
    fs::set_permissions(dir, fs::Permissions::from_mode(0o700)).unwrap();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            hide(&path);
        } else {
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        }
    }
}

const MAIN: &str = "include = [\"secret/conf.d/*.toml\", \"secret/{file.secret/which}.toml\"]\n\
    [server]\nuser = \"www-data\"\nadmin = \"unix:admin.sock\"\nadmin_token = \"{file.secret/token}\"\n\
    [upstream.two]\nto = [\"http://127.0.0.1:9\", \"http://127.0.0.1:1\"]\n\
    [[site]]\nlisten = \"127.0.0.1:0\"\n\
    error_pages = { 404 = \"secret/404.html\", 410 = \"secret/dir/../410.html\" }\n\
    maintenance = { page = \"secret/closed.html\", while_exists = \"absent\" }\n\
    [[site.route]]\npath = \"/word\"\nrespond = \"{file.secret/word}\"\n\
    [[site.route]]\npath = \"/two\"\nproxy = { to = \"@two\" }\n\
    [[site.route]]\npath = \"/old/*\"\nredirect = { file = \"secret/moved.map\" }\n\
    [[site.route]]\npath = \"/gone\"\nrespond = { status = 410 }\n\
    [[site.route]]\npath = \"/dir/*\"\nfiles = { root = \"htdocs\", listing = { template = \"secret/list.html\" } }\n\
    [[site.route]]\nrespond = { status = 404 }\n\
    [[site]]\nlisten = \"https://127.0.0.1:0\"\n\
    tls = { certificate = \"secret/live/cert.pem\", key = \"secret/live/key.pem\", \
            client_ca = \"secret/ca.pem\", client_auth = \"request\" }\n\
    [[site.route]]\nrespond = \"over tls\"\n";

/// Writes all files anew: each contains `word`. The certificate is a link, as certbot's are.
fn write_secrets(folder: &Folder, word: &str) -> Authority {
    let authority = Authority::new(word);
    let identity = authority.issue(&["localhost"]);
    let write = |name: &str, text: &str| drop(folder.write(&format!("secret/{name}"), text));
    write(&format!("archive/{word}-cert.pem"), &identity.certificate);
    write(&format!("archive/{word}-key.pem"), &identity.key);
    write("ca.pem", &identity.certificate);
    fs::create_dir_all(folder.path().join("secret/live")).unwrap();
    for name in ["cert.pem", "key.pem"] {
        let link = folder.path().join("secret/live").join(name);
        let _ = fs::remove_file(&link);
        symlink(format!("../archive/{word}-{name}"), link).unwrap();
    }
    write("dir/x", "");
    write("token", "0123456789abcdefgh\n");
    write("which", &format!("also-{word}"));
    write("word", &format!("{word}\n"));
    write("404.html", &format!("no such page: {word}"));
    write("410.html", &format!("it is gone: {word}"));
    write("closed.html", &format!("closed: {word}"));
    write("list.html", &format!("{word} {{entries}}{{name}}{{/entries}}"));
    write("moved.map", &format!("/old/page /{word}\n"));
    write(&format!("also-{word}.toml"), &format!("[set.of-{word}]\ncompress = true\n"));
    write(
        &format!("conf.d/{word}.toml"),
        &format!(
            "[[site]]\nlisten = \"127.0.0.1:0\"\nhosts = [\"{word}.example\"]\n\
             [[site.route]]\nrespond = \"included {word}\"\n"
        ),
    );
    hide(&folder.path().join("secret"));
    authority
}

/// Fails unless the server uses the files of `word`, and those alone.
fn expect_word(forebay: &mut Forebay, word: &str, authority: &Authority) {
    let reply = forebay.get("/absent");
    assert_eq!(reply.text(), format!("no such page: {word}"), "{}", forebay.output());
    assert_eq!(forebay.get("/word").text(), word);
    assert_eq!(forebay.get("/gone").text(), format!("it is gone: {word}"));
    let moved = forebay.get("/old/page");
    assert!(moved.header("location").unwrap().ends_with(&format!("/{word}")));
    assert_eq!(forebay.get("/dir/").text(), format!("{word} a.txt"));
    let included = format!("GET / HTTP/1.1\r\nHost: {word}.example\r\nConnection: close\r\n\r\n");
    assert_eq!(forebay.ask(included).text(), format!("included {word}"));
    let tls = forebay.listener("https");
    let mut client = connect(tls, "localhost", authority.client()).expect("the new certificate");
    client.send("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n");
    assert_eq!(client.reply().text(), "over tls");
}

fn metrics(forebay: &Forebay) -> String {
    let socket = Address::Unix(forebay.folder.path().join("admin.sock"));
    Client::connect(socket).get("/metrics").text().to_owned()
}

fn ctl(forebay: &Forebay, arguments: &[&str]) -> (Option<i32>, String) {
    let socket = forebay.folder.path().join("admin.sock");
    let mut command = Command::new(program());
    command.arg("ctl").arg(format!("--admin=unix:{}", socket.display())).args(arguments);
    let output = command.output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8(text).unwrap())
}

#[test]
fn a_reload_can_do_what_a_start_could() {
    if !is_root() {
        return;
    }
    let folder = Folder::new();
    folder.write("htdocs/a.txt", "a");
    let authority = write_secrets(&folder, "first");
    let mut forebay = serve(folder, MAIN);
    let main = forebay.folder.path().join("site.toml");
    fs::set_permissions(&main, fs::Permissions::from_mode(0o600)).unwrap();
    expect_word(&mut forebay, "first", &authority);

    for word in ["second", "third"] {
        fs::remove_dir_all(forebay.folder.path().join("secret")).unwrap();
        let authority = write_secrets(&forebay.folder, word);
        if word == "third" {
            let (code, text) = ctl(&forebay, &["diff"]);
            assert_eq!(code, Some(0), "{text}");
            let (code, text) = ctl(&forebay, &["reload"]);
            assert_eq!(code, Some(0), "{text}");
        } else {
            hang_up(&mut forebay, DONE);
        }
        expect_word(&mut forebay, word, &authority);
    }
    // An error in a file that only root reads is told as at the start.
    fs::write(forebay.folder.path().join("secret/conf.d/bad.toml"), "[[site]]\nlisten = 7\n")
        .unwrap();
    hang_up(&mut forebay, REFUSED);
    assert!(forebay.output().contains("secret/conf.d/bad.toml"), "{}", forebay.output());
    let metrics = metrics(&forebay);
    for line in [
        "forebay_config_last_reload_successful 0",
        "forebay_config_generation 3",
        "/secret/live/cert.pem\"} ",
        "forebay_build_info{version=\"",
    ] {
        assert!(metrics.contains(line), "{line}: {metrics}");
    }
    // A posted configuration gets files of the configuration on disk, and no other file of root's.
    let secret = forebay.folder.path().join("secret");
    fs::remove_file(secret.join("conf.d/bad.toml")).unwrap();
    let posted = |file: &str| {
        let listen = "[[site]]\nlisten = \"127.0.0.1:0\"\n";
        let server = "[server]\nuser = \"www-data\"\nadmin = \"unix:admin.sock\"\n\
                      admin_token = \"{file.secret/token}\"\n";
        let page = format!("{server}{listen}[[site.route]]\nrespond = \"{{file.{file}}}\"\n");
        let file = forebay.folder.write("posted.toml", page);
        ctl(&forebay, &["replace", file.to_str().unwrap()])
    };
    fs::write(secret.join("other"), "of nobody else").unwrap();
    hide(&secret);
    let (code, text) = posted("secret/other");
    assert_eq!(code, Some(2), "{text}");
    let (code, text) = posted("secret/word");
    assert_eq!((code, forebay.get("/").text()), (Some(0), "third"), "{text}");
    let (code, text) = ctl(&forebay, &["reload"]);
    assert_eq!(code, Some(0), "{text}");

    // Changes of backends and sites need no file at all.
    fs::remove_dir_all(&secret).unwrap();
    fs::remove_file(main).unwrap();
    for order in [
        &["drain", "127.0.0.1:9"][..],
        &["weight", "127.0.0.1:9", "3"],
        &["undrain", "127.0.0.1:9"],
        &["maintenance", "on", "*"],
    ] {
        let (code, text) = ctl(&forebay, order);
        assert_eq!(code, Some(0), "{order:?}: {text}");
    }
    assert_eq!(forebay.get("/absent").text(), "closed: third");
    let (code, text) = ctl(&forebay, &["maintenance", "off", "*"]);
    assert_eq!(code, Some(0), "{text}");
    assert_eq!(forebay.get("/gone").text(), "it is gone: third");
    forebay.stop();
}

/// Ann's password, the hash of it, and its digest in the realm `staff`.
const PASSWORDS: [(&str, &str, &str); 2] = [
    ("first", "$apr1$12345678$VESNBebXXHsEU2skoiBrV1", "9d798a5753bfbf0add94ffbd15fb93f6"),
    ("second", "$apr1$12345678$Cmt0rueLmIQh3pcwKAzK11", "c640a49199d17a737fb183a542d504ed"),
];

const PUBLIC_KEY: &str = "-----BEGIN PUBLIC KEY-----\n\
    MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAES1BGCj9dvDdu8TFSqXLXPvhCujjR\n\
    2hYAZE5cMMJkkRUYoYNMhabmh3BT6lzsuQ/vQiwBLaCHmJd5xUwAoHkYEQ==\n\
    -----END PUBLIC KEY-----\n";

#[test]
fn users_and_keys_that_only_root_may_read_are_read_at_a_start_and_a_reload() {
    let (true, Some(curl)) = (is_root(), peer::installed("curl")) else { return };
    let write = |folder: &Folder, at: usize| {
        folder.write("secret/hp", format!("ann:{}\n", PASSWORDS[at].1));
        folder.write("secret/hd", format!("ann:staff:{}\n", PASSWORDS[at].2));
        hide(&folder.path().join("secret"));
    };
    let folder = Folder::new();
    folder.write("secret/jk", PUBLIC_KEY);
    write(&folder, 0);
    let mut forebay = serve(
        folder,
        "[server]\nuser = \"www-data\"\n[[site]]\nlisten = \"127.0.0.1:0\"\n\
         [[site.route]]\npath = \"/basic\"\nrespond = \"basic\"\n\
         basic_auth = { file = \"secret/hp\", realm = \"staff\" }\n\
         [[site.route]]\npath = \"/digest\"\nrespond = \"digest\"\n\
         digest_auth = { file = \"secret/hd\", realm = \"staff\" }\n\
         [[site.route]]\npath = \"/jwt\"\nrespond = \"jwt\"\njwt = { key = \"secret/jk\" }\n",
    );
    let ask = |forebay: &Forebay, scheme: &str, at: usize| {
        let url = format!("http://{}/{scheme}", forebay.address);
        let user = format!("ann:{}", PASSWORDS[at].0);
        let scheme = format!("--{scheme}");
        let arguments = ["--silent", "--max-time", "30", &scheme, "--user", &user, &url];
        let output = Command::new(&curl).args(arguments).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    for at in [0, 1] {
        if at == 1 {
            write(&forebay.folder, 1);
            hang_up(&mut forebay, DONE);
        }
        for scheme in ["basic", "digest"] {
            assert_eq!(ask(&forebay, scheme, at), scheme, "{at}: {}", forebay.output());
            assert_ne!(ask(&forebay, scheme, 1 - at), scheme, "{at}: {}", forebay.output());
        }
        assert_eq!(forebay.get("/jwt").status, 401);
    }
    forebay.stop();
}

#[test]
fn a_reload_that_needs_a_log_of_root_names_sigusr2() {
    if !is_root() {
        return;
    }
    let folder = Folder::new();
    fs::create_dir(folder.path().join("private")).unwrap();
    hide(&folder.path().join("private"));
    let server = "[server]\nuser = \"www-data\"\n";
    let site = "[[site]]\nlisten = \"127.0.0.1:0\"\n[[site.route]]\nrespond = \"x\"\n";
    let mut forebay = serve(folder, &format!("{server}{site}"));
    let log = format!("{server}[log]\naccess = \"private/a.log\"\n{site}");
    support::write_configuration(&forebay.folder, &log);
    hang_up(&mut forebay, REFUSED);
    let output = forebay.output();
    assert!(output.contains("so send it SIGUSR2"), "{output}");
    forebay.stop();
}

/// A port below 1024 that nobody uses, over TCP and over UDP. The kernel lets root bind it.
fn low_port() -> u16 {
    let is_free = |port: &u16| {
        TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok()
            && UdpSocket::bind((Ipv4Addr::LOCALHOST, *port)).is_ok()
    };
    // Tests that run at the same time begin at different ports.
    let start = (std::process::id() % 200) as u16;
    (700 + start..1024).find(is_free).expect("a free port below 1024")
}

#[test]
fn a_reload_opens_ports_and_sockets_that_only_root_may_open() {
    if !is_root() {
        return;
    }
    let folder = Folder::new();
    fs::create_dir(folder.path().join("private")).unwrap();
    let authority = Authority::new("ours");
    let identity = authority.issue(&["localhost"]);
    folder.write("private/cert.pem", &identity.certificate);
    folder.write("private/key.pem", &identity.key);
    hide(&folder.path().join("private"));
    let server = "[server]\nuser = \"www-data\"\nthreads = 2\n";
    let site = "[[site]]\nlisten = \"127.0.0.1:0\"\n[[site.route]]\nrespond = \"x\"\n";
    let mut forebay = serve(folder, &format!("{server}{site}"));
    let port = low_port();
    let added = format!(
        "[[site]]\nlisten = [\"https://127.0.0.1:{port}\", \"unix:private/s\"]\nhttp3 = true\n\
         tls = {{ certificate = \"private/cert.pem\", key = \"private/key.pem\" }}\n\
         [[site.route]]\nrespond = \"of root\"\n\
         [[stream]]\nlisten = \"udp://127.0.0.2:{port}\"\nto = [\"127.0.0.1:9\"]\n"
    );
    support::write_configuration(&forebay.folder, &format!("{server}{site}{added}"));
    hang_up(&mut forebay, DONE);
    let at: std::net::SocketAddr = format!("127.0.0.1:{port}").parse().unwrap();
    // More connections than threads: each socket has a thread.
    for _ in 0..20 {
        let mut client = connect(at, "localhost", authority.client()).unwrap();
        client.send("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n");
        assert_eq!(client.reply().text(), "of root");
    }
    let socket = Address::Unix(forebay.folder.path().join("private/s"));
    assert_eq!(Client::connect(socket).get("/").text(), "of root");
    for ip in ["127.0.0.1", "127.0.0.2"] {
        let udp = UdpSocket::bind(format!("{ip}:{port}"));
        assert!(udp.is_err(), "http3 and the stream listen");
    }
    // The next reload keeps them, and one without them closes them.
    hang_up(&mut forebay, DONE);
    support::write_configuration(&forebay.folder, &format!("{server}{site}"));
    hang_up(&mut forebay, DONE);
    assert!(TcpListener::bind(at).is_ok());
    // What the configuration does not name stays closed: the error is the same as at a start.
    let taken = TcpListener::bind(at).unwrap();
    support::write_configuration(&forebay.folder, &format!("{server}{site}{added}"));
    hang_up(&mut forebay, REFUSED);
    assert!(forebay.output().contains("another program uses it"), "{}", forebay.output());
    drop(taken);
    forebay.stop();
}

#[test]
fn root_serves_no_page_through_the_link_of_another_user() {
    if !is_root() {
        return;
    }
    let kinds = [
        "error_pages = { 404 = \"theirs/link\" }\n[[site.route]]\nrespond = { status = 404 }",
        "maintenance = { page = \"theirs/link\" }\n[[site.route]]\nrespond = \"x\"",
        "[[site.route]]\nrespond = \"{file.theirs/link}\"",
        "[[site.route]]\nredirect = { file = \"theirs/link\" }",
        "[[site.route]]\nfiles = { root = \"theirs\", listing = { template = \"theirs/link\" } }",
        "tls = { certificate = \"theirs/link\", key = \"theirs/link\" }\n[[site.route]]\nrespond = \"x\"",
        "[[site.route]]\nbasic_auth = { realm = \"x\", file = \"theirs/link\" }\nrespond = \"x\"",
        "[[site.route]]\njwt = { key = \"theirs/link\" }\nrespond = \"x\"",
    ];
    let folder = Folder::new();
    let secret = folder.write("secret", "entries of root");
    let theirs = folder.path().join("theirs");
    fs::create_dir(&theirs).unwrap();
    symlink(&secret, theirs.join("link")).unwrap();
    for path in [&theirs, &theirs.join("link")] {
        std::os::unix::fs::lchown(path, Some(1), Some(1)).unwrap();
    }
    for kind in kinds {
        let listen = if kind.starts_with("tls") { "https://127.0.0.1:0" } else { "127.0.0.1:0" };
        let file = support::write_configuration(
            &folder,
            &format!("[[site]]\nlisten = \"{listen}\"\n{kind}\n"),
        );
        let mut command = Command::new(program());
        let output = command.arg("check").arg(file).output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr)
            .split_whitespace()
            .collect::<Vec<_>>()
            .join(" ");
        assert_eq!(output.status.code(), Some(2), "{kind}: {text}");
        assert!(text.contains("a link of user 1"), "{kind}: {text}");
    }
    // The owner's link to the owner's file is followed.
    chown(&secret, Some(1), Some(1)).unwrap();
    let forebay = support::site(
        folder,
        "error_pages = { 404 = \"theirs/link\" }\n[[site.route]]\nrespond = { status = 404 }\n",
    );
    assert_eq!(forebay.get("/").text(), "entries of root");
    forebay.stop();
}

#[test]
fn missing_directories_are_made_for_the_user_at_a_start_and_a_reload() {
    if !is_root() {
        return;
    }
    let cached = "[server]\nuser = \"www-data\"\ncache_dir = \"{tmp}/state/cache\"\n\
        [[site]]\nlisten = \"127.0.0.1:0\"\n[[site.route]]\nrespond = \"hello\"\n";
    let certified = "[[site]]\nhosts = [\"a.example\"]\nlisten = \"https://127.0.0.1:0\"\n\
        tls = { acme = { email = \"a@a.example\", state = \"{tmp}/state/certificates\", \
                         directory = \"https://127.0.0.1:1/\" } }\n\
        [[site.route]]\nrespond = \"hello\"\n";
    let mut forebay = serve(Folder::new(), cached);
    let state = forebay.folder.path().join("state");
    let of = |name: &str| {
        let found = fs::metadata(state.join(name)).ok()?;
        Some((found.uid(), found.mode() & 0o777))
    };
    let nobody_else = Some((33, 0o700));
    assert_eq!((of("cache"), of("certificates")), (nobody_else, None), "{}", forebay.output());
    support::write_configuration(&forebay.folder, &format!("{cached}{certified}"));
    hang_up(&mut forebay, DONE);
    assert_eq!(of("certificates"), nobody_else, "{}", forebay.output());
    forebay.stop();
}

/// Returns the process of this subcommand below a server.
fn find(forebay: &Forebay, verb: &str) -> Option<u32> {
    let is = |id: &u32| command_line(*id).split('\0').nth(1) == Some(verb);
    proc::descendants(forebay.process.id()).into_iter().find(is)
}

fn command_line(id: u32) -> String {
    String::from_utf8_lossy(&fs::read(format!("/proc/{id}/cmdline")).unwrap_or_default()).into()
}

#[test]
fn a_root_process_that_dies_is_replaced() {
    if !is_root() {
        return;
    }
    let folder = Folder::new();
    folder.script("cgi/who", "#!/bin/sh\nprintf 'Content-Type: text/plain\\n\\n'; id -un\n");
    fs::create_dir(folder.path().join("logs")).unwrap();
    folder.write("secret/page.html", "first");
    hide(&folder.path().join("secret"));
    let mut forebay = serve(
        folder,
        "[server]\nuser = \"www-data\"\n[log]\naccess = \"logs/access.log\"\n\
         [[site]]\nlisten = \"127.0.0.1:0\"\nerror_pages = { 404 = \"secret/page.html\" }\n\
         [[site.route]]\npath = \"/cgi/*\"\ncgi = { dir = \"cgi\", user = \"daemon\" }\n\
         [[site.route]]\npath = \"/own/*\"\ncgi = \"cgi\"\n\
         [[site.route]]\nrespond = { status = 404 }\n",
    );
    let log = forebay.folder.path().join("logs/access.log");
    let page = forebay.folder.path().join("secret/page.html");
    for (round, verb) in ["__open-log", "__upgrade", "__helper", "__helper"].iter().enumerate() {
        let old = find(&forebay, verb).unwrap_or_else(|| panic!("no {verb}"));
        proc::kill(old);
        let is_logged =
            |process: &Process| process.output().matches("replaces it").count() == round + 1;
        forebay.process.wait_until(verb, is_logged).unwrap_or_else(|error| panic!("{error}"));
        assert!(!Path::new(&format!("/proc/{old}")).exists(), "{verb} was not reaped");
        assert_ne!(find(&forebay, verb), Some(old));
        // Each can do its work again.
        fs::remove_file(&log).unwrap();
        forebay.signal(Signal::USR1);
        assert!(eventually(|| log.exists()), "{verb}: {}", forebay.output());
        fs::write(&page, verb).unwrap();
        hang_up(&mut forebay, DONE);
        assert_eq!(forebay.get("/absent").text(), *verb, "{}", forebay.output());
        assert_eq!(forebay.get("/cgi/who").text().trim(), "daemon", "{}", forebay.output());
    }
    assert!(forebay.output().contains("opening and rotating access logs has ended"));
    // The processes that end process groups: one of the gateway, one of the helper.
    assert_eq!(forebay.get("/own/who").text().trim(), "www-data");
    let all = || {
        let mut all = proc::descendants(forebay.process.id());
        all.retain(|id| command_line(*id).contains("groups="));
        all
    };
    let before = all();
    assert_eq!(before.len(), 2);
    before.iter().for_each(|id| proc::kill(*id));
    let are_replaced = || all().len() == 2 && !all().iter().any(|id| before.contains(id));
    assert!(eventually(are_replaced), "{}", forebay.output());
    assert_eq!(forebay.output().matches("which ends process groups, has ended").count(), 2);
    // Nobody can replace the process that keeps the others.
    proc::kill(find(&forebay, "__root").expect("a supervisor"));
    let Forebay { process, folder: _folder, .. } = forebay;
    let exit = process.wait();
    assert_eq!(exit.status.code(), Some(3), "{}", exit.output);
    assert!(exit.output.contains("so that it can be started anew"), "{}", exit.output);
    assert!(exit.survivors.is_empty(), "{:?}", exit.survivors);
}
