//! Rules protect files and scripts, whatever the spelling of the path.

use std::os::unix::fs::PermissionsExt;

use tempfile::TempDir;

use crate::world::{Backend, World, in_memory};

/// Returns the client's status. The backend closes each connection, so 502 means that the request
/// reached it.
async fn ask(world: &World, backend: &mut Backend, method: &str, target: &str) -> u16 {
    let request = format!("{method} {target} HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n");
    let asking = world.ask(&request);
    let mut asking = std::pin::pin!(asking);
    loop {
        tokio::select! {
            reply = &mut asking => return reply.status(),
            connection = backend.accept() => drop(connection),
        }
    }
}

fn site(files: &[&str]) -> TempDir {
    let root = tempfile::tempdir().unwrap();
    for name in files {
        let path = root.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, "#!/bin/sh\necho Content-Type: text/plain\necho\necho ran\n")
            .unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    root
}

/// Checks the status of each request with these routes. `ROOT` is the directory, `BACKEND` an
/// address.
fn assert_statuses(root: &TempDir, routes: &str, cases: &[(&str, u16)]) {
    let routes = routes.replace("ROOT", &root.path().display().to_string());
    let routes = routes.replace("BACKEND", "10.0.0.1:9000");
    in_memory(&routes, async |world| {
        let mut backend = world.backend("10.0.0.1:9000");
        for (target, expected) in cases {
            let (method, path) = target.split_once(' ').unwrap_or(("GET", target));
            let status = ask(world, &mut backend, method, path).await;
            assert_eq!(status, *expected, "{target}\n{routes}");
        }
    });
}

const DENY: &str = "[[site.route]]\npath = \"/admin.php\"\ndeny = \"0.0.0.0/0\"\nACTION\n";
const PHP: &str = "fastcgi = { to = \"BACKEND\", root = \"ROOT\" }";

#[test]
fn a_gate_on_a_script_holds_for_path_info_after_it() {
    let root = site(&["admin.php", "index.php", "other.php", "sub/admin.php"]);
    let below = format!("[[site.route]]\nsuffix = \".php\"\n{PHP}\n");
    let routes = DENY.replace("ACTION", PHP) + &below;
    assert_statuses(
        &root,
        &routes,
        &[
            ("/admin.php", 403),
            ("/admin.php/", 403),
            ("/admin.php/x/y", 403),
            ("POST /admin.php/x", 403),
            ("/admin.php/x.php", 403),
            ("//admin.php//", 403),
            ("/./admin.php/x", 403),
            ("/x/../admin.php/x", 403),
            ("/%61dmin.php/x", 403),
            ("/admin.php%2fx", 404),
            ("/admin.php/..", 404),
            ("/ADMIN.php/x", 404),
            ("/admin.php./x", 404),
            ("/admin.php%20/x", 404),
            ("/other.php/admin.php", 502),
            ("/other.php/x", 502),
            ("/sub/admin.php/x", 502),
        ],
    );
    // The application's directory is elsewhere, or the server cannot be inspected.
    for action in [
        "fastcgi = { to = \"BACKEND\", root = \"/no/such/place\" }",
        "scgi = { to = \"BACKEND\" }",
        "uwsgi = { to = \"BACKEND\", root = \"ROOT\" }",
        "proxy = \"http://BACKEND\"",
        "ajp = { to = \"BACKEND\" }",
    ] {
        let routes = DENY.replace("ACTION", action) + &format!("[[site.route]]\n{action}\n");
        let cases = [
            ("/admin.php", 403),
            ("/admin.php/", 403),
            ("/admin.php/x/y", 403),
            ("/other.php/x", 502),
            ("/x/admin.php/y", 502),
        ];
        assert_statuses(&root, &routes, &cases);
    }
}

#[test]
fn a_gate_holds_for_the_script_that_a_directory_or_a_fallback_leads_to() {
    let root = site(&["index.php", "sub/index.php", "pages/index.html"]);
    let gate = DENY.replace("/admin.php", "/index.php").replace("ACTION", PHP);
    let below = format!("[[site.route]]\nsuffix = \".php\"\n{PHP}\n");
    let files = "[[site.route]]\npath = \"/*\"\nfallback_to = \"/index.php\"\nfiles = \"ROOT\"\n";
    let all = format!("[[site.route]]\n{PHP}\n");
    for routes in [format!("{gate}{below}{files}"), format!("{gate}{files}{below}")] {
        let cases = [("/", 403), ("/none/such", 403), ("/index.php/x", 403), ("/sub/", 502)];
        assert_statuses(&root, &routes, &cases);
    }
    assert_statuses(&root, &(gate + &all), &[("/", 403), ("/sub/", 502), ("/sub/index.php", 502)]);
    let page = "[[site.route]]\npath = \"/pages/index.html\"\ndeny = \"0.0.0.0/0\"\nfiles = \"ROOT\"\n\
                [[site.route]]\nfiles = \"ROOT\"\n";
    assert_statuses(&root, page, &[("/pages/index.html", 403), ("/pages/", 403)]);
}

#[test]
fn a_gate_on_a_file_holds_for_its_compressed_siblings() {
    let root = site(&["a.txt", "a.txt.gz", "b.txt.gz"]);
    let routes = "[[site.route]]\npath = \"/a.txt\"\ndeny = [\"all\"]\nfiles = \"ROOT\"\n\
                  [[site.route]]\nfiles = { root = \"ROOT\", precompressed = true }\n";
    assert_statuses(&root, routes, &[("/a.txt", 403), ("/a.txt.gz", 403), ("/b.txt.gz", 200)]);
    let plain = routes.replace(", precompressed = true", "");
    assert_statuses(&root, &plain, &[("/a.txt", 403), ("/a.txt.gz", 200)]);
}

#[test]
fn a_reply_in_place_of_scripts_holds_for_path_info_after_them() {
    let root = site(&["uploads/evil.php", "blog.php", "old.php", "uploads/d.php/run.php"]);
    let routes = format!(
        "[[site.route]]\npath = \"/uploads/*\"\nsuffix = \".php\"\nrespond = {{ status = 403 }}\n\
         [[site.route]]\npath = \"/old.php\"\nredirect = \"/new/{{rest}}\"\n\
         [[site.route]]\nsuffix = \".php\"\n{PHP}\n"
    );
    assert_statuses(
        &root,
        &routes,
        &[
            ("/uploads/evil.php", 403),
            ("/uploads/evil.php/", 403),
            ("/uploads/evil.php/x", 403),
            ("/uploads/evil.php/x.jpg", 403),
            ("POST /uploads/evil.php/x", 403),
            ("/uploads/d.php/run.php/x", 403),
            ("/blog.php/uploads/evil.php", 502),
            ("/old.php/x", 302),
        ],
    );
    // A guess about a server is enough for a refusal, but not for a redirect.
    let routes = "[[site.route]]\npath = \"/docs/a.b\"\nredirect = \"/docs/a.b/\"\n\
        [[site.route]]\npath = \"/x.cgi\"\nrespond = { status = 404 }\n\
        [[site.route]]\npath = \"/v1.0\"\nrespond = { status = 404 }\n\
        [[site.route]]\nproxy = \"http://BACKEND\"\n";
    let cases = [("/docs/a.b", 302), ("/docs/a.b/", 502), ("/x.cgi/y", 404), ("/v1.0/y", 502)];
    assert_statuses(&root, routes, &cases);
}

#[test]
fn the_routes_of_a_rule_below_or_of_another_method_do_not_hold() {
    let root = site(&["admin.php"]);
    let php = format!("[[site.route]]\nsuffix = \".php\"\n{PHP}\n");
    let posts = DENY.replace("ACTION", &format!("methods = [\"POST\"]\n{PHP}"));
    assert_statuses(&root, &(posts + &php), &[("/admin.php/x", 502), ("POST /admin.php/x", 403)]);
}

#[test]
fn files_of_an_earlier_route_are_not_run_below() {
    let root = site(&["wp-content/uploads/evil.php", "wp-content/uploads/a.jpg", "wp-login.php"]);
    std::fs::create_dir(root.path().join("wp-content/uploads/.x")).unwrap();
    std::fs::copy(
        root.path().join("wp-login.php"),
        root.path().join("wp-content/uploads/.x/index.php"),
    )
    .unwrap();
    let uploads = "[[site.route]]\npath = \"/wp-content/uploads/*\"\nKEYS\n\
                   files = { root = \"ROOT/wp-content/uploads\"MORE }\n";
    for php in [
        format!("[[site.route]]\nsuffix = \".php\"\n{PHP}\n"),
        "[[site.route]]\nsuffix = \".php\"\nfastcgi = { to = \"BACKEND\", root = \"/no/such\" }\n"
            .into(),
    ] {
        for keys in ["", "fallback = true"] {
            let uploads = uploads.replace("KEYS", keys);
            let is_local = !php.contains("/no/such");
            let cases = [
                ("/wp-content/uploads/evil.php", if is_local { 404 } else { 200 }),
                ("/wp-content/uploads/evil.php/", 404),
                ("/wp-content/uploads/evil.php/x", 404),
                ("/wp-content/uploads/evil.php/x.php", 404),
                (
                    "POST /wp-content/uploads/evil.php/x",
                    if is_local || !keys.is_empty() { 404 } else { 405 },
                ),
                ("/wp-content/uploads/.x/index.php", 404),
                ("/wp-content/uploads/.x/", 404),
                ("/wp-content/uploads/a.jpg", 200),
                ("/wp-content/uploads/a.jpg/x.php", 404),
                ("/wp-login.php", 502),
            ];
            assert_statuses(&root, &format!("{}{php}", uploads.replace("MORE", "")), &cases);
        }
        let uploads = uploads.replace("KEYS", "fallback = true");
        let below = uploads.replace("MORE", ", scripts = \"below\"");
        let cases = [
            ("/wp-content/uploads/evil.php/x", 502),
            ("POST /wp-content/uploads/evil.php", 502),
            ("/wp-content/uploads/a.jpg", 200),
        ];
        assert_statuses(&root, &format!("{below}{php}"), &cases);
    }
}

#[test]
fn files_first_for_all_paths_hand_scripts_to_the_routes_below_unless_told_otherwise() {
    let root = site(&["index.php", "wp-login.php", "up/evil.php", "a.txt"]);
    let php = format!("[[site.route]]\nsuffix = \".php\"\n{PHP}\n");
    for keys in ["fallback = true", "fallback_to = \"/index.php\""] {
        let files =
            format!("[[site.route]]\npath = \"/*\"\n{keys}\nfiles = {{ root = \"ROOT\"MORE }}\n");
        let cases = [("/wp-login.php", 502), ("/wp-login.php/x", 502), ("/a.txt", 200), ("/", 502)];
        assert_statuses(&root, &format!("{}{php}", files.replace("MORE", "")), &cases);
        let refuse = files.replace("MORE", ", scripts = \"refuse\"");
        let cases = [("/wp-login.php", 404), ("/wp-login.php/x", 404), ("/a.txt", 200), ("/", 404)];
        assert_statuses(&root, &format!("{refuse}{php}"), &cases);
        // A second route for the uploads only, whose scripts another route would run.
        let both = format!(
            "[[site.route]]\npath = \"/up/*\"\nfallback = true\nfiles = \"ROOT/up\"\n{}{php}",
            files.replace("MORE", "")
        );
        let cases = [("/up/evil.php", 404), ("/up/evil.php/x", 404), ("/wp-login.php", 502)];
        assert_statuses(&root, &both, &cases);
    }
}

const ADMIN: &str =
    "[[site.route]]\npaths = [\"/admin\", \"/admin/*\"]\ndeny = \"0.0.0.0/0\"\nrespond = \"in\"\n";

#[test]
fn rules_hold_for_paths_without_their_parameters() {
    let root = site(&[]);
    for action in ["ajp = { to = \"BACKEND\" }", "proxy = \"http://BACKEND\""] {
        let routes = |keys: &str| format!("{ADMIN}[[site.route]]\n{keys}\n{action}\n");
        let ways = [
            "/admin;x/secret.txt",
            "/;/admin/secret.txt",
            "/;x=y/admin/",
            "/admin/;x",
            "/admin;jsessionid=1",
            "/a/../admin;x;y/z",
            "/admin%3bx/secret.txt",
            "//;//admin;/z",
        ];
        let refused = ways.map(|way| (way, 403));
        assert_statuses(&root, &routes(""), &refused);
        assert_statuses(&root, &routes("path_parameters = \"match\""), &refused);
        let plain = [("/shop/page;jsessionid=1", 502), ("/shop;x/admin", 502), ("/a;b", 502)];
        assert_statuses(&root, &routes(""), &plain);
        let refuse = routes("path_parameters = \"refuse\"");
        assert_statuses(&root, &refuse, &[("/shop;a", 404), ("/admin;x/y", 404), ("/shop", 502)]);
        let ignore = routes("path_parameters = \"ignore\"");
        assert_statuses(&root, &ignore, &[("/admin;x/y", 502), ("/admin/y", 403)]);
        let refuse = format!("[[site.route]]\npath_parameters = \"refuse\"\n{action}\n");
        assert_statuses(&root, &refuse, &[("/shop;a", 404), ("/shop", 502)]);
    }
}

#[test]
fn a_session_in_the_path_works_with_a_rule_that_admits_the_client() {
    let root = site(&[]);
    let routes = "encoded_slashes = \"pass\"\n[[site.route]]\npaths = [\"/shop/*\"]\nallow = \"192.0.2.0/24\"\n\
        proxy = \"http://BACKEND\"\n[[site.route]]\npath = \"/admin/*\"\ndeny = \"0.0.0.0/0\"\nrespond = \"in\"\n\
        [[site.route]]\nproxy = \"http://BACKEND\"\n";
    let routes = format!("[[site]]\nlisten = [\"127.0.0.1:80\"]\n{routes}");
    let cases = [
        ("/shop/page;jsessionid=1", 502),
        ("/shop;jsessionid=1/page", 502),
        ("/shop;a%2fb/page", 502),
        ("/admin;x%2fsecret", 403),
        ("/x;/..%2fadmin/y", 400),
    ];
    assert_statuses(&root, &routes, &cases);
}

#[test]
fn a_gate_holds_for_a_script_below_a_prefix_that_is_stripped() {
    let root = site(&["admin.php", "index.php", "other.php"]);
    let php = |keys: &str| format!("fastcgi = {{ to = \"BACKEND\", root = \"ROOT\"{keys} }}");
    let stripped = php(", strip_prefix = \"/pma\"");
    for below in ["[[site.route]]\nsuffix = \".php\"\n", "[[site.route]]\n"] {
        let routes = format!(
            "[[site.route]]\npath = \"/pma/admin.php\"\ndeny = \"all\"\n{stripped}\n{below}{stripped}\n"
        );
        assert_statuses(
            &root,
            &routes,
            &[
                ("/pma/admin.php", 403),
                ("/pma/admin.php/x", 403),
                ("//pma//admin.php/x", 403),
                ("/x/../pma/admin.php", 403),
                ("/pma/other.php/admin.php", 502),
                ("/pma/none.php", 404),
                // A script has one path only.
                ("/admin.php", 404),
                ("/pmadmin.php", 404),
                ("/pma/pma/admin.php", 404),
                ("/other.php", 404),
            ],
        );
    }
    let index = format!(
        "[[site.route]]\npath = \"/pma/index.php\"\ndeny = \"all\"\n{stripped}\n[[site.route]]\n{stripped}\n"
    );
    assert_statuses(&root, &index, &[("/pma/", 403), ("/pma/index.php/x", 403), ("/pma", 404)]);
    // Files are not sent as source, and a script of another route is found below its prefix.
    let files = format!(
        "[[site.route]]\npath = \"/pma/*\"\nsuffix = \".php\"\n{stripped}\n\
         [[site.route]]\npaths = [\"/pma\", \"/pma/*\"]\nfiles = \"ROOT\"\n"
    );
    let cases = [
        ("/pma", 301),
        ("/pma/", 502),
        ("/pma/other.php", 502),
        ("/pma/none.php", 404),
        ("/pma/none.txt", 404),
    ];
    assert_statuses(&root, &files, &cases);
}

#[test]
fn a_gate_holds_for_an_application_that_is_mounted() {
    let root = site(&[]);
    for action in [
        "fastcgi = { to = \"BACKEND\", mount = \"/shop\" }",
        "fastcgi = { to = \"BACKEND\", mount = \"\" }",
        "scgi = { to = \"BACKEND\", mount = \"/shop\" }",
        "uwsgi = { to = \"BACKEND\", mount = \"/shop\" }",
    ] {
        let routes = format!(
            "[[site.route]]\npaths = [\"/shop/admin\", \"/shop/admin/*\"]\ndeny = \"all\"\n{action}\n\
             [[site.route]]\n{action}\n"
        );
        let cases = [
            ("/shop/admin", 403),
            ("/shop/admin/", 403),
            ("/shop//admin/x", 403),
            ("//shop/admin/x", 403),
            ("/shop/./admin", 403),
            ("/shop/admin/../x", 403),
            ("/shop/x/../admin", 403),
            ("/shop/%61dmin", 403),
            ("/shop/admin%2fx", 404),
            ("/shop/other", 502),
            ("/shop", 502),
        ];
        assert_statuses(&root, &routes, &cases);
    }
}

/// The script route looks for scripts in another directory, so it finds none.
#[test]
fn an_index_is_not_sent_if_its_own_path_is_not() {
    let root = site(&["app/index.php", "app/page.html", "docs/index.php"]);
    let php = "fastcgi = { to = \"BACKEND\", root = \"ROOT/docs\" }";
    let files = "files = { root = \"ROOT/app\", index = [\"index.php\"] }";
    let routes = format!(
        "[[site.route]]\npath = \"/app/*\"\nsuffix = \".php\"\n{php}\n\
         [[site.route]]\npath = \"/app/*\"\n{files}\n"
    );
    let cases =
        [("/app/index.php", 404), ("/app/", 404), ("HEAD /app/", 404), ("/app/page.html", 200)];
    assert_statuses(&root, &routes, &cases);
    let regex = routes.replacen("path = \"/app/*\"\nfiles", "path_regex = \"^/app\"\nfiles", 1);
    let regex = regex.replace("ROOT/app", "ROOT");
    assert_statuses(&root, &regex, &cases);
}

#[test]
fn scripts_of_other_paths_do_not_change_an_index() {
    let root = site(&["index.html", "app/index.html"]);
    let routes = "[[site.route]]\npath = \"/app/*\"\nsuffix = \".html\"\n\
                  fastcgi = { to = \"BACKEND\", root = \"/no/such\", scripts = \".html\" }\n\
                  [[site.route]]\npath = \"/\"\nfiles = \"ROOT\"\n\
                  [[site.route]]\npath = \"/*\"\nrespond = { status = 410 }\n";
    assert_statuses(&root, routes, &[("/", 200), ("/index.html", 410), ("/app/index.html", 502)]);
}

/// As Matomo and Shopware publish it for other servers: one script runs, all others are refused.
#[test]
fn an_index_is_answered_by_the_route_of_its_own_path() {
    let root = site(&["index.php", "evil.php", "sub/index.php", "a.txt", "docs/index.html"]);
    let one = format!("[[site.route]]\npath = \"/index.php\"\n{PHP}\n");
    let refused = "[[site.route]]\nsuffix = \".php\"\nrespond = { status = 403 }\n";
    let files = "[[site.route]]\npath = \"/*\"\n\
                 files = { root = \"ROOT\", index = [\"index.php\", \"index.html\"] }\n";
    let cases = [
        ("/", 502),
        ("POST /", 502),
        ("/index.php", 502),
        ("/evil.php", 403),
        ("/sub/", 403),
        ("/sub/index.php", 403),
        ("/a.txt", 200),
        ("/docs/", 200),
    ];
    assert_statuses(&root, &format!("{one}{refused}{files}"), &cases);
    // The gate of the route that answers holds, and so does the gate of the files route.
    let denied = one.replace(PHP, &format!("deny = \"all\"\n{PHP}"));
    assert_statuses(&root, &format!("{denied}{refused}{files}"), &[("/", 403)]);
    let closed = files.replace("files =", "deny = \"all\"\nfiles =");
    assert_statuses(&root, &format!("{one}{refused}{closed}"), &[("/", 403), ("/index.php", 502)]);
    // The server's files are elsewhere. No source of a script is sent.
    let remote = "fastcgi = { to = \"BACKEND\", root = \"/no/such\" }";
    let one = one.replace(PHP, remote);
    let cases = [("/", 502), ("/sub/", 403), ("/evil.php", 403)];
    assert_statuses(&root, &format!("{one}{refused}{files}"), &cases);
    // One route of the server also runs the index of directories.
    let all = format!("[[site.route]]\npath = \"/*\"\n{PHP}\n");
    let one = one.replace(remote, PHP);
    let cases = [("/", 502), ("/index.php/x", 502), ("/sub/", 403), ("/evil.php/x", 403)];
    assert_statuses(&root, &format!("{one}{refused}{all}"), &cases);
}

#[test]
fn earlier_routes_for_an_index_file_answer_for_its_directory() {
    let root = site(&["index.html", "a/index.html", "b/index.html", "c/index.html", "other/x"]);
    let files = "[[site.route]]\npath = \"/*\"\nfiles = \"ROOT\"\n";
    for (earlier, cases) in [
        // It has no such file, so the files route sends its own.
        (
            "path = \"/a/*\"\nfallback = true\nfiles = \"ROOT/other\"",
            [("/a/", 200), ("/a/index.html", 200)],
        ),
        (
            "path = \"/a/*\"\nfallback_to = \"/gone\"\nfiles = \"ROOT/other\"",
            [("/a/", 404), ("/a/index.html", 404)],
        ),
        ("path = \"/index.html\"\nproxy = \"http://BACKEND\"", [("/", 502), ("/a/", 200)]),
        ("path = \"/index.html\"\nrespond = { status = 410 }", [("/", 410), ("/b/", 200)]),
        (
            "path = \"/index.html\"\ninternal = true\nrespond = \"in\"",
            [("/", 200), ("/index.html", 404)],
        ),
        ("path = \"/index.html\"\nrewrite = \"/a/\"", [("/", 200), ("/index.html", 200)]),
        // No loop.
        ("path = \"/index.html\"\nredirect = \"/\"", [("/", 200), ("/index.html", 302)]),
        (
            "path = \"/index.html\"\ndeny = \"all\"\nredirect = \"/\"",
            [("/", 403), ("/index.html", 403)],
        ),
    ] {
        assert_statuses(&root, &format!("[[site.route]]\n{earlier}\n{files}"), &cases);
    }
}
