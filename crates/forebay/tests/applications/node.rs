//! Applications for Node behind one Forebay, with the configuration that the manual shows.

use std::fmt::Write as _;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use forebay_testkit::folder::Folder;
use forebay_testkit::http::Reply;
use forebay_testkit::peer;

use crate::harness::{run, text};
use crate::support::{Forebay, command, serve_command};

const SITE: &str = include_str!("../../../../examples/applications/node.toml");

const EXPRESS: &str = "const app = require('express')();
app.get('/gate/:name', (request, reply) => reply.json({ gate: request.params.name }));
app.listen(process.env.PORT, '127.0.0.1');
";

const FASTIFY: &str = "const app = require('fastify')({ trustProxy: true });
app.get('/gate/:name', async ({ params, hostname }) => ({ gate: params.name, hostname }));
app.listen({ port: process.env.PORT, host: '127.0.0.1' });
";

const NEXT: &str =
    "export const getServerSideProps = ({ query }) => ({ props: { gate: query.gate } });
export default function Page({ gate }) { return <p>The gate is {gate}</p>; }
";

/// Two processes serve it, so a request without its cookie may reach the one that lacks its session.
const SOCKET: &str = "const server = require('http').createServer();
const io = new (require('socket.io').Server)(server);
io.on('connection', (socket) => socket.emit('gate', 'open'));
server.listen(process.env.PORT, '127.0.0.1');
";

/// Host, target and part of the reply's body.
const ROWS: [(&str, &str, &str); 7] = [
    ("express", "/gate/5", "{\"gate\":\"5\"}"),
    ("fastify", "/gate/5", "{\"gate\":\"5\",\"hostname\":\"fastify.localhost\"}"),
    ("next", "/?gate=open", "The gate is <!-- -->open"),
    ("vite", "/", "src=\"/main.js\""),
    ("vite", "/main.js", "The gates are open"),
    ("node-red", "/", "<title>Node-RED</title>"),
    ("node-red", "/settings", "\"httpNodeRoot\":\"/\""),
];

#[test]
fn applications_for_node_run_side_by_side() {
    let packages =
        ["express", "fastify", "socket.io", "next", "react", "react-dom", "vite", "node-red"];
    let Some(modules) = packages.map(peer::npm_package).into_iter().last().flatten() else {
        return;
    };
    let folder = Folder::new();
    set_up(&folder, modules.parent().unwrap());
    let site = folder.write("site.toml", SITE.replace("127.0.0.1:8080", "127.0.0.1:0"));
    let forebay = serve_command(folder, command(&["--threads", "1", text(&site)]));
    for (host, target, holds) in ROWS.iter().chain(&ROWS) {
        let reply = ask(&forebay, host, target, "", "");
        let is_right = reply.status == 200 && reply.text().contains(holds);
        assert!(
            is_right,
            "{host}{target}: {} {}\n{}",
            reply.status,
            reply.text(),
            forebay.output()
        );
    }
    for (host, target) in
        [("node-red", "/comms"), ("socket", "/socket.io/?EIO=4&transport=websocket")]
    {
        let upgrade = "Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
            Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";
        let reply = ask(&forebay, host, target, upgrade, "");
        assert_eq!(reply.status, 101, "{host}: {}", forebay.output());
        let accept = reply.headers_named("Sec-WebSocket-Accept");
        assert_eq!(accept, ["s3pPLMBiTxaQ9kYGzzhZRbK+xOo="], "{host}");
    }
    for _ in 0..4 {
        socket_session(&forebay);
    }
}

/// A Socket.IO session of several requests, all to the process that began it.
fn socket_session(forebay: &Forebay) {
    let target = "/socket.io/?EIO=4&transport=polling";
    let opened = ask(forebay, "socket", target, "", "");
    assert_eq!(opened.status, 200, "{}", forebay.output());
    let body = opened.text();
    let session = body.split("\"sid\":\"").nth(1).and_then(|rest| rest.split('"').next()).unwrap();
    let cookie = opened.headers_named("Set-Cookie");
    let cookie = cookie.iter().find_map(|cookie| cookie.split(';').next()).unwrap();
    let (fields, target) = (format!("Cookie: {cookie}\r\n"), format!("{target}&sid={session}"));
    assert_eq!(ask(forebay, "socket", &target, &fields, "40").text(), "ok");
    let events = ask(forebay, "socket", &target, &fields, "");
    assert!(events.text().contains("[\"gate\",\"open\"]"), "{}", events.text());
}

/// The reply to a request: POST if `body` has text, or else GET.
fn ask(forebay: &Forebay, host: &str, target: &str, fields: &str, body: &str) -> Reply {
    let method = if body.is_empty() { "GET" } else { "POST" };
    let mut request = format!("{method} {target} HTTP/1.1\r\nHost: {host}.localhost\r\n{fields}");
    if fields.starts_with("Upgrade") {
        request.push_str("Connection: Upgrade\r\n");
    }
    if !body.is_empty() {
        write!(request, "Content-Type: text/plain\r\nContent-Length: {}\r\n", body.len()).unwrap();
    }
    forebay.ask(format!("{request}\r\n{body}"))
}

fn set_up(folder: &Folder, modules: &Path) {
    for (name, content) in [
        ("express/app.js", EXPRESS),
        ("fastify/app.js", FASTIFY),
        ("next/pages/index.js", NEXT),
        ("socket/app.js", SOCKET),
        ("vite/index.html", "<!doctype html><script type=module src=\"/main.js\"></script>"),
        ("vite/main.js", "document.body.append('The gates are open')"),
        ("node-red/flows.json", "[]"),
    ] {
        folder.write(name, content);
    }
    for application in ["express", "fastify", "next", "socket", "vite", "node-red"] {
        symlink(modules, folder.path().join(application).join("node_modules")).unwrap();
    }
    let mut build = Command::new("node_modules/.bin/next");
    build.arg("build").env("NEXT_TELEMETRY_DISABLED", "1");
    run(build.current_dir(folder.path().join("next")));
}
