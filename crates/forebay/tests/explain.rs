//! `forebay explain`: shows what would happen to a request, without starting anything.

use std::process::{Command, Output};

use forebay_testkit::folder::Folder;

const SITES: &str = "
[[site]]
listen = \"127.0.0.1:8080\"
hosts = [\"example.org\"]
trusted_proxies = [\"127.0.0.1\"]

  [[site.route]]
  path = \"/cgi-bin/*\"
  cgi = { dir = \"cgi\", env = { STAGE = \"test\" } }

  [[site.route]]
  suffix = [\".php\", \".phtml\"]
  fastcgi = { to = \"unix:php.sock\", root = \"htdocs\", params = { A = \"b\" } }

  [[site.route]]
  path = \"/*\"
  fallback = true
  files = \"htdocs\"

  [[site.route]]
  path = \"/app/*\"
  app = \"scripts\"

  [[site.route]]
  path = \"/old\"
  redirect = \"/new\"

  [[site.route]]
  path = \"/shop/*\"
  methods = [\"GET\", \"POST\"]
  max_body = 100
  proxy = { to = \"http://backend.invalid:1\", strip_prefix = \"/shop\" }

[[site]]
listen = \"127.0.0.1:8080\"
hosts = \"*.example.org\"

  [[site.route]]
  respond = \"wild\"

[[site]]
listen = [\"127.0.0.1:8080\", \"0.0.0.0:81\"]

  [[site.route]]
  respond = { status = 404, body = \"any\" }

[[site]]
listen = \"127.0.0.1:83\"

  [[site.route]]
  path = \"/scgi/*\"
  scgi = { to = \"unix:app.sock\", root = \"htdocs\", mount = \"/scgi\", params = { A = \"b\" } }

  [[site.route]]
  path = \"/uwsgi/*\"
  uwsgi = { to = \"@two\" }

[upstream.two]
to = [\"127.0.0.1:1\", \"127.0.0.1:2\"]

  [[site.route]]
  path = \"/ajp/*\"
  ajp = { to = \"@containers\", secret = \"unspoken\" }

[upstream.containers]
to = [{ url = \"127.0.0.1:1\", route = \"a\", redirect = \"b\" },
      { url = \"127.0.0.1:2\", route = \"b\", activation = \"disabled\" },
      { url = \"127.0.0.1:3\", distance = 2, backup = true, activation = \"stopped\" },
      { url = \"127.0.0.1:4\", backup = true, distance = 1 }]

[app.scripts]
kind = \"perl-cgi\"
dir = \"scripts\"
";

fn folder() -> Folder {
    let folder = Folder::new();
    folder.write("site.toml", SITES);
    folder.write("htdocs/a.txt", "a");
    folder.write("htdocs/x.php", "");
    folder.write("htdocs/dir/index.html", "");
    folder.script("cgi/hello.pl", "#!/nonexistent/interpreter\n");
    folder.write("scripts/time.pl", "die 'never run'");
    folder
}

fn run(folder: &Folder, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_forebay"));
    command.arg("explain").arg(folder.path().join("site.toml")).args(arguments);
    command.output().expect("forebay runs")
}

#[track_caller]
fn assert_says(folder: &Folder, arguments: &[&str], lines: &[&str]) {
    let output = run(folder, arguments);
    let text = String::from_utf8(output.stdout).unwrap();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(0), "{arguments:?}: {errors}");
    for line in lines {
        let line = line.replace("{tmp}", folder.path().to_str().unwrap());
        assert!(text.lines().any(|l| l.trim_end() == line), "no {line:?} in:\n{text}");
    }
}

#[test]
fn a_cgi_script_and_its_variables() {
    let url = "http://example.org:8080/cgi-bin/hello.pl/more%20x?q=1#part";
    assert_says(
        &folder(),
        &[url, "-X", "POST", "-H", "Content-Length: 3", "-H", "Proxy: x", "-H", "X-A: 1"],
        &[
            "request   POST /cgi-bin/hello.pl/more%20x?q=1",
            "site      line 2: it names the host example.org",
            "route     line 7: path = \"/cgi-bin/*\"",
            "origin    cgi: a process for the request",
            "script    {tmp}/cgi/hello.pl",
            "  SCRIPT_NAME=/cgi-bin/hello.pl",
            "  PATH_INFO=/more x",
            "  QUERY_STRING=q=1",
            "  SERVER_PORT=8080",
            "  CONTENT_LENGTH=3",
            "  HTTP_X_A=1",
            "  STAGE=test",
        ],
    );
    let output = run(&folder(), &[url, "-H", "Proxy: x"]);
    assert!(!String::from_utf8_lossy(&output.stdout).contains("HTTP_PROXY"));
}

#[test]
fn files_fallback_fastcgi_and_applications() {
    let folder = folder();
    assert_says(
        &folder,
        &["/a.txt"],
        &["origin    files below {tmp}/htdocs", "file      {tmp}/htdocs/a.txt"],
    );
    assert_says(&folder, &["/dir/"], &["file      {tmp}/htdocs/dir/index.html"]);
    assert_says(
        &folder,
        &["/dir"],
        &["answer    301 to the same path with a slash: it is a directory"],
    );
    assert_says(&folder, &["/x.php/info"], &["  SCRIPT_NAME=/x.php", "  PATH_INFO=/info"]);
    assert_says(
        &folder,
        &["/x.php"],
        &[
            "route     line 11: suffix = [\".php\", \".phtml\"]",
            "script    {tmp}/htdocs/x.php",
            "  SCRIPT_FILENAME={tmp}/htdocs/x.php",
            "  A=b",
        ],
    );
    assert_says(&folder, &["/y.php"], &["answer    404 no such script: {tmp}/htdocs/y.php"]);
    assert_says(
        &folder,
        &["/app/time.pl?now"],
        &[
            "route     line 15: path = \"/*\"",
            "          no file \"app/time.pl\": left to the routes below",
            "route     line 20: path = \"/app/*\"",
            "origin    app scripts: a worker of [app.scripts] for Perl",
            "script    {tmp}/scripts/time.pl",
            "  SCRIPT_NAME=/app/time.pl",
        ],
    );
    assert_says(&folder, &["/old"], &["origin    a redirection: 302 to /new"]);
    assert_says(&folder, &["/nothing"], &["answer    404 no file \"nothing\""]);
}

#[test]
fn a_redirection_to_https_answers_instead_of_the_routes() {
    let folder = Folder::new();
    let site = "[[site]]\nlisten = [\"127.0.0.1:8092\", \"https://127.0.0.1:8443\"]\n\
                redirect_to_https = true\ntls = { certificate = \"c.pem\", key = \"k.pem\" }\n\
                [[site.route]]\nproxy = \"http://127.0.0.1:1\"\n";
    for (name, content) in [("site.toml", site), ("c.pem", ""), ("k.pem", "")] {
        folder.write(name, content);
    }
    let to = "a redirection: 308 to https://example.org:8443/x?y";
    let plain = run(&folder, &["http://example.org:8092/x?y"]);
    let plain = String::from_utf8(plain.stdout).unwrap();
    assert!(plain.contains("`redirect_to_https`") && plain.contains(to), "{plain}");
    assert!(!plain.contains("127.0.0.1:1"), "{plain}");
    let secure = run(&folder, &["https://example.org:8443/x?y"]);
    let secure = String::from_utf8(secure.stdout).unwrap();
    assert!(!secure.contains("308") && secure.contains("127.0.0.1:1"), "{secure}");
}

#[test]
fn a_proxy_and_what_it_would_send() {
    let folder = folder();
    let url = "http://example.org:8080/shop/cart?x";
    assert_says(
        &folder,
        &[url, "-H", "X-Forwarded-For: 192.0.2.1", "-H", "Connection: close, X-B", "-H", "X-B: 1"],
        &[
            "route     line 28: path = \"/shop/*\", methods = [\"GET\", \"POST\"]",
            "origin    proxy: backend.invalid:1",
            "  GET /cart?x HTTP/1.1",
            "  Host: example.org:8080",
            "  X-Forwarded-For: 192.0.2.1, 127.0.0.1",
        ],
    );
    assert_says(
        &folder,
        &[url, "-X", "POST", "-H", "Content-Length: 101"],
        &["answer    413 the body is larger than 100 bytes"],
    );
    assert_says(&folder, &[url, "-X", "PUT"], &["answer    404 files take GET and HEAD"]);
}

#[test]
fn the_site_and_why() {
    let folder = folder();
    for (url, line) in [
        (
            "http://a.example.org:8080/",
            "site      line 34: *.example.org is the longest pattern on 127.0.0.1:8080 that fits a.example.org",
        ),
        (
            "http://other:8080/",
            "site      line 41: no site on 127.0.0.1:8080 names other, and this one takes any host",
        ),
        ("http://example.org:81/", "site      line 41: the only site on 0.0.0.0:81"),
        ("http://example.org:82/", "          no site listens on port 82; taken to 127.0.0.1:8080"),
    ] {
        assert_says(&folder, &[url], &[line]);
    }
    let host = ["http://127.0.0.1:8080/", "-H", "Host: a.example.org"];
    assert_says(&folder, &host, &["origin    a fixed reply: 200 (text/plain; charset=utf-8)"]);
    let clean = "http://example.org:8080/x/../a.txt";
    assert_says(&folder, &[clean], &["file      {tmp}/htdocs/a.txt"]);
    assert_says(&folder, &["/../a"], &["answer    400 the path leads above the root"]);
}

#[test]
fn programs_that_listen_by_themselves_are_told_what_they_are_sent() {
    let folder = folder();
    let app = |name: &str, keys: &str| {
        format!("[[site.route]]\npath = \"/{name}/*\"\napp = \"{name}\"\n[app.{name}]\n{keys}\n")
    };
    let sites = [
        "[[site]]\nlisten = 8080\n".to_owned(),
        app(
            "own",
            "kind = \"command\"\nrun = [\"x\", \"{socket}\"]\nspeaks = \"http\"\n\
             sticky = { cookie = \"w\" }",
        ),
        app(
            "named",
            "kind = \"command\"\nrun = [\"x\", \"{port}\"]\nspeaks = \"http\"\nhost = \"backend\"",
        ),
        app("fast", "kind = \"command\"\nrun = [\"x\", \"{port}\"]\nspeaks = \"fastcgi\""),
        app("php", "kind = \"php\"\nroot = \"htdocs\""),
        app("net", "kind = \"mono\"\ndir = \"htdocs\"\nvirtual_path = \"/net\""),
    ];
    // Routes belong to the site above them, applications to the file.
    let (routes, apps): (Vec<_>, Vec<_>) =
        sites[1..].iter().map(|text| text.split_at(text.find("[app").unwrap())).unzip();
    folder.write("site.toml", format!("{}{}{}", sites[0], routes.concat(), apps.concat()));
    folder.write("htdocs/php/x.php", "");
    assert_says(
        &folder,
        &["/own/a?b"],
        &[
            "origin    app own: a process of [app.own], over HTTP",
            "sticky    the process that the cookie w names, if it has room",
            "  GET /own/a?b HTTP/1.1",
        ],
    );
    assert_says(&folder, &["/named/a"], &["  Host: 127.0.0.1:{port}"]);
    let variables = [
        "origin    app fast: a process of [app.fast], over FastCGI",
        "  SCRIPT_NAME=/fast",
        "  PATH_INFO=/a",
    ];
    assert_says(&folder, &["/fast/a"], &variables);
    assert_says(
        &folder,
        &["/php/x.php/i"],
        &["script    {tmp}/htdocs/php/x.php", "  PATH_INFO=/i"],
    );
    let variables = [
        "origin    app net: a process of [app.net], over FastCGI",
        "  SCRIPT_NAME=/net/a.ashx",
        "  DOCUMENT_ROOT={tmp}/htdocs",
    ];
    assert_says(&folder, &["/net/a.ashx"], &variables);
    assert_says(
        &folder,
        &["/php/missing.php"],
        &["answer    404 no such script: {tmp}/htdocs/php/missing.php"],
    );
}

#[test]
fn bad_input_is_2() {
    let folder = folder();
    for (arguments, said) in [
        (&["ftp://x/"][..], "is not a URL"),
        (&["http://"], "names no host"),
        (&["http://h:99999/"], "no valid port"),
        (&["/a b"], "percent-encoded"),
        (&["/", "-H", "nonsense"], "refused with 400"),
        (&["/", "-H", "A: b\r\nC: d"], "one line"),
        (&["/", "-H", "Host: a", "-H", "Host: b"], "refused with 400"),
        (&["/", "-X", "G T"], "refused with 400"),
    ] {
        let output = run(&folder, arguments);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {errors}");
        assert!(errors.contains(said), "{arguments:?}: {errors}");
        assert!(output.stdout.is_empty());
    }
    folder.write("site.toml", "[[site]]\nlisten = 1\nnonsense = 2\n");
    assert_eq!(run(&folder, &["/"]).status.code(), Some(2));
    let output = Command::new(env!("CARGO_BIN_EXE_forebay")).arg("explain").output().unwrap();
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn scgi_and_uwsgi_applications() {
    let folder = folder();
    let url = "http://127.0.0.1:83/scgi/a%20b?q";
    assert_says(
        &folder,
        &[url, "-X", "POST", "-H", "Content-Length: 3"],
        &[
            "origin    scgi: unix:{tmp}/app.sock",
            "  CONTENT_LENGTH=3",
            "  SCGI=1",
            "  SCRIPT_NAME=/scgi",
            "  PATH_INFO=/a b",
            "  DOCUMENT_ROOT={tmp}/htdocs",
            "  A=b",
        ],
    );
    let url = "http://127.0.0.1:83/uwsgi/x";
    let origin = "origin    uwsgi: [upstream.two], 127.0.0.1:1, in turn with 127.0.0.1:2";
    assert_says(&folder, &[url], &[origin, "  SCRIPT_NAME=", "  PATH_INFO=/uwsgi/x"]);
    let large = format!("X-A: {}", "v".repeat(65_535));
    let output = run(&folder, &[url, "-H", &large]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.contains("answer    431 variables of "), "{text}");
    assert!(text.contains("but uwsgi allows at most 65535"), "{text}");
}

#[test]
fn servlet_containers() {
    let folder = folder();
    let url = "http://127.0.0.1:83/ajp/a%20b?q";
    assert_says(
        &folder,
        &[url, "-X", "PATCH", "-H", "X-A: b"],
        &[
            "origin    ajp: [upstream.containers], 127.0.0.1:1 or 127.0.0.1:2 or 127.0.0.1:3 or \
             127.0.0.1:4",
            "server    127.0.0.1:1: 127.0.0.1:2 takes its place",
            "server    127.0.0.1:2: disabled: only for clients that stay with it",
            "server    127.0.0.1:3: backup, distance 2, stopped",
            "server    127.0.0.1:4: backup, distance 1",
            "  PATCH /ajp/a%20b HTTP/1.1",
            "  Host: 127.0.0.1:83",
            "  X-A: b",
            "  query_string=q",
            "  server_name=127.0.0.1",
            "  server_port=83",
            "  is_ssl=false",
            "  secret=(not shown)",
            "  AJP_LOCAL_ADDR=127.0.0.1",
        ],
    );
    let output = run(&folder, &[url]);
    assert!(!String::from_utf8_lossy(&output.stdout).contains("unspoken"));
    let large = format!("X-A: {}", "v".repeat(8192));
    let output = run(&folder, &[url, "-H", &large]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.contains("answer    431 the request does not fit one packet"), "{text}");
}

#[test]
fn cookies_query_and_forms_are_decoded() {
    let folder = folder();
    let url = "http://example.org:8080/shop/x?q=a+b&%C3%A9=";
    assert_says(
        &folder,
        &[url, "-H", "Cookie: a=b; c=\"d\"", "--body", "user=ann%40example.org&n=%zz&\u{1}"],
        &[
            "request   POST /shop/x?q=a+b&%C3%A9=",
            "  Content-Length: 30",
            "  Content-Type: application/x-www-form-urlencoded",
            "cookies",
            "  a=b",
            "  c=\"d\"",
            "query",
            "  q=a b",
            "  \u{e9}=",
            "form",
            "  user=ann@example.org",
            "  n=%zz",
            "  \\u{1}=",
        ],
    );
    let output = run(&folder, &["/shop/x"]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    for label in ["cookies", "query", "form", "body"] {
        assert!(!text.lines().any(|line| line.starts_with(label)), "{label} in:\n{text}");
    }
}

#[test]
fn forms_in_parts_are_taken_apart() {
    let folder = folder();
    let form = "--B\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\none\r\n\
        --B\r\nContent-Disposition: form-data; name=\"f\"; filename=\"x.png\"\r\n\
        Content-Type: image/png\r\n\r\n\u{1}\u{2}\r\n--B--\r\n";
    let file = folder.write("form", form);
    let file = file.to_str().unwrap();
    let kind = "Content-Type: multipart/form-data; boundary=B";
    assert_says(
        &folder,
        &["/old", "--body-file", file, "-H", kind],
        &["form", "  a=one", "  f: file x.png, image/png, 2 bytes"],
    );
    let broken = ["/old", "--body", "--B\r\n", "-H", kind];
    let why = "form      none that can be read: the form ended before its last delimiter";
    assert_says(&folder, &broken, &[why]);
    let json = ["/old", "--body", "{}", "-H", "Content-Type: application/json"];
    assert_says(&folder, &json, &["body      2 bytes of application/json"]);
}

#[test]
fn a_body_without_an_end_is_not_read() {
    let output = run(&folder(), &["/old", "--body-file", "/dev/zero"]);
    assert_eq!(output.status.code(), Some(2));
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(error.contains("--body-file /dev/zero: it is larger than 64 MiB"), "{error}");
}

#[test]
fn a_body_of_another_length_than_told_is_a_mistake() {
    let output = run(&folder(), &["/old", "--body", "abc", "-H", "Content-Length: 4"]);
    assert_eq!(output.status.code(), Some(2));
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(errors.contains("Content-Length says 4 bytes, the body has 3"), "{errors}");
}

#[test]
fn scripts_hidden_names_and_front_controllers() {
    let folder = Folder::new();
    for name in ["index.php", "sub/index.php", "a.php", ".env", "a.txt"] {
        folder.write(&format!("htdocs/{name}"), "<?php");
    }
    folder.write(
        "site.toml",
        "[[site]]\nlisten = \"127.0.0.1:8080\"\n[[site.route]]\npath = \"/*\"\n\
         fallback_to = \"/index.php\"\nfiles = \"htdocs\"\n[[site.route]]\nsuffix = \".php\"\n\
         fastcgi = { to = \"unix:php.sock\", root = \"htdocs\" }\n",
    );
    let to_index = "          no file \"2026/hello\": routed again as /index.php";
    assert_says(&folder, &["/2026/hello"], &[to_index, "script    {tmp}/htdocs/index.php"]);
    assert_says(&folder, &["/2026/hello"], &["  REQUEST_URI=/2026/hello", "  PATH_INFO="]);
    assert_says(&folder, &["/sub/"], &["index     /sub/index.php", "  REQUEST_URI=/sub/"]);
    assert_says(
        &folder,
        &["/sub"],
        &["answer    301 to the same path with a slash: it is a directory"],
    );
    let left = "          a script of the route on line 7; its source is not sent: left to the routes below";
    assert_says(&folder, &["/a.php"], &[left, "script    {tmp}/htdocs/a.php"]);
    assert_says(&folder, &["/a.php/x"], &[left, "script    {tmp}/htdocs/a.php", "  PATH_INFO=/x"]);
    folder.write("htdocs/a.php~", "<?php");
    assert_says(&folder, &["/a.php~"], &[left]);
    assert_says(
        &folder,
        &["/.env"],
        &[
            "          \".env\" begins with a dot, and `hidden` is false: routed again as /index.php",
        ],
    );
    assert_says(&folder, &["/a.txt"], &["file      {tmp}/htdocs/a.txt"]);
    let fifo = folder.path().join("htdocs/fifo");
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    assert_says(&folder, &["/fifo"], &["answer    403 neither a file nor a directory"]);
}

#[test]
fn rewrites_conditions_and_changed_fields_are_shown() {
    let folder = Folder::new();
    folder.write("htdocs/doku.php", "<?php");
    folder.write(
        "site.toml",
        "[[site]]\nlisten = \"127.0.0.1:8080\"\n\
         [[site.route]]\npath_regex = '^/wiki/(?<title>.+)$'\nwhen = { header.X-Beta = \"1\" }\n\
         rewrite = \"/api/{title}?t={title}\"\n\
         [[site.route]]\npath = \"/api/*\"\nproxy = \"http://127.0.0.1:3000\"\n\
         request_headers = { X-Real-IP = \"{client}\", X-Old = \"\" }\n\
         set_headers = { X-Path = \"{path}\", X-All = { value = \"1\", always = true } }\n\
         [[site.route]]\npath = \"/v1/*\"\nrewrite = \"/api/{rest}\"\n\
         proxy = \"http://127.0.0.1:3001\"\n\
         [[site.route]]\nfallback_to = \"/doku.php?id={rest}\"\nfiles = \"htdocs\"\n\
         [[site.route]]\nsuffix = \".php\"\n\
         fastcgi = { to = \"unix:php.sock\", root = \"htdocs\" }\n",
    );
    assert_says(
        &folder,
        &["/wiki/a&b?c", "-H", "X-Beta: 1", "-H", "X-Old: 2", "-H", "X-Real-IP: 9.9.9.9"],
        &[
            "route     line 3: path_regex = \"^/wiki/(?<title>.+)$\", the conditions of `when`",
            "rewrite   as /api/a&b?t=a%26b&c",
            "route     line 7: path = \"/api/*\"",
            "  X-Real-IP: 127.0.0.1",
            "  X-Path: /api/a&b (unless the status is 400 or more)",
            "  X-All: 1",
        ],
    );
    assert_says(&folder, &["/v1/x"], &["rewrite   as /api/x"]);
    assert_says(
        &folder,
        &["/wiki/a?do=edit"],
        &[
            "          no file \"wiki/a\": routed again as /doku.php?id=wiki/a&do=edit",
            "  REQUEST_URI=/wiki/a?do=edit",
        ],
    );
}

#[test]
fn a_root_above_the_file_is_told_by_its_real_path_and_one_of_a_container_need_not_exist() {
    let folder = Folder::new();
    folder.script("htdocs/a.cgi", "#!/bin/sh\n");
    folder.write("htdocs/a.php", "<?php");
    std::fs::create_dir(folder.path().join("releases")).unwrap();
    std::os::unix::fs::symlink("../htdocs", folder.path().join("releases/now")).unwrap();
    let text = "[[site]]\nlisten = \"127.0.0.1:8080\"\n[[site.route]]\npath = \"/releases/now/*\"\n\
        cgi = \"releases/../releases/now\"\n[[site.route]]\nsuffix = \".cgi\"\ncgi = \"releases/../htdocs\"\n\
        [[site.route]]\npath = \"/srv/*\"\nsuffix = \".php\"\n\
        fastcgi = { to = \"unix:php.sock\", root = \"/no/such/place\" }\n\
        [[site.route]]\nsuffix = \".php\"\n\
        fastcgi = { to = \"unix:php.sock\", root = \"releases/../htdocs\" }\n";
    folder.write("site.toml", text);
    let real = ["  DOCUMENT_ROOT={tmp}/htdocs", "  SCRIPT_FILENAME={tmp}/htdocs/a.cgi"];
    assert_says(&folder, &["/a.cgi"], &real);
    assert_says(&folder, &["/a.php"], &["  SCRIPT_FILENAME={tmp}/htdocs/a.php"]);
    let link = "  SCRIPT_FILENAME={tmp}/releases/now/a.cgi";
    assert_says(&folder, &["/releases/now/a.cgi"], &[link]);
    let there = "  SCRIPT_FILENAME=/no/such/place/srv/a.php";
    assert_says(&folder, &["/srv/a.php"], &[there]);
    let mut command = Command::new(env!("CARGO_BIN_EXE_forebay"));
    let output = command.arg("check").arg(folder.path().join("site.toml")).output().unwrap();
    let warning = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(0), "{warning}");
    assert!(warning.contains("/no/such/place is not a directory on this machine"), "{warning}");
}

#[test]
fn a_rule_that_holds_for_another_path_and_one_that_does_not() {
    let folder = Folder::new();
    for name in ["admin.php", "index.php", "up/evil.php", "private/a.txt"] {
        folder.write(&format!("htdocs/{name}"), "<?php");
    }
    folder.write(
        "site.toml",
        "[[site]]\nlisten = \"127.0.0.1:8080\"\n[[site.route]]\npath = \"/admin.php\"\n\
         deny = \"127.0.0.0/8\"\nrespond = \"in\"\n[[site.route]]\npath = \"/up/*\"\nfallback = true\n\
         files = \"htdocs/up\"\n[[site.route]]\nsuffix = \".php\"\n\
         fastcgi = { to = \"unix:php.sock\", root = \"htdocs\" }\n[[site.route]]\npath = \"/private/*\"\n\
         deny = \"192.0.2.0/24\"\nfiles = \"htdocs/private\"\n[[site.route]]\npath = \"/all/*\"\n\
         files = \"htdocs\"\n",
    );
    let refused = "answer    403 `allow` or `deny` refuses 127.0.0.1";
    assert_says(
        &folder,
        &["/admin.php/x"],
        &["rule      the one on line 3 applies to /admin.php", refused],
    );
    let kept = "answer    404 a script in a directory of a `files` route above, which allows no scripts there";
    assert_says(&folder, &["/up/evil.php"], &[kept]);
    assert_says(&folder, &["/up/evil.php/x.php"], &[kept]);
    assert_says(&folder, &["/index.php/x"], &["script    {tmp}/htdocs/index.php"]);
    let mono = "[[site]]\nlisten = \"127.0.0.1:8080\"\n[[site.route]]\npath = \"/Admin/*\"\n\
                deny = \"127.0.0.0/8\"\nrespond = \"in\"\n[[site.route]]\napp = \"m\"\n\
                [app.m]\nkind = \"mono\"\ndir = \"htdocs\"\n";
    let plain = std::fs::read_to_string(folder.path().join("site.toml")).unwrap();
    folder.write("site.toml", mono);
    let holds = "rule      the one on line 3 applies to /aDMIN/users";
    assert_says(&folder, &["/aDMIN/users"], &[holds, refused]);
    folder.write("site.toml", plain);
    let beside = "no rule   that of line 14 protects the same, and does not take this path";
    assert_says(
        &folder,
        &["/all/private/a.txt"],
        &[beside, "file      {tmp}/htdocs/private/a.txt"],
    );
}

#[test]
fn keys_from_other_tables_are_shown_with_their_place_and_no_secret() {
    let folder = Folder::new();
    folder.write("token", "hunter2-hunter2");
    folder.write(
        "site.toml",
        "include = \"more.toml\"\n[defaults]\nlisten = \"127.0.0.1:8080\"\ncompress = true\n\
         set_headers = { \"X-A\" = \"1\", \"X-B\" = \"{file.token}\" }\n\
         [[site]]\nhosts = \"a.example\"\n[site.defaults]\nexpires = \"1h\"\n\
         [[site.route]]\nuse = \"more\"\nset_headers = { \"X-A\" = \"2\" }\n\
         proxy = { to = \"http://127.0.0.1:1\" }\n\
         [[site]]\nhosts = \"b.example\"\n[[site.route]]\npath = \"/{file.token}\"\nrespond = \"x\"\n\
         [[site.route]]\napp = \"x\"\n\
         [app.x]\nkind = \"psgi\"\nfile = \"token\"\nenv = { TOKEN = \"{file.token}\" }\n",
    );
    folder.write("more.toml", "[set.more]\nallow = [\"127.0.0.1\"]\n");
    assert_says(
        &folder,
        &["http://a.example:8080/"],
        &[
            "site      line 6: it names the host a.example",
            "          listen = \"127.0.0.1:8080\" from [defaults], line 3",
            "          allow = [\"127.0.0.1\"] from [set.more], line 2 of {tmp}/more.toml",
            "          expires = \"1h\" from [site.defaults], line 9",
            "          compress = true from [defaults], line 4",
            "          set_headers.X-B = \"{file.token}\" from [defaults], line 5",
        ],
    );
    for path in ["/hunter2-hunter2", "/x"] {
        let output = run(&folder, &[&format!("http://b.example:8080{path}")]);
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(!text.contains("hunter2") && text.contains("{file.token}"), "{text}");
    }
}

#[test]
fn routes_on_one_line_are_told_apart() {
    let folder = Folder::new();
    folder.write("htdocs/a.php", "x");
    folder.write("htdocs/only.pl", "x");
    folder.write(
        "site.toml",
        "[[site]]\nlisten = \"127.0.0.1:8080\"\nroute = [{ path = \"/*\", fallback = true, files = \
         \"htdocs\" }, { path = \"/*\", suffix = \".php\", fastcgi = { to = \"127.0.0.1:1\", root = \
         \"htdocs\" } }, { suffix = \".pl\", path = \"/only.pl\", fastcgi = { to = \"127.0.0.1:2\", root = \
         \"htdocs\", scripts = [\".pl\"] } }]\n",
    );
    let a_script = "          a script of the route on line 3; its source is not sent: left to the routes below";
    assert_says(
        &folder,
        &["/a.php/x"],
        &[a_script, "origin    fastcgi: 127.0.0.1:1", "  PATH_INFO=/x"],
    );
    // The route of .pl takes only a path that ends after the name. The route of .php also takes
    // more path.
    let output = run(&folder, &["/only.pl/x"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("no file \"only.pl/x\"") && !text.contains("a script of"), "{text}");
}

#[test]
fn the_variant_in_the_clients_language_is_named() {
    let folder = Folder::new();
    folder.write("htdocs/index.html.en", "x");
    folder.write("htdocs/index.html.de", "x");
    folder.write(
        "site.toml",
        "[[site]]\nlisten = \"127.0.0.1:8080\"\nexpect = [\"/ -> 200\", \"/index.html -> 200\", \
         \"/none.html -> 404\"]\n[[site.route]]\nfiles = { root = \"htdocs\", languages = [\"en\", \
         \"de\"] }\n",
    );
    let url = "http://127.0.0.1:8080/";
    for (arguments, name) in [
        (&[url, "-H", "Accept-Language: de-AT"][..], "index.html.de"),
        (&[url, "-H", "Accept-Language: fr"], "index.html.en"),
        (&["http://127.0.0.1:8080/index.html.de"], "index.html.de"),
    ] {
        assert_says(&folder, arguments, &[&format!("file      {{tmp}}/htdocs/{name}")]);
    }
    let mut check = Command::new(env!("CARGO_BIN_EXE_forebay"));
    let output = check.arg("check").arg(folder.path().join("site.toml")).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("3 tests hold"), "{output:?}");
}

#[test]
fn closed_routes_and_preflight_requests_are_answered_as_serve_does() {
    let folder = Folder::new();
    folder.write("htdocs/index.html", "x");
    folder.write("closed.html", "closed");
    folder.write(
        "site.toml",
        "[[site]]\nlisten = \"127.0.0.1:8080\"\nexpect = [\"/m/index.html -> 503\", \
         \"/later/index.html -> 200\", \"/c/index.html -> 200\", \"OPTIONS /c/index.html -> 405\"]\n\
         [[site.route]]\npath = \"/m/*\"\nfiles = \"htdocs\"\nmaintenance = { page = \"closed.html\", \
         except = \"192.0.2.1\" }\n\
         [[site.route]]\npath = \"/later/*\"\nrewrite = \"/c/{rest}\"\n\
         maintenance = { page = \"closed.html\", while_exists = \"closed\" }\n\
         [[site.route]]\npath = \"/c/*\"\nrewrite = \"/{rest}\"\nfiles = \"htdocs\"\n\
         cors = { origins = \"https://a.example\" }\n",
    );
    let url = "http://127.0.0.1:8080/c/index.html";
    let asked = ["-H", "Origin: https://a.example", "-H", "Access-Control-Request-Method: GET"];
    let preflight = [&[url, "-X", "OPTIONS"][..], &asked].concat();
    let closed = "answer    503, because the route is closed (`maintenance`)";
    let answered = "answer    204 to the preflight request (`cors`), without access rules";
    assert_says(&folder, &["http://127.0.0.1:8080/m/index.html"], &[closed]);
    assert_says(&folder, &preflight, &[answered]);
    let mut check = Command::new(env!("CARGO_BIN_EXE_forebay"));
    let output = check.arg("check").arg(folder.path().join("site.toml")).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("4 tests hold"), "{output:?}");
}
