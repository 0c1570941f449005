//! `forebay serve` with an ASP.NET application on Mono (`kind = "mono"`), on Forebay's own host.

mod support;

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;
use std::sync::atomic::Ordering;
use std::thread;

use forebay_testkit::folder::Folder;
use forebay_testkit::http::{Client, Reply};
use forebay_testkit::peer;
use forebay_testkit::process::eventually as eventually_once;
use support::load::load;
use support::{Forebay, chunked, is_alive, pattern, proc, serve_command, write_configuration};

const HANDLER: &str = r#"<%@ WebHandler Language="C#" Class="Handler" %>
using System; using System.Collections.Generic; using System.IO; using System.Threading; using System.Web;
public class Handler : IHttpHandler {
    public bool IsReusable { get { return true; } }
    public void ProcessRequest(HttpContext context) {
        var request = context.Request; var response = context.Response;
        response.ContentType = "application/octet-stream";
        switch (request.QueryString["do"]) {
        case "echo":
            request.InputStream.CopyTo(response.OutputStream);
            break;
        case "form": response.Write(request.Form["name"] + "|" + request.Form["note"]); break;
        case "large":
            response.BufferOutput = request.QueryString["at"] == "once";
            var all = new byte[3000000];
            for (int at = 0; at < all.Length; at++) all[at] = (byte)(at * 7 + at / 251);
            for (int at = 0; at < all.Length; at += 100000) response.OutputStream.Write(all, at, 100000);
            break;
        case "file":
            if (request.QueryString["from"] == null) response.TransmitFile(request.QueryString["name"]);
            else response.TransmitFile(request.QueryString["name"], long.Parse(request.QueryString["from"]), 200000);
            break;
        case "request":
            response.Write(string.Join("|", request.HttpMethod, request.Path, request.FilePath, request.PathInfo,
                request.QueryString["n"], request.UserHostAddress, request.IsSecureConnection, request.Url.Host,
                request.Headers["X-Own-Field"], request.Cookies["a"] == null ? "" : request.Cookies["a"].Value,
                request.ContentLength, request.ApplicationPath));
            response.Cookies.Add(new HttpCookie("b", "c"));
            break;
        case "field":
            var own = request.Headers["X-Own-Field"];
            response.Write("<" + own + ">" + (own == null ? "" : "there"));
            break;
        case "pid": response.Write(System.Diagnostics.Process.GetCurrentProcess().Id); break;
        case "setting": response.Write(System.Configuration.ConfigurationManager.AppSettings["version"]); break;
        case "started": response.Write(context.Application["version"]); break;
        case "keep":
            var kept = new byte[400 << 20];
            for (int at = 0; at < kept.Length; at += 4096) kept[at] = 1;
            context.Application["kept"] = kept;
            response.Write("kept");
            break;
        case "env": response.Write(Environment.GetEnvironmentVariable("HOW")); break;
        case "redirect": response.Redirect("/other"); break;
        case "throw": throw new InvalidOperationException("thrown on purpose");
        case "exit": Environment.Exit(3); break;
        case "unload": HttpRuntime.UnloadAppDomain(); response.Write("unloading"); break;
        case "remember": lock (Seen) Seen.Add(new WeakReference(context)); break;
        case "remembered": response.Write(Remembered()); break;
        case "later": Later(response, request.QueryString["n"]); break;
        case "child":
            var start = new System.Diagnostics.ProcessStartInfo("ls", "-l /proc/self/fd");
            start.RedirectStandardOutput = true; start.UseShellExecute = false;
            using (var child = System.Diagnostics.Process.Start(start)) response.Write(child.StandardOutput.ReadToEnd());
            break;
        case "meet": Meet(); response.Write("met"); break;
        case "gone":
            File.WriteAllText(request.QueryString["file"] + ".begun", "");
            while (response.IsClientConnected) Thread.Sleep(5);
            File.WriteAllText(request.QueryString["file"], "gone");
            break;
        default: response.Write("hello " + request.QueryString["n"]); break;
        }
    }

    static readonly List<WeakReference> Seen = new List<WeakReference>();
    static int Remembered() {
        GC.Collect();
        lock (Seen) return Seen.FindAll(seen => seen.IsAlive).Count;
    }

    // Writes to the reply of the previous request, and leaves a thread that writes to the current
    // reply.
    static HttpResponse kept;
    static void Late(HttpResponse response, string text) {
        try {
            response.Write(text); response.Flush();
            response.OutputStream.Write(new byte[9], 0, 9); response.OutputStream.Flush();
            response.End();
        } catch (Exception) {}
    }
    static void Later(HttpResponse response, string n) {
        if (kept != null) Late(kept, "kept " + n);
        kept = response;
        new Thread(() => { for (int at = 0; at < 50; at++) { Thread.Sleep(1); if (response != kept) Late(response, "late " + n); } }).Start();
        response.Write("own " + n);
    }

    static readonly Barrier barrier = new Barrier(3);
    static void Meet() { if (!barrier.SignalAndWait(60000)) throw new TimeoutException(); }
}
"#;

const PAGE: &str = r#"<%@ Page Language="C#" %><html><%= 6 * 7 %><%= Request.PathInfo %></html>
"#;

const SERVICE: &str = r#"<%@ WebService Language="C#" Class="Sums" %>
using System.Web.Services;
[WebService(Namespace = "urn:sums")] public class Sums : WebService {
    [WebMethod] public int Add(int a, int b) { return a + b; }
}
"#;

/// Writes the events of the application's end to a file, because no request is possible then.
const GLOBAL: &str = r#"<%@ Application Language="C#" %>
<script runat="server">
void Application_Start() { Application["version"] = "{version}"; }
void Application_End() { System.IO.File.WriteAllText("{tmp}/ended", "well"); }
</script>
"#;

/// A library in `bin` that returns its version.
const LIBRARY: &str = r#"using System.Web;
public class Library : IHttpHandler {
    public bool IsReusable { get { return false; } }
    public void ProcessRequest(HttpContext context) { context.Response.Write("{version}"); }
}
"#;

fn global(folder: &Folder, version: &str) -> String {
    GLOBAL.replace("{version}", version).replace("{tmp}", folder.path().to_str().unwrap())
}

/// Writes this version of `bin/Library.dll` atomically.
fn write_library(folder: &Folder, version: &str) {
    let source = folder.write("library.cs", LIBRARY.replace("{version}", version));
    let built = folder.path().join("Library.dll");
    let mut compiler = Command::new("mcs");
    compiler.args(["-target:library", "-r:System.Web"]);
    compiler.arg(format!("-out:{}", built.display())).arg(source);
    let output = compiler.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    fs::create_dir_all(folder.path().join("site/bin")).unwrap();
    fs::rename(built, folder.path().join("site/bin/Library.dll")).unwrap();
}

/// Writes a file of the application atomically.
fn replace(folder: &Folder, name: &str, content: &str) {
    fs::rename(folder.write("new", content), folder.path().join(name)).unwrap();
}

fn web_config(version: &str) -> String {
    format!(
        "<configuration><appSettings><add key=\"version\" value=\"{version}\"/></appSettings>\
         <system.web><customErrors mode=\"Off\"/><sessionState mode=\"Off\"/>\
         <httpRuntime maxRequestLength=\"100000\"/></system.web></configuration>"
    )
}

fn configuration(keys: &str) -> String {
    // Mono starts slowly, so everything that waits for a start is slow, too.
    format!(
        "[[site]]\nlisten = \"127.0.0.1:0\"\n\
         [[site.route]]\npath = \"/*\"\nfiles = \"{{tmp}}/site\"\nfallback = true\n\
         [[site.route]]\npath = \"/*\"\napp = \"net\"\n\
         [app.net]\nkind = \"mono\"\ndir = \"{{tmp}}/site\"\nstart_timeout = \"120s\"\n\
         queue_timeout = \"120s\"\n{keys}\n"
    )
}

/// Serves the application with these `keys`. `None` if Mono is not installed.
fn mono(keys: &str) -> Option<Forebay> {
    peer::has_mono().then(|| {
        let folder = Folder::new();
        folder.write("site/a.ashx", HANDLER);
        folder.write("site/page.aspx", PAGE);
        folder.write("site/sums.asmx", SERVICE);
        folder.write("site/Global.asax", global(&folder, "1"));
        folder.write("site/web.config", web_config("1"));
        folder.write("site/style.css", "p {}\n");
        start(folder, keys)
    })
}

fn start(folder: Folder, keys: &str) -> Forebay {
    let file = write_configuration(&folder, &configuration(keys));
    let mut command = support::command(&["--threads", "2", file.to_str().unwrap()]);
    command.env("CACHE_DIRECTORY", folder.path().join("cache"));
    let forebay = serve_command(folder, command);
    // The start and the first compilation may take longer than a client waits.
    let answers = || forebay.try_get("/a.ashx").is_ok_and(|reply| reply.status == 200);
    assert!(eventually(answers), "{}", forebay.output());
    forebay
}

/// As `eventually` of the test kit, but six times as long, because Mono needs many seconds to start
/// on a busy machine.
fn eventually(mut what: impl FnMut() -> bool) -> bool {
    (0..6).any(|_| eventually_once(&mut what))
}

fn text(client: &mut Client, target: &str) -> String {
    let reply = client.get(target);
    assert_eq!(reply.status, 200, "{target}: {}", reply.text());
    reply.text().to_owned()
}

fn post(client: &mut Client, target: &str, body: &[u8]) -> Reply {
    let length = body.len();
    client.send(format!(
        "POST {target} HTTP/1.1\r\nHost: www.example.org\r\n\
         Content-Type: application/x-www-form-urlencoded\r\nContent-Length: {length}\r\n\r\n"
    ));
    client.send(body);
    client.reply()
}

/// Returns the process of Mono, below its guardian.
fn process(forebay: &Forebay) -> u32 {
    let pid = text(&mut forebay.connect(), "/a.ashx?do=pid");
    pid.parse().unwrap_or_else(|_| panic!("{pid}: {}", forebay.output()))
}

#[test]
fn handlers_pages_services_and_files_are_answered() {
    let Some(forebay) = mono("") else { return };
    let mut client = forebay.connect();
    assert_eq!(text(&mut client, "/a.ashx?n=you"), "hello you", "{}", forebay.output());
    assert_eq!(text(&mut client, "/page.aspx").trim(), "<html>42</html>");
    assert_eq!(text(&mut client, "/page.aspx/a%20b").trim(), "<html>42/a b</html>");
    let reply = post(&mut client, "/sums.asmx/Add", b"a=3&b=4");
    assert!(reply.text().contains(">7</int>"), "{}", reply.text());
    assert!(text(&mut client, "/sums.asmx?WSDL").contains("urn:sums"));
    let reply = client.get("/style.css");
    assert_eq!((reply.status, reply.text()), (200, "p {}\n"));
    assert_eq!(reply.header("X-AspNet-Version"), None, "files answers it");
    // Neither of the two routes sends the application's own files.
    for target in
        ["/web.config", "/Global.asax", "/bin/", "/bin/a.dll", "/App_Data/x", "/none.aspx"]
    {
        let reply = client.get(target);
        assert!(matches!(reply.status, 403 | 404), "{target}: {}", reply.status);
    }
    let reply = client.get("/a.ashx?do=throw");
    assert_eq!(reply.status, 500);
    assert!(reply.text().contains("thrown on purpose"), "{}", reply.text());
    let reply = client.get("/a.ashx?do=redirect");
    assert_eq!((reply.status, reply.header("Location")), (302, Some("/other")));
    let (_, folder) = forebay.stop();
    let ended = fs::read_to_string(folder.path().join("ended"));
    assert_eq!(ended.expect("Application_End was run"), "well");
}

#[test]
fn the_request_arrives_as_it_was_sent() {
    let Some(forebay) = mono("env = { HOW = \"well\" }") else { return };
    let mut client = forebay.connect();
    client.send(
        "GET /a.ashx/more?do=request&n=%C3%BC%26 HTTP/1.1\r\nHost: www.example.org\r\n\
         X-Own-Field: it's own\r\nCookie: a=crumb\r\n\r\n",
    );
    let reply = client.reply();
    let wanted =
        "GET|/a.ashx/more|/a.ashx|/more|ü&|127.0.0.1|False|www.example.org|it's own|crumb|0|/";
    assert_eq!(reply.text(), wanted, "{}", forebay.output());
    assert_eq!(reply.header("Set-Cookie"), Some("b=c; path=/"));
    client.send("GET /a.ashx?do=field HTTP/1.1\r\nHost: h\r\nX-Own-Field:\r\n\r\n");
    assert_eq!(client.reply().text(), "<>there");
    assert_eq!(text(&mut client, "/a.ashx?do=env"), "well");
    client.send("HEAD /a.ashx?n=1 HTTP/1.1\r\nHost: h\r\n\r\n");
    assert_eq!(client.reply_to_head().status, 200);
    assert_eq!(text(&mut client, "/a.ashx?n=2"), "hello 2");
    let reply = post(&mut client, "/a.ashx?do=form", "name=J%C3%BCrgen&note=a%26b".as_bytes());
    assert_eq!(reply.text(), "Jürgen|a&b");
    forebay.stop();
}

#[test]
fn bodies_of_all_sizes_go_both_ways() {
    let Some(forebay) = mono("") else { return };
    let mut client = forebay.connect();
    let body = pattern(3_000_000);
    for length in [0, 1, 8191, 65_535, 65_536, 65_537, 200_000, 3_000_000] {
        let reply = post(&mut client, "/a.ashx?do=echo", &body[..length]);
        assert!(reply.body == body[..length], "{length}: {} {}", reply.status, forebay.output());
        client
            .send("POST /a.ashx?do=echo HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n");
        client.send(chunked(&body[..length].chunks(10_007).collect::<Vec<_>>()));
        let reply = client.reply();
        assert!(reply.body == body[..length], "chunked {length}: {}", forebay.output());
        // A body that nobody reads does not delay other requests.
        let reply = post(&mut client, "/a.ashx?n=3", &body[..length]);
        assert_eq!(reply.text(), "hello 3", "{length}");
    }
    for at in ["once", "pieces"] {
        let reply = client.get(&format!("/a.ashx?do=large&at={at}"));
        assert!(reply.body == body, "{at}: {} bytes", reply.body.len());
        assert_eq!(reply.header("Content-Length").is_some(), at == "once");
    }
    forebay.folder.write("file", &body);
    let file = forebay.folder.path().join("file").display().to_string();
    let reply = client.get(&format!("/a.ashx?do=file&name={file}"));
    assert!(reply.body == body, "{} bytes: {}", reply.body.len(), forebay.output());
    let reply = client.get(&format!("/a.ashx?do=file&name={file}&from=70001"));
    assert!(reply.body == body[70_001..270_001], "{} bytes", reply.body.len());
    forebay.stop();
}

#[test]
fn one_process_runs_several_requests_at_once() {
    let Some(forebay) = mono("threads = 3") else { return };
    assert_eq!(forebay.get("/a.ashx?n=1").text(), "hello 1", "{}", forebay.output());
    thread::scope(|scope| {
        let ask = || text(&mut forebay.connect(), "/a.ashx?do=meet");
        let clients: Vec<_> = (0..3).map(|_| scope.spawn(ask)).collect();
        for client in clients {
            assert_eq!(client.join().unwrap(), "met");
        }
    });
    forebay.stop();
}

#[test]
fn requests_that_have_been_answered_do_not_stay_in_memory() {
    const REQUESTS: usize = 1000;
    let Some(forebay) = mono("") else { return };
    let mut client = forebay.connect();
    for _ in 0..REQUESTS {
        assert_eq!(text(&mut client, "/a.ashx?do=remember"), "");
    }
    // The timers of the last 128 have not been checked yet. By itself, Mono keeps all of them until
    // the first is 110 s old.
    let mut left = || text(&mut client, "/a.ashx?do=remembered").parse::<usize>().unwrap();
    assert!(eventually(|| left() < REQUESTS / 4), "{} are left: {}", left(), forebay.output());
    forebay.stop();
}

#[test]
fn an_application_below_a_path_has_that_path() {
    if !peer::has_mono() {
        return;
    }
    let folder = Folder::new();
    folder.write("site/a.ashx", HANDLER);
    folder.write("site/sub/default.aspx", PAGE);
    let configuration = "[[site]]\nlisten = \"127.0.0.1:0\"\n[[site.route]]\npath = \"/shop/*\"\n\
         app = \"net\"\n[[site.route]]\npath = \"/other/*\"\napp = \"net\"\n\
         [app.net]\nkind = \"mono\"\ndir = \"{tmp}/site\"\nvirtual_path = \"/shop\"\n\
         start_timeout = \"120s\"\nqueue_timeout = \"120s\"\n";
    let file = write_configuration(&folder, configuration);
    let mut command = support::command(&[file.to_str().unwrap()]);
    command.env("CACHE_DIRECTORY", folder.path().join("cache"));
    let forebay = serve_command(folder, command);
    let mut client = forebay.connect();
    let answer = text(&mut client, "/shop/a.ashx?do=request");
    assert!(answer.starts_with("GET|/shop/a.ashx|/shop/a.ashx||"), "{answer}");
    assert!(answer.ends_with("|/shop"), "{answer}");
    assert_eq!(text(&mut client, "/shop/sub/").trim(), "<html>42</html>");
    assert_eq!(client.get("/other/a.ashx").status, 404);
    forebay.stop();
}

#[test]
fn a_client_that_leaves_is_noticed() {
    let Some(forebay) = mono("on_abort = \"stop\"") else { return };
    let file = forebay.folder.path().join("left");
    let mut client = forebay.connect();
    let target = format!("/a.ashx?do=gone&file={}", file.display());
    client.send(format!("GET {target} HTTP/1.1\r\nHost: h\r\n\r\n"));
    let begun = forebay.folder.path().join("left.begun");
    assert!(eventually(|| begun.exists()), "{}", forebay.output());
    drop(client);
    assert!(eventually(|| file.exists()), "{}", forebay.output());
    assert_eq!(forebay.get("/a.ashx?n=1").text(), "hello 1");
    forebay.stop();
}

#[test]
fn a_change_of_its_configuration_costs_no_request() {
    let Some(forebay) = mono("") else { return };
    assert_eq!(text(&mut forebay.connect(), "/a.ashx?do=setting"), "1", "{}", forebay.output());
    let counts = load(
        &forebay,
        3,
        |client| client.try_get("/a.ashx?do=setting"),
        |_| {
            for version in ["2", "3"] {
                forebay.folder.write("site/web.config", web_config(version));
                let is_new = || forebay.get("/a.ashx?do=setting").text() == version;
                assert!(eventually(is_new), "{}", forebay.output());
            }
        },
    );
    assert_eq!(counts.keys().collect::<Vec<_>>(), [&200], "{counts:?}: {}", forebay.output());
    // ASP.NET itself compiles a changed page again. At first, a replacement for the configuration
    // may not be complete.
    let mut client = forebay.connect();
    assert_eq!(text(&mut client, "/page.aspx").trim(), "<html>42</html>");
    let keeps_process = (8..11).any(|factor| {
        let before = process(&forebay);
        forebay.folder.write("site/page.aspx", PAGE.replace("6 * 7", &format!("6 * {factor}")));
        let page = format!("<html>{}</html>", 6 * factor);
        let is_new = || forebay.get("/page.aspx").text().trim() == page;
        assert!(eventually(is_new), "{}", forebay.output());
        process(&forebay) == before
    });
    assert!(keeps_process, "{}", forebay.output());
    forebay.stop();
}

#[test]
fn an_application_that_is_offline_says_so_at_once() {
    let Some(forebay) = mono("request_timeout = \"20s\"") else { return };
    assert_eq!(text(&mut forebay.connect(), "/a.ashx?do=setting"), "1", "{}", forebay.output());
    forebay.folder.write("site/app_offline.htm", "<html>back soon</html>");
    let is_offline = || {
        let reply = forebay.get("/a.ashx?do=setting");
        reply.status == 503 && reply.text().contains("back soon")
    };
    assert!(eventually(is_offline), "{}", forebay.output());
    let before = forebay.output();
    for _ in 0..5 {
        assert!(is_offline(), "{}", forebay.output());
    }
    assert_eq!(forebay.output(), before, "no process was killed for it");
    fs::remove_file(forebay.folder.path().join("site/app_offline.htm")).unwrap();
    assert!(eventually(|| forebay.get("/a.ashx?do=setting").text() == "1"), "{}", forebay.output());
    forebay.stop();
}

#[test]
fn a_change_of_its_library_or_of_global_asax_costs_no_request() {
    if !peer::has_mono() {
        return;
    }
    let folder = Folder::new();
    folder.write("site/a.ashx", HANDLER);
    folder.write("site/library.ashx", "<%@ WebHandler Class=\"Library\" %>\n");
    folder.write("site/Global.asax", global(&folder, "1"));
    folder.write("site/web.config", web_config("1"));
    write_library(&folder, "1");
    let forebay = start(folder, "");
    let change = |target: &str, version: &str| match target {
        "/library.ashx" => write_library(&forebay.folder, version),
        _ => replace(&forebay.folder, "site/Global.asax", &global(&forebay.folder, version)),
    };
    for target in ["/library.ashx", "/a.ashx?do=started"] {
        assert_eq!(text(&mut forebay.connect(), target), "1", "{}", forebay.output());
        let before = process(&forebay);
        let counts = load(
            &forebay,
            3,
            |client| client.try_get(target),
            |_| {
                for version in ["2", "3"] {
                    change(target, version);
                    let is_new = || forebay.get(target).text() == version;
                    assert!(eventually(is_new), "{target}: {}", forebay.output());
                }
            },
        );
        assert_eq!(counts.keys().collect::<Vec<_>>(), [&200], "{counts:?}: {}", forebay.output());
        assert_ne!(process(&forebay), before, "{target}: another process");
    }
    forebay.stop();
}

#[test]
fn an_application_that_unloads_itself_starts_anew_without_a_failure() {
    let Some(forebay) = mono("") else { return };
    let before = process(&forebay);
    let counts = load(
        &forebay,
        3,
        |client| client.try_get("/a.ashx"),
        |_| {
            assert_eq!(forebay.get("/a.ashx?do=unload").text(), "unloading");
            assert!(eventually(|| !is_alive(&before.to_string())), "{}", forebay.output());
            assert_ne!(process(&forebay), before);
        },
    );
    assert_eq!(counts.keys().collect::<Vec<_>>(), [&200], "{counts:?}: {}", forebay.output());
    forebay.stop();
}

#[test]
fn a_killed_process_is_replaced_and_costs_its_own_requests_alone() {
    const CLIENTS: usize = 3;
    let Some(forebay) = mono("workers = 2") else { return };
    assert_eq!(forebay.get("/a.ashx?n=1").text(), "hello 1", "{}", forebay.output());
    let counts = load(
        &forebay,
        CLIENTS,
        |client| client.try_get("/a.ashx"),
        |replies| {
            for _ in 0..2 {
                let victim = process(&forebay);
                proc::kill(victim);
                assert!(eventually(|| !is_alive(&victim.to_string())));
                let before = replies.load(Ordering::Relaxed);
                assert!(eventually(|| replies.load(Ordering::Relaxed) > before + 20));
            }
        },
    );
    assert!(counts.keys().all(|status| matches!(status, 0 | 200 | 502)), "{counts:?}");
    let lost = counts.values().sum::<usize>() - counts[&200];
    assert!(lost <= CLIENTS * 2, "{counts:?}: {}", forebay.output());
    let crashed = forebay.get("/a.ashx?do=exit");
    assert_eq!(crashed.status, 502);
    assert_eq!(forebay.get("/a.ashx?n=2").text(), "hello 2");
    forebay.stop();
}

#[test]
fn a_process_is_replaced_after_its_requests() {
    let Some(forebay) = mono("max_requests = 20") else { return };
    let mut client = forebay.connect();
    let mut pids = BTreeMap::<String, usize>::new();
    let has_changed = || {
        *pids.entry(text(&mut client, "/a.ashx?do=pid")).or_default() += 1;
        pids.len() == 3
    };
    assert!(eventually(has_changed), "{}", forebay.output());
    forebay.stop();
}

#[test]
fn a_process_that_has_grown_is_replaced_without_a_failure() {
    let Some(forebay) = mono("max_memory = \"350MiB\"") else { return };
    let before = process(&forebay);
    let counts = load(
        &forebay,
        3,
        |client| client.try_get("/a.ashx"),
        |_| {
            assert_eq!(forebay.get("/a.ashx?do=keep").text(), "kept", "{}", forebay.output());
            assert!(eventually(|| !is_alive(&before.to_string())), "{}", forebay.output());
            assert_ne!(process(&forebay), before);
        },
    );
    assert_eq!(counts.keys().collect::<Vec<_>>(), [&200], "{counts:?}: {}", forebay.output());
    forebay.stop();
}

#[test]
fn a_kept_response_and_a_late_thread_reach_no_other_visitor() {
    let Some(forebay) = mono("") else { return };
    let mut client = forebay.connect();
    for number in 0..200 {
        let own = format!("own {number}");
        assert_eq!(text(&mut client, &format!("/a.ashx?do=later&n={number}")), own);
        assert_eq!(text(&mut client, "/a.ashx?n=you"), "hello you");
    }
    let descriptors = text(&mut client, "/a.ashx?do=child");
    assert!(descriptors.contains("pipe:") && !descriptors.contains("socket:"), "{descriptors}");
    drop(client);
    forebay.stop();
}
