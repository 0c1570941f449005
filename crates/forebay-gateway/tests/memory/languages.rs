//! Files in several languages, and routes whose suffixes ignore case.

use std::os::unix::fs::symlink;
use std::path::Path;

use tempfile::TempDir;

use crate::world::{Message, World, in_memory};

pub fn htdocs(names: &[&str]) -> TempDir {
    let root = tempfile::tempdir().unwrap();
    for name in names {
        let path = root.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, name).unwrap();
    }
    root
}

fn route(root: &Path, keys: &str) -> String {
    let root = root.display();
    let files = format!("root = \"{root}\", languages = [\"en\", \"de\", \"pt-br\"]{keys}");
    format!("[[site.route]]\npath = \"/*\"\nfiles = {{ {files} }}\n")
}

async fn get(world: &World, target: &str, fields: &str) -> Message {
    world.ask(&format!("GET {target} HTTP/1.1\r\nHost: h\r\n{fields}\r\n")).await
}

#[test]
fn the_client_gets_the_language_that_it_prefers() {
    let root = htdocs(&["index.html.en", "index.html.de", "a.html", "a.html.pt-br", "x.css"]);
    in_memory(&route(root.path(), ""), async |world| {
        for (target, accepts, name, language) in [
            ("/", "de", "index.html.de", "de"),
            ("/", "de-AT, en;q=0.5", "index.html.de", "de"),
            ("/", "fr, en;q=0.1, de;q=0.2", "index.html.de", "de"),
            ("/", "fr", "index.html.en", "en"),
            ("/", "*;q=0", "index.html.en", "en"),
            ("/", "en;q=0, de;q=0", "index.html.en", "en"),
            ("/index.html", "DE", "index.html.de", "de"),
            ("/a.html", "pt-BR", "a.html.pt-br", "pt-br"),
            ("/a.html", "pt", "a.html.pt-br", "pt-br"),
            ("/a.html", "de", "a.html", ""),
        ] {
            let reply = get(world, target, &format!("Accept-Language: {accepts}\r\n")).await;
            assert_eq!((reply.status(), reply.text()), (200, name), "{target} {accepts}");
            assert_eq!(reply.field("content-language").unwrap_or_default(), language);
            assert_eq!(reply.values("vary"), ["Accept-Language"], "{target} {accepts}");
            assert_eq!(reply.field("content-type").unwrap_or_default(), "text/html");
        }
        let two = "Accept-Language: fr\r\nAccept-Language: de\r\n";
        assert_eq!(get(world, "/", two).await.text(), "index.html.de");
        assert_eq!(get(world, "/", "").await.text(), "index.html.en");
        let reply = get(world, "/index.html.de", "Accept-Language: en\r\n").await;
        assert_eq!(reply.text(), "index.html.de");
        assert_eq!(reply.field("content-language").unwrap_or_default(), "de");
        assert!(reply.values("vary").is_empty());
        let reply = get(world, "/x.css", "Accept-Language: de\r\n").await;
        assert!(reply.values("vary").is_empty(), "a file without variants");
        for target in ["/none.html", "/a", "/.en", "/index.html.fr", "/index.html.de/"] {
            assert_eq!(get(world, target, "").await.status(), 404, "{target}");
        }
    });
}

#[test]
fn each_variant_has_its_own_tag() {
    // All files have the same length and the same time of change.
    let root = htdocs(&["a.html.en", "a.html.de", "a.html.de.gz"]);
    let time = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000);
    for name in ["a.html.en", "a.html.de", "a.html.de.gz"] {
        std::fs::File::open(root.path().join(name)).unwrap().set_modified(time).unwrap();
    }
    in_memory(&route(root.path(), ", precompressed = true"), async |world| {
        let mut tags = Vec::new();
        for fields in
            ["", "Accept-Language: de\r\n", "Accept-Language: de\r\nAccept-Encoding: gzip\r\n"]
        {
            let reply = get(world, "/a.html", fields).await;
            assert_eq!(reply.values("vary"), ["Accept-Encoding, Accept-Language"]);
            tags.push(reply.field("etag").unwrap().to_owned());
            let same = format!("{fields}If-None-Match: {}\r\n", tags[tags.len() - 1]);
            let reply = get(world, "/a.html", &same).await;
            assert_eq!(reply.status(), 304);
            assert_eq!(reply.values("vary"), ["Accept-Encoding, Accept-Language"]);
            let other =
                format!("Accept-Language: en\r\nIf-None-Match: {}\r\n", tags[tags.len() - 1]);
            let expected = if tags.len() == 1 { 304 } else { 200 };
            assert_eq!(get(world, "/a.html", &other).await.status(), expected);
        }
        tags.sort();
        tags.dedup();
        assert_eq!(tags.len(), 3, "{tags:?}");
        let reply = get(world, "/a.html", "Accept-Language: de\r\nAccept-Encoding: gzip\r\n").await;
        assert_eq!(reply.text(), "a.html.de.gz");
        assert_eq!(reply.field("content-encoding").unwrap_or_default(), "gzip");
        assert_eq!(reply.field("content-language").unwrap_or_default(), "de");
        assert_eq!(reply.field("content-type").unwrap_or_default(), "text/html");
    });
}

#[test]
fn rules_hold_for_every_variant() {
    let root =
        htdocs(&["a.html.en", "a.html.de", "b.html.en", "b.html.de", "d/index.html.de", ".h.en"]);
    let outside = htdocs(&["secret"]);
    symlink(outside.path().join("secret"), root.path().join("link.html.en")).unwrap();
    symlink(root.path(), root.path().join("e.html.en")).unwrap();
    let gate = |path: &str| {
        let root = root.path().display();
        format!("[[site.route]]\npath = \"{path}\"\ndeny = \"all\"\nfiles = \"{root}\"\n")
    };
    let routes = gate("/a.html")
        + &gate("/b.html.de")
        + &gate("/d/index.html")
        + &route(root.path(), ", follow_symlinks = \"never\"");
    in_memory(&routes, async |world| {
        for (target, status) in [
            ("/a.html", 403),
            ("/a.html.en", 403),
            ("/a.html.de", 403),
            ("/b.html.de", 403),
            // The client might get the variant that the rule protects.
            ("/b.html", 403),
            ("/b.html.en", 200),
            ("/d/", 403),
            ("/d/index.html.de", 403),
            ("/link.html", 404),
            ("/link.html.en", 403),
            ("/e.html", 404),
            ("/.h", 404),
            ("/.h.en", 404),
        ] {
            let reply = get(world, target, "Accept-Language: de\r\n").await;
            assert_eq!(reply.status(), status, "{target}");
        }
    });
}

#[test]
fn a_script_is_no_variant() {
    let root = htdocs(&["a.php", "a.php.de", "b.html.php", "c.pl", "c.pl.de"]);
    let dir = root.path().display();
    let php = format!("fastcgi = {{ to = \"127.0.0.1:1\", root = \"{dir}\" }}");
    let routes = format!("[[site.route]]\nsuffix = \".php\"\n{php}\n")
        + &route(root.path(), "").replace("\"pt-br\"", "\"pl\", \"php\"");
    in_memory(&routes, async |world| {
        let accepts = "Accept-Language: php, pl, de\r\n";
        assert_eq!(get(world, "/a.php", accepts).await.status(), 502);
        assert_eq!(get(world, "/b.html", accepts).await.status(), 404);
        assert_eq!(get(world, "/c", accepts).await.text(), "c.pl");
        assert_eq!(get(world, "/c.pl", accepts).await.text(), "c.pl");
    });
}

#[test]
fn a_hostile_list_of_languages_is_no_danger() {
    let root = htdocs(&["a.html.en", "a.html.de"]);
    in_memory(&route(root.path(), ""), async |world| {
        let long = vec!["x-".repeat(9); 300].join(",");
        for accepts in ["../../etc/passwd", "de/../en", "%2e", ",,,;q=;;q=1", "*-*", &long] {
            let reply = get(world, "/a.html", &format!("Accept-Language: {accepts}\r\n")).await;
            assert_eq!(reply.text(), "a.html.en", "{accepts}");
        }
    });
}

#[test]
fn a_suffix_can_ignore_case() {
    let root = htdocs(&["a.PHP", "B.PhP", "c.php", "d.txt"]);
    let dir = root.path().display();
    let routes = |keys: &str| {
        format!(
            "[[site.route]]\nsuffix = \".php\"\n{keys}\nfastcgi = {{ to = \"127.0.0.1:1\", root = \"{dir}\", \
             scripts = \"*\" }}\n[[site.route]]\nfiles = \"{dir}\"\n"
        )
    };
    in_memory(&routes("suffix_ignore_case = true"), async |world| {
        for target in ["/a.PHP", "/B.PhP", "/c.php"] {
            assert_eq!(get(world, target, "").await.status(), 502, "{target}");
        }
        assert_eq!(get(world, "/d.txt", "").await.text(), "d.txt");
    });
    in_memory(&routes(""), async |world| {
        assert_eq!(get(world, "/a.PHP", "").await.status(), 200, "no route runs it");
        assert_eq!(get(world, "/c.php", "").await.status(), 502);
    });
}

#[test]
fn files_below_another_route_are_not_sent_if_a_suffix_in_any_case_runs_them() {
    let root = htdocs(&["a.PHP", "b.php.BAK", "c.txt"]);
    let dir = root.path().display();
    let routes = format!(
        "[[site.route]]\npath = \"/all/*\"\nfiles = \"{dir}\"\n[[site.route]]\nsuffix = \".php\"\n\
         suffix_ignore_case = true\ncgi = \"{dir}\"\n"
    );
    in_memory(&routes, async |world| {
        assert_eq!(get(world, "/all/a.PHP", "").await.status(), 404);
        assert_eq!(get(world, "/all/b.php.BAK", "").await.status(), 404);
        assert_eq!(get(world, "/all/c.txt", "").await.status(), 200);
    });
}
