//! `forebay serve` with PHP scripts (`kind = "php"`), which its own php-fpm runs.

mod support;

use std::fs;
use std::sync::atomic::Ordering;
use std::thread;

use forebay_testkit::folder::Folder;
use forebay_testkit::http::Reply;
use forebay_testkit::peer::{has_php_cgi, has_php_fpm};
use forebay_testkit::process::{Process, eventually};
use support::load::load;
use support::{Forebay, chunked, is_alive, pattern, proc, serve, write_configuration};

const DUMP: &str = "<?php header('Content-Type: text/plain');\n\
    foreach (['REQUEST_METHOD', 'SCRIPT_NAME', 'PATH_INFO', 'QUERY_STRING', 'OWN'] as $n)\n\
    echo \"$n=\", $_SERVER[$n] ?? getenv($n), \"\\n\"; echo strlen(file_get_contents('php://input'));\n";

fn user() -> &'static str {
    if rustix::process::geteuid().is_root() { "user = \"www-data\"" } else { "" }
}

fn configuration(keys: &str) -> String {
    format!(
        "[[site]]\nlisten = \"127.0.0.1:0\"\n\
         [[site.route]]\nsuffix = [\".php\", \".inc\"]\napp = \"php\"\n\
         [[site.route]]\npath = \"/*\"\napp = \"php\"\n\
         [app.php]\nkind = \"php\"\nroot = \"htdocs\"\n{}\n{keys}\n",
        user()
    )
}

fn php(keys: &str) -> Option<Forebay> {
    has_php_fpm().then(|| {
        let folder = Folder::new();
        folder.write("htdocs/dump.php", DUMP);
        folder.write("htdocs/index.php", "<?php echo 'index ', getmypid();\n");
        folder.write(
            "htdocs/big.php",
            "<?php for ($i = 0; $i < 1000; $i++) echo str_repeat('x', 3000);\n",
        );
        folder.write("htdocs/fatal.php", "<?php no_such_function();\n");
        folder.write("htdocs/slow.php", "<?php sleep(1000);\n");
        folder.write("htdocs/upload.jpg", "<?php echo 'never';\n");
        folder.write("secret.php", "<?php echo 'outside';\n");
        serve(folder, &configuration(keys))
    })
}

#[test]
fn scripts_run_with_their_variables_and_bodies() {
    let Some(forebay) = php("workers = 2\nenv = { OWN = \"word\" }") else { return };
    let mut client = forebay.connect();
    let reply = client.get("/dump.php/a/b?x=y");
    let lines =
        "REQUEST_METHOD=GET\nSCRIPT_NAME=/dump.php\nPATH_INFO=/a/b\nQUERY_STRING=x=y\nOWN=word\n0";
    assert_eq!(reply.text(), lines, "{}", forebay.output());
    let body = pattern(1_000_000);
    client.send("POST /dump.php HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n");
    client.send(chunked(&body.chunks(50_000).collect::<Vec<_>>()));
    assert!(client.reply().text().ends_with("\n1000000"));
    assert!(client.get("/").text().starts_with("index "));
    assert_eq!(client.get("/big.php").body.len(), 3_000_000);
    forebay.stop();
}

#[test]
fn only_scripts_below_the_root_run() {
    let Some(mut forebay) = php("workers = 1") else { return };
    for target in ["/upload.jpg/x.php", "/missing.php", "/..%2fsecret.php", "/%2e%2e/secret.php"] {
        let reply = forebay.get(target);
        assert!(matches!(reply.status, 400 | 404), "{target}: {}", reply.text());
        assert!(!reply.text().contains("never") && !reply.text().contains("outside"));
    }
    assert_eq!(forebay.get("/fatal.php").status, 500);
    forebay.wait_for_output("no_such_function");
    forebay.stop();
}

#[test]
fn more_clients_than_children_are_all_served() {
    let Some(forebay) = php("workers = 2") else { return };
    let mut pids = Vec::new();
    thread::scope(|scope| {
        let clients: Vec<_> = (0..8)
            .map(|_| {
                scope.spawn(|| {
                    let mut client = forebay.connect();
                    let mut pids = Vec::new();
                    for _ in 0..50 {
                        let reply = client.get("/");
                        assert_eq!(reply.status, 200, "{}", forebay.output());
                        pids.push(reply.text().to_owned());
                    }
                    pids
                })
            })
            .collect();
        clients.into_iter().for_each(|client| pids.extend(client.join().unwrap()));
    });
    pids.sort();
    pids.dedup();
    assert!(pids.len() <= 2, "{pids:?}");
    forebay.stop();
}

#[test]
fn children_are_recycled_and_slow_scripts_ended() {
    let keys = "workers = { min = 0, max = 2 }\nmax_requests = 5\nrequest_timeout = \"3s\"";
    let Some(forebay) = php(keys) else { return };
    let mut pids: Vec<_> = (0..20).map(|_| forebay.get("/").text().to_owned()).collect();
    assert!(pids.iter().all(|text| text.starts_with("index ")), "{pids:?}");
    pids.sort();
    pids.dedup();
    assert!(pids.len() >= 4, "{pids:?}");
    assert!(matches!(forebay.get("/slow.php").status, 502 | 504));
    assert!(eventually(|| forebay.get("/").status == 200));
    forebay.stop();
}

/// Returns true if the reply begins with this text.
fn begins(reply: &Reply, text: &str) -> bool {
    reply.body.starts_with(text.as_bytes())
}

/// Replaces the script atomically while clients request it. No request fails.
fn change_under_load(forebay: &Forebay) {
    let counts = load(
        forebay,
        4,
        |client| client.try_get("/"),
        |replies| {
            let new = forebay.folder.write("htdocs/new", "<?php echo 'changed ', getmypid();\n");
            fs::rename(new, forebay.folder.path().join("htdocs/index.php")).unwrap();
            assert!(eventually(|| begins(&forebay.get("/"), "changed ")), "{}", forebay.output());
            let before = replies.load(Ordering::Relaxed);
            assert!(eventually(|| replies.load(Ordering::Relaxed) > before + 100));
        },
    );
    assert_eq!(counts.keys().collect::<Vec<_>>(), [&200], "{counts:?}: {}", forebay.output());
}

#[test]
fn a_changed_script_is_run_without_a_failure() {
    let Some(forebay) = php("workers = 2") else { return };
    change_under_load(&forebay);
    forebay.stop();
}

#[test]
fn watched_scripts_replace_the_processes_without_a_failure() {
    let Some(mut forebay) = php("workers = 2\nwatch = \"index.php\"") else { return };
    let old = proc::descendants(forebay.process.id());
    change_under_load(&forebay);
    forebay.wait_for_output("files have changed");
    let is_gone = |pid: &u32| !is_alive(&pid.to_string());
    assert!(eventually(|| old.iter().all(is_gone)), "{old:?}: {}", forebay.output());
    // The guardian, the parent and two children.
    let new = || proc::descendants(forebay.process.id());
    assert!(eventually(|| new().len() == 4), "{:?}: {}", new(), forebay.output());
    assert!(begins(&forebay.get("/"), "changed "));
    forebay.stop();
}

#[test]
fn nothing_of_php_outlives_a_forebay_that_is_killed() {
    let Some(forebay) = php("workers = 2") else { return };
    let pid = forebay.get("/").text().trim_start_matches("index ").to_owned();
    assert!(is_alive(&pid));
    let own = rustix::process::Pid::from_raw(forebay.process.id() as i32).unwrap();
    rustix::process::kill_process(own, rustix::process::Signal::KILL).unwrap();
    assert!(eventually(|| !is_alive(&pid)));
}

#[test]
fn root_has_to_say_who_runs_php() {
    if !has_php_fpm() || !rustix::process::geteuid().is_root() {
        return;
    }
    let folder = Folder::new();
    folder.write("htdocs/index.php", "");
    let text = configuration("").replace(user(), "");
    let file = write_configuration(&folder, &text);
    let exit = Process::start(support::command(&[file.to_str().unwrap()])).wait();
    assert_eq!(exit.status.code(), Some(2));
    assert!(exit.output.contains("user = \"www-data\""), "{}", exit.output);
}

#[test]
fn php_cgi_can_be_run_as_a_program() {
    if !has_php_cgi() {
        return;
    }
    let folder = Folder::new();
    folder.write("htdocs/dump.php", DUMP);
    let forebay = serve(
        folder,
        &format!(
            "[[site]]\nlisten = \"127.0.0.1:0\"\n[[site.route]]\npath = \"/*\"\napp = \"php\"\n\
             [app.php]\nkind = \"command\"\nrun = [\"php-cgi\", \"-b\", \"{{socket}}\"]\n\
             env = {{ PHP_FCGI_CHILDREN = \"2\", OWN = \"word\" }}\nspeaks = \"fastcgi\"\n\
             root = \"htdocs\"\nconnections = 2\n{}\n",
            user()
        ),
    );
    let text = "REQUEST_METHOD=GET\nSCRIPT_NAME=/dump.php\nPATH_INFO=\nQUERY_STRING=x\nOWN=word\n0";
    for _ in 0..10 {
        assert_eq!(forebay.get("/dump.php?x").text(), text, "{}", forebay.output());
    }
    forebay.stop();
}

/// php-fpm has two ways to report messages of scripts: its own standard error, and FastCGI.
#[test]
fn messages_of_scripts_are_logged_once_at_their_level() {
    let fpm = "kind = \"php\"\nini = { log_errors = \"1\" }";
    let cgi = "kind = \"command\"\nspeaks = \"fastcgi\"\nrun = [\"php-cgi\", \"-d\", \
               \"log_errors=1\", \"-b\", \"{socket}\"]";
    for (keys, is_there) in [(fpm, has_php_fpm()), (cgi, has_php_cgi())] {
        if !is_there {
            continue;
        }
        let folder = Folder::new();
        folder.write(
            "htdocs/log.php",
            "<?php error_log('own text'); trigger_error('own warning', E_USER_WARNING);\n\
             file_put_contents('php://stderr', \"own line\\n\"); echo 'ok';\n",
        );
        folder.write("htdocs/end.php", "<?php error_log('the end');\n");
        let site = "[[site]]\nlisten = \"127.0.0.1:0\"\n[[site.route]]\napp = \"php\"\n[app.php]\n";
        let user = user();
        let mut forebay =
            serve(folder, &format!("{site}{keys}\nroot = \"htdocs\"\nworkers = 1\n{user}\n"));
        assert_eq!(forebay.get("/log.php").status, 200, "{}", forebay.output());
        assert_eq!(forebay.get("/end.php").status, 200);
        forebay.wait_for_output("the end");
        let output = forebay.output();
        for (text, level) in [("own text", "info"), ("own warning", "warn"), ("own line", "info")] {
            let lines: Vec<_> = output.lines().filter(|line| line.contains(text)).collect();
            assert_eq!(lines.len(), 1, "{keys}: {text}\n{output}");
            assert!(lines[0].contains(&format!(" {level} forebay: ")), "{keys}: {}", lines[0]);
        }
        forebay.stop();
    }
}

#[test]
fn a_site_of_kind_php_runs_scripts_and_never_those_of_visitors() {
    if !has_php_fpm() {
        return;
    }
    let folder = Folder::new();
    folder.write("htdocs/index.php", "<?php echo 'index of ', $_SERVER['REQUEST_URI'];\n");
    folder.write("htdocs/dump.php", DUMP);
    folder.write("htdocs/logo.txt", "logo");
    for dir in ["uploads", "wp-content/uploads/2026", "sites/default/files", "media"] {
        folder.write(&format!("htdocs/{dir}/x.php"), "<?php echo 'run';\n");
        folder.write(&format!("htdocs/{dir}/x.jpg"), "picture");
    }
    folder.write("htdocs/uploads/index.php", "<?php echo 'run';\n");
    let user = if user().is_empty() { "" } else { "[server]\nuser = \"www-data\"\n" };
    let forebay = serve(
        folder,
        &format!("{user}[[site]]\nlisten = \"127.0.0.1:0\"\nkind = \"php\"\nroot = \"htdocs\"\n"),
    );
    for (path, status, text) in [
        ("/", 200, "index of /"),
        ("/2026/hello?x=1", 200, "index of /2026/hello?x=1"),
        ("/logo.txt", 200, "logo"),
        ("/uploads/x.jpg", 200, "picture"),
        ("/wp-content/uploads/2026/x.jpg", 200, "picture"),
        ("/media/x.php", 200, "run"),
    ] {
        let reply = forebay.get(path);
        assert_eq!((reply.status, reply.text()), (status, text), "{path}\n{}", forebay.output());
    }
    assert!(forebay.get("/dump.php/a").text().contains("PATH_INFO=/a"));
    for path in [
        "/uploads/x.php",
        "/uploads/x.php/a",
        "/uploads/x.php/a.jpg",
        "/uploads/../uploads/x.php",
        "//uploads//x.php",
        "/uploads/%78.php",
        "/uploads/",
        "/uploads/index.php",
        "/wp-content/uploads/2026/x.php",
        "/sites/default/files/x.php",
    ] {
        let reply = forebay.get(path);
        assert!(reply.status == 404 || !reply.text().contains("run"), "{path}: {}", reply.text());
        assert_eq!(reply.status, 404, "{path}");
    }
    forebay.stop();
}
