//! Extended CONNECT (RFC 8441) to origins without tunnels: the client gets an error status, and the
//! access log has it. A 2xx would be the start of a tunnel for the client.

use forebay_wire::http2::RequestPseudo;

use crate::ajp::ok;
use crate::fastcgi::{end, stdout};
use crate::http2_client::{Http2Client, Reply};
use crate::world::{World, in_memory};

const LOG: &str =
    "[log]\naccess = \"stdout\"\nformat = \"%>s %B\"\n[[site]]\nlisten = \"127.0.0.1:80\"\n";

fn pseudo(path: &[u8]) -> RequestPseudo<'_> {
    RequestPseudo {
        method: b"CONNECT",
        scheme: b"http",
        authority: b"a",
        path,
        protocol: b"websocket",
    }
}

/// Requests a tunnel while `backend` answers. Returns the reply, after comparing it with the log.
async fn refused(world: &World, path: &str, backend: impl Future<Output = ()>) -> Reply {
    let mut client = Http2Client::connect(world).await;
    let fields = [("sec-websocket-version", "13")];
    let stream = client.ask_as(&pseudo(path.as_bytes()), &fields, false);
    client.flush();
    client.during(backend).await;
    let reply = client.reply(stream).await;
    let lines = world.gateway.access_lines();
    let logged = format!("{} {}", reply.status, reply.body.len());
    assert_eq!(lines.last().map(|line| line.trim_end()), Some(&logged[..]), "{reply:?}");
    // The connection stays open.
    let stream = client.get("/none");
    assert_eq!(client.reply(stream).await.status, 404);
    reply
}

#[test]
fn files_and_fixed_replies_make_no_tunnel() {
    let root = tempfile::tempdir().unwrap();
    std::fs::write(root.path().join("a.txt"), "0123456789").unwrap();
    std::fs::write(root.path().join("large"), vec![7; 1 << 20]).unwrap();
    let routes = format!(
        "{LOG}[[site.route]]\npath = \"/fixed\"\nrespond = \"here\"\n\
         [[site.route]]\npath = \"/empty\"\nrespond = {{ status = 204 }}\n\
         [[site.route]]\npath = \"/moved\"\nredirect = \"/there\"\n\
         [[site.route]]\npath = \"/compressed\"\ncompress = true\nrespond = \"{}\"\n\
         [[site.route]]\npath = \"/*\"\nfiles = {{ root = \"{}\" }}\n",
        "here ".repeat(1_000),
        root.path().display()
    );
    in_memory(&routes, async |world| {
        for path in ["/fixed", "/empty", "/compressed", "/a.txt", "/large"] {
            let reply = refused(world, path, async {}).await;
            assert_eq!((reply.status, reply.is_whole), (501, true), "{path}");
        }
        // A reply without success is passed on.
        for (path, status) in [("/moved", 302), ("/none", 404)] {
            let reply = refused(world, path, async {}).await;
            assert_eq!((reply.status, reply.is_whole), (status, true), "{path}");
        }
    });
}

#[test]
fn backends_that_answer_instead_of_switching_make_no_tunnel() {
    let http = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok".as_bytes().to_vec();
    let endless = "HTTP/1.1 200 OK\r\n\r\nand on".as_bytes().to_vec();
    let fastcgi = [stdout(1, "Content-Type: text/plain\r\n\r\nok"), stdout(1, ""), end(1)].concat();
    let script = "{ to = \"10.0.0.1:3000\", root = \"/nowhere\", scripts = \"*\" }";
    for (origin, reply) in [
        ("proxy = \"http://10.0.0.1:3000\"".to_owned(), http),
        ("proxy = \"http://10.0.0.1:3000\"".to_owned(), endless),
        (format!("fastcgi = {script}"), fastcgi),
        ("scgi = { to = \"10.0.0.1:3000\" }".to_owned(), b"Status: 200 OK\r\n\r\nok".to_vec()),
        ("ajp = { to = \"10.0.0.1:3000\" }".to_owned(), ok("ok")),
    ] {
        let route = format!("{LOG}[[site.route]]\npath = \"/chat\"\n{origin}\n");
        in_memory(&route, async |world| {
            let mut backend = world.backend("10.0.0.1:3000");
            let answering = async {
                let mut connection = backend.accept().await;
                connection.more().await.unwrap();
                connection.send(reply.clone()).await;
                if origin.starts_with("scgi") {
                    connection.link.finish();
                }
                let _ = connection.rest().await;
            };
            let refusal = refused(world, "/chat", answering).await;
            assert_eq!((refusal.status, refusal.is_whole), (501, true), "{origin}");
        });
    }
}
