//! Tests of the real servers: each starts, answers requests and leaves no process behind.

use forebay_testkit::folder::Folder;
use forebay_testkit::http::Client;
use forebay_testkit::peer;
use forebay_testkit::process::eventually;

const SCRIPT: &str =
    "#!/bin/sh\nprintf 'Content-Type: text/plain\\n\\nquery %s' \"$QUERY_STRING\"\n";

/// Starts nginx in front of a FastCGI socket. The application can serve any file in the folder.
fn front(folder: &Folder, socket: &std::path::Path) -> Option<peer::Peer> {
    peer::nginx(&format!(
        "server {{
             listen 127.0.0.1:{{port}};
             root {};
             location / {{
                 include /etc/nginx/fastcgi_params;
                 fastcgi_param SCRIPT_FILENAME $document_root$fastcgi_script_name;
                 fastcgi_pass unix:{};
             }}
         }}",
        folder.path().display(),
        socket.display(),
    ))
}

#[test]
fn nginx_serves_a_file() {
    let folder = Folder::new();
    folder.write("a.txt", "hello");
    let root = folder.path().display();
    let server = format!("server {{ listen 127.0.0.1:{{port}}; root {root}; }}");
    let Some(server) = peer::nginx(&server) else { return };
    let mut client = Client::connect(server.address());
    assert_eq!(client.get("/a.txt").text(), "hello");
    assert_eq!(client.get("/b.txt").status, 404);
    let exit = server.stop();
    assert!(exit.status.success(), "{}", exit.output);
    assert!(exit.survivors.is_empty(), "{:?}", exit.survivors);
}

#[test]
fn apache_runs_a_cgi_script() {
    let folder = Folder::new();
    folder.script("a.cgi", SCRIPT);
    let root = folder.path().display();
    let conf = format!(
        "DocumentRoot \"{root}\"\n<Directory \"{root}\">\nOptions ExecCGI\n\
         SetHandler cgi-script\nRequire all granted\n</Directory>\n"
    );
    let Some(server) = peer::apache(&["cgi"], &conf) else { return };
    assert_eq!(Client::connect(server.address()).get("/a.cgi?x=1").text(), "query x=1");
    let exit = server.stop();
    assert!(exit.status.success(), "{}", exit.output);
    assert!(exit.survivors.is_empty(), "{:?}", exit.survivors);
}

#[test]
fn mod_perl_runs_a_registry_script() {
    let folder = Folder::new();
    folder.script("a.pl", "print \"Content-Type: text/plain\\n\\n$ENV{MOD_PERL_API_VERSION}\";\n");
    let root = folder.path().display();
    let conf = format!(
        "DocumentRoot \"{root}\"\nPerlModule ModPerl::Registry\n<Directory \"{root}\">\n\
         Options ExecCGI\nSetHandler perl-script\nPerlResponseHandler ModPerl::Registry\n\
         PerlOptions +ParseHeaders\nRequire all granted\n</Directory>\n"
    );
    let Some(server) = peer::apache(&["perl"], &conf) else { return };
    assert_eq!(Client::connect(server.address()).get("/a.pl").text(), "2");
}

#[test]
fn php_fpm_runs_a_script() {
    let folder = Folder::new();
    folder.write("a.php", "<?php echo 6 * 7, ' ', $_GET['q'];");
    let Some(php) = peer::php_fpm(2) else { return };
    let Some(server) = front(&folder, php.socket()) else { return };
    assert_eq!(Client::connect(server.address()).get("/a.php?q=x").text(), "42 x");
    let exit = php.stop();
    assert!(exit.status.success(), "{}", exit.output);
    assert!(exit.survivors.is_empty(), "{:?}", exit.survivors);
}

#[test]
fn fcgiwrap_runs_a_script() {
    let folder = Folder::new();
    folder.script("a.cgi", SCRIPT);
    let Some(wrap) = peer::fcgiwrap(2) else { return };
    let socket = wrap.socket().to_owned();
    let Some(server) = front(&folder, &socket) else { return };
    assert_eq!(Client::connect(server.address()).get("/a.cgi?x=1").text(), "query x=1");
    drop(wrap);
    // The server's children keep the socket open until they have ended.
    assert!(eventually(|| Client::connect(server.address()).get("/a.cgi").status == 502));
}
