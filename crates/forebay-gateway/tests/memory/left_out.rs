//! A directory of `hosts_from` or `users_from` that lacks something of its own is left out. All others
//! are served.

use std::fs;
use std::os::unix::fs::chown;
use std::path::Path;

use forebay_conf::{ConfError, Plan};
use forebay_gateway::usable;
use forebay_testkit::tls::Authority;
use tempfile::TempDir;

use crate::world::{World, in_memory};

const HOSTS: [&str; 3] = ["a.example", "b.example", "c.example"];

/// The directories of three sites. `b.example` lacks what the others have.
fn directories() -> TempDir {
    let root = tempfile::tempdir().unwrap();
    let issued = Authority::new("test").issue(&HOSTS);
    for host in HOSTS {
        let directory = root.path().join("srv").join(host);
        fs::create_dir_all(directory.join("htdocs")).unwrap();
        fs::write(directory.join("htdocs/index.html"), format!("page of {host}")).unwrap();
        if host == "b.example" {
            // Things that are there, and wrong.
            for (name, text) in [("bad.pem", "no certificate"), ("bad.map", "one two three four")] {
                fs::write(directory.join(name), text).unwrap();
            }
            fs::create_dir(directory.join("bad.users")).unwrap();
            continue;
        }
        fs::create_dir(directory.join("own")).unwrap();
        for (name, text) in [
            ("users", "u:$2y$05$QJ5fYmYz4pQyq0X8jUO1EeTQ3pWZdcN8GZqQ3uBqK6XvK6CJjBGeO\n"),
            ("bad.users", ""),
            ("digest", "u:r:0123456789abcdef0123456789abcdef\n"),
            ("page.html", "page"),
            ("moved.map", "/a /b\n"),
            ("bad.map", "/a /b\n"),
            ("cert.pem", &issued.certificate),
            ("bad.pem", &issued.certificate),
            ("key.pem", &issued.key),
        ] {
            fs::write(directory.join(name), text).unwrap();
        }
    }
    root
}

/// A configuration with these keys of the site and of its route, and a default site.
fn configuration(root: &Path, site: &str, route: &str) -> String {
    let path = root.display();
    let own = |text: &str| text.replace("OWN", &format!("{path}/srv/{{host}}"));
    let listen = if site.contains("tls") { "https://127.0.0.1:443" } else { "127.0.0.1:80" };
    let other = if site.contains("tls") { "127.0.0.1:80" } else { listen };
    format!(
        "[[site]]\nlisten = \"{listen}\"\nhosts_from = \"{path}/srv/*/htdocs\"\n{}\n\
         [[site.route]]\n{}\nfiles = \"{path}/srv/{{host}}/htdocs\"\n\
         [[site]]\nlisten = \"{other}\"\n[[site.route]]\nrespond = \"default\"\n",
        own(site),
        own(route)
    )
}

fn plan(text: &str) -> Result<(Plan, Option<ConfError>), ConfError> {
    usable(forebay_conf::parse(text, "test.toml", Path::new("/"))?, |_| {})
}

fn left_out(plan: &Plan) -> Vec<String> {
    plan.left_out.rows().map(|row| row.name).collect()
}

const SITE_KEYS: [&str; 8] = [
    "[[site.route]]\npath = \"/y/*\"\nfiles = \"OWN/own\"",
    "error_pages = { 404 = \"OWN/page.html\" }",
    "maintenance = { page = \"OWN/page.html\", while_exists = \"OWN/own/closed\" }",
    "log = \"OWN/own/access.log\"",
    "tls = { certificate = \"OWN/cert.pem\", key = \"OWN/key.pem\" }",
    "tls = { certificate = \"OWN/bad.pem\", key = \"OWN/key.pem\" }",
    "[[site.route]]\npath = \"/x\"\nredirect = { file = \"OWN/moved.map\" }",
    "[[site.route]]\npath = \"/x\"\nredirect = { file = \"OWN/bad.map\" }",
];
const ROUTE_KEYS: [&str; 4] = [
    "basic_auth = { file = \"OWN/users\" }",
    "basic_auth = { file = \"OWN/bad.users\" }",
    "digest_auth = { file = \"OWN/digest\", realm = \"r\" }",
    "log = { access = \"OWN/own/access.log\" }",
];

#[test]
fn one_directory_stops_no_other() {
    let root = directories();
    let of_site = SITE_KEYS.map(|keys| configuration(root.path(), keys, ""));
    let of_route = ROUTE_KEYS.map(|keys| configuration(root.path(), "", keys));
    for text in of_site.iter().chain(&of_route) {
        let (plan, warnings) = plan(text).unwrap_or_else(|error| panic!("{text}\n{error}"));
        assert_eq!(left_out(&plan), ["b.example"], "{text}");
        let warnings = warnings.expect("a warning").plain();
        assert!(warnings.contains("b.example is left out, and answers 503: "), "{warnings}");
        assert!(plan.left_out.rows().all(|row| !row.help.is_empty()), "{text}");
        let watched =
            plan.left_out.paths().any(|path| path.starts_with(root.path().join("srv/b.example")));
        assert!(watched, "{text}");
    }
}

#[test]
fn a_long_name_stops_no_other() {
    let root = directories();
    let long = [["x"; 60].concat(), ["y"; 60].concat()].join(".");
    fs::create_dir_all(root.path().join("srv").join(&long).join("htdocs")).unwrap();
    let text = configuration(root.path(), "", "mirror = \"unix:/run/{host}.sock\"");
    assert_eq!(left_out(&plan(&text).unwrap().0), [long]);
}

#[test]
fn what_all_directories_lack_is_the_fault_of_the_configuration() {
    let root = directories();
    for (site, route) in [
        ("", "basic_auth = { file = \"OWN/nothing\" }"),
        ("tls = { certificate = \"OWN/no.pem\", key = \"OWN/key.pem\" }", ""),
        ("", "jwt = { key = \"OWN/no\" }"),
        ("", "basic_auth = { fil = \"OWN/users\" }"),
        ("log = \"OWN/nowhere/access.log\"", ""),
    ] {
        let text = configuration(root.path(), site, route);
        assert!(plan(&text).is_err(), "{text}");
    }
    // A form that is wrong is so for a single directory, too.
    for host in ["a.example", "c.example"] {
        fs::remove_dir_all(root.path().join("srv").join(host)).unwrap();
    }
    assert!(plan(&configuration(root.path(), "", "basic_auth = { fil = \"OWN/users\" }")).is_err());
    let text = configuration(root.path(), "", "basic_auth = { file = \"OWN/users\" }");
    assert_eq!(left_out(&plan(&text).unwrap().0), ["b.example"]);
}

#[test]
fn a_directory_may_have_any_number_of_problems() {
    let root = directories();
    let routes = |number: usize| {
        let route = |at| {
            format!(
                "[[site.route]]\npath = \"/{at}\"\nbasic_auth = {{ file = \"OWN/users\" }}\n\
                 respond = \"\"\n"
            )
        };
        (0..number).map(route).collect::<String>()
    };
    for certificate in ["cert.pem", "bad.pem"] {
        for www in ["", "www = \"redirect\"\n"] {
            for number in [0, 1, 5] {
                let tls = format!(
                    "{www}tls = {{ certificate = \"OWN/{certificate}\", key = \"OWN/key.pem\" }}\n"
                );
                let text = configuration(root.path(), &(tls + &routes(number)), "");
                let (plan, _) = plan(&text).unwrap_or_else(|error| panic!("{text}\n{error}"));
                assert_eq!(left_out(&plan), ["b.example"], "{text}");
            }
        }
    }
}

#[test]
fn a_directory_that_is_left_out_hides_no_mistake() {
    let root = directories();
    let users = "basic_auth = { file = \"OWN/users\" }";
    for (site, route) in [
        ("", "basic_auth = { file = \"OWN/users\" }\nlog = { access = \"OWN/nowhere/log\" }"),
        ("log = \"OWN/nowhere/access.log\"", users),
        ("[[site.route]]\npath = \"/y\"\nredirect = { file = \"OWN/nowhere\" }", users),
        ("tls = { certificate = \"OWN/no.pem\", key = \"OWN/key.pem\" }", users),
        ("[[site.route]]\npath = \"/y/*\"\nfiles = \"OWN/nowhere\"", users),
    ] {
        let text = configuration(root.path(), site, route);
        assert!(plan(&text).is_err(), "{text}");
    }
    // Two that lack different things have no mistake in common.
    fs::remove_dir_all(root.path().join("srv/c.example")).unwrap();
    fs::remove_file(root.path().join("srv/a.example/digest")).unwrap();
    fs::write(root.path().join("srv/b.example/digest"), "").unwrap();
    let digest = "[[site.route]]\npath = \"/y\"\nrespond = \"\"\n\
                  digest_auth = { file = \"OWN/digest\", realm = \"r\" }";
    let (plan, _) = plan(&configuration(root.path(), digest, users)).unwrap();
    assert_eq!(left_out(&plan), ["a.example", "b.example"]);
}

#[test]
fn any_number_of_directories_is_left_out() {
    let root = directories();
    for number in 0..300 {
        let htdocs = root.path().join(format!("srv/n{number}.example/htdocs"));
        fs::create_dir_all(htdocs).unwrap();
    }
    let text = configuration(root.path(), "", "basic_auth = { file = \"OWN/users\" }");
    assert_eq!(plan(&text).unwrap().0.left_out.rows().count(), 301);
}

async fn get(world: &World, host: &str, path: &str) -> (u16, String) {
    let mut client = world.client();
    let request = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n");
    client.send(&request).await;
    let reply = client.reply(&request).await;
    (reply.status(), String::from_utf8_lossy(&reply.body).into_owned())
}

#[test]
fn a_site_that_is_left_out_shows_no_content() {
    let root = directories();
    let text = configuration(
        root.path(),
        "www = \"redirect\"\n[[site.route]]\npath = \"/private/*\"\n\
         basic_auth = { file = \"OWN/users\" }\nfiles = \"OWN/own\"",
        "",
    );
    in_memory(&text, async |world| {
        for path in ["/", "/index.html", "/private/x", "/%70rivate/x", "/.well-known/x", "/nowhere"]
        {
            for host in ["b.example", "B.example:80", "www.b.example"] {
                let (status, body) = get(world, host, path).await;
                assert_eq!(status, 503, "{host} {path}");
                assert!(body.contains("cannot be served") && !body.contains("srv"), "{body}");
            }
        }
        assert_eq!(get(world, "a.example", "/").await, (200, "page of a.example".to_owned()));
        assert_eq!(get(world, "a.example", "/private/x").await.0, 401);
        assert_eq!(get(world, "www.a.example", "/").await.0, 301);
        assert_eq!(get(world, "d.example", "/").await.1, "default");
        fs::write(root.path().join("srv/b.example/users"), "").unwrap();
        fs::create_dir(root.path().join("srv/b.example/own")).unwrap();
        world.reload_as(&text);
        assert_eq!(get(world, "b.example", "/").await, (200, "page of b.example".to_owned()));
    });
}

#[test]
fn a_directory_with_www_closes_no_other_site() {
    let root = directories();
    let www = root.path().join("srv/www.a.example/htdocs");
    fs::create_dir_all(&www).unwrap();
    fs::write(www.join("index.html"), "own page").unwrap();
    in_memory(&configuration(root.path(), "www = \"redirect\"", ""), async |world| {
        assert_eq!(get(world, "a.example", "/").await.1, "page of a.example");
        assert_eq!(get(world, "www.a.example", "/").await.1, "own page");
    });
}

#[test]
fn one_user_stops_no_other() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let root = tempfile::tempdir().unwrap();
    for (name, uid) in [("games", 5), ("backup", 34)] {
        let home = root.path().join("home").join(name);
        fs::create_dir_all(home.join("public_html")).unwrap();
        fs::write(home.join("public_html/index.html"), format!("page of {name}")).unwrap();
        fs::write(home.join("users"), "").unwrap();
        for path in ["", "public_html", "public_html/index.html"] {
            chown(home.join(path), Some(uid), None).unwrap();
        }
    }
    fs::remove_file(root.path().join("home/games/users")).unwrap();
    let path = root.path().display();
    let text = format!(
        "[[site]]\nlisten = \"127.0.0.1:80\"\n\
         [[site.route]]\nusers_from = \"{path}/home/*/public_html\"\npath = \"/~{{owner}}/in/*\"\n\
         basic_auth = {{ file = \"{path}/home/{{owner}}/users\" }}\nrespond = \"in\"\n\
         [[site.route]]\nusers_from = \"{path}/home/*/public_html\"\npath = \"/~{{owner}}/*\"\n\
         files = \"{path}/home/{{owner}}/public_html\"\n"
    );
    in_memory(&text, async |world| {
        assert_eq!(get(world, "a", "/~games/").await.0, 503);
        assert_eq!(get(world, "a", "/~games/in/").await.0, 503);
        assert_eq!(get(world, "a", "/~backup/").await, (200, "page of backup".to_owned()));
        assert_eq!(get(world, "a", "/~backup/in/").await.0, 401);
        fs::write(root.path().join("home/games/users"), "").unwrap();
        world.reload_as(&text);
        assert_eq!(get(world, "a", "/~games/").await, (200, "page of games".to_owned()));
    });
}
