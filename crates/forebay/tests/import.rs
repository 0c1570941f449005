//! `forebay import`: configurations of nginx, Apache and Caddy, translated, checked, and served
//! beside the original.

mod support;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use forebay_testkit::folder::Folder;
use forebay_testkit::http::{Client, Reply};
use forebay_testkit::peer::{self, Peer};
use forebay_testkit::tls::Authority;
use support::{Forebay, serve};

/// A password file with the user `ann` and the password `secret`.
const USERS: &str = "ann:$apr1$abcdefgh$w1Qb7IQwGkhQ9lJrzxXQb.\n";

fn run(arguments: &[&str]) -> Output {
    Command::new(support::program()).args(arguments).output().unwrap()
}

fn import(language: &str, file: &Path) -> (String, String) {
    let output = run(&["import", language, file.to_str().unwrap()]);
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    let (toml, notes) = (text(output.stdout), text(output.stderr));
    assert_eq!(output.status.code(), Some(0), "{}: {notes}", file.display());
    (toml, notes)
}

/// Returns true if routes of this version have a key.
fn has_key(key: &str) -> bool {
    let schema = String::from_utf8(run(&["check", "--schema"]).stdout).unwrap();
    let schema: serde_json::Value = serde_json::from_str(&schema).unwrap();
    schema["$defs"]["Route"]["properties"].get(key).is_some()
}

/// Files that the fixtures name.
fn tree() -> Folder {
    let folder = Folder::new();
    for (name, content) in [
        ("www/index.html", "index"),
        ("www/app.js", "script"),
        ("www/500.html", "broken"),
        ("www/404.html", "missing"),
        ("www/502.html", "unreachable"),
        ("www/w/images/fav.ico", "icon"),
        ("www/w/images/deleted/x.txt", "deleted"),
        ("www/assets/a.css", "css"),
        ("www/wp-content/uploads/a.txt", "upload"),
        ("www/userContent/a.txt", "content"),
        ("www/dir/index.html", "dir"),
        ("www/dir/a.txt", "a"),
        ("www/.hidden", "hidden"),
        ("static/a.txt", "static"),
        ("static/sub/b.txt", "sub"),
        ("cgi-bin/x.cgi", "#!/bin/sh\necho; echo x\n"),
    ] {
        folder.write(name, content);
    }
    folder.write("htpasswd", USERS);
    let identity =
        Authority::new("test").issue(&["example.org", "*.example.org", "secure.example"]);
    folder.write("cert.pem", identity.certificate);
    folder.write("key.pem", identity.key);
    folder
}

fn filled(text: &str, folder: &Folder) -> String {
    text.replace("{dir}", folder.path().to_str().unwrap())
        .replace("{tls_port}", "8443")
        .replace("{port}", "8080")
        .replace("{backend2}", "3001")
        .replace("{backend}", "3000")
}

fn fixtures(language: &str) -> Vec<PathBuf> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/import").join(language);
    let mut files: Vec<_> = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

#[test]
fn caches_hashes_and_retries_of_nginx_have_translations() {
    let folder = Folder::new();
    let text = "events {}\nhttp {\nproxy_cache_path DIR keys_zone=z:10m;\n\
        upstream app { server 10.0.0.1 slow_start=30s;\n\
        server 10.0.0.2 slow_start=30s; hash $request_uri consistent; }\n\
        upstream other { server 10.0.0.3; server 10.0.0.4; ip_hash; }\n\
        upstream third { server 10.0.0.5; server 10.0.0.6; least_time header; }\n\
        proxy_next_upstream error timeout http_502 http_503;\n\
        server {\nlisten 127.0.0.1:8080;\nproxy_cache z;\n\
        location / {\nproxy_pass http://app;\nproxy_cache_valid 404 1m;\n\
        proxy_cache_valid 200 302 10m;\nproxy_cache_use_stale error updating;\n\
        proxy_cache_key $scheme$proxy_host$request_uri;\nproxy_cache_bypass $cookie_session;\n}\n\
        location /third/ { proxy_pass http://third; proxy_cache off; }\n\
        location /plain/ { proxy_pass http://other; proxy_cache off; }\n\
        location = /robots.txt { return 200 ok; }\n}\n}\n";
    let cache = folder.path().join("cache");
    let file = folder.write("nginx.conf", text.replace("DIR", cache.to_str().unwrap()));
    let (toml, notes) = import("nginx", &file);
    // The lifetime of other statuses has no key.
    assert!(notes.contains("proxy_cache_valid 404 1m"), "{notes}\n{toml}");
    assert_eq!(toml.matches("# NOT TRANSLATED").count(), 1, "{toml}");
    for line in [
        "cache = { valid = \"10m\", stale_while_revalidate = \"10m\", stale_if_error = \"10m\"",
        "private_cookies = [\"session\"] }",
        "hash_key = \"{uri}\"",
        "balance = \"hash\"",
        "balance = \"least-time\"",
        "statuses = [502, 503]",
        "slow_start = \"30s\"",
    ] {
        assert!(toml.contains(line), "no {line} in\n{toml}");
    }
    assert_eq!(toml.matches("cache = ").count(), 1, "{toml}");
    let site = folder.write("site.toml", &toml);
    let checked = run(&["check", site.to_str().unwrap()]);
    assert_eq!(checked.status.code(), Some(0), "{}", String::from_utf8_lossy(&checked.stderr));
}

#[test]
fn what_nginx_does_when_clients_abort_is_translated() {
    let folder = Folder::new();
    let text = "events {}\nhttp { server {\nlisten 127.0.0.1:8080;\nproxy_ignore_client_abort on;\n\
        location /on/ { proxy_pass http://10.0.0.1; }\n\
        location /off/ { proxy_ignore_client_abort off; proxy_pass http://10.0.0.1; }\n\
        location /f/ { fastcgi_ignore_client_abort off; include fastcgi_params; \
        fastcgi_param SCRIPT_FILENAME /x$fastcgi_script_name; fastcgi_pass 10.0.0.1:9000; }\n\
        location /u/ { uwsgi_ignore_client_abort on; include uwsgi_params; uwsgi_pass 10.0.0.1:3; }\n\
        }\n}\n";
    folder.write("fastcgi_params", "fastcgi_param QUERY_STRING $query_string;\n");
    folder.write("uwsgi_params", "uwsgi_param QUERY_STRING $query_string;\n");
    let (toml, notes) = import("nginx", &folder.write("nginx.conf", text));
    assert_eq!(toml.matches("on_abort = \"finish\"").count(), 1, "{toml}");
    assert_eq!(toml.matches("on_abort = \"stop\"").count(), 1, "{toml}");
    assert!(!notes.contains("client_abort"), "{notes}");
}

#[test]
fn replaced_texts_of_nginx_are_translated() {
    let folder = Folder::new();
    let text = "events {}\nhttp {\nserver {\nlisten 127.0.0.1:8080;\n\
        sub_filter 'http://old' 'https://$host';\nsub_filter \"a\\\"b\" '';\n\
        location / { proxy_pass http://10.0.0.1; proxy_set_header Accept-Encoding ''; }\n\
        location /all/ { proxy_pass http://10.0.0.1; sub_filter x y;\n\
        sub_filter_once off; sub_filter_types text/css; sub_filter_last_modified on; }\n\
        location /other/ { proxy_pass http://10.0.0.1; sub_filter $host y; }\n}\n}\n";
    let (toml, notes) = import("nginx", &folder.write("nginx.conf", text));
    for line in [
        "replace = { texts = { \"http://old\" = \"https://{host}\", 'a\"b' = \"\" }, once = true, ignore_case = true }",
        "replace = { texts = { x = \"y\" }, types = [\"text/html\", \"text/css\"], ignore_case = true, last_modified = true }",
    ] {
        assert!(toml.contains(line), "no {line} in\n{toml}");
    }
    assert!(notes.contains("sub_filter $host y"), "{notes}");
    let site = folder.write("site.toml", &toml);
    let checked = run(&["check", site.to_str().unwrap()]);
    assert_eq!(checked.status.code(), Some(0), "{}", String::from_utf8_lossy(&checked.stderr));
}

#[test]
fn server_side_includes_of_nginx_and_apache_are_translated() {
    let folder = Folder::new();
    folder.write("www/index.html", "x");
    let root = folder.path().join("www");
    let root = root.display();
    let nginx = format!(
        "events {{}}\nhttp {{\nserver {{\nlisten 127.0.0.1:8080;\nroot {root};\nssi on;\n\
         location /text/ {{ ssi_types text/plain; ssi_last_modified on; }}\n\
         location /off/ {{ ssi off; }}\n}}\n}}\n"
    );
    let apache = |options: &str, filter: &str| {
        format!(
            "Listen 127.0.0.1:8080\n<VirtualHost *:8080>\nDocumentRoot \"{root}\"\n\
             <Directory \"{root}\">\nOptions {options}\nRequire all granted\n{filter}\n</Directory>\n\
             </VirtualHost>\n"
        )
    };
    let text = "ssi = { types = [\"text/html\", \"text/plain\"], last_modified = true }";
    for (language, conf, expected) in [
        ("nginx", nginx, &["ssi = true", text][..]),
        ("apache", apache("+Includes", "AddOutputFilter INCLUDES .shtml"), &["ssi = true"]),
        ("apache", apache("IncludesNOEXEC", "SetOutputFilter INCLUDES"), &["ssi = true"]),
        ("apache", apache("+Includes", "XBitHack full"), &["ssi = { last_modified = true }"]),
        ("apache", apache("+Includes", "XBitHack off"), &[]),
        ("apache", apache("-Includes", "AddOutputFilter INCLUDES .shtml"), &[]),
    ] {
        let (toml, _) = import(language, &folder.write("imported.conf", &conf));
        assert_eq!(toml.matches("ssi = ").count(), expected.len(), "{toml}");
        for line in expected {
            assert!(toml.contains(line), "no {line} in\n{toml}");
        }
        let site = folder.write("site.toml", &toml);
        let checked = run(&["check", site.to_str().unwrap()]);
        let error = String::from_utf8_lossy(&checked.stderr);
        assert_eq!(checked.status.code(), Some(0), "{error}\n{toml}");
    }
}

#[test]
fn every_imported_fixture_passes_check() {
    let folder = tree();
    let mut seen = 0;
    for language in ["nginx", "apache", "caddy"] {
        for fixture in fixtures(language) {
            let name = fixture.file_name().unwrap().to_str().unwrap();
            let text = filled(&fs::read_to_string(&fixture).unwrap(), &folder);
            let (toml, notes) = import(language, &folder.write(name, text));
            let file = folder.write("site.toml", &toml);
            let output = run(&["check", file.to_str().unwrap()]);
            let error = String::from_utf8(output.stderr).unwrap();
            assert_eq!(output.status.code(), Some(0), "{language}/{name}: {error}\n{toml}");
            // Each line on standard error is also a comment, with its place.
            for note in notes.lines().filter(|line| line.contains(name)) {
                let place = note.split(": ").next().unwrap();
                assert!(toml.contains(place), "{note}\n{toml}");
            }
            seen += 1;
        }
    }
    assert!(seen >= 26, "{seen} fixtures");
}

/// Serves the translation of nginx's configuration.
fn serve_imported(text: &str, nginx: &Peer) -> Forebay {
    let folder = Folder::new();
    let file = folder.write("nginx.conf", text);
    let (toml, _) = import("nginx", &file);
    let address = format!("127.0.0.1:{}", nginx.port());
    assert!(toml.contains(&address), "{toml}");
    serve(folder, &toml.replace(&address, "127.0.0.1:0"))
}

/// Returns the Location without scheme and host: Forebay sends a path if the host is the same.
fn location(reply: &Reply) -> Option<String> {
    let location = reply.header("location")?;
    let rest = location.split_once("://").map(|(_, rest)| rest);
    Some(match rest.and_then(|rest| rest.find('/').map(|at| &rest[at..])) {
        Some(path) if !location.contains("elsewhere.example") => path.to_owned(),
        _ => location.to_owned(),
    })
}

/// Sends each request to both servers, and compares status, Location and body.
fn compare(nginx: &Peer, forebay: &Forebay, requests: &[&str]) {
    let mut wrong = Vec::new();
    for request in requests {
        let (method, target) = request.split_once(' ').unwrap();
        let bytes = format!(
            "{method} {target} HTTP/1.1\r\nHost: site.example\r\nContent-Length: 0\r\n\
             Connection: close\r\n\r\n"
        );
        let bytes =
            if method == "GET" { bytes.replace("Content-Length: 0\r\n", "") } else { bytes };
        let ask = |mut client: Client| {
            client.send(&bytes);
            let reply = client.reply();
            let body = if reply.status < 300 { reply.body.clone() } else { Vec::new() };
            (reply.status, location(&reply), String::from_utf8_lossy(&body).into_owned())
        };
        let theirs = ask(Client::connect(nginx.address().clone()));
        let ours = ask(forebay.connect());
        if theirs != ours {
            wrong.push(format!("{request}: nginx {theirs:?}, Forebay {ours:?}"));
        }
    }
    let file = fs::read_to_string(forebay.folder.path().join("site.toml")).unwrap();
    assert!(wrong.is_empty(), "{}\n{file}", wrong.join("\n"));
}

/// Starts a server that answers with the request that it got. Below `/choose`, it sends
/// X-Accel-Redirect with the value of the parameter `to`.
fn echo() -> Option<Peer> {
    peer::nginx(
        "server { listen 127.0.0.1:{port}; default_type text/plain; \
         location / { return 200 \"$request_method $request_uri $http_x_real_ip\"; } \
         location /choose { add_header X-Accel-Redirect $arg_to; return 200 \"no\"; } }",
    )
}

/// Starts nginx with a server, and Forebay with its translation.
fn both(server: &str, folder: &Folder, backend: u16) -> Option<(Peer, Forebay)> {
    let text = server
        .replace("{dir}", folder.path().to_str().unwrap())
        .replace("{backend}", &backend.to_string());
    let nginx = peer::nginx(&text)?;
    let forebay = serve_imported(&text.replace("{port}", &nginx.port().to_string()), &nginx);
    Some((nginx, forebay))
}

#[test]
fn replayed_requests_to_files_and_servers_agree() {
    let folder = tree();
    let Some(backend) = echo() else { return };
    let server = r#"
        server {
            listen 127.0.0.1:{port};
            server_name site.example;
            root {dir}/www;
            client_max_body_size 1m;
            location / { try_files $uri $uri/ /index.html; }
            location /api/ { proxy_pass http://127.0.0.1:{backend}/; proxy_set_header Host $host; }
            location /same/ { proxy_pass http://127.0.0.1:{backend}; }
            location = /api/exact { return 200 "exact"; }
            location ^~ /assets/ { }
            location ~ \.css$ { return 410; }
            location /static/ { alias {dir}/static/; }
            location /static/sub/ { alias {dir}/static/sub/; autoindex off; }
            location /old/ { rewrite ^/old/(.*)$ /new/$1 permanent; }
            location = /moved { return 301 https://elsewhere.example$request_uri; }
            location /gone { return 410; }
            location /private/ { deny all; }
            location /local/ { allow 127.0.0.1; deny all; alias {dir}/static/; }
            location /remote/ { allow 10.0.0.0/8; deny all; alias {dir}/static/; }
            location /half/ { deny 127.0.0.1; allow all; alias {dir}/static/; }
            location /members/ { auth_basic "m"; auth_basic_user_file {dir}/htpasswd; alias {dir}/static/; }
            location /upload/ { limit_except GET { deny all; } alias {dir}/static/; }
            location /ping { default_type text/plain; return 200 "pong"; }
            location /named/ { try_files $uri @app; }
            location @app { proxy_pass http://127.0.0.1:{backend}; }
            location /internal/ {
                internal;
                alias {dir}/static/;
                location /internal/deep { return 200 "deep"; }
            }
            location /choose { proxy_pass http://127.0.0.1:{backend}; }
            location /choose/ignored {
                proxy_ignore_headers X-Accel-Redirect;
                proxy_pass http://127.0.0.1:{backend};
            }
            location /keyed { if ($arg_key = "") { return 403; } return 200 "keyed"; }
            location = /secret { internal; return 200 "secret"; }
            location = /after { return 200 "secret"; internal; }
            location /inside/ { internal; proxy_pass http://127.0.0.1:{backend}; }
            location = /limited { limit_except GET { deny all; } return 200 "limited"; }
            location = /unlimited { return 200 "limited"; limit_except get POST { deny all; } }
            location /left/ { try_files $uri @left; limit_except GET { deny all; } }
            location @left { internal; return 200 "left"; }
            location /nested/ {
                location /nested/deep/ { return 200 "deep"; }
                location = /nested/exact { return 200 "nested exact"; }
                return 200 "nested";
            }
        }
    "#;
    let Some((nginx, forebay)) = both(server, &folder, backend.port()) else { return };
    let requests = [
        "GET /choose?to=/internal/a.txt",
        "GET /choose?to=/internal/missing",
        "GET /choose?to=/internal/deep",
        "GET /choose?to=/secret",
        "GET /choose/ignored?to=/secret",
        "GET /internal/deep",
        "GET /keyed",
        "GET /keyed?key=",
        "GET /keyed?key=1",
        "GET /",
        "GET /index.html",
        "GET /missing",
        "GET /dir",
        "GET /dir/",
        "GET /dir/a.txt",
        "GET /api",
        "GET /api?a=1",
        "GET /api/",
        "GET /api/x?y=1",
        "POST /api/x",
        "GET /api/exact",
        "GET /same/x",
        "GET /same/",
        "GET /assets/a.css",
        "GET /app.css",
        "GET /assets/none.css",
        "GET /static/a.txt",
        "GET /static/sub/b.txt",
        "GET /static/none",
        "GET /old/x/y",
        "GET /old/x?a=1",
        "GET /moved?a=1",
        "GET /gone",
        "GET /goner",
        "GET /private/x",
        "GET /local/a.txt",
        "GET /remote/a.txt",
        "GET /half/a.txt",
        "GET /members/a.txt",
        "GET /upload/a.txt",
        "PUT /upload/a.txt",
        "GET /ping",
        "GET /pingpong",
        "GET /named/x?z=1",
        "GET /internal/a.txt",
        "GET /secret",
        "POST /secret",
        "GET /after",
        "GET /inside",
        "GET /inside/x",
        "GET /limited",
        "POST /limited",
        "POST /unlimited",
        "DELETE /unlimited",
        "GET /left/x",
        "DELETE /left/x",
        "GET /nested/",
        "GET /nested/x",
        "GET /nested/deep/x",
        "GET /nested/exact",
    ];
    // Without a placeholder for it, a query is kept with its question mark even if it is empty.
    let requests = requests
        .iter()
        .filter(|request| has_key("rewrite") || !["GET /api", "GET /old/x/y"].contains(*request));
    compare(&nginx, &forebay, &requests.copied().collect::<Vec<_>>());
}

#[test]
fn replayed_requests_to_php_agree() {
    let folder = tree();
    let Some(php) = peer::php_fpm(1) else { return };
    let script = "<?php echo $_SERVER['SCRIPT_NAME'], '|', $_SERVER['PATH_INFO'] ?? '', '|', \
                  $_SERVER['QUERY_STRING'], '|', $_SERVER['REQUEST_URI'], '|', $_SERVER['APP'] ?? '';";
    folder.write("www/index.php", script);
    folder.write("www/other.php", script);
    folder.write("www/dir/index.php", script);
    let server = r#"
        server {
            listen 127.0.0.1:{port};
            server_name site.example;
            root {dir}/www;
            index index.php index.html;
            location / { try_files $uri $uri/ /index.php?$args; }
            location = /xmlrpc.php { deny all; }
            location ^~ /wp-content/uploads/ { location ~ \.php$ { deny all; } }
            location ~ \.php(/|$) {
                fastcgi_split_path_info ^(.+\.php)(/.*)$;
                fastcgi_param SCRIPT_FILENAME $document_root$fastcgi_script_name;
                fastcgi_param SCRIPT_NAME $fastcgi_script_name;
                fastcgi_param PATH_INFO $fastcgi_path_info;
                fastcgi_param QUERY_STRING $query_string;
                fastcgi_param REQUEST_METHOD $request_method;
                fastcgi_param CONTENT_LENGTH $content_length;
                fastcgi_param CONTENT_TYPE $content_type;
                fastcgi_param REQUEST_URI $request_uri;
                fastcgi_param APP demo;
                fastcgi_pass unix:PHP;
            }
        }
    "#;
    let server = server.replace("PHP", php.socket().to_str().unwrap());
    let Some((nginx, forebay)) = both(&server, &folder, 1) else { return };
    compare(
        &nginx,
        &forebay,
        &[
            "GET /",
            "GET /?a=1",
            "GET /other.php?b=2",
            "GET /index.php/a/b?c=3",
            "GET /pretty/path",
            "GET /pretty?q=1",
            "GET /app.js",
            "GET /dir/",
            "GET /xmlrpc.php",
            "POST /other.php",
            "GET /wp-content/uploads/a.txt",
            "GET /wp-content/uploads/x.php",
        ],
    );
    // Scripts that clients cannot ask for still answer for missing files.
    let hidden = server.replace("(/|$) {", "(/|$) { internal;");
    let Some((nginx, forebay)) = both(&hidden, &folder, 1) else { return };
    let requests = ["GET /other.php?b=2", "POST /other.php", "GET /pretty?q=1"];
    compare(&nginx, &forebay, &requests);
}

#[test]
fn replayed_requests_to_rewritten_paths_agree() {
    if !has_key("rewrite") || !has_key("path_regex") || !has_key("when") {
        return;
    }
    let folder = tree();
    let Some(backend) = echo() else { return };
    let server = r#"
        map $uri $target { default ""; /a-moved /b-moved; }
        server {
            listen 127.0.0.1:{port};
            server_name site.example;
            root {dir}/www;
            if ($target) { return 301 $target; }
            location / { try_files $uri $uri/ @wiki; }
            location @wiki { rewrite ^/w/([a-z]+)/(.*)$ /api/wiki?space=$1&page=$2 last; rewrite ^/(.*)$ /api/$1 last; }
            location /api/ { proxy_pass http://127.0.0.1:{backend}; proxy_set_header X-Real-IP $remote_addr; }
            location /grafana/ { rewrite ^/grafana/(.*) /$1 break; proxy_pass http://127.0.0.1:{backend}; }
            location /to/ { proxy_pass http://127.0.0.1:{backend}/other/; }
            location = /login { proxy_pass http://127.0.0.1:{backend}/sign-in; }
            location ~ ^/user/([0-9]+)$ { return 302 /profile/$1; }
            location ~* \.(bak|inc)$ { return 404; }
            location ~ /\.(?!well-known) { deny all; }
            location /cors/ {
                if ($request_method = OPTIONS) { return 204; }
                if ($arg_beta = 1) { return 200 "beta"; }
                if ($http_user_agent ~* bot) { return 403; }
                return 200 "cors";
            }
            location /only/ { if ($request_method !~ ^(GET|HEAD)$) { return 405; } alias {dir}/static/; }
        }
    "#;
    let Some((nginx, forebay)) = both(server, &folder, backend.port()) else { return };
    compare(
        &nginx,
        &forebay,
        &[
            "GET /",
            "GET /a-moved",
            "GET /app.js",
            "GET /w/main/Page",
            "GET /plain?x=1",
            "GET /api/x",
            "GET /grafana/d/1?x=2",
            "GET /to/a?b=1",
            "GET /login?u=1",
            "GET /user/42",
            "GET /user/x",
            "GET /x.BAK",
            "GET /x.inc",
            "GET /.git/config",
            "GET /sub/.env",
            "GET /api/v1%2Fx",
            "OPTIONS /cors/",
            "GET /cors/?beta=1",
            "GET /cors/",
            "GET /only/a.txt",
            "POST /only/a.txt",
        ],
    );
    // An encoded slash does not lead around the rule for names that begin with a dot.
    for path in ["/api/.git/config", "/api%2F.git/config", "/api/x%2F.git%2fconfig"] {
        let status = forebay.connect().get(path).status;
        assert!(matches!(status, 403 | 404), "{path}: {status}");
    }
}

#[test]
fn servers_get_the_path_as_nginx_decodes_it() {
    let Some(backend) = echo() else { return };
    let whole = "server { listen 127.0.0.1:{port}; server_name site.example; \
                 location / { proxy_pass http://127.0.0.1:{backend}/; } }";
    let parts = "server { listen 127.0.0.1:{port}; server_name site.example; \
                 location /a/ { proxy_pass http://127.0.0.1:{backend}/; } \
                 location /b/ { proxy_pass http://127.0.0.1:{backend}/new/; } \
                 location /c/ { proxy_pass http://127.0.0.1:{backend}; } }";
    let spellings = [
        "",
        "x",
        "x%2Fy",
        "x%2fy/z",
        "x%2F%2Fy",
        "%2Fx",
        "x%2F",
        "x/",
        "x%20y",
        "x+y",
        "%41y",
        "x%25y",
        "x%252Fy",
        "x%3Fy",
        "x%23y",
        "x?z=%2F",
        "x%2Fy?z=%41",
        "x%5Cy",
        "%C3%A4",
        "x;y",
        "x%3By",
        "x%26y",
        "x=y&z",
        "x%3Ay",
        "x%40y",
        "x%22y",
        "x%3Cy%3E",
        "x%7By%7D",
        "x%7Cy",
        "x%5Ey",
        "x%60y",
        "x~y",
        "x%7Ey",
        "x'y",
        "x%27y",
        "x(y)",
        "x%28y",
        "x!y",
        "x$y",
        "x,y",
        "x*y",
        "x%7Fy",
        "x[y]",
        "x%5By%5D",
    ];
    for (server, places) in [(whole, &["/"][..]), (parts, &["/a/", "/b/", "/c/"])] {
        let Some((nginx, forebay)) = both(server, &Folder::new(), backend.port()) else { return };
        let requests: Vec<_> = places
            .iter()
            .flat_map(|place| spellings.map(|spelling| format!("GET {place}{spelling}")))
            .chain(
                places
                    .iter()
                    .map(|place| format!("GET {place}x/%2E%2E/y"))
                    .filter(|path| !path.contains("/c/")),
            )
            .collect();
        compare(&nginx, &forebay, &requests.iter().map(String::as_str).collect::<Vec<_>>());
        forebay.stop();
    }
}

#[test]
fn verify_names_the_answers_that_differ() {
    let folder = tree();
    let Some(backend) = echo() else { return };
    let text = r#"
        server {
            listen 127.0.0.1:{port};
            server_name site.example;
            root {dir}/www;
            location /api/ { proxy_pass http://127.0.0.1:{backend}; }
            location /old { return 301 http://site.example/new; }
            location /id { add_header X-Id $request_id; return 204; }
        }
    "#;
    let text = text
        .replace("{dir}", folder.path().to_str().unwrap())
        .replace("{backend}", &backend.port().to_string());
    let Some(nginx) = peer::nginx(&text) else { return };
    let port = nginx.port().to_string();
    let file = folder.write("nginx.conf", text.replace("{port}", &port));
    let verify = |paths: &[&str], connect: &str| {
        let urls: Vec<_> = paths.iter().map(|path| format!("http://site.example{path}")).collect();
        let mut command = Command::new(support::program());
        command.args(["import", "nginx"]).arg(&file).arg("--connect").arg(connect);
        let output = command.arg("--verify").args(urls).output().unwrap();
        assert!(output.stdout.starts_with(b"# Imported from"), "{output:?}");
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let address = format!("127.0.0.1:{port}");
    let same = ["/", "/api/x?y=1", "/old", "/id", "/missing", "/dir"];
    let (code, report) = verify(&same, &address);
    assert_eq!((code, report.as_str()), (Some(0), "6 of 6 URLs have the same answer\n"));
    let (code, report) = verify(&["/", "/.hidden"], &address);
    assert_eq!(code, Some(1), "{report}");
    let line = "http://site.example/.hidden: status 404, before 200\n1 of 2 URLs";
    assert!(report.contains(line), "{report}");
    // Nothing listens on port 1.
    let (code, report) = verify(&["/"], "127.0.0.1:1");
    assert_eq!(code, Some(3), "{report}");
    assert!(report.contains("the old server does not answer"), "{report}");
    let (code, report) = verify(&["/a b"], &address);
    assert_eq!(code, Some(3), "{report}");
    assert!(report.contains("a character that a request cannot have"), "{report}");
}

#[test]
fn untranslatable_rules_stay_closed() {
    let folder = tree();
    let fixture = fixtures("nginx").into_iter().find(|path| path.ends_with("closed.conf")).unwrap();
    let text = filled(&fs::read_to_string(fixture).unwrap(), &folder);
    for dir in ["ldap", "lua", "missing", "users", "unless", "bot", "open"] {
        folder.write(&format!("www/{dir}/x.txt"), dir);
    }
    let (toml, notes) = import("nginx", &folder.write("closed.conf", text));
    let forebay = serve(Folder::new(), &toml.replace("0.0.0.0:8080", "127.0.0.1:0"));
    let closed = ["ldap", "lua", "jwt", "missing", "users", "unless", "bot"];
    for dir in closed.iter().chain((!has_key("forward_auth")).then_some(&"sub")) {
        assert_eq!(forebay.get(&format!("/{dir}/x.txt")).status, 403, "{dir}\n{toml}");
        assert_ne!(forebay.get(&format!("/{dir}%2Fx.txt")).status, 200, "{dir}\n{toml}");
        assert!(toml.contains(&format!("location /{dir}/")), "{toml}");
    }
    assert_eq!(forebay.get("/auth").status, 404);
    assert_eq!(forebay.get("/open/x.txt").text(), "open");
    assert!(notes.contains("closed.conf:6: auth_ldap Restricted;"), "{notes}");
}

#[test]
fn sections_of_apache_without_a_translation_are_named_and_closed() {
    let folder = Folder::new();
    let dir = folder.path().display().to_string();
    for name in ["perl/a.pl", "cgi/b", "suffix/c.pl", "suffix/d.txt", "in/e.txt", "tls/f.txt"] {
        folder.write(&format!("www/{name}"), "source");
    }
    let file = folder.write(
        "apache.conf",
        format!(
            "<VirtualHost *:80>\nServerName x\nDocumentRoot {dir}/www\n\
             <Directory {dir}/www/perl>\nSetHandler perl-script\n\
             PerlResponseHandler \"no name\"\nOptions +ExecCGI\n</Directory>\n\
             <Directory {dir}/www/cgi>\nSetHandler cgi-script\nOptions -ExecCGI\n</Directory>\n\
             <Directory {dir}/www/suffix>\nAddHandler perl-script .pl\n</Directory>\n\
             <Location /in>\nPerlAccessHandler My::Rule\nUnknownThing on\n</Location>\n\
             <Location /tls>\nSSLVerifyClient require\n</Location>\n</VirtualHost>\n"
        ),
    );
    let (toml, notes) = import("apache", &file);
    let forebay = serve(Folder::new(), &toml.replace(":80\"", "127.0.0.1:0\""));
    for (path, status) in [
        ("/perl/a.pl", 403),
        ("/cgi/b", 403),
        ("/suffix/c.pl", 403),
        ("/suffix/d.txt", 200),
        // `perl_gate` asks My::Rule, and no application has this module.
        ("/in/e.txt", 503),
        ("/tls/f.txt", 403),
    ] {
        assert_eq!(forebay.get(path).status, status, "{path}\n{toml}");
    }
    for line in ["SetHandler perl-script", "UnknownThing on", "SSLVerifyClient"] {
        assert!(notes.contains(line), "{line}: {notes}");
    }
}

#[test]
fn a_refused_line_closes_only_its_route() {
    let folder = tree();
    let text = "server { listen 8080; server_name a.example; root {dir}/www;\n\
                location /x/ { proxy_pass http://127.0.0.1:1; proxy_set_header X[y] 1; }\n}";
    let (toml, notes) = import("nginx", &folder.write("x.conf", filled(text, &folder)));
    let file = folder.write("site.toml", &toml);
    assert_eq!(run(&["check", file.to_str().unwrap()]).status.code(), Some(0), "{toml}");
    assert!(notes.contains("x.conf:2: location /x/"), "{notes}");
    let forebay = serve(Folder::new(), &toml.replace("0.0.0.0:8080", "127.0.0.1:0"));
    assert_eq!(forebay.get("/x/a").status, 403, "{toml}");
    assert_eq!(forebay.get("/index.html").text(), "index");
}

#[test]
fn hostile_files_are_refused_with_their_line() {
    let folder = Folder::new();
    let deep = "a {".repeat(100_000);
    let mut loops = "include loop.conf;".to_owned();
    for (language, text, error) in [
        ("nginx", "server {\n", "x.conf:1: this block has no end"),
        ("nginx", "server { } }\n", "x.conf:1: a } ends no block"),
        ("nginx", "server {\0}", "x.conf:1: a zero byte"),
        ("nginx", &deep, "deep"),
        ("nginx", "", "no server"),
        ("apache", "<VirtualHost *>\n", "x.conf:1: <VirtualHost> has no end"),
        ("apache", "Include x.conf\n", "includes itself"),
        ("caddy", "a {\n", "x.conf:1: this block has no end"),
        ("caddy", "", "no site"),
    ] {
        let file = folder.write("x.conf", text);
        let output = run(&["import", language, file.to_str().unwrap()]);
        let told = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{language} {told}");
        assert!(told.contains(error) && told.contains("help: "), "{language}: {told}");
        assert!(output.stdout.is_empty());
    }
    loops.push('\n');
    let file = folder.write("loop.conf", &loops);
    let told = String::from_utf8(run(&["import", "nginx", file.to_str().unwrap()]).stderr).unwrap();
    assert!(told.contains("includes itself"), "{told}");
    let large = fs::File::create(folder.path().join("large.conf")).unwrap();
    large.set_len(100 * 1024 * 1024).unwrap();
    let path = folder.path().join("large.conf");
    let told = String::from_utf8(run(&["import", "nginx", path.to_str().unwrap()]).stderr).unwrap();
    assert!(told.contains("larger than 4 MiB"), "{told}");
}

#[test]
fn streams_of_nginx_are_translated_and_never_become_more_open() {
    let folder = tree();
    let text = "events {}\nstream {\nlog_format x '$remote_addr';\n\
        map $ssl_preread_server_name $to { hostnames; db.example.org db; .example.com 10.0.0.9:1; \
        ~^x 10.0.0.8:1; default other; }\n\
        upstream db { least_conn; server 10.0.0.1:5432 weight=3 max_fails=2 fail_timeout=5s; \
        server 10.0.0.2:5432 backup max_fails=2 fail_timeout=5s; }\n\
        upstream other { hash $remote_addr consistent; server 10.0.0.3:5432; server 10.0.0.4:5432; }\n\
        server { listen 127.0.0.1:5432; ssl_preread on; proxy_pass $to; proxy_protocol on; }\n\
        server { listen 127.0.0.1:5433 ssl; ssl_certificate {dir}/cert.pem; \
        ssl_certificate_key {dir}/key.pem; proxy_pass other; proxy_timeout 1h; allow 10.0.0.0/8; \
        deny all; }\n\
        server { listen 127.0.0.1:53 udp; proxy_pass 10.0.0.5:53; proxy_responses 1; }\n\
        server { listen 127.0.0.1:5434 proxy_protocol; set_real_ip_from 10.0.0.0/8; \
        proxy_connect_timeout 3s; proxy_ssl on; proxy_ssl_name db.example.org; \
        proxy_pass 10.0.0.6:5432; }\n\
        server { listen 127.0.0.1:7001; allow $who; deny all; proxy_pass 10.0.0.7:1; }\n\
        server { listen 127.0.0.1:7002; js_access check; proxy_pass 10.0.0.7:2; }\n\
        server { listen 127.0.0.1:7003 ssl; ssl_certificate {dir}/cert.pem; \
        ssl_certificate_key {dir}/key.pem; ssl_verify_client on; proxy_pass 10.0.0.7:3; }\n\
        server { listen 127.0.0.1:7004 proxy_protocol; allow 10.0.0.1; deny all; \
        proxy_pass 10.0.0.7:4; }\n\
        server { listen 127.0.0.1:7005-7009; proxy_pass 10.0.0.7:5; }\n\
        server { listen 127.0.0.1:7006; proxy_bind 10.0.0.1; proxy_pass 10.0.0.7:6; }\n}\n";
    let file = folder.write("nginx.conf", filled(text, &folder));
    let (toml, notes) = import("nginx", &file);
    for line in [
        "sni = [\"db.example.org\"]",
        "sni = [\"example.com\", \"*.example.com\"]",
        "send_proxy = \"v1\"",
        "to = \"@db-2\"",
        "balance = \"least-connections\"",
        "{ url = \"10.0.0.1:5432\", weight = 3 }",
        "balance = \"hash\"",
        "allow = [\"10.0.0.0/8\"]",
        "idle_timeout = \"1h\"",
        "listen = [\"udp://127.0.0.1:53\"]",
        "to = \"tls://10.0.0.6:5432\"",
        "server_tls = { server_name = \"db.example.org\" }",
        "trusted_proxies = [\"10.0.0.0/8\"]",
        "connect_timeout = \"3s\"",
        "to = \"10.0.0.7:6\"",
    ] {
        assert!(toml.contains(line), "no {line} in\n{toml}");
    }
    for server in 1..=5 {
        assert!(!toml.contains(&format!("\"10.0.0.7:{server}\"")), "{server}\n{toml}");
    }
    for part in ["js_access check", "7005-7009", "~^x", "proxy_bind", "PROXY header"] {
        assert!(notes.contains(part), "no {part} in\n{notes}");
    }
    assert!(!notes.contains("log_format") && !notes.contains("proxy_responses"), "{notes}");
    let site = folder.write("site.toml", &toml);
    let checked = run(&["check", site.to_str().unwrap()]);
    let error = String::from_utf8_lossy(&checked.stderr).into_owned();
    assert_eq!(checked.status.code(), Some(0), "{error}\n{toml}");
}

#[test]
fn mirrors_and_rates_of_nginx_are_translated() {
    let folder = Folder::new();
    let text = "events {}\nhttp {\nupstream next { server 10.0.0.2:80; }\nserver {\nlisten \
        127.0.0.1:8080;\nlimit_rate 100k;\nlocation / { mirror /copy; proxy_pass \
        http://10.0.0.1; }\nlocation /big/ { mirror off; limit_rate_after 1m; proxy_pass \
        http://10.0.0.1; }\nlocation /odd/ { mirror /odd; limit_rate $rate; proxy_pass \
        http://10.0.0.1; }\nlocation = /copy { internal; proxy_pass http://next$request_uri; \
        }\nlocation = /odd { internal; proxy_pass http://next/other; }\n}\n}\n";
    let file = folder.write("nginx.conf", text);
    let (toml, notes) = import("nginx", &file);
    for line in [
        "mirror = { to = \"@next\", credentials = true }",
        "bandwidth_limit = \"100KiB\"",
        "bandwidth_limit = { rate = \"100KiB\", after = \"1MiB\" }",
    ] {
        assert!(toml.contains(line), "no {line} in\n{toml}");
    }
    assert_eq!(toml.matches("\n  mirror = {").count(), 1, "{toml}");
    assert!(notes.contains("mirror /odd") && notes.contains("limit_rate $rate"), "{notes}");
    let site = folder.write("site.toml", &toml);
    let checked = run(&["check", site.to_str().unwrap()]);
    let error = String::from_utf8_lossy(&checked.stderr).into_owned();
    assert_eq!(checked.status.code(), Some(0), "{error}\n{toml}");
}
