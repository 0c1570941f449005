//! `forebay serve` with files and scripts in one directory: sources that are never sent, the index
//! that runs, and front controllers (`fallback_to`).

mod support;

use forebay_testkit::folder::Folder;
use forebay_testkit::http::{Client, Reply};
use forebay_testkit::peer;
use support::{Forebay, site};

/// Prints the variables of the request, and its body.
const TOLD: &str = "#!/bin/sh\nprintf 'Content-Type: text/plain\\n\\n'\n\
    echo \"$REQUEST_METHOD $SCRIPT_NAME ${PATH_INFO:--} $REQUEST_URI ${QUERY_STRING:--}\"\ncat\n";

fn post(target: &str, body: &str) -> String {
    format!("POST {target} HTTP/1.1\r\nHost: h\r\nContent-Length: {}\r\n\r\n{body}", body.len())
}

fn mixed() -> Folder {
    let folder = Folder::new();
    for script in ["index.cgi", "sub/index.cgi", "run.cgi", "tool"] {
        folder.script(&format!("htdocs/{script}"), TOLD);
    }
    for (name, text) in [
        ("plain.txt", "plain"),
        ("sub/logo.png", "logo"),
        ("bare/x.txt", "x"),
        (".env", "SECRET=1"),
        (".git/config", "[secret]"),
        ("sub/.htpasswd", "secret"),
        (".well-known/acme", "token"),
        (".well-known/.secret", "secret"),
    ] {
        folder.write(&format!("htdocs/{name}"), text);
    }
    folder
}

#[test]
fn an_index_that_is_a_script_is_run_and_its_source_is_not_sent() {
    let routes = "[[site.route]]\nsuffix = \".cgi\"\ncgi = \"htdocs\"\n\
                  [[site.route]]\npath = \"/*\"\n\
                  files = { root = \"htdocs\", index = [\"index.cgi\"] }\n";
    let forebay = site(mixed(), routes);
    for (target, told) in [
        ("/", "GET /index.cgi - / -\n"),
        ("/?a=b", "GET /index.cgi - /?a=b a=b\n"),
        ("/sub/", "GET /sub/index.cgi - /sub/ -\n"),
        ("/run.cgi?x", "GET /run.cgi - /run.cgi?x x\n"),
        ("/plain.txt", "plain"),
    ] {
        let reply = forebay.get(target);
        assert_eq!((reply.status, reply.text()), (200, told), "{target}");
    }
    assert_eq!(forebay.ask(post("/?q", "body")).text(), "POST /index.cgi - /?q q\nbody");
    assert_eq!(forebay.get("/sub").header("Location"), Some("/sub/"));
    assert_eq!(forebay.ask(post("/plain.txt", "body")).status, 405);
    assert_eq!(forebay.ask(post("/bare/", "body")).status, 405);
    forebay.stop();
}

#[test]
fn source_is_run_by_the_route_below_or_by_nobody_but_never_sent() {
    let folder = mixed();
    folder.write("htdocs/config.php", "<?php $password = 1;");
    std::os::unix::fs::symlink("htdocs", folder.path().join("alias")).unwrap();
    let routes = "
        [[site.route]]
        path = \"/alias/*\"
        files = \"alias\"
        [[site.route]]
        path = \"/only/*\"
        files = \"htdocs\"
        [[site.route]]
        path = \"/*\"
        fallback = true
        files = \"htdocs\"
        [[site.route]]
        suffix = \".cgi\"
        cgi = \"htdocs\"
        [[site.route]]
        suffix = \".php\"
        fastcgi = { to = \"unix:nowhere.sock\", root = \"htdocs\" }
    ";
    let forebay = site(folder, routes);
    assert_eq!(forebay.get("/run.cgi").text(), "GET /run.cgi - /run.cgi -\n");
    assert_eq!(forebay.ask(post("/run.cgi", "b")).text(), "POST /run.cgi - /run.cgi -\nb");
    for target in ["/config.php", "/only/config.php", "/only/run.cgi", "/alias/config.php"] {
        let reply = forebay.get(target);
        assert!(matches!(reply.status, 404 | 502 | 503), "{target}: {}", reply.status);
        assert!(!reply.text().contains("password"), "{target}");
        assert!(!reply.text().contains("#!"), "{target}");
    }
    assert_eq!(forebay.get("/only/tool").status, 200, "no route runs it: it is a download");
    assert_eq!(forebay.get("/alias/plain.txt").text(), "plain");
}

#[test]
fn names_that_begin_with_a_dot_are_not_there_unless_hidden_is_true() {
    let routes = "[[site.route]]\npath = \"/all/*\"\nfiles = { root = \"htdocs\", hidden = true }\n\
                  [[site.route]]\npath = \"/*\"\nfiles = { root = \"htdocs\", listing = true }\n";
    let forebay = site(mixed(), routes);
    for hidden in [".env", ".git/config", ".git/", ".git", "sub/.htpasswd", ".well-known/.secret"] {
        assert_eq!(forebay.get(&format!("/{hidden}")).status, 404, "{hidden}");
        let shown = forebay.get(&format!("/all/{hidden}")).status;
        assert!(matches!(shown, 200 | 301 | 403), "{hidden}: {shown}");
    }
    assert_eq!(forebay.get("/%2eenv").status, 404);
    assert_eq!(forebay.get("/.well-known/acme").text(), "token");

    let root = forebay.folder.path().join("htdocs");
    let conf = format!("server {{ listen 127.0.0.1:{{port}}; root {}; }}", root.display());
    let Some(nginx) = peer::nginx(&conf) else { return };
    for sent in ["/.env", "/run.cgi"] {
        let reply = Client::connect(nginx.address().clone()).get(sent);
        assert_eq!(reply.status, 200, "nginx sends {sent} unless told not to");
    }
}

#[test]
fn other_files_in_a_script_directory_are_left_to_files() {
    let routes = "[[site.route]]\npath = \"/*\"\nfallback = true\nORIGIN\n\
                  [[site.route]]\npath = \"/*\"\n\
                  files = { root = \"htdocs\", index = [\"index.cgi\"] }\n";
    let app = routes.to_owned() + "[app.x]\nkind = \"cgi-bin\"\ndir = \"htdocs\"\n";
    for routes in
        [routes.replace("ORIGIN", "cgi = \"htdocs\""), app.replace("ORIGIN", "app = \"x\"")]
    {
        leaves_to_files(&site(mixed(), &routes));
    }
}

fn leaves_to_files(forebay: &Forebay) {
    for (target, status, text) in [
        ("/tool/info", 200, "GET /tool /info /tool/info -\n"),
        ("/run.cgi", 200, "GET /run.cgi - /run.cgi -\n"),
        ("/sub/logo.png", 200, "logo"),
        ("/plain.txt", 200, "plain"),
        ("/", 200, "GET /index.cgi - / -\n"),
        ("/sub/", 200, "GET /sub/index.cgi - /sub/ -\n"),
    ] {
        let reply = forebay.get(target);
        assert_eq!((reply.status, reply.text()), (status, text), "{target}");
    }
    assert_eq!(forebay.get("/sub").header("Location"), Some("/sub/"));
    for target in ["/.env", "/.git/config", "/bare/", "/plain.txt/x", "/missing"] {
        let reply = forebay.get(target);
        assert!(matches!(reply.status, 403 | 404), "{target}: {}", reply.status);
    }
}

/// A small WordPress: permalinks, a directory with its own index, and a file that must be kept.
fn wordpress() -> Folder {
    let folder = Folder::new();
    let told = "<?php header('Content-Type: text/plain'); $s = $_SERVER; echo \
        \"$s[REQUEST_METHOD] $s[SCRIPT_NAME] [$s[PATH_INFO]] $s[REQUEST_URI] [$s[QUERY_STRING]] \", \
        basename(dirname($s['SCRIPT_FILENAME'])), ' ', $s['DOCUMENT_URI'], ' ', \
        file_get_contents('php://input');";
    for script in ["index.php", "wp-login.php", "wp-admin/index.php", "wp-admin/post.php"] {
        folder.write(&format!("site/{script}"), told);
    }
    folder.write("site/wp-config.php", "<?php $password = 1;");
    folder.write("site/wp-content/style.css", "a{}");
    folder.write("site/readme.html", "<p>readme");
    folder
}

#[test]
fn pretty_permalinks_reach_index_php_as_behind_nginx() {
    let Some(fpm) = peer::php_fpm(12) else { return };
    let folder = wordpress();
    let (root, socket) = (folder.path().join("site"), fpm.socket().display().to_string());
    let root = root.display();
    let conf = format!(
        "server {{ listen 127.0.0.1:{{port}}; server_name h; root {root}; index index.php;
            location / {{ try_files $uri $uri/ /index.php?$args; }}
            location ~ [^/]\\.php(/|$) {{ fastcgi_split_path_info ^(.+?\\.php)(/.*)$;
                set $path_info $fastcgi_path_info; set $asked $uri;
                try_files $fastcgi_script_name /index.php?$args; fastcgi_pass unix:{socket};
                fastcgi_param SCRIPT_FILENAME $document_root$fastcgi_script_name;
                fastcgi_param SCRIPT_NAME $fastcgi_script_name;
                fastcgi_param PATH_INFO $path_info;
                fastcgi_param DOCUMENT_URI $asked;
                fastcgi_param REQUEST_URI $request_uri;
                fastcgi_param QUERY_STRING $query_string;
                fastcgi_param REQUEST_METHOD $request_method;
                fastcgi_param CONTENT_TYPE $content_type;
                fastcgi_param CONTENT_LENGTH $content_length; }} }}"
    );
    let nginx = peer::nginx(&conf);
    let php = format!(
        "[[site.route]]\nsuffix = \".php\"\n\
         fastcgi = {{ to = \"unix:{socket}\", root = \"{root}\" }}\n"
    );
    let files = format!(
        "[[site.route]]\npath = \"/*\"\nfallback_to = \"/index.php\"\nfiles = \"{root}\"\n"
    );
    for routes in [format!("{php}{files}"), format!("{files}{php}")] {
        let forebay = site(Folder::new(), &routes);
        for target in [
            "/",
            "/?p=1",
            "/2026/11/hello-world/",
            "/2026/11/hello%20w%c3%b6rld/?page=2&x",
            "/wp-login.php",
            "/wp-admin",
            "/wp-admin/",
            "/wp-admin/post.php?a=b",
            "/wp-admin/no/such/",
            "/wp-content/style.css",
            "/wp-content/missing.css",
            "/readme.html",
            "/index.php?x",
            "/wp-admin/index.php/x/y?z",
            "/index.php/2026/hello/",
            "/wp-admin/none.php/x",
        ] {
            let shown = |reply: &Reply| {
                let location = reply.header("Location").unwrap_or_default();
                let path = location.find("/wp").map(|at| location[at..].to_owned());
                let text = if reply.status == 301 { "" } else { reply.text() };
                (reply.status, text.to_owned(), path)
            };
            let get = shown(&forebay.get(target));
            let posted = shown(&forebay.ask(post(target, "a=1")));
            let Some(nginx) = &nginx else { continue };
            let mut client = Client::connect(nginx.address().clone());
            assert_eq!(get, shown(&client.get(target)), "GET {target}\n{routes}");
            if !matches!(target, "/wp-admin" | "/wp-content/style.css" | "/readme.html") {
                client.send(post(target, "a=1"));
                assert_eq!(posted, shown(&client.reply()), "POST {target}\n{routes}");
            }
        }
        assert!(!forebay.get("/wp-config.php").text().contains("password"));
        forebay.stop();
    }
}

#[test]
fn copies_of_scripts_that_editors_leave_are_not_sent() {
    let Some(fpm) = peer::php_fpm(1) else { return };
    let folder = wordpress();
    let copies = [
        "wp-config.php~",
        "wp-config.php.bak",
        "wp-config.php.OLD",
        "#wp-config.php#",
        "x.php.swp",
    ];
    for copy in copies.iter().copied().chain(["notes.txt~", "photos.bak"]) {
        folder.write(&format!("site/{copy}"), "<?php $password = 1;");
    }
    let (root, socket) = (folder.path().join("site"), fpm.socket().display().to_string());
    let root = root.display();
    let php = format!(
        "[[site.route]]\nsuffix = \".php\"\n\
         fastcgi = {{ to = \"unix:{socket}\", root = \"{root}\" }}\n"
    );
    let files = format!("[[site.route]]\nfallback = true\nfiles = \"{root}\"\n");
    for routes in [format!("{php}{files}"), format!("{files}{php}")] {
        let forebay = site(Folder::new(), &routes);
        for copy in copies {
            let reply = forebay.get(&format!("/{}", copy.replace('#', "%23")));
            assert_eq!(reply.status, 404, "{copy}\n{routes}");
            assert!(!reply.text().contains("password"), "{copy}");
        }
        for own in ["/notes.txt~", "/photos.bak"] {
            assert_eq!(forebay.get(own).status, 200, "{own}");
        }
        forebay.stop();
    }
}

/// Requests whose answers nginx and Forebay agree on.
const REWRITTEN: [&str; 15] = [
    "/old/a",
    "/old/a/b?c=d",
    "/two/a",
    "/two/a?b=c",
    "/drop/a?b=c",
    "/twice/a?b=c",
    "/moved/a",
    "/moved/a?b=c",
    "/gone/a",
    "/nowhere",
    "/down",
    "/own",
    "/regex/de/page?x",
    "/regex/DE/page",
    "/if",
];

#[test]
fn rewrites_redirects_fields_and_error_pages_are_those_of_nginx() {
    let Some(theirs) = peer::nginx(
        "server { listen 127.0.0.1:{port}; root {tmp}; absolute_redirect off;\n\
         error_page 404 /404.html; error_page 502 503 /5xx.html;\n\
         location /old/ { rewrite ^/old/(.*)$ /new/$1; }\n\
         location /two/ { rewrite ^/two/(.*)$ /new/$1?a=1; }\n\
         location /drop/ { rewrite ^/drop/(.*)$ /new/$1?; }\n\
         location /twice/ { rewrite ^/twice/(.*)$ /old/$1; }\n\
         location /moved/ { rewrite ^/moved/(.*)$ /new/$1 permanent; }\n\
         location ~ ^/regex/(?<lang>de|en)/(?<page>[a-z]+)$ { rewrite ^ /new/$page?lang=$lang; }\n\
         location /new/ { add_header X-Seen \"$uri?$args\"; add_header X-Page yes; return 200 new; }\n\
         location /gone/ { add_header X-Page yes; return 404; }\n\
         location /always/ { add_header X-Page yes always; return 404; }\n\
         location = /down { proxy_pass http://127.0.0.1:1; }\n\
         location = /own { return 503; }\n\
         location = /if { if ($http_x_beta) { return 200 beta; } return 200 plain; }\n\
         location = /404.html { } location = /5xx.html { } }",
    ) else {
        return;
    };
    let folder = Folder::new();
    for (name, text) in [("404.html", "none such"), ("5xx.html", "sorry")] {
        theirs.folder().write(name, text);
        folder.write(name, text);
    }
    let rewrite = |path: &str, to: &str| {
        format!("[[site.route]]\npath = \"/{path}/*\"\nrewrite = \"{to}\"\n")
    };
    let routes = [
        "error_pages = { 404 = \"404.html\", 502 = \"5xx.html\", 503 = \"5xx.html\" }\n",
        &rewrite("old", "/new/{rest}"),
        &rewrite("two", "/new/{rest}?a=1"),
        &rewrite("drop", "/new/{rest}?"),
        &rewrite("twice", "/old/{rest}"),
        "[[site.route]]\npath_regex = '^/regex/(?<lang>de|en)/(?<page>[a-z]+)$'\n\
         rewrite = \"/new/{page}?lang={lang}\"\n\
         [[site.route]]\npath = \"/moved/*\"\nredirect = { to = \"/new/{rest}\", status = 301 }\n\
         [[site.route]]\npath = \"/new/*\"\nrespond = \"new\"\n\
         add_headers = { X-Seen = \"{path}?{query}\", X-Page = \"yes\" }\n\
         [[site.route]]\npath = \"/gone/*\"\nrespond = { status = 404 }\n\
         add_headers = { X-Page = \"yes\" }\n\
         [[site.route]]\npath = \"/always/*\"\nrespond = { status = 404 }\n\
         add_headers = { X-Page = { value = \"yes\", always = true } }\n\
         [[site.route]]\npath = \"/down\"\nproxy = \"http://127.0.0.1:1\"\n\
         [[site.route]]\npath = \"/own\"\nrespond = { status = 503 }\n\
         [[site.route]]\npath = \"/if\"\nwhen = { header.X-Beta = true }\nrespond = \"beta\"\n\
         [[site.route]]\npath = \"/if\"\nrespond = \"plain\"\n",
    ]
    .concat();
    let ours = site(folder, &routes);
    let ask = |address: &forebay_testkit::stream::Address, target: &str, field: &str| {
        let mut client = Client::connect(address.clone());
        client.send(format!("GET {target} HTTP/1.1\r\nHost: h\r\n{field}\r\n"));
        let reply = client.reply();
        let named = |name| reply.header(name).map(str::to_owned);
        // A redirect of Forebay has no text.
        let text = if reply.status == 301 { "" } else { reply.text() }.to_owned();
        (reply.status, text, named("Location"), named("X-Seen"), named("X-Page"))
    };
    for target in REWRITTEN {
        for field in ["", "X-Beta: 1\r\n"] {
            let expected = ask(theirs.address(), target, field);
            assert_eq!(ask(&ours.address.into(), target, field), expected, "{target} {field}");
        }
    }
    // nginx forgets the location's fields when it sends an error page.
    let always = ask(&ours.address.into(), "/always/a", "");
    assert_eq!((always.0, always.4.as_deref()), (404, Some("yes")));
    ours.stop();
}
