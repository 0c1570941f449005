//! `forebay serve` with persistent Python workers for unchanged CGI scripts.

mod support;

use std::fs;
use std::process::Command;

use forebay_testkit::folder::Folder;
use forebay_testkit::http::{Client, Reply};
use forebay_testkit::peer;
use forebay_testkit::process::eventually;
use support::{Forebay, is_alive, pattern, serve};

/// The interpreter in the first lines of the scripts.
const PYTHON: &str = "/usr/bin/python3";
/// One script for each feature that scripts use. The tests run the scripts in all ways.
const TABLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/python");

fn has_python() -> bool {
    peer::has(&["python3"])
}

/// Serves the same scripts at /cgi/, /fresh/ and /fork/.
fn three_ways(folder: Folder, keys: &str) -> Forebay {
    let mut text = "[[site]]\nlisten = \"127.0.0.1:0\"\n[[site.route]]\npath = \"/cgi/*\"\n\
                    cgi = { dir = \"s\" }\n"
        .to_owned();
    for mode in ["fresh", "fork"] {
        text += &format!("[[site.route]]\npath = \"/{mode}/*\"\napp = \"{mode}\"\n");
    }
    for mode in ["fresh", "fork"] {
        text += &format!(
            "[app.{mode}]\nkind = \"python-cgi\"\ndir = \"s\"\nmode = \"{mode}\"\n\
             python = \"{PYTHON}\"\nworkers = 1\n{keys}\n"
        );
    }
    serve(folder, &text)
}

fn scripts(files: &[(&str, &str)]) -> Folder {
    let folder = Folder::new();
    for (name, content) in files {
        folder.script(&format!("s/{name}"), format!("#!{PYTHON}\n{content}"));
    }
    folder
}

/// Returns a folder with the scripts of the table, and their names.
fn table() -> (Folder, Vec<String>) {
    let folder = Folder::new();
    let mut names = Vec::new();
    for entry in fs::read_dir(TABLE).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        if name.ends_with(".py") {
            folder.script(&format!("s/{name}"), fs::read(&path).unwrap());
            names.push(name);
        }
    }
    // Modules that scripts import.
    names.retain(|name| name != "colorsys.py" && name != "sibling.py");
    names.sort();
    (folder, names)
}

/// Returns the parts of a reply that do not depend on the server.
fn seen(reply: &Reply) -> (u16, Vec<Option<String>>, String) {
    let fields = ["Content-Type", "X-Own", "Location"];
    let fields = fields.map(|name| reply.header(name).map(str::to_owned));
    (reply.status, fields.into(), String::from_utf8_lossy(&reply.body).into_owned())
}

fn requests(path: &str) -> [String; 2] {
    let form = "q=1&a=%C3%A9&a=2";
    [
        format!("GET {path}?q=a+b HTTP/1.1\r\nHost: localhost\r\nX-Thing: 1\r\n\r\n"),
        format!(
            "POST {path}?a=0 HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\
             Content-Type: application/x-www-form-urlencoded\r\n\r\n{form}",
            form.len()
        ),
    ]
}

fn ask(client: &mut Client, request: &str) -> (u16, Vec<Option<String>>, String) {
    client.send(request);
    seen(&client.reply())
}

#[test]
fn scripts_answer_as_in_a_process_of_their_own() {
    if !has_python() {
        return;
    }
    let (folder, names) = table();
    let forebay = three_ways(folder, "");
    let mut wrong = String::new();
    // Twice, so that each script also runs after all others.
    for round in 0..2 {
        for name in &names {
            let [get, post] = requests(&format!("/cgi/{name}"));
            for request in [get, post] {
                let expected = ask(&mut forebay.connect(), &request);
                for mode in ["fresh", "fork"] {
                    let request = request.replacen("/cgi/", &format!("/{mode}/"), 1);
                    let answer = ask(&mut forebay.connect(), &request);
                    if answer != expected {
                        let line = request.lines().next().unwrap_or_default();
                        wrong += &format!("round {round}, {line}\n  {answer:?}\n  {expected:?}\n");
                    }
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong}\n{}", forebay.output());
    forebay.stop();
}

#[test]
fn scripts_answer_as_with_apache() {
    if !has_python() {
        return;
    }
    let (folder, names) = table();
    let conf = format!(
        "Alias /fresh/ \"{0}/\"\n<Directory \"{0}\">\nOptions ExecCGI\nSetHandler cgi-script\n\
         Require all granted\n</Directory>\nUseCanonicalName Off\n",
        folder.path().join("s").display()
    );
    let Some(apache) = peer::apache(&["alias", "cgi"], &conf) else { return };
    let forebay = three_ways(folder, "");
    // Apache gives a redirection a body of its own.
    for name in names.iter().filter(|name| *name != "redirect.py") {
        for request in requests(&format!("/fresh/{name}")) {
            let ours = ask(&mut forebay.connect(), &request);
            let theirs = ask(&mut Client::connect(apache.address()), &request);
            assert_eq!(ours, theirs, "{name}\n{}", forebay.output());
        }
    }
    apache.stop();
    forebay.stop();
}

#[test]
fn failures_are_clean() {
    if !has_python() {
        return;
    }
    let folder = scripts(&[
        ("raises.py", "raise KeyError('for a reason')\n"),
        ("syntax.py", "this is no python\n"),
        ("missing-module.py", "import no_such_module\n"),
        ("kill.py", "import os\nos.kill(os.getpid(), 9)\n"),
        ("silent.py", "import sys\nsys.exit('nothing to say')\n"),
        ("recursion.py", "def f(): f()\nf()\n"),
        ("hook.py", "import sys\nsys.excepthook = None\nraise ValueError('odd hook')\n"),
        ("nul.py", "a = '\0'\n"),
        ("fine.py", "print('Content-Type: text/plain\\n\\nfine')\n"),
    ]);
    folder.write("s/not-executable.py", "print('no')\n");
    fs::create_dir(folder.path().join("s/dir")).unwrap();
    let mut forebay = three_ways(folder, "");
    for mode in ["fresh", "fork"] {
        for (name, status) in [
            ("raises.py", 500),
            ("syntax.py", 500),
            ("missing-module.py", 500),
            ("kill.py", 502),
            ("silent.py", 502),
            ("recursion.py", 500),
            ("hook.py", 500),
            ("nul.py", 500),
            ("not-executable.py", 403),
            ("dir", 403),
            ("absent.py", 404),
            ("fine.py", 200),
        ] {
            let reply = forebay.get(&format!("/{mode}/{name}"));
            assert_eq!(reply.status, status, "{mode} {name}: {}", forebay.output());
        }
    }
    for word in ["for a reason", "SyntaxError", "no_such_module", "nothing to say", "chmod +x"] {
        forebay.wait_for_output(word);
    }
    // The traceback shows only the script.
    assert!(!forebay.output().contains("forebay host"), "{}", forebay.output());
    forebay.stop();
}

#[test]
fn a_script_that_breaks_the_interpreter_breaks_it_for_itself() {
    if !has_python() {
        return;
    }
    let ways = [
        "sys.modules.clear()",
        "sys.modules = {}",
        "del sys.modules['os'], sys.modules['sys'], sys.modules['builtins']",
        "sys.path = None",
        "os.getpid = os.fstat = os.dup2 = None",
        "os.chdir = os.set_blocking = os.stat = None",
        "os.environ._data = None",
        "sys.path_importer_cache = sys.meta_path = None",
        "import gc; gc.collect = gc.freeze = gc.get_count = None",
        "import _signal; _signal.getsignal = None",
        "import builtins; vars(builtins).clear()",
        "import io; io.TextIOWrapper = None; sys.stdin.close(); sys.stdout.close()",
    ];
    let files: Vec<_> = (0..ways.len()).map(|i| format!("{i}.py")).collect();
    let folder = scripts(&[("fine.py", "import os, json\nprint('Content-Type: a/b\\n\\nfine')\n")]);
    for (file, way) in files.iter().zip(ways) {
        let text =
            format!("#!{PYTHON}\nimport os, sys\nprint('Content-Type: a/b\\n\\nbroken')\n{way}\n");
        folder.script(&format!("s/{file}"), text);
    }
    let forebay = three_ways(folder, "");
    for mode in ["fresh", "fork"] {
        for (file, way) in files.iter().zip(ways) {
            // A fault at the start of a request can affect at most the next one.
            let _ = forebay.try_get(&format!("/{mode}/{file}"));
            let _ = forebay.try_get(&format!("/{mode}/fine.py"));
            for _ in 0..2 {
                let reply = forebay.get(&format!("/{mode}/fine.py"));
                assert_eq!(
                    (reply.status, reply.text()),
                    (200, "fine\n"),
                    "{mode} {way}: {}",
                    forebay.output()
                );
            }
        }
    }
    forebay.stop();
}

#[test]
fn cgitb_shows_a_page_and_is_undone() {
    if !has_python() {
        return;
    }
    let folder = scripts(&[
        ("page.py", "import cgitb\ncgitb.enable()\nsecret = 'shown'\nraise ValueError(secret)\n"),
        (
            "plain.py",
            "print('Content-Type: text/plain\\n')\nprint('x')\nraise ValueError('hidden')\n",
        ),
    ]);
    let forebay = three_ways(folder, "");
    for mode in ["fresh", "fork"] {
        let page = forebay.get(&format!("/{mode}/page.py"));
        assert_eq!(page.status, 200);
        assert!(page.text().contains("ValueError") && page.text().contains("secret"));
        assert!(!page.text().contains("forebay host"), "{}", page.text());
        assert_eq!(forebay.get(&format!("/{mode}/plain.py")).text(), "x\n");
    }
    forebay.stop();
}

/// Hides modules of the interpreter, as if they were missing.
const WITHOUT_CGI: &str = "import importlib.machinery, warnings\n\
    finder = importlib.machinery.PathFinder\nfind = finder.find_spec\n\
    finder.find_spec = classmethod(lambda cls, name, *rest: \
    None if name in ('cgi', 'cgitb') else find(name, *rest))\n";

#[test]
fn an_interpreter_without_cgi_is_given_one() {
    if !has_python() {
        return;
    }
    let folder = scripts(&[
        ("page.py", "import cgitb\ncgitb.enable()\nsecret = '<shown>'\nraise ValueError(secret)\n"),
        (
            "text.py",
            "import cgitb\ncgitb.enable(format='text')\nprint('Content-Type: text/plain\\n')\n\
             def deep(argument):\n    return argument.missing\ndeep('given')\n",
        ),
        (
            "whose.py",
            "import cgi, cgitb\nprint('X: y\\n\\n', cgi.__spec__.origin, cgitb.__doc__)\n",
        ),
        ("test.py", "import cgi\ncgi.test()\n"),
    ]);
    folder.script("s/form.py", fs::read(format!("{TABLE}/form.py")).unwrap());
    folder.write("without/sitecustomize.py", WITHOUT_CGI);
    let forebay = three_ways(folder, "env = { PYTHONPATH = \"{tmp}/without\" }");
    for mode in ["fresh", "fork"] {
        for _ in 0..2 {
            let reply = forebay.get(&format!("/{mode}/whose.py"));
            assert!(reply.text().contains("<forebay cgi.py>"), "{}", forebay.output());
            let page = forebay.get(&format!("/{mode}/page.py"));
            assert_eq!((page.status, page.header("Content-Type")), (200, Some("text/html")));
            for part in ["ValueError", "<b>secret</b> = &#x27;&lt;shown&gt;&#x27;", "page.py"] {
                assert!(page.text().contains(part), "{part}: {}", page.text());
            }
            let text = forebay.get(&format!("/{mode}/text.py"));
            for part in ["AttributeError", "deep(argument='given')", "argument = 'given'"] {
                assert!(text.text().contains(part), "{part}: {}", text.text());
            }
            assert!(forebay.get(&format!("/{mode}/test.py?a=b")).text().contains("QUERY_STRING"));
            // The CGI process has the modules of the interpreter.
            let [get, post] = requests("/cgi/form.py");
            for request in [get, post] {
                let expected = ask(&mut forebay.connect(), &request);
                let request = request.replacen("/cgi/", &format!("/{mode}/"), 1);
                assert_eq!(ask(&mut forebay.connect(), &request), expected);
            }
        }
    }
    forebay.stop();
}

#[test]
fn bodies_and_uploads_arrive_exactly() {
    if !has_python() {
        return;
    }
    let (folder, _) = table();
    folder.script(
        "s/echo.py",
        format!(
            "#!{PYTHON}\nimport shutil, sys\nsys.stdout.buffer.write(b'X: y\\n\\n')\n\
             shutil.copyfileobj(sys.stdin.buffer, sys.stdout.buffer)\n"
        ),
    );
    let forebay = three_ways(folder, "");
    let body = pattern(1_000_000);
    let upload = [
        &b"--xx\r\nContent-Disposition: form-data; name=\"f\"; filename=\"a.bin\"\r\n\r\n"[..],
        &body,
        b"\r\n--xx--\r\n",
    ]
    .concat();
    let mut client = forebay.connect();
    for mode in ["fresh", "fork"] {
        for length in [0, 1, 65_536, 65_537, 1_000_000] {
            client.send(format!(
                "POST /{mode}/echo.py HTTP/1.1\r\nHost: h\r\nContent-Length: {length}\r\n\r\n"
            ));
            client.send(&body[..length]);
            assert!(client.reply().body == body[..length], "{mode} {length}");
        }
    }
    let answers = ["cgi", "fresh", "fork"].map(|mode| {
        client.send(format!(
            "POST /{mode}/form.py HTTP/1.1\r\nHost: h\r\nContent-Length: {}\r\n\
             Content-Type: multipart/form-data; boundary=xx\r\n\r\n",
            upload.len()
        ));
        client.send(&upload);
        client.reply().text().to_owned()
    });
    assert!(answers[0].contains("f a.bin 1000000"), "{}", answers[0]);
    assert_eq!(answers[0], answers[1]);
    assert_eq!(answers[0], answers[2]);
    drop(client);
    forebay.stop();
}

#[test]
fn modules_of_two_directories_are_not_mixed_up() {
    if !has_python() {
        return;
    }
    let print = "print('Content-Type: text/plain\\n')\n";
    let script =
        format!("import helper\nfrom inner import part\n{print}print(helper.NAME, part.NAME)\n");
    let by_path = |dir: &str| {
        format!(
            "import sys\nsys.path.insert(0, sys.path[0] + '/{dir}')\nimport extra\n{print}print(extra.NAME)\n"
        )
    };
    let (by_path_1, by_path_2) = (by_path("l1"), by_path("l2"));
    let mut files = vec![("p1.py", by_path_1.as_str()), ("p2.py", by_path_2.as_str())];
    for name in ["a/x.py", "b/x.py"] {
        files.push((name, &script));
    }
    let own: Vec<_> = ["a", "b"]
        .iter()
        .flat_map(|dir| {
            let name = format!("NAME = '{dir}'\n");
            [(format!("{dir}/helper.py"), name.clone()), (format!("{dir}/inner/part.py"), name)]
        })
        .chain(["l1", "l2"].map(|dir| (format!("{dir}/extra.py"), format!("NAME = '{dir}'\n"))))
        .collect();
    files.extend(own.iter().map(|(name, text)| (name.as_str(), text.as_str())));
    let folder = scripts(&files);
    for dir in ["a", "b"] {
        folder.write(&format!("s/{dir}/inner/__init__.py"), "");
    }
    let forebay = three_ways(folder, "");
    for mode in ["fresh", "fork"] {
        for _ in 0..3 {
            for (path, text) in
                [("a/x.py", "a a\n"), ("b/x.py", "b b\n"), ("p1.py", "l1\n"), ("p2.py", "l2\n")]
            {
                let reply = forebay.get(&format!("/{mode}/{path}"));
                assert_eq!(reply.text(), text, "{mode} {path}: {}", forebay.output());
            }
        }
    }
    // A changed module is loaded again, together with the modules that import it.
    forebay.folder.write("s/a/inner/part.py", "NAME = 'changed'\n");
    assert_eq!(forebay.get("/fresh/a/x.py").text(), "a changed\n");
    assert_eq!(forebay.get("/fork/a/x.py").text(), "a changed\n");
    assert_eq!(forebay.get("/fresh/b/x.py").text(), "b b\n");
    forebay.folder.script("s/a/x.py", format!("#!{PYTHON}\n{print}print('new')\n"));
    assert_eq!(forebay.get("/fresh/a/x.py").text(), "new\n");
    assert_eq!(forebay.get("/fork/a/x.py").text(), "new\n");
    forebay.stop();
}

#[test]
fn one_process_serves_and_keeps_what_modules_hold() {
    if !has_python() {
        return;
    }
    let folder = scripts(&[
        (
            "count.py",
            "import os, kept\nkept.count += 1\nprint('X: y\\n\\n%d %d' % (os.getpid(), kept.count))\n",
        ),
        ("kept.py", "count = 0\n"),
        ("parent.py", "import os\nprint('X: y\\n\\n%d' % os.getppid())\n"),
    ]);
    let forebay = three_ways(folder, "");
    let first = forebay.get("/fresh/count.py").text().to_owned();
    let (pid, count) = first.trim().split_once(' ').unwrap();
    assert_eq!(count, "1");
    assert_eq!(forebay.get("/fresh/count.py").text(), format!("{pid} 2\n"));
    // Each fork is its own process, of the same worker.
    let first = forebay.get("/fork/count.py").text().to_owned();
    let second = forebay.get("/fork/count.py").text().to_owned();
    assert!(first.ends_with(" 1\n") && second.ends_with(" 1\n") && first != second);
    let worker = forebay.get("/fork/parent.py").text().to_owned();
    assert_eq!(forebay.get("/fork/parent.py").text(), worker);
    let pid = pid.to_owned();
    assert!(is_alive(&pid) && is_alive(&worker));
    forebay.stop();
    assert!(!is_alive(&pid) && !is_alive(&worker));
}

#[test]
fn files_are_closed_and_workers_with_leftovers_are_replaced() {
    if !has_python() {
        return;
    }
    let head = "import os, sys\nprint('Content-Type: text/plain\\n', flush=True)\n";
    let write = format!(
        "{head}class Holder: pass\nh = Holder(); h.itself = h\n\
                 h.file = open(os.environ['WHERE'] + '/left', 'w'); h.file.write('all of it')\n"
    );
    let daemon = format!(
        "{head}import threading, time\nprint(os.getpid())\n\
         threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()\n"
    );
    let background = format!(
        "{head}import subprocess\nprint(os.getpid(), flush=True)\n\
         subprocess.Popen(['sh', '-c', 'sleep 1000; echo into another reply'])\n"
    );
    // A child starts it, with the client as descriptor 2.
    let hidden = background.replace(
        "'sleep 1000; echo into another reply'",
        "'(sleep 1000; echo into another reply >&2) 2>&1 >/dev/null & exec >/dev/null; wait'",
    );
    let folder = scripts(&[
        ("write.py", &write),
        ("daemon.py", &daemon),
        ("background.py", &background),
        ("hidden.py", &hidden),
    ]);
    let forebay = three_ways(folder, "env = { WHERE = \"{tmp}\" }");
    for mode in ["fresh", "fork"] {
        let left = forebay.folder.path().join("left");
        assert_eq!(forebay.get(&format!("/{mode}/write.py")).status, 200);
        let is_whole = || fs::read_to_string(&left).is_ok_and(|text| text == "all of it");
        assert!(eventually(is_whole), "{mode}");
        fs::remove_file(left).unwrap();
        for name in ["daemon", "background", "hidden"] {
            let pids = [0, 1].map(|_| forebay.get(&format!("/{mode}/{name}.py")).text().to_owned());
            assert!(pids[0] != pids[1], "{mode} {name} {pids:?}: {}", forebay.output());
            assert!(eventually(|| !is_alive(&pids[0])), "{mode} {name}");
        }
    }
    forebay.stop();
}

#[test]
fn pools_of_processes_end_with_their_script() {
    if !has_python() {
        return;
    }
    let pool = "import os\nfrom concurrent.futures import ProcessPoolExecutor\n\
                from concurrent.futures import ThreadPoolExecutor\n\
                print('Content-Type: text/plain\\n', flush=True)\n\
                pool, threads = ProcessPoolExecutor(1), ThreadPoolExecutor(1)\n\
                print(os.getpid(), pool.submit(pow, 2, 3).result(), \
                threads.submit(pow, 2, 2).result())\n";
    let folder = scripts(&[("pool.py", pool)]);
    let forebay = three_ways(folder, "request_timeout = \"20s\"");
    for mode in ["fresh", "fork"] {
        let texts = [0, 1].map(|_| forebay.get(&format!("/{mode}/pool.py")).text().to_owned());
        assert!(texts[0].ends_with(" 8 4\n"), "{mode} {texts:?}: {}", forebay.output());
        assert_eq!(texts[0] == texts[1], mode == "fresh", "{texts:?}: {}", forebay.output());
    }
    forebay.stop();
}

#[test]
fn a_virtual_environment_is_used() {
    if !has_python() {
        return;
    }
    let folder = scripts(&[("where.py", "import sys\nprint('X: y\\n\\n%s' % sys.prefix)\n")]);
    let venv = folder.path().join("venv");
    let made = Command::new(PYTHON).args(["-m", "venv", "--without-pip"]).arg(&venv).status();
    assert!(made.unwrap().success());
    let forebay = serve(
        folder,
        "[[site]]\nlisten = \"127.0.0.1:0\"\n[[site.route]]\npath = \"/*\"\napp = \"s\"\n\
         [app.s]\nkind = \"python-cgi\"\ndir = \"s\"\npython = \"venv/bin/python\"\n",
    );
    assert_eq!(forebay.get("/where.py").text().trim(), venv.to_str().unwrap());
    forebay.stop();
}

#[test]
fn no_process_outlives_a_killed_forebay() {
    if !has_python() {
        return;
    }
    let folder = scripts(&[(
        "slow.py",
        "import os, time\nopen(os.environ['WHERE'] + '/pid-' + os.environ['QUERY_STRING'], 'w')\
         .write('%d\\n' % os.getpid())\ntime.sleep(1000)\n",
    )]);
    let mut forebay = three_ways(folder, "env = { WHERE = \"{tmp}\" }");
    let mut pids = Vec::new();
    for mode in ["fresh", "fork"] {
        let mut client = forebay.connect();
        client.send(format!("GET /{mode}/slow.py?{mode} HTTP/1.1\r\nHost: h\r\n\r\n"));
        let file = forebay.folder.path().join(format!("pid-{mode}"));
        assert!(eventually(|| fs::read_to_string(&file).is_ok_and(|text| text.ends_with('\n'))));
        pids.push((client, fs::read_to_string(file).unwrap()));
    }
    forebay.signal(rustix::process::Signal::KILL);
    for (_, pid) in &pids {
        assert!(eventually(|| !is_alive(pid)), "{pid}");
    }
}

#[test]
fn a_script_that_becomes_another_user_does_so_for_itself() {
    if !has_python() {
        return;
    }
    if !rustix::process::geteuid().is_root() {
        return peer::skip("only root can become another user");
    }
    let show = "import os\nprint('Content-Type: text/plain\\n')\n\
                print(os.getresuid(), os.getresgid(), os.getgroups())";
    let changes = ["seteuid(65534)", "setegid(65534)", "setgroups([65534])", "setuid(65534)"];
    let scripts_of = changes.map(|change| {
        let text = format!(
            "import os\nprint('Content-Type: text/plain\\n')\nos.{change}\nprint('changed')"
        );
        (format!("{}.py", change.split('(').next().unwrap()), text)
    });
    let mut files = vec![("show.py", show)];
    files.extend(scripts_of.iter().map(|(name, text)| (name.as_str(), text.as_str())));
    let forebay = three_ways(scripts(&files), "");
    for mode in ["fresh", "fork"] {
        let normal = forebay.get(&format!("/{mode}/show.py")).text().to_owned();
        for (name, _) in &scripts_of {
            let reply = forebay.get(&format!("/{mode}/{name}"));
            assert_eq!(reply.text(), "changed\n", "{mode}: {name}: {}", forebay.output());
            assert_eq!(forebay.get(&format!("/{mode}/show.py")).text(), normal, "{mode}: {name}");
        }
    }
    forebay.stop();
}
