//! A rule protects the file or script itself: no spelling of its path returns it, over any origin.
//! Apache, nginx and mod_jk get the same requests.

mod support;

use std::collections::BTreeSet;

use forebay_testkit::folder::Folder;
use forebay_testkit::http::Client;
use forebay_testkit::peer;
use forebay_testkit::stream::Address;
use support::{serve, site};

const SECRET: &str = "the protected content";

/// Texts that go before, into and after the segments of a path.
const BEFORE: [&str; 9] =
    ["", "//", "/./", "/x/../", "/;/", "/;x=y/", "/%2e/", "/x/%2e%2e/", "/..;/"];
const SLASHES: [&str; 7] = ["/", "//", "/./", "%2f", "%5c", "\\", "/x/../"];
const ENDS: [&str; 8] = ["", ";x", ";x=y;z", "%3bx", ".", "%20", "%00", "/."];
const BEHIND: [&str; 9] = ["", "/", "/x", "/x.php", "/x/y.jpg", ";x", "/;x", "%2fx", "?x=/y"];

/// Returns about two thousand spellings of a path of two segments. Many lead to the path's file.
fn spellings(first: &str, last: &str) -> BTreeSet<String> {
    let mut spellings = BTreeSet::new();
    let cases = |name: &str| {
        let escaped = format!("%{:02x}{}", name.as_bytes()[0], &name[1..]);
        let twice = escaped.replace('%', "%25");
        [name.to_owned(), escaped, twice, name.to_uppercase()]
    };
    for before in BEFORE {
        for slash in SLASHES {
            for end in ENDS {
                for behind in BEHIND {
                    // A third of all combinations, and the plain ones.
                    let at = before.len() + 3 * slash.len() + 5 * end.len() + 7 * behind.len();
                    if at % 3 == 0 || end.is_empty() && before.is_empty() {
                        let start = if before.is_empty() { "/" } else { before };
                        spellings.insert(format!("{start}{first}{end}{slash}{last}{behind}"));
                        spellings.insert(format!("{start}{first}{slash}{last}{end}{behind}"));
                    }
                }
            }
        }
    }
    for first in cases(first) {
        for last in cases(last) {
            for behind in BEHIND {
                spellings.insert(format!("/{first}/{last}{behind}"));
                spellings.insert(format!("/{first};a/{last}{behind}"));
            }
        }
    }
    spellings
}

/// The spellings by which the protected content is returned.
fn returned(address: impl Into<Address>, spellings: &BTreeSet<String>) -> Vec<String> {
    let address = address.into();
    let mut client = None;
    let mut returned = Vec::new();
    for target in spellings {
        let mut connection = client.take().unwrap_or_else(|| Client::connect(address.clone()));
        connection.send(format!("GET {target} HTTP/1.1\r\nHost: h\r\n\r\n"));
        let reply = connection.reply();
        if String::from_utf8_lossy(&reply.body).contains(SECRET) {
            returned.push(target.clone());
        }
        let closes = reply.header("Connection").is_some_and(|value| value.contains("close"));
        client = Some(connection).filter(|_| !closes);
    }
    returned
}

/// Asserts that several spellings of `/admin/NAME` reach it through `routes` without a rule, and
/// none with the rule.
fn no_spelling_returns(name: &str, folder: impl Fn() -> Folder, routes: &str) {
    let spellings = spellings("admin", name);
    assert!(spellings.len() > 1_800, "{}", spellings.len());
    let denied = "[[site.route]]\npaths = [\"/admin\", \"/admin/*\"]\ndeny = [\"0.0.0.0/0\"]\nrespond = \"no\"\n";
    let exact = format!("[[site.route]]\npath = \"/admin/{name}\"\nrespond = {{ status = 403 }}\n");
    let suffix = &name[name.find('.').unwrap()..];
    let suffix = format!(
        "[[site.route]]\npath = \"/admin/*\"\nsuffix = \"{suffix}\"\nrespond = {{ status = 403 }}\n"
    );
    for rule in ["", denied, &exact, &suffix] {
        for keys in ["", "encoded_slashes = \"pass\"\n"] {
            let routes = format!("[[site]]\nlisten = \"127.0.0.1:0\"\n{keys}{rule}{routes}");
            let forebay = serve(folder(), &routes);
            let returned = returned(forebay.address, &spellings);
            if rule.is_empty() {
                assert!(returned.len() > 30, "{returned:?}\n{routes}");
            } else {
                assert!(returned.is_empty(), "{returned:?}\n{routes}");
            }
            forebay.stop();
        }
    }
}

fn script() -> Folder {
    let folder = Folder::new();
    let script = format!("#!/bin/sh\nprintf 'Content-Type: text/plain\\n\\n{SECRET}\\n'\n");
    folder.script("htdocs/admin/run.cgi", script);
    folder.write("htdocs/admin/page.html", SECRET);
    folder.write("htdocs/admin/run.php", format!("<?php echo '{SECRET}';"));
    folder
}

#[test]
fn no_spelling_returns_a_file_that_a_rule_protects() {
    no_spelling_returns("page.html", script, "[[site.route]]\nfiles = \"htdocs\"\n");
}

#[test]
fn no_spelling_runs_a_cgi_script_that_a_rule_protects() {
    let app = "[[site.route]]\nsuffix = \".cgi\"\napp = \"x\"\n[app.x]\nkind = \"cgi-bin\"\ndir = \"htdocs\"\n";
    no_spelling_returns("run.cgi", script, app);
    no_spelling_returns("run.cgi", script, "[[site.route]]\nsuffix = \".cgi\"\ncgi = \"htdocs\"\n");
}

#[test]
fn no_spelling_has_php_run_a_script_that_a_rule_protects() {
    let Some(fpm) = peer::php_fpm(4) else { return };
    let folder = script();
    let root = folder.path().join("htdocs");
    let php = format!(
        "[[site.route]]\nsuffix = \".php\"\nfastcgi = {{ to = \"unix:{}\", root = \"{}\" }}\n",
        fpm.socket().display(),
        root.display()
    );
    no_spelling_returns("run.php", Folder::new, &php);
}

#[test]
fn no_spelling_has_tomcat_send_a_page_that_a_rule_protects() {
    let page = format!("<%@ page session=\"false\" %>{SECRET}");
    let pages = [("admin/secret.jsp", &*page)];
    let Some(ajp) = peer::tomcat(&pages, "secret=\"s3cret\"", "t1") else { return };
    let to = format!("127.0.0.1:{}", ajp.port());
    let route = format!("[[site.route]]\najp = {{ to = \"{to}\", secret = \"s3cret\" }}\n");
    no_spelling_returns("secret.jsp", Folder::new, &route);
    let Some(http) = peer::tomcat_http2(&pages, "") else { return };
    let route = format!("[[site.route]]\nproxy = \"http://127.0.0.1:{}\"\n", http.port());
    no_spelling_returns("secret.jsp", Folder::new, &route);

    // mod_jk refuses the same paths, with Location.
    let jk = format!(
        "JkLogFile /dev/stderr\nJkLogLevel error\nJkShmFile {{tmp}}/shm\nJkMount /* t1\n\
         JkWorkerProperty worker.list=t1\nJkWorkerProperty worker.t1.type=ajp13\n\
         JkWorkerProperty worker.t1.host=127.0.0.1\nJkWorkerProperty worker.t1.port={}\n\
         JkWorkerProperty worker.t1.secret=s3cret\n\
         <Location /admin>\nRequire all denied\n</Location>\n",
        ajp.port()
    );
    let Some(apache) = peer::apache(&["jk"], &jk) else { return };
    let denied = format!(
        "[[site.route]]\npaths = [\"/admin\", \"/admin/*\"]\ndeny = [\"0.0.0.0/0\"]\nrespond = \"no\"\n\
         [[site.route]]\najp = {{ to = \"{to}\", secret = \"s3cret\" }}\n"
    );
    let forebay = site(Folder::new(), &denied);
    for (target, by_apache, by_us) in [
        ("/admin/secret.jsp", 403, 403),
        ("/admin;x/secret.jsp", 403, 403),
        ("/;/admin/secret.jsp", 403, 403),
        ("/x/..;/admin/secret.jsp", 403, 400),
    ] {
        let status = Client::connect(apache.address().clone()).get(target).status;
        assert_eq!((status, forebay.get(target).status), (by_apache, by_us), "{target}");
    }
    assert_eq!(forebay.get("/nothing;jsessionid=1").status, 404, "it is Tomcat's answer");
}

#[test]
fn a_gate_on_a_script_holds_for_path_info_as_with_apache() {
    let folder = script();
    let dir = folder.path().join("htdocs/admin").display().to_string();
    let targets = ["/admin/run.cgi", "/admin/run.cgi/", "/admin/run.cgi/x", "/admin/run.cgi/x/y"];
    let conf = format!(
        "ScriptAlias /admin {dir}\nScriptSock {{tmp}}/cgi.sock\n<Directory {dir}>\nRequire all granted\n\
         </Directory>\n<Location /admin/run.cgi>\nRequire all denied\n</Location>\n"
    );
    if let Some(apache) = peer::apache(&["alias", "cgid"], &conf) {
        for target in targets {
            let status = Client::connect(apache.address().clone()).get(target).status;
            assert_eq!(status, 403, "Apache: {target}");
        }
    }
    for origin in ["cgi = \"htdocs\"", "app = \"x\""] {
        let routes = format!(
            "[[site]]\nlisten = \"127.0.0.1:0\"\n[[site.route]]\npath = \"/admin/run.cgi\"\ndeny = \"0.0.0.0/0\"\n\
             {origin}\n[[site.route]]\nsuffix = \".cgi\"\n{origin}\n\
             [app.x]\nkind = \"cgi-bin\"\ndir = \"htdocs\"\n"
        );
        let forebay = serve(script(), &routes);
        for target in targets {
            assert_eq!(forebay.get(target).status, 403, "{origin}: {target}");
        }
        forebay.stop();
    }
}

#[test]
fn uploads_are_not_run_as_with_nginx() {
    let Some(fpm) = peer::php_fpm(4) else { return };
    let folder = script();
    folder.write("htdocs/up/evil.php", format!("<?php echo '{SECRET}';"));
    folder.write("htdocs/index.php", "<?php echo 'index';");
    let (root, socket) = (folder.path().join("htdocs"), fpm.socket().display().to_string());
    let root = root.display();
    let ran = "the protected content";
    let ways = [
        "/up/evil.php",
        "/up/evil.php/",
        "/up/evil.php/x",
        "/up/evil.php/x.php",
        "/x/../up/evil.php/x",
    ];
    let conf = format!(
        "server {{ listen 127.0.0.1:{{port}}; root {root}; location ^~ /up/ {{ }}
            location ~ [^/]\\.php(/|$) {{ fastcgi_split_path_info ^(.+?\\.php)(/.*)$;
                fastcgi_param SCRIPT_FILENAME $document_root$fastcgi_script_name;
                fastcgi_param REQUEST_METHOD $request_method; fastcgi_pass unix:{socket}; }} }}"
    );
    if let Some(nginx) = peer::nginx(&conf) {
        assert_eq!(Client::connect(nginx.address().clone()).get("/index.php").text(), "index");
        for way in ways {
            let reply = Client::connect(nginx.address().clone()).get(way);
            assert_ne!(reply.text(), ran, "nginx: {way}");
        }
    }
    let php = format!(
        "[[site.route]]\nsuffix = \".php\"\nfastcgi = {{ to = \"unix:{socket}\", root = \"{root}\" }}\n"
    );
    for keys in ["", "fallback = true\n", "fallback_to = \"/index.php\"\n"] {
        let uploads = format!("[[site.route]]\npath = \"/up/*\"\n{keys}files = \"{root}/up\"\n");
        let forebay = site(Folder::new(), &format!("{uploads}{php}"));
        assert_eq!(forebay.get("/index.php").text(), "index");
        for way in ways {
            let reply = forebay.get(way);
            assert_eq!(reply.status, 404, "{keys}: {way}");
            assert_ne!(reply.text(), ran, "{keys}: {way}");
        }
        forebay.stop();
    }
    let below = format!(
        "[[site.route]]\npath = \"/up/*\"\nfiles = {{ root = \"{root}/up\", scripts = \"below\" }}\n{php}"
    );
    assert_eq!(site(Folder::new(), &below).get("/up/evil.php/x").text(), ran);
}
