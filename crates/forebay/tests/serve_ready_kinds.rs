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

const SERVLET: &str = r#"
import java.io.IOException;
import javax.servlet.annotation.WebServlet;
import javax.servlet.http.*;
@WebServlet("/")
public class Invoices extends HttpServlet {
    // A page that is slow until somebody has asked for it.
    private static volatile boolean isWarm;
    protected void service(HttpServletRequest request, HttpServletResponse response)
            throws IOException {
        if (request.getRequestURI().equals("/warm")) isWarm = true;
        if (request.getRequestURI().equals("/slow")) {
            System.out.println("working");
            try { while (!new java.io.File("@DIR@/go").exists()) Thread.sleep(10); }
            catch (InterruptedException e) { }
        }
        var body = new String(request.getInputStream().readAllBytes());
        response.getWriter().print("war " + isWarm + " " + System.getenv("EDITION") + " "
            + request.getScheme() + " " + request.getRequestURI() + " " + body);
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

/// Builds a WAR file of the servlet for a container of `package`.
fn build_war(folder: &Folder, package: &str, api: &str) {
    let directory = folder.path().display().to_string();
    let source = SERVLET.replace("javax", package).replace("@DIR@", &directory);
    folder.write("Invoices.java", source);
    for command in [
        &["javac", "-cp", api, "-d", "classes/WEB-INF/classes", "Invoices.java"][..],
        &["jar", "--create", "--file", "invoices.war", "-C", "classes", "."],
    ] {
        let mut run = Command::new(command[0]);
        let status = run.args(&command[1..]).current_dir(folder.path()).status().unwrap();
        assert!(status.success(), "{command:?}");
    }
}

/// Serves a WAR file by the container that these variables name, and replaces its process.
fn serve_war(package: &str, api: &str, variables: &str) {
    let folder = Folder::new();
    build_war(&folder, package, api);
    let variables = format!("JDK_JAVA_OPTIONS = \"-Xmx128m -XX:TieredStopAtLevel=1\", {variables}");
    let mut forebay = application(
        folder,
        &format!(
            "kind = \"java\"\nfile = \"invoices.war\"\nwarm_up = [\"/warm\", \"/none?a=b\"]\n\
             start_timeout = \"3m\"\nenv = {{ {variables}, EDITION = \"first\" }}"
        ),
    );
    assert_eq!(post(&forebay), "war true first http /buy tea", "{}", forebay.output());
    let secure = "GET / HTTP/1.1\r\nHost: h\r\nX-Forwarded-Proto: https\r\n\r\n";
    assert_eq!(forebay.ask(secure).text(), "war true first http / ", "nobody trusts this client");
    // A reload starts the next process, which gets no request before it is warm, while a request of
    // the first one comes to its end.
    let mut client = forebay.connect();
    client.send("GET /slow HTTP/1.1\r\nHost: h\r\n\r\n");
    forebay.wait_for_output("working");
    let file = forebay.folder.path().join("site.toml");
    let configuration = fs::read_to_string(&file).unwrap();
    fs::write(&file, configuration.replace("\"first\"", "\"second\"")).unwrap();
    forebay.signal(Signal::HUP);
    assert!(eventually(|| {
        let answer = post(&forebay);
        assert!(answer.starts_with("war true "), "{answer}");
        answer.contains(" second ")
    }));
    forebay.folder.write("go", "");
    assert!(client.reply().text().starts_with("war true first "));
    forebay.stop();
}

#[test]
fn a_war_is_served_by_jetty() {
    if !peer::has(&["jetty9", "libjetty9-extra-java", "default-jdk-headless"]) {
        return;
    }
    let api = "/usr/share/jetty9/lib/servlet-api-3.1.jar";
    serve_war("javax", api, "JETTY_HOME = \"/usr/share/jetty9\"");
}

#[test]
fn a_war_is_served_by_tomcat() {
    if !peer::has(&["tomcat10", "default-jdk-headless"]) {
        return;
    }
    let api = "/usr/share/tomcat10/lib/servlet-api.jar";
    serve_war("jakarta", api, "CATALINA_HOME = \"/usr/share/tomcat10\"");
}

#[test]
fn a_process_that_never_warms_up_gets_no_requests() {
    if peer::installed("node").is_none() {
        return;
    }
    let folder = Folder::new();
    let source = NODE.replace(
        "response.end(",
        "if (request.url === '/ill') response.statusCode = 503; response.end(",
    );
    folder.write("shop/server.js", source);
    folder.write("shop/greeting.js", "exports.greeting = 'hello'\n");
    let mut forebay = application(
        folder,
        "kind = \"node\"\nfile = \"shop/server.js\"\nwarm_up = \"/ill\"\nstart_timeout = \"2s\"",
    );
    forebay.wait_for_output("it did not listen and warm up within start_timeout");
    assert_eq!(forebay.get("/").status, 503, "{}", forebay.output());
    forebay.stop();
}
