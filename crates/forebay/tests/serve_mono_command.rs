//! `forebay serve` with .NET programs that it runs on Mono (`kind = "command"`): an HttpListener,
//! and fastcgi-mono-server4 with each of its ways to get a socket.

mod support;

use std::io;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use forebay_testkit::folder::Folder;
use forebay_testkit::http::{Client, Reply};
use forebay_testkit::peer;
use forebay_testkit::process::eventually;
use rustix::process::Signal;
use support::load::{Counts, load};
use support::{Forebay, is_alive, pattern, proc, serve, write_configuration};

/// The answers of both programs to `?do=`, with the posted form.
const ANSWERS: &str = r#"
public static class Answers {
    public static byte[] To(string what, System.Collections.Specialized.NameValueCollection form) {
        switch (what) {
        case "pid": return Text(System.Diagnostics.Process.GetCurrentProcess().Id.ToString());
        case "how": return Text(System.Environment.GetEnvironmentVariable("HOW"));
        case "form": return Text(form["name"] + "|" + form["note"]);
        default:
            var large = new byte[3000000];
            for (int at = 0; at < large.Length; at++) large[at] = (byte)(at * 7 + at / 251);
            return large;
        }
    }

    static byte[] Text(string text) { return System.Text.Encoding.UTF8.GetBytes(text); }
}
"#;

const LISTENER: &str = r#"
using System.IO; using System.Net; using System.Threading; using System.Web;
static class Listener {
    static void Main(string[] arguments) {
        var listener = new HttpListener();
        listener.Prefixes.Add("http://127.0.0.1:" + arguments[0] + "/");
        listener.IgnoreWriteExceptions = true;
        listener.Start();
        while (true) {
            var context = listener.GetContext();
            ThreadPool.QueueUserWorkItem(_ => Answer(context));
        }
    }

    static void Answer(HttpListenerContext context) {
        var form = HttpUtility.ParseQueryString(new StreamReader(context.Request.InputStream).ReadToEnd());
        var bytes = Answers.To(context.Request.QueryString["do"], form);
        context.Response.ContentLength64 = bytes.Length;
        context.Response.OutputStream.Write(bytes, 0, bytes.Length);
        context.Response.Close();
    }
}
"#;

const HANDLER: &str = r#"<%@ WebHandler Language="C#" Class="Handler" %>
public class Handler : System.Web.IHttpHandler {
    public bool IsReusable { get { return true; } }
    public void ProcessRequest(System.Web.HttpContext context) {
        context.Response.ContentType = "application/octet-stream";
        context.Response.BinaryWrite(Answers.To(context.Request.QueryString["do"], context.Request.Form));
    }
}
"#;

/// The keys for one way to run Mono.
const HTTP: &str = r#"run = ["mono", "Listener.exe", "{port}"]
speaks = "http"
host = "backend""#;
const UNIX: &str = r#"run = ["fastcgi-mono-server4", "/applications=/:{dir}", "/socket=unix:{socket}"]
root = "."
speaks = "fastcgi""#;
const PORT: &str = r#"run = ["fastcgi-mono-server4", "/applications=/:{dir}", "/socket=tcp:127.0.0.1:{port}"]
root = "."
speaks = "fastcgi""#;
const PIPE: &str = r#"run = ["fastcgi-mono-server4", "/applications=/:{dir}", "/socket=pipe"]
root = "."
listen = "stdin"
speaks = "fastcgi""#;

const PROCESSES: usize = 2;
const CLIENTS: usize = 3;

/// Returns a configuration whose programs find `how` in their environment.
fn configuration(keys: &str, how: &str) -> String {
    // Mono starts slowly, so everything that waits for a start is slow, too.
    format!(
        "[[site]]\nlisten = \"127.0.0.1:0\"\n[[site.route]]\npath = \"/*\"\napp = \"net\"\n\
         [app.net]\nkind = \"command\"\n{keys}\nworkers = {PROCESSES}\nconnections = 4\n\
         start_timeout = \"60s\"\nqueue_timeout = \"60s\"\n\
         env = {{ HOW = \"{how}\", TMPDIR = \"{{dir}}/tmp\", HOME = \"{{dir}}/tmp\" }}\n"
    )
}

/// Serves both programs in a folder with these `keys`. `None` if Mono is not installed.
fn mono(keys: &str) -> Option<Forebay> {
    peer::has_mono().then(|| {
        let folder = Folder::new();
        folder.write("tmp/README", "Where Mono compiles.\n");
        folder.write("a.ashx", format!("{HANDLER}{ANSWERS}"));
        folder.write("Listener.cs", format!("{LISTENER}{ANSWERS}"));
        peer::compile_cs(&folder, "Listener.cs", "Listener.exe");
        serve(folder, &configuration(keys, "0"))
    })
}

/// Mono's threads fill a table of encodings without a lock, so a lookup of UTF-8 sometimes fails.
/// Such a reply is complete.
fn is_of_mono(reply: &Reply) -> bool {
    let text = String::from_utf8_lossy(&reply.body);
    reply.status == 500 && text.contains("No data is available for encoding")
}

/// Returns the reply to a request, which is sent again if Mono fails in this way.
fn ask(client: &mut Client, request: &str) -> io::Result<Reply> {
    for _ in 0..5 {
        client.try_send(request.as_bytes())?;
        let reply = client.try_reply()?;
        if !is_of_mono(&reply) {
            return Ok(reply);
        }
    }
    panic!("Mono finds no encoding at all");
}

fn try_get(client: &mut Client, what: &str) -> io::Result<Reply> {
    ask(client, &format!("GET /a.ashx?do={what} HTTP/1.1\r\nHost: www.example.org\r\n\r\n"))
}

fn get(forebay: &Forebay, what: &str) -> Reply {
    try_get(&mut forebay.connect(), what).expect("a whole reply")
}

fn post(client: &mut Client, form: &str) -> Reply {
    let length = form.len();
    ask(
        client,
        &format!(
            "POST /a.ashx?do=form HTTP/1.1\r\nHost: www.example.org\r\n\
             Content-Type: application/x-www-form-urlencoded\r\nContent-Length: {length}\r\n\r\n\
             {form}"
        ),
    )
    .expect("a whole reply")
}

/// Returns the processes of Mono that Forebay has: one below each guardian.
fn processes(forebay: &Forebay) -> Vec<u32> {
    let guards = proc::children(forebay.process.id());
    guards.into_iter().flat_map(proc::children).collect()
}

fn answers(keys: &str) {
    let Some(forebay) = mono(keys) else { return };
    let mut client = forebay.connect();
    for turn in 0..6 {
        let reply = post(&mut client, &format!("name=J%C3%BCrgen+{turn}&note=a%26b"));
        assert_eq!(reply.text(), format!("Jürgen {turn}|a&b"), "{}", forebay.output());
        let note = "x".repeat(200_000);
        let reply = post(&mut client, &format!("name=a&note={note}"));
        assert!(reply.text() == format!("a|{note}"), "{}", forebay.output());
        let reply = try_get(&mut client, "large").expect("a whole reply");
        assert_eq!(reply.status, 200, "{}", forebay.output());
        assert!(reply.body == pattern(3_000_000), "{} bytes", reply.body.len());
    }
    let all = proc::descendants(forebay.process.id());
    assert!(all.len() >= 2 * PROCESSES, "guards and their programs: {all:?}");
    forebay.stop();
    assert!(all.iter().all(|pid| !is_alive(&pid.to_string())), "{all:?}");
}

#[test]
fn an_http_listener_answers_on_its_port() {
    answers(HTTP);
}

#[test]
fn the_fastcgi_server_answers_on_a_unix_socket() {
    answers(UNIX);
}

#[test]
fn the_fastcgi_server_answers_on_a_port() {
    answers(PORT);
}

#[test]
fn the_fastcgi_server_answers_on_descriptor_0() {
    answers(PIPE);
}

/// Removes the answers of fastcgi-mono-server4 to requests that arrive while its application
/// starts. New processes sometimes answer 404 or 500.
fn without_first_answers(keys: &str, mut counts: Counts) -> Counts {
    if keys != HTTP {
        let own = [404, 500].map(|status| counts.remove(&status).unwrap_or(0));
        assert!(own.iter().sum::<usize>() <= 4 * CLIENTS, "{own:?}");
    }
    counts
}

/// As [`try_get`], after a pause. One of 100,000 replies of fastcgi-mono-server4 is bad, so the
/// test sends few requests.
fn get_calmly(client: &mut Client, what: &str) -> io::Result<Reply> {
    thread::sleep(Duration::from_millis(5));
    try_get(client, what)
}

fn heals(keys: &str) {
    const KILLS: usize = 4;
    let Some(forebay) = mono(keys) else { return };
    assert_eq!(get(&forebay, "how").text(), "0", "{}", forebay.output());
    let counts = load(
        &forebay,
        CLIENTS,
        |client| get_calmly(client, "pid"),
        |replies| {
            for _ in 0..KILLS {
                assert!(
                    eventually(|| processes(&forebay).len() == PROCESSES),
                    "{}",
                    forebay.output()
                );
                let victim = processes(&forebay)[0];
                proc::kill(victim);
                assert!(eventually(|| !is_alive(&victim.to_string())));
                let before = replies.load(Ordering::Relaxed);
                let go_on = || replies.load(Ordering::Relaxed) > before + 20;
                assert!(eventually(go_on), "{}", forebay.output());
            }
        },
    );
    // The victim had begun to answer these, or its second process was killed, too: at most one for
    // each client.
    let counts = without_first_answers(keys, counts);
    let is_known = |status: &u16| matches!(status, 0 | 200 | 502) || *status == 400 && keys != HTTP;
    assert!(counts.keys().all(is_known), "{counts:?}");
    let lost = counts.values().sum::<usize>() - counts[&200];
    assert!(lost <= CLIENTS * KILLS, "{counts:?}: {}", forebay.output());
    let is_whole = || {
        let all = processes(&forebay);
        all.len() == PROCESSES && proc::children(forebay.process.id()).len() == PROCESSES
    };
    assert!(eventually(is_whole), "{}", forebay.output());
    let all = processes(&forebay);
    let is_asked = |pid: &u32| eventually(|| get(&forebay, "pid").text() == pid.to_string());
    assert!(all.iter().all(is_asked), "each of {all:?} answers: {}", forebay.output());
    forebay.stop();
}

#[test]
fn a_killed_http_listener_is_replaced() {
    heals(HTTP);
}

#[test]
fn a_killed_fastcgi_server_is_replaced() {
    heals(UNIX);
}

fn reloads(keys: &str) {
    let Some(forebay) = mono(keys) else { return };
    assert_eq!(get(&forebay, "how").text(), "0", "{}", forebay.output());
    let old = processes(&forebay);
    let counts = load(
        &forebay,
        CLIENTS,
        |client| get_calmly(client, "how"),
        |_| {
            for round in ["1", "2"] {
                write_configuration(&forebay.folder, &configuration(keys, round));
                proc::signal(forebay.process.id(), Signal::HUP);
                let is_new = || get(&forebay, "how").text() == round;
                assert!(eventually(is_new), "{}", forebay.output());
            }
        },
    );
    let mut counts = without_first_answers(keys, counts);
    if keys != HTTP {
        let own = [400, 502].map(|status| counts.remove(&status).unwrap_or(0));
        assert!(own.iter().sum::<usize>() <= 1, "{own:?}: {}", forebay.output());
    }
    assert_eq!(counts.keys().collect::<Vec<_>>(), [&200], "{counts:?}: {}", forebay.output());
    let is_gone = |pid: &u32| !is_alive(&pid.to_string());
    assert!(eventually(|| old.iter().all(is_gone)), "{}", forebay.output());
    assert!(eventually(|| processes(&forebay).len() == PROCESSES), "{}", forebay.output());
    forebay.stop();
}

#[test]
fn another_http_listener_takes_over_without_a_failure() {
    reloads(HTTP);
}

#[test]
fn another_fastcgi_server_takes_over_without_a_failure() {
    reloads(UNIX);
}
