//! `signed_url`: only signed URLs reach the route. The signatures are those of `openssl`.

use tempfile::TempDir;

use crate::world::{Message, World, in_memory};

const SECRET: &str = "0123456789abcdef0123456789abcdef";
/// Signature of `/d/a.txt` until the year 2100, in both forms.
const OF_A: &str = "4db21612b0c881a0299132dd9c21da653edd6a9ffc126db15db7d7c74613e408";
const OF_A_BASE64: &str = "TbIWErDIgaApkTLdnCHaZT7dap_8Em2xXbfXx0YT5Ag";
/// Signature of `/d/a.txt` until the year 2001.
const EXPIRED: &str = "4a4bdb73ba8ab78a602f54773f5aea5ee5f882fec05ec88180471aa75f2c3f3a";
/// Signature of `/d/a%20b.txt`.
const OF_AB: &str = "be6d8c377e6675168e87d0c502b130e75ca352a714c7861953b92a89d9a7ffe7";
/// Signature of `/d/`.
const OF_FOLDER: &str = "c4cd6e0ff465f4f1e2a6766133fab8eb3cd4e204df6d5d1cb1a55c1764eba758";
/// Signature of `/d/a.txt` until the year 2100, for `who=me`.
const OF_ME: &str = "1165f2e10834b9027ed73c425f3733700187ebdd12e76820c8c413eda7317840";
const TIME: &str = "4102444800";

fn folder() -> TempDir {
    let root = tempfile::tempdir().unwrap();
    for name in ["a.txt", "a b.txt", "b.txt", "index.html"] {
        std::fs::write(root.path().join(name), name).unwrap();
    }
    root
}

fn route(root: &TempDir, keys: &str) -> String {
    let root = root.path().display();
    format!(
        "[[site.route]]\npath = \"/d/*\"\nfiles = \"{root}\"\nsigned_url = {{ {keys} }}\n\
         [[site.route]]\npath = \"/all/*\"\nrespond = \"open\"\n"
    )
}

async fn get(world: &World, target: &str) -> Message {
    world.ask(&format!("GET {target} HTTP/1.1\r\nHost: h\r\n\r\n")).await
}

#[test]
fn a_signature_opens_one_path_until_its_time() {
    let root = folder();
    let other = "x".repeat(32);
    in_memory(&route(&root, &format!("secret = [\"{other}\", \"{SECRET}\"]")), async |world| {
        let url = |path: &str, time: &str, signature: &str| {
            format!("{path}?expires={time}&signature={signature}")
        };
        let upper = OF_A.to_ascii_uppercase();
        for (target, status) in [
            (url("/d/a.txt", TIME, OF_A), 200),
            (url("/d/a.txt", TIME, &upper), 200),
            (url("/d/a.txt", TIME, OF_A_BASE64), 200),
            (url("/d/a.txt", TIME, &format!("{OF_A_BASE64}=")), 200),
            (url("/d/a%20b.txt", TIME, OF_AB), 200),
            (url("/d/", TIME, OF_FOLDER), 200),
            // The gateway first normalizes the path, as for a backend.
            (url("/d//a.txt", TIME, OF_A), 200),
            (url("/x/../d/a.txt", TIME, OF_A), 200),
            (url("/d/a.txt", "1000000000", EXPIRED), 410),
            ("/d/a.txt".into(), 403),
            (format!("/d/a.txt?expires={TIME}"), 403),
            (format!("/d/a.txt?signature={OF_A}"), 403),
            (url("/d/b.txt", TIME, OF_A), 403),
            (url("/d/%61.txt", TIME, OF_A), 403),
            (url("/d/a.txt;x", TIME, OF_A), 403),
            (url("/d/A.txt", TIME, OF_A), 403),
            (url("/d/a.txt/", TIME, OF_A), 403),
            (url("/d%2fa.txt", TIME, OF_A), 404),
            (url("/d/a.txt", "4102444801", OF_A), 403),
            (url("/d/a.txt", "+4102444800", OF_A), 403),
            (url("/d/a.txt", "04102444800", OF_A), 403),
            (url("/d/a.txt", "99999999999999999999", OF_A), 403),
            (url("/d/a.txt", TIME, ""), 403),
            (url("/d/a.txt", TIME, "="), 403),
            (url("/d/a.txt", TIME, &OF_A[..62]), 403),
            (url("/d/a.txt", TIME, &OF_A.repeat(20)), 403),
            (url("/d/a.txt", TIME, "%00%ff"), 403),
            // An application may read another one of several values.
            (format!("{}&expires={TIME}", url("/d/a.txt", TIME, OF_A)), 403),
            (format!("{}&signature=x", url("/d/a.txt", TIME, OF_A)), 403),
            (format!("{}&%65xpires=1", url("/d/a.txt", TIME, OF_A)), 403),
        ] {
            let reply = get(world, &target).await;
            assert_eq!(reply.status(), status, "{target}");
        }
        assert_eq!(get(world, "/all/x").await.text(), "open");
    });
}

#[test]
fn a_signature_holds_for_the_resource_and_not_for_its_path() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("x.php"), "").unwrap();
    let root = folder.path().display();
    let fastcgi = format!("fastcgi = {{ to = \"10.0.0.1:9000\", root = \"{root}\" }}");
    let routes = format!(
        "[[site.route]]\npath = \"/x.php\"\nsigned_url = {{ secret = \"{SECRET}\" }}\n{fastcgi}\n\
         [[site.route]]\nsuffix = \".php\"\n{fastcgi}\n"
    );
    in_memory(&routes, async |world| {
        for target in ["/x.php", "/x.php/y", "/x.php/"] {
            let target = format!("{target}?expires={TIME}&signature={OF_A}");
            assert_eq!(get(world, &target).await.status(), 403, "{target}");
        }
    });
}

#[test]
fn bytes_cannot_move_from_one_value_to_the_next() {
    let root = folder();
    let keys = format!(
        "secret = \"{SECRET}\", text = \"{{query.expires}} {{path}} {{query.who}}\", expires = \"expires\""
    );
    in_memory(&route(&root, &keys), async |world| {
        for who in ["a b", "a%20b", "a+b"] {
            let target = format!("/d/a.txt?expires={TIME}&signature={OF_A}&who={who}");
            assert_eq!(get(world, &target.replace(' ', "%20")).await.status(), 403);
        }
        // An application may read another one of several values.
        let signed = format!("/d/a.txt?expires={TIME}&signature={OF_ME}&who=me");
        for (rest, status) in [
            ("", 200),
            ("&other=x", 200),
            ("&other=x;y", 200),
            ("&who=you", 403),
            ("&who", 403),
            ("&%77ho=you", 403),
            ("&who[]=you", 403),
            ("&WHO=you", 403),
            ("&+who=you", 403),
            ("&other=x;who=you", 403),
            (";who=you", 403),
            ("&signature[]=x", 403),
        ] {
            let reply = get(world, &format!("{signed}{rest}")).await;
            assert_eq!(reply.status(), status, "{rest}");
        }
    });
}

#[test]
fn links_of_nginx_remain_valid() {
    let root = folder();
    let keys = "secret = \" enigma\", algorithm = \"md5\", signature = \"md5\", \
                text = \"{query.expires}{path}{client}\"";
    in_memory(&route(&root, keys), async |world| {
        let target = format!("/d/a%20b.txt?md5=qkai3FZ7plWnAPafitU4rg&expires={TIME}");
        assert_eq!(get(world, &target).await.text(), "a b.txt");
        let mut other = world.client_from("192.0.2.8:4000");
        let request = format!("GET {target} HTTP/1.1\r\nHost: h\r\n\r\n");
        other.send(&request).await;
        assert_eq!(other.reply(&request).await.status(), 403);
    });
}
