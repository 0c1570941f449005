//! The files that PHP may run, decided by their names, for every runner and any rest of the path.

mod support;

use std::process::Command;

use forebay_testkit::folder::Folder;
use forebay_testkit::peer::{self, has_php_cgi, has_php_fpm};
use forebay_testkit::process::Process;
use support::{Forebay, serve};

const UPLOADED: &str = "<?php echo 'uploaded code ran';\n";

/// Requests of an attacker who could upload a picture. nginx has to refuse them, too.
const REFUSED: [&str; 9] = [
    "/evil.jpg",
    "/evil.jpg?x=.php",
    "/evil.jpg/x.php",
    "/evil.jpg/.php",
    "/evil.jpg%00.php",
    "/evil.php.jpg",
    "/evil.php.jpg/x.php/y",
    "/evil.jpg/",
    "/evil",
];

fn user() -> &'static str {
    if rustix::process::geteuid().is_root() { "user = \"www-data\"" } else { "" }
}

fn folder() -> Folder {
    let folder = Folder::new();
    for name in ["evil.jpg", "evil.php.jpg", "evil", "old.phtml"] {
        folder.write(&format!("htdocs/{name}"), UPLOADED);
    }
    folder.write("htdocs/x.php", "<?php echo 'x', $_SERVER['PATH_INFO'] ?? '';\n");
    folder
}

fn app(keys: &str) -> Forebay {
    serve(
        folder(),
        &format!(
            "[[site]]\nlisten = \"127.0.0.1:0\"\n[[site.route]]\npath = \"/*\"\napp = \"php\"\n\
             [app.php]\nroot = \"htdocs\"\n{}\n{keys}\n",
            user()
        ),
    )
}

/// php-cgi as a program: only Forebay checks the path that it runs.
const PHP_CGI: &str = "kind = \"command\"\nrun = [\"php-cgi\", \"-b\", \"{socket}\"]\n\
    speaks = \"fastcgi\"\nenv = { PHP_FCGI_CHILDREN = \"2\" }\nconnections = 2\n";

fn assert_runs_only_php(forebay: &Forebay) {
    for target in REFUSED {
        let reply = forebay.get(target);
        assert!(matches!(reply.status, 400 | 403 | 404), "{target}: {}", reply.text());
        assert!(!reply.text().contains("ran"), "{target}: {}", reply.text());
    }
    assert_eq!(forebay.get("/evil.jpg").status, 403);
    assert_eq!(forebay.get("/old.phtml").status, 403);
    assert_eq!(forebay.get("/x.php").text(), "x");
    assert_eq!(forebay.get("/x.php/evil").text(), "x/evil");
    assert_eq!(forebay.get("/x.php/evil.jpg/y.php").text(), "x/evil.jpg/y.php");
}

#[test]
fn only_names_that_end_as_scripts_do_are_run_by_php() {
    if !has_php_fpm() {
        return;
    }
    let forebay = app("kind = \"php\"");
    assert_runs_only_php(&forebay);
    forebay.stop();
}

#[test]
fn only_names_that_end_as_scripts_do_are_run_by_a_program_of_phps() {
    if !has_php_cgi() {
        return;
    }
    let forebay = app(PHP_CGI);
    assert_runs_only_php(&forebay);
    forebay.stop();
}

#[test]
fn only_names_that_end_as_scripts_do_are_run_by_php_that_somebody_else_started() {
    if !has_php_cgi() {
        return;
    }
    let folder = folder();
    let socket = folder.path().join("php.sock");
    let mut command = Command::new("php-cgi");
    command.arg("-b").arg(&socket).env("PHP_FCGI_CHILDREN", "2");
    let mut php = Process::start(command);
    php.wait_until_listening(socket.as_path());
    let forebay = serve(
        folder,
        "[[site]]\nlisten = \"127.0.0.1:0\"\n[[site.route]]\npath = \"/*\"\n\
         fastcgi = { to = \"unix:php.sock\", root = \"htdocs\", keep_conn = false }\n",
    );
    assert_runs_only_php(&forebay);
    forebay.stop();
}

#[test]
fn scripts_may_have_other_ends_where_the_key_says_so() {
    let keys = "scripts = [\".php\", \".phtml\"]";
    let mut found = Vec::new();
    if has_php_fpm() {
        found.push(app(&format!("kind = \"php\"\n{keys}")));
    }
    if has_php_cgi() {
        found.push(app(&format!("{PHP_CGI}{keys}")));
    }
    for forebay in found {
        assert_eq!(forebay.get("/old.phtml").text(), "uploaded code ran");
        assert_eq!(forebay.get("/old.phtml/more").text(), "uploaded code ran");
        assert_eq!(forebay.get("/x.php").text(), "x");
        assert_eq!(forebay.get("/evil.jpg").status, 403);
        forebay.stop();
    }
}

#[test]
fn files_that_php_does_not_run_are_left_to_routes_below() {
    if !has_php_fpm() {
        return;
    }
    let forebay = serve(
        folder(),
        &format!(
            "[[site]]\nlisten = \"127.0.0.1:0\"\n\
             [[site.route]]\npath = \"/*\"\napp = \"php\"\nfallback = true\n\
             [[site.route]]\npath = \"/*\"\nrespond = \"below\"\n\
             [app.php]\nkind = \"php\"\nroot = \"htdocs\"\n{}\n",
            user()
        ),
    );
    assert_eq!(forebay.get("/evil.jpg").text(), "below");
    assert_eq!(forebay.get("/x.php").text(), "x");
    forebay.stop();
}

/// There, php-fpm's `security.limit_extensions` decides; php-cgi has nothing like it.
#[test]
fn nginx_with_php_fpm_refuses_the_same_names() {
    let Some(php) = peer::php_fpm(2) else { return };
    let folder = folder();
    let conf = format!(
        "server {{ listen 127.0.0.1:{{port}}; root {}/htdocs;\n\
         location / {{ include /etc/nginx/fastcgi_params;\n\
         fastcgi_split_path_info ^(.+?\\.php)(/.*)$;\n\
         fastcgi_param SCRIPT_FILENAME $document_root$fastcgi_script_name;\n\
         fastcgi_param PATH_INFO $fastcgi_path_info;\n\
         fastcgi_pass unix:{}; }} }}",
        folder.path().display(),
        php.socket().display(),
    );
    let Some(nginx) = peer::nginx(&conf) else { return };
    let get = |target: &str| {
        let address = std::net::SocketAddr::from(([127, 0, 0, 1], nginx.port()));
        forebay_testkit::http::Client::connect(address).get(target)
    };
    for target in REFUSED {
        let reply = get(target);
        assert!(matches!(reply.status, 400 | 403 | 404), "{target}: {}", reply.text());
        assert!(!reply.text().contains("ran"), "{target}: {}", reply.text());
    }
    assert_eq!(get("/evil.jpg").status, 403);
    assert_eq!(get("/x.php/evil").text(), "x/evil");
}
