//! Files whose names have an extension more than the path.

use std::path::Path;

use crate::languages::htdocs;
use crate::world::{Message, World, in_memory};

/// `routes` before the files of `root`, whose table has further `keys`.
fn site(root: &Path, routes: &str, keys: &str) -> String {
    let root = root.display();
    format!(
        "{routes}[[site.route]]\npath = \"/*\"\n\
         files = {{ root = \"{root}\", extensions = [\".html\", \".txt\"]{keys} }}\n"
    )
}

async fn get(world: &World, target: &str) -> Message {
    world.ask(&format!("GET {target} HTTP/1.1\r\nHost: h\r\n\r\n")).await
}

#[test]
fn a_path_without_a_file_gets_the_one_with_an_extension_more() {
    let root = htdocs(&[
        "about.html",
        "about.txt",
        "note.txt",
        "plain",
        "plain.html",
        "blog.html",
        "blog/index.html",
        "docs/index.html",
        "docs/.html",
        ".secret.html",
    ]);
    in_memory(&site(root.path(), "", ""), async |world| {
        for (target, status, text) in [
            ("/about", 200, "about.html"),
            ("/note", 200, "note.txt"),
            ("/plain", 200, "plain"),
            ("/plain.html", 200, "plain.html"),
            ("/blog", 200, "blog.html"),
            ("/blog/", 200, "blog/index.html"),
            ("/docs", 301, ""),
            ("/docs/", 200, "docs/index.html"),
        ] {
            let reply = get(world, target).await;
            assert_eq!((reply.status(), reply.text()), (status, text), "{target}");
        }
        for target in
            ["/about/", "/about.html/", "/none", "/.secret", "/about.html.txt", "/about/x"]
        {
            assert_eq!(get(world, target).await.status(), 404, "{target}");
        }
        let reply = get(world, "/about").await;
        assert_eq!(reply.field("content-type").unwrap_or_default(), "text/html");
        let post = "POST /about HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n";
        assert_eq!(world.ask(post).await.status(), 405);
    });
}

#[test]
fn the_variants_and_copies_of_the_file_count() {
    let root = htdocs(&["about.html.de", "about.html.en", "a.html", "a.html.gz"]);
    let keys = ", languages = [\"en\", \"de\"], precompressed = true";
    in_memory(&site(root.path(), "", keys), async |world| {
        let ask = async |target: &str, field: &str| {
            let request = format!("GET {target} HTTP/1.1\r\nHost: h\r\n{field}\r\n\r\n");
            world.ask(&request).await
        };
        assert_eq!(ask("/about", "Accept-Language: de").await.text(), "about.html.de");
        assert_eq!(ask("/about", "Accept-Language: fr").await.text(), "about.html.en");
        let reply = ask("/a", "Accept-Encoding: gzip").await;
        assert_eq!(reply.field("content-encoding"), Some("gzip"));
    });
}

#[test]
fn a_rule_for_one_name_of_the_file_holds_for_the_other() {
    let root = htdocs(&["about.html", "shop.html", "open.html", "moved.html"]);
    let routes = "[[site.route]]\npath = \"/about.html\"\nrespond = { status = 403 }\n\
        [[site.route]]\npath = \"/shop\"\nrespond = { status = 403 }\n\
        [[site.route]]\npath = \"/moved.html\"\nredirect = \"/moved\"\n";
    in_memory(&site(root.path(), routes, ""), async |world| {
        for (target, status) in [
            ("/about", 403),
            ("/about.html", 403),
            ("/shop", 403),
            ("/shop.html", 403),
            ("/open", 200),
            ("/open.html", 200),
            // Visitors are sent to the short name, which still has the file.
            ("/moved", 200),
            ("/moved.html", 302),
        ] {
            assert_eq!(get(world, target).await.status(), status, "{target}");
        }
    });
}

#[test]
fn the_source_of_a_script_is_not_sent_for_its_shorter_name() {
    let root = htdocs(&["run.php", "page.html"]);
    let root = root.path().display();
    let scripts = format!(
        "[[site.route]]\nsuffix = \".php\"\nfastcgi = {{ to = \"127.0.0.1:9\", root = \"{root}\" }}\n"
    );
    let files = format!(
        "[[site.route]]\npath = \"/*\"\n\
         files = {{ root = \"{root}\", extensions = [\".php\", \".html\"], scripts = \"below\" }}\n"
    );
    for site in [format!("{scripts}{files}"), format!("{files}{scripts}")] {
        in_memory(&site, async |world| {
            assert_eq!(get(world, "/run").await.status(), 502, "its backend is asked");
            assert_eq!(get(world, "/page").await.text(), "page.html");
        });
    }
}
