//! Files on disk: validators, ranges, compressed siblings, directories, and files that a backend
//! names for sending.

use std::path::Path;

use tempfile::TempDir;

use crate::world::{Message, World, in_memory};

fn htdocs() -> TempDir {
    let root = tempfile::tempdir().unwrap();
    for (name, text) in [
        ("index.html", "<p>index"),
        ("a.txt", "0123456789"),
        ("style.css", "a{}"),
        ("logo.svg", "<svg/>"),
        ("no-extension", "x"),
        ("dir/index.html", "<p>dir"),
        ("dir/b.txt", "b"),
        ("bare/c.txt", "c"),
    ] {
        write(root.path(), name, text);
    }
    root
}

fn write(root: &Path, name: &str, text: impl AsRef<[u8]>) {
    let path = root.join(name);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, text).unwrap();
}

fn route(root: &TempDir, keys: &str) -> String {
    let root = root.path().display();
    format!("[[site.route]]\npath = \"/*\"\nfiles = {{ root = \"{root}\"{keys} }}\n")
}

async fn get(world: &World, target: &str, fields: &str) -> Message {
    world.ask(&format!("GET {target} HTTP/1.1\r\nHost: h\r\n{fields}\r\n")).await
}

#[test]
fn files_have_their_types_and_lengths() {
    let root = htdocs();
    in_memory(&route(&root, ""), async |world| {
        for (target, kind) in [
            ("/", "text/html"),
            ("/a.txt", "text/plain"),
            ("/style.css", "text/css"),
            ("/logo.svg", "image/svg+xml"),
            ("/no-extension", "application/octet-stream"),
        ] {
            let reply = get(world, target, "").await;
            assert_eq!(reply.status(), 200, "{target}");
            let got = reply.field("content-type").unwrap();
            assert!(got.starts_with(kind), "{target}: {got}");
            assert!(reply.field("date").is_some() && reply.field("last-modified").is_some());
            assert_eq!(reply.values("content-length"), [&*reply.body.len().to_string()]);
        }
    });
}

#[test]
fn conditional_requests_are_answered() {
    let root = htdocs();
    in_memory(&route(&root, ""), async |world| {
        let whole = get(world, "/a.txt", "").await;
        let etag = whole.field("etag").unwrap();
        let date = whole.field("last-modified").unwrap();
        for (fields, status) in [
            (format!("If-None-Match: {etag}\r\n"), 304),
            (format!("If-None-Match: W/{etag}\r\n"), 304),
            (format!("If-None-Match: \"x\", {etag}\r\n"), 304),
            ("If-None-Match: *\r\n".into(), 304),
            ("If-None-Match: \"x\"\r\n".into(), 200),
            (format!("If-None-Match: \"x\"\r\nIf-Modified-Since: {date}\r\n"), 200),
            (format!("If-Modified-Since: {date}\r\n"), 304),
            ("If-Modified-Since: Thu, 01 Jan 1970 00:00:01 GMT\r\n".into(), 200),
            ("If-Modified-Since: nonsense\r\n".into(), 200),
            ("If-Match: \"x\"\r\n".into(), 412),
            (format!("If-Match: {etag}\r\n"), 200),
            ("If-Unmodified-Since: Thu, 01 Jan 1970 00:00:01 GMT\r\n".into(), 412),
        ] {
            let reply = get(world, "/a.txt", &fields).await;
            assert_eq!(reply.status(), status, "{fields}");
            if status == 304 {
                assert_eq!(reply.field("etag"), Some(etag));
                assert!(reply.field("content-length").is_none_or(|length| length == "10"));
            }
        }
    });
}

#[test]
fn several_lines_of_tags_are_one_list() {
    let root = htdocs();
    in_memory(&route(&root, ""), async |world| {
        let etag = get(world, "/a.txt", "").await.field("etag").unwrap().to_owned();
        for (name, listed, other) in [("If-None-Match", 304, 200), ("If-Match", 200, 412)] {
            for (first, second, status) in
                [("\"x\"", &*etag, listed), (&*etag, "\"x\"", listed), ("\"x\"", "\"y\"", other)]
            {
                let fields = format!("{name}: {first}\r\n{name}: {second}\r\n");
                assert_eq!(get(world, "/a.txt", &fields).await.status(), status, "{fields}");
            }
        }
    });
}

#[test]
fn one_range_is_sent() {
    let root = htdocs();
    in_memory(&route(&root, ""), async |world| {
        let whole = get(world, "/a.txt", "").await;
        assert_eq!(whole.field("accept-ranges"), Some("bytes"));
        let etag = whole.field("etag").unwrap();
        for (fields, status, body, range) in [
            ("Range: bytes=2-4\r\n".to_owned(), 206, "234", Some("bytes 2-4/10")),
            ("Range: bytes=-3\r\n".to_owned(), 206, "789", Some("bytes 7-9/10")),
            ("Range: bytes=8-\r\n".to_owned(), 206, "89", Some("bytes 8-9/10")),
            ("Range: bytes=0-99\r\n".to_owned(), 206, "0123456789", Some("bytes 0-9/10")),
            ("Range: bytes=10-\r\n".to_owned(), 416, "", Some("bytes */10")),
            ("Range: lines=1-2\r\n".to_owned(), 200, "0123456789", None),
            ("Range: bytes=4-2\r\n".to_owned(), 200, "0123456789", None),
            (format!("Range: bytes=0-0\r\nIf-Range: {etag}\r\n"), 206, "0", Some("bytes 0-0/10")),
            ("Range: bytes=0-0\r\nIf-Range: \"x\"\r\n".to_owned(), 200, "0123456789", None),
        ] {
            let reply = get(world, "/a.txt", &fields).await;
            assert_eq!((reply.status(), reply.text()), (status, body), "{fields}");
            assert_eq!(reply.field("content-range"), range, "{fields}");
        }
    });
}

#[test]
fn several_ranges_are_sent_in_parts() {
    let root = htdocs();
    let large: Vec<u8> = (0..300_000).map(|at| b'a' + ((at * 31 + at / 251) % 26) as u8).collect();
    write(root.path(), "large.txt", &large);
    let large = String::from_utf8(large).unwrap();
    in_memory(&route(&root, ""), async |world| {
        for (target, ranges, expected) in [
            (
                "/a.txt",
                "0-1, -2,4-4",
                vec![("bytes 0-1/10", "01"), ("bytes 8-9/10", "89"), ("bytes 4-4/10", "4")],
            ),
            (
                "/large.txt",
                "1000-200999,299999-",
                vec![
                    ("bytes 1000-200999/300000", &large[1000..201_000]),
                    ("bytes 299999-299999/300000", &large[299_999..]),
                ],
            ),
        ] {
            let reply = get(world, target, &format!("Range: bytes={ranges}\r\n")).await;
            assert_eq!((reply.status(), reply.field("content-range")), (206, None));
            let kind = reply.field("content-type").unwrap();
            let boundary = kind.strip_prefix("multipart/byteranges; boundary=").expect(kind);
            let text = reply.text().strip_suffix(&format!("\r\n--{boundary}--\r\n")).unwrap();
            let parts: Vec<_> = text.split(&format!("\r\n--{boundary}\r\n")).skip(1).collect();
            assert_eq!(parts.len(), expected.len());
            for (part, (range, body)) in parts.iter().zip(expected) {
                let (head, content) = part.split_once("\r\n\r\n").expect("a part has a head");
                assert!(head.contains("Content-Type: text/plain"), "{head}");
                assert!(head.contains(&format!("Content-Range: {range}")), "{head}");
                assert!(content == body, "{range}");
            }
        }
    });
}

#[test]
fn too_many_and_overlapping_ranges_get_the_whole_file() {
    let root = htdocs();
    let many = format!("bytes=0-0{}", ",2-2".repeat(1000));
    in_memory(&route(&root, ""), async |world| {
        for (range, status) in [
            ("bytes=0-5,5-6", 200),
            ("bytes=0-,0-,0-,0-,0-", 200),
            (&many[..], 200),
            ("bytes=0-1,,3-4", 200),
            ("bytes=0-1,50-60", 206),
            ("bytes=10-,20-30", 416),
        ] {
            let reply = get(world, "/a.txt", &format!("Range: {range}\r\n")).await;
            assert_eq!(reply.status(), status, "{range}");
            let expected = match status {
                200 => ("0123456789", None),
                206 => ("01", Some("bytes 0-1/10")),
                _ => (reply.text(), Some("bytes */10")),
            };
            assert_eq!((reply.text(), reply.field("content-range")), expected, "{range}");
        }
    });
}

#[test]
fn as_many_ranges_are_sent_as_max_ranges_allows() {
    let root = htdocs();
    for most in [0, 1, 2, 5] {
        in_memory(&route(&root, &format!(", max_ranges = {most}")), async |world| {
            for count in 1..=5 {
                let ranges: Vec<_> = (0..count).map(|at| format!("{0}-{0}", at * 2)).collect();
                let range = format!("Range: bytes={}\r\n", ranges.join(","));
                let reply = get(world, "/a.txt", &range).await;
                let status = if count <= most { 206 } else { 200 };
                assert_eq!(reply.status(), status, "{count} of {most}");
            }
            let whole = get(world, "/a.txt", "").await;
            assert_eq!(whole.field("accept-ranges").is_some(), most > 0);
        });
    }
}

#[test]
fn what_htaccess_protects_is_sent_only_if_the_site_decides_so() {
    let root = htdocs();
    write(root.path(), "dir/.htaccess", "<Files b.*>\nRequire valid-user\n</Files>\n");
    write(root.path(), "bare/.htaccess", "Options -Indexes\n");
    write(root.path(), "bare/deep/x.txt", "x");
    write(root.path(), "bare/deep/.htaccess", "Deny from all\n");
    write(root.path(), "bare/deep/open/x.txt", "x");
    write(root.path(), "bare/deep/open/.htaccess", "Require all granted\n");
    let statuses = [
        ("/a.txt", 200),
        ("/dir/", 200),
        ("/dir/b.txt", 403),
        ("/bare/", 403),
        ("/bare/c.txt", 200),
        ("/bare/deep/x.txt", 403),
        ("/bare//deep/x.txt", 403),
        ("/bare/deep/", 403),
        ("/bare/deep/open/x.txt", 200),
    ];
    let asks = async |world: &World, decides: bool| {
        // The second request finds the file in memory.
        for (target, status) in statuses.iter().chain(&statuses) {
            let reply = get(world, target, "").await;
            assert_eq!(reply.status(), if decides { 200 } else { *status }, "{target}");
        }
    };
    in_memory(&route(&root, ", listing = true"), async |world| asks(world, false).await);
    let ignored = ", listing = true, htaccess = \"ignore\"";
    in_memory(&route(&root, ignored), async |world| asks(world, true).await);
    // The rules of the route say who may read its files. Limits do not.
    let with = |key: &str| format!("{}{key}\n", route(&root, ", listing = true"));
    in_memory(&with("allow = [\"0.0.0.0/0\", \"::/0\"]"), async |world| asks(world, true).await);
    in_memory(&with("rate_limit = { rate = \"1000/s\" }"), async |world| asks(world, false).await);
}

#[test]
fn head_has_the_fields_of_get_and_no_body() {
    let root = htdocs();
    in_memory(&route(&root, ""), async |world| {
        let whole = get(world, "/a.txt", "").await;
        let mut client = world.client();
        for (target, status) in [("/a.txt", 200), ("/missing", 404), ("/dir/b.txt", 200)] {
            client.send(format!("HEAD {target} HTTP/1.1\r\nHost: h\r\n\r\n")).await;
            let reply = client.reply("HEAD ").await;
            assert_eq!(reply.status(), status);
            if target == "/a.txt" {
                for name in ["content-length", "content-type", "etag", "last-modified"] {
                    assert_eq!(reply.field(name), whole.field(name), "{name}");
                }
            }
        }
    });
}

#[test]
fn other_methods_are_refused_and_the_connection_goes_on() {
    let root = htdocs();
    in_memory(&route(&root, ""), async |world| {
        let mut client = world.client();
        for method in ["POST", "PUT", "DELETE", "PATCH"] {
            let head = format!("{method} /a.txt HTTP/1.1\r\nHost: h\r\n");
            client.send(format!("{head}Content-Length: 3\r\n\r\nabc")).await;
            let reply = client.reply("").await;
            assert_eq!((reply.status(), reply.field("allow")), (405, Some("GET, HEAD")));
            client.send("GET /dir/b.txt HTTP/1.1\r\nHost: h\r\n\r\n").await;
            assert_eq!(client.reply("").await.text(), "b");
        }
    });
}

#[test]
fn a_directory_without_slash_redirects_to_this_host() {
    let root = htdocs();
    in_memory(&route(&root, ""), async |world| {
        for (target, location) in [
            ("/dir", "/dir/"),
            ("/dir?a=b&c", "/dir/?a=b&c"),
            ("//dir", "/dir/"),
            ("///dir?x", "/dir/?x"),
            ("/a/../dir", "/dir/"),
            ("/%64ir", "/dir/"),
            ("/.//dir", "/dir/"),
            ("/x/..//dir", "/dir/"),
        ] {
            let reply = get(world, target, "").await;
            assert_eq!(
                (reply.status(), reply.field("location")),
                (301, Some(location)),
                "{target}"
            );
            assert_eq!(get(world, location, "").await.text(), "<p>dir", "{target}");
        }
    });
}

#[test]
fn a_directory_without_index_is_403_unless_it_is_listed() {
    let root = htdocs();
    write(root.path(), "bare/<b>&\"'.txt", "");
    write(root.path(), "bare/.hidden", "");
    write(root.path(), "bare/a b%41?#.txt", "found");
    in_memory(&route(&root, ""), async |world| {
        assert_eq!(get(world, "/bare/", "").await.status(), 403);
    });
    in_memory(&route(&root, ", listing = true"), async |world| {
        let page = get(world, "/bare/", "").await;
        let text = page.text();
        assert_eq!(page.status(), 200);
        assert!(!text.contains("<b>") && !text.contains(".hidden"), "{text}");
        assert!(
            text.contains("./a%20b%2541%3F%23.txt\">a b%41?#.txt</a></td><td>5 B</td>"),
            "{text}"
        );
        let by_size = get(world, "/bare/?sort=size&order=desc", "").await;
        assert!(by_size.text().contains("order=asc\">Size</a> ↓"), "{}", by_size.text());
        assert_eq!(get(world, "/bare/a%20b%2541%3F%23.txt", "").await.text(), "found");
        assert_eq!(get(world, "/dir/", "").await.text(), "<p>dir", "an index goes first");
    });
}

/// Names that a visitor could choose, for example with an upload.
const HOSTILE: [&[u8]; 7] = [
    b"<img src=x onerror=alert(1)>",
    b"\" onmouseover=\"alert(1)",
    b"' onclick='alert(1)",
    b"javascript:alert(1)",
    b"{path}{name}{entries}{note}",
    b"a\nb\r\n\xFF?#%2e",
    b"&lt;b&gt;",
];

#[test]
fn a_listing_is_made_from_a_template_and_escapes_every_name() {
    use std::os::unix::ffi::OsStrExt;
    let root = htdocs();
    let template = "<h1 title=\"{path}\">{path}</h1><a href=\"{parent}\">up</a>\
                    <a href=\"{sort.size}\">by {sort} {order}</a>{entries}\n\
                    <a href=\"{href}\" title='{name}'>{name}</a>|{kind}|{size}|{bytes}{/entries}{note}";
    write(root.path(), "list.html", template);
    write(root.path(), "up/.secret", "");
    write(root.path(), "up/sub/x", "");
    for name in HOSTILE {
        let name = std::ffi::OsStr::from_bytes(name);
        std::fs::write(root.path().join("up").join(name), "12345").unwrap();
    }
    let file = root.path().join("list.html");
    let keys = format!(", listing = {{ template = \"{}\" }}", file.display());
    in_memory(&route(&root, &keys), async |world| {
        let page = get(world, "/up/", "Accept: text/html, */*;q=0.1\r\n").await;
        assert_eq!((page.status(), page.field("vary")), (200, Some("Accept")));
        assert_eq!(page.field("content-type"), Some("text/html; charset=utf-8"));
        let text = page.text();
        assert!(text.starts_with("<h1 title=\"/up/\">/up/</h1><a href=\"../\">up</a>"), "{text}");
        assert!(text.contains("<a href=\"?sort=size&amp;order=asc\">by name asc</a>"), "{text}");
        assert!(text.contains("<a href=\"./sub/\" title='sub/'>sub/</a>|directory||\n"), "{text}");
        assert!(text.contains("<a href=\"./javascript%3Aalert%281%29\" title="), "{text}");
        assert!(text.contains(">{path}{name}{entries}{note}</a>|file|5 B|5"), "{text}");
        assert!(text.contains(">&amp;lt;b&amp;gt;</a>"), "{text}");
        let markup = ["<img", "\" on", "' on", ".secret", "href=\"javascript"];
        assert!(markup.iter().all(|part| !text.contains(part)), "{text}");
        assert_eq!(text.matches("<a ").count(), 2 + HOSTILE.len() + 1, "{text}");
        for link in text.split("<a href=\"./").skip(1).filter_map(|rest| rest.split('"').next()) {
            if !link.ends_with('/') {
                assert_eq!(get(world, &format!("/up/{link}"), "").await.text(), "12345", "{link}");
            }
        }
        let sorted = get(world, "/up/?sort=size&order=asc", "").await;
        assert!(sorted.text().contains("?sort=size&amp;order=desc\">by size asc<"));
        let query = get(world, "/up/?sort=<b>&order=<b>", "").await;
        assert!(!query.text().contains("<b>"), "{}", query.text());
        assert!(get(world, "/bare/", "").await.text().contains(">c.txt</a>|file|1 B|1"));
    });
}

#[test]
fn clients_that_prefer_json_get_the_listing_as_json() {
    let root = htdocs();
    write(root.path(), "bare/.hidden", "");
    write(root.path(), "bare/\"<sub>/x", "");
    in_memory(&route(&root, ", listing = true"), async |world| {
        let reply = get(world, "/bare/", "Accept: application/json, text/plain, */*\r\n").await;
        assert_eq!(reply.field("content-type"), Some("application/json"));
        assert_eq!(reply.field("vary"), Some("Accept"));
        let json: serde_json::Value = serde_json::from_slice(&reply.body).unwrap();
        let entries = json["entries"].as_array().unwrap();
        assert_eq!((&json["path"], &json["incomplete"]), (&"/bare/".into(), &false.into()));
        assert_eq!(entries.len(), 2, "{json}");
        assert_eq!(entries[0]["name"], "\"<sub>/");
        assert_eq!(entries[0]["href"], "./%22%3Csub%3E/");
        assert_eq!(
            (&entries[0]["kind"], entries[0]["bytes"].is_null()),
            (&"directory".into(), true)
        );
        assert_eq!((&entries[1]["kind"], &entries[1]["bytes"]), (&"file".into(), &1.into()));
        assert!(entries[1]["modified"].as_str().unwrap().ends_with('Z'));
        for accept in ["*/*", "text/html, application/json", "application/json;q=0", "x, ,;q=1"] {
            let reply = get(world, "/bare/", &format!("Accept: {accept}\r\n")).await;
            assert_eq!(reply.field("content-type"), Some("text/html; charset=utf-8"), "{accept}");
        }
        assert_eq!(get(world, "/dir/", "Accept: application/json\r\n").await.text(), "<p>dir");
    });
}

fn compressed() -> TempDir {
    let root = tempfile::tempdir().unwrap();
    for (name, text) in [
        ("a.js", "plain script"),
        ("a.js.br", "brotli"),
        ("a.js.zst", "zstandard"),
        ("a.js.gz", "gzipped"),
        ("b.css", "plain style"),
        ("b.css.gz", "gz style"),
        ("c.txt", "only plain"),
        ("index.html", "plain page"),
        ("index.html.gz", "gz page"),
    ] {
        write(root.path(), name, text);
    }
    root
}

#[test]
fn the_sibling_that_the_client_likes_best_is_sent() {
    let root = compressed();
    in_memory(&route(&root, ", precompressed = true"), async |world| {
        for (target, accepts, body, coding) in [
            ("/a.js", "gzip, deflate, br, zstd", "brotli", Some("br")),
            ("/a.js", "gzip, zstd;q=0.9", "gzipped", Some("gzip")),
            ("/a.js", "zstd", "zstandard", Some("zstd")),
            ("/a.js", "br;q=0, *;q=0.1", "zstandard", Some("zstd")),
            ("/a.js", "deflate", "plain script", None),
            ("/a.js", "identity, gzip;q=0.5", "plain script", None),
            ("/a.js", "gzip;q=0", "plain script", None),
            ("/b.css", "br, gzip", "gz style", Some("gzip")),
            ("/c.txt", "br, gzip", "only plain", None),
            ("/", "gzip", "gz page", Some("gzip")),
        ] {
            let reply = get(world, target, &format!("Accept-Encoding: {accepts}\r\n")).await;
            assert_eq!((reply.status(), reply.text()), (200, body), "{target} {accepts}");
            assert_eq!(reply.field("content-encoding"), coding, "{target} {accepts}");
            assert_eq!(reply.values("vary"), ["Accept-Encoding"], "{target} {accepts}");
        }
        let js = get(world, "/a.js", "").await;
        let br = get(world, "/a.js", "Accept-Encoding: br\r\n").await;
        assert_eq!(js.field("content-type"), br.field("content-type"));
        assert_ne!(js.field("etag"), br.field("etag"));
        let sibling = get(world, "/a.js.br", "").await;
        assert_eq!((sibling.text(), sibling.field("content-encoding")), ("brotli", None));
    });
}

#[test]
fn a_sibling_has_its_own_validators_and_ranges() {
    let root = compressed();
    in_memory(&route(&root, ", precompressed = true"), async |world| {
        let br = "Accept-Encoding: br\r\n";
        let plain_tag = get(world, "/a.js", "").await.field("etag").unwrap().to_owned();
        let br_tag = get(world, "/a.js", br).await.field("etag").unwrap().to_owned();
        let same = get(world, "/a.js", &format!("{br}If-None-Match: {br_tag}\r\n")).await;
        assert_eq!((same.status(), same.field("etag")), (304, Some(&br_tag[..])));
        assert_eq!(same.field("vary"), Some("Accept-Encoding"));
        let other = get(world, "/a.js", &format!("{br}If-None-Match: {plain_tag}\r\n")).await;
        assert_eq!((other.status(), other.text()), (200, "brotli"));
        for (fields, status, body) in [
            ("Range: bytes=0-2\r\n".to_owned(), 206, "pla"),
            (format!("Range: bytes=0-2\r\nIf-Range: {br_tag}\r\n"), 206, "bro"),
            (format!("Range: bytes=0-2\r\nIf-Range: {plain_tag}\r\n"), 206, "pla"),
            ("Range: bytes=0-2\r\nIf-Range: \"x\"\r\n".to_owned(), 200, "plain script"),
        ] {
            let reply = get(world, "/a.js", &format!("{br}{fields}")).await;
            assert_eq!((reply.status(), reply.text()), (status, body), "{fields}");
        }
    });
}

#[test]
fn a_link_that_is_not_followed_is_logged_with_the_key() {
    let root = htdocs();
    std::os::unix::fs::symlink("a.txt", root.path().join("link.txt")).unwrap();
    in_memory(&route(&root, ", follow_symlinks = \"never\""), async |world| {
        assert_eq!(get(world, "/link.txt", "").await.status(), 403);
        let errors = world.errors();
        let is_named = |error: &String| {
            error.contains("`follow_symlinks` does not follow") && error.contains("/link.txt")
        };
        assert!(errors.iter().any(is_named), "{errors:?}");
        assert_eq!(get(world, "/none.txt", "").await.status(), 404);
        assert!(world.errors().is_empty(), "a missing file is no mistake");
    });
}
