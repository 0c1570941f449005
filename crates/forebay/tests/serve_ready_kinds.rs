//! `forebay serve` with the kinds whose command Forebay writes: `node` and `java`.

mod support;

use std::fs;
use std::process::Command;

use forebay_testkit::folder::Folder;
use forebay_testkit::peer;
use forebay_testkit::process::eventually;
use rustix::process::Signal;
use support::{Forebay, serve};

const NODE: &str = r"
const http = require('http');
const { greeting } = require('./greeting');
http.createServer(async (request, response) => {
  let body = '';
  for await (const piece of request) body += piece;
  if (request.url === '/slow') {
    console.log('working');
    while (!require('fs').existsSync('go')) await new Promise((done) => setTimeout(done, 10));
  }
  response.end([greeting, process.env.NODE_ENV, process.pid, request.url, body].join(' '));
}).listen(process.env.PORT, process.env.HOST);
";

const JAVA: &str = r#"
import com.sun.net.httpserver.HttpServer;
import java.net.InetSocketAddress;
public class Shop {
    public static void main(String[] arguments) throws Exception {
        var address = System.getenv("SERVER_ADDRESS");
        var port = Integer.parseInt(System.getenv("SERVER_PORT"));
        var server = HttpServer.create(new InetSocketAddress(address, port), 0);
        server.createContext("/", exchange -> {
            var body = new String(exchange.getRequestBody().readAllBytes());
            var memory = Runtime.getRuntime().maxMemory() >> 20;
            var answer = ("java " + memory + " " + exchange.getRequestURI() + " " + body).getBytes();
            exchange.sendResponseHeaders(200, answer.length);
            exchange.getResponseBody().write(answer);
            exchange.close();
        });
        server.start();
    }
}
"#;

/// Serves the folder's application, which has these keys.
fn application(folder: Folder, keys: &str) -> Forebay {
    let site = "[[site]]\nlisten = \"127.0.0.1:0\"\n[[site.route]]\napp = \"shop\"\n";
    serve(folder, &format!("{site}[app.shop]\n{keys}\n"))
}

fn post(forebay: &Forebay) -> String {
    let request = "POST /buy?a=1 HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\ntea";
    let reply = forebay.ask(request);
    assert_eq!(reply.status, 200);
    reply.text().to_owned()
}

#[test]
fn a_script_for_node_is_served_by_several_processes() {
    if peer::installed("node").is_none() {
        return;
    }
    let folder = Folder::new();
    folder.write("shop/server.js", NODE);
    folder.write("shop/greeting.js", "exports.greeting = 'hello'\n");
    let mut forebay =
        application(folder, "kind = \"node\"\nfile = \"shop/server.js\"\nworkers = 2");
    let answer = post(&forebay);
    assert!(answer.starts_with("hello production "), "{answer}");
    assert!(answer.ends_with(" /buy?a=1 tea"), "{answer}");
    let process = |answer: &str| answer.split(' ').nth(2).unwrap().to_owned();
    let first = process(&answer);
    assert!(eventually(|| process(forebay.get("/").text()) != first), "the second one starts");
    // A reload that replaces the processes lets a request finish.
    let mut client = forebay.connect();
    client.send("GET /slow HTTP/1.1\r\nHost: h\r\n\r\n");
    forebay.wait_for_output("working");
    let file = forebay.folder.path().join("site.toml");
    let configuration = fs::read_to_string(&file).unwrap();
    fs::write(&file, configuration + "env = { NODE_ENV = \"test\" }\n").unwrap();
    forebay.signal(Signal::HUP);
    assert!(eventually(|| post(&forebay).starts_with("hello test ")));
    forebay.folder.write("shop/go", "");
    let slow = client.reply();
    assert!(slow.text().starts_with("hello production "), "{}", slow.text());
    forebay.stop();
}

#[test]
fn a_jar_is_served() {
    if peer::installed("javac").is_none() {
        return;
    }
    let folder = Folder::new();
    folder.write("Shop.java", JAVA);
    for command in [
        &["javac", "Shop.java"][..],
        &["jar", "--create", "--file", "shop.jar", "--main-class", "Shop", "Shop.class"],
    ] {
        let mut run = Command::new(command[0]);
        let status = run.args(&command[1..]).current_dir(folder.path()).status().unwrap();
        assert!(status.success(), "{command:?}");
    }
    let forebay = application(
        folder,
        "kind = \"java\"\nfile = \"shop.jar\"\nenv = { JDK_JAVA_OPTIONS = \"-Xmx64m\" }",
    );
    let answer = post(&forebay);
    assert!(answer.starts_with("java 6") && answer.ends_with(" /buy?a=1 tea"), "{answer}");
    forebay.stop();
}
