//! `forebay serve` with WSGI applications.

mod support;

use forebay_testkit::folder::Folder;
use forebay_testkit::http::Reply;
use forebay_testkit::peer;
use support::{Forebay, is_alive, pattern, serve};

/// Debian's Python, which finds the frameworks of Debian's packages.
const PYTHON: &str = "/usr/bin/python3";

/// An application for most tests. The first part of the path selects its behaviour.
const APPLICATION: &str = r#"
import os
import sys
import time
from wsgiref.validate import validator

PLAIN = [('Content-Type', 'text/plain')]


def application(environ, start):
    print('this is for the log')
    return globals()['do_' + environ['PATH_INFO'].split('/')[1]](environ, start)


def do_environ(environ, start):
    start('200 OK', PLAIN)
    names = ['REQUEST_METHOD', 'SCRIPT_NAME', 'PATH_INFO', 'QUERY_STRING', 'SERVER_PROTOCOL',
             'HTTP_X_THING', 'CONTENT_LENGTH', 'wsgi.version', 'wsgi.url_scheme',
             'wsgi.multithread', 'wsgi.multiprocess', 'wsgi.run_once']
    return [''.join('%s=%r\n' % (name, environ.get(name)) for name in names).encode()]


def do_pid(environ, start):
    start('200 OK', PLAIN)
    return [b'%d' % os.getpid()]


def do_echo(environ, start):
    start('200 OK', PLAIN)
    body = environ['wsgi.input']
    return iter(lambda: body.read(8192), b'')


def do_lines(environ, start):
    start('200 OK', PLAIN)
    body = environ['wsgi.input']
    return [repr([body.readline(), body.readline(2), list(body), body.read(1)]).encode()]


def do_one(environ, start):
    start('201 Made It', PLAIN + [('Set-Cookie', 'a=1'), ('Set-Cookie', 'b=2')])
    return [b'one piece']


def do_pieces(environ, start):
    start('200 OK', PLAIN)
    return Closing([b'', b'a', b'', b'bc'])


class Closing:
    def __init__(self, pieces):
        self.pieces = pieces

    def __iter__(self):
        return iter(self.pieces)

    def close(self):
        print('closed by the server')


def do_write(environ, start):
    write = start('200 OK', PLAIN)
    write(b'written, ')
    write(b'')
    return [b'returned']


def do_empty(environ, start):
    start('200 OK', PLAIN)
    return []


def do_none(environ, start):
    start('204 No Content', [])
    return [b'must not be sent']


def do_late(environ, start):
    start('200 OK', PLAIN)
    yield b''
    start('503 Later', PLAIN, fault())
    yield b'replaced'


def fault():
    try:
        raise KeyError('replaced the reply')
    except KeyError:
        return sys.exc_info()


def do_file(environ, start):
    file = open(environ['HTTP_X_FILE'], 'rb')
    file.seek(int(environ.get('QUERY_STRING') or 0))
    start('200 OK', PLAIN)
    return environ['wsgi.file_wrapper'](file, 1000)


def do_filelike(environ, start):
    start('200 OK', PLAIN)
    import io
    return environ['wsgi.file_wrapper'](io.BytesIO(b'x' * 100000), 999)


def do_latin(environ, start):
    start('200 OK', PLAIN + [('X-Name', '\xe9')])
    return [environ['PATH_INFO'].encode('latin-1')]


def do_raises(environ, start):
    raise ValueError('before anything')


def do_raiseslater(environ, start):
    start('200 OK', PLAIN)
    yield b'x' * 100000
    raise ValueError('in the middle')


def do_twice(environ, start):
    start('200 OK', PLAIN)
    start('200 OK', PLAIN)


def do_nothing(environ, start):
    return [b'no start_response']


def do_text(environ, start):
    start('200 OK', PLAIN)
    return ['not bytes']


def do_hop(environ, start):
    start('200 OK', [('Connection', 'close')])
    return [b'']


def do_split(environ, start):
    start('200 OK', [('X-A', 'b\r\nX-C: d')])
    return [b'']


def do_short(environ, start):
    start('200 OK', [('Content-Length', '10')])
    return [b'short']


def do_long(environ, start):
    start('200 OK', [('Content-Length', '4')])
    return [b'long', b'er']


def do_exit(environ, start):
    sys.exit(3)


kept = []


def do_keepwrite(environ, start):
    kept.append(start('200 OK', PLAIN))
    return [b'kept']


def do_usewrite(environ, start):
    try:
        kept[0](b'of another client')
        answer = b'went through'
    except AssertionError as error:
        answer = str(error).encode()
    start('200 OK', PLAIN)
    return [answer]


def do_thread(environ, start):
    import threading, time
    write = start('200 OK', PLAIN)
    write(b'begun')
    def much():
        write(b'x' * 30000000)
        while True:
            write(b'y')
    threading.Thread(target=much).start()
    time.sleep(0.02)
    return []


def do_fork(environ, start):
    child = os.fork()
    start('200 OK', PLAIN)
    if child:
        os.waitpid(child, 0)
        return [b'parent']
    if environ['QUERY_STRING'] == 'exit':
        sys.exit(3)
    return [b'child' * int(environ['QUERY_STRING'])]


def do_rawfork(environ, start):
    """A fork that Python does not know of, as C code makes it."""
    import ctypes
    child = ctypes.PyDLL(None).fork()
    start('200 OK', PLAIN)
    if child:
        os.waitpid(child, 0)
    return [b'parent' if child else b'child' * int(environ['QUERY_STRING'])]


class ClosesLate(list):
    """The reply must not wait for close()."""
    def close(self):
        until = time.monotonic() + 20
        while not os.path.exists('arrived') and time.monotonic() < until:
            time.sleep(0.01)
        print('closed', os.path.exists('arrived'))


def do_closeslate(environ, start):
    start('200 OK', PLAIN)
    return ClosesLate([b'before close'])


def do_childfds(environ, start):
    reader, writer = os.pipe()
    if os.fork() == 0:
        links = [os.path.realpath(f'/proc/self/fd/{n}') for n in os.listdir('/proc/self/fd')]
        os.write(writer, str(sum('socket:' in link for link in links)).encode())
        os._exit(0)
    os.wait()
    start('200 OK', [('Content-Type', 'text/plain')])
    return [os.read(reader, 9)]

def do_valid(environ, start):
    return validator(valid)(environ, start)


def valid(environ, start):
    body = environ['wsgi.input'].read(int(environ.get('CONTENT_LENGTH') or 0))
    environ['wsgi.errors'].write('an error line\n')
    start('200 OK', PLAIN)
    return [b'valid ', body]


def factory():
    return do_pid


class holder:
    inner = staticmethod(do_pid)
"#;

fn app(keys: &str) -> Option<Forebay> {
    if !peer::has(&["python3"]) {
        return None;
    }
    let folder = Folder::new();
    folder.write("app/shop.py", APPLICATION);
    Some(start(folder, keys))
}

fn start(folder: Folder, keys: &str) -> Forebay {
    serve(folder, &configuration(keys))
}

fn configuration(keys: &str) -> String {
    format!(
        "[[site]]\nlisten = \"127.0.0.1:0\"\n[[site.route]]\npath = \"/m/*\"\napp = \"shop\"\n\
         [[site.route]]\npath = \"/*\"\napp = \"shop\"\n[app.shop]\nkind = \"wsgi\"\ndir = \"app\"\n\
         python = \"{PYTHON}\"\n{keys}\n"
    )
}

const SHOP: &str = "module = \"shop:application\"\nworkers = 1";

/// Returns the reply to HEAD, and checks that nothing follows it.
fn head(forebay: &Forebay, path: &str) -> Reply {
    let mut client = forebay.connect();
    client.send(format!("HEAD {path} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"));
    let reply = client.reply_to_head();
    assert_eq!(client.rest(), b"", "{path}");
    reply
}

#[test]
fn the_application_is_found_and_so_is_pythonpath_with_pythonsafepath() {
    if !peer::has(&["python3"]) {
        return;
    }
    let folder = Folder::new();
    folder.write("lib/extra.py", "WORD = b'extra'\n");
    folder.write(
        "app/shop.py",
        "import extra\ndef application(environ, start_response):\n    \
         start_response('200 OK', [('Content-Type', 'text/plain')])\n    return [extra.WORD]\n",
    );
    let env = "env = { PYTHONSAFEPATH = \"1\", PYTHONPATH = \"../lib\" }";
    let forebay = start(folder, &format!("{SHOP}\n{env}"));
    assert_eq!(forebay.get("/").text(), "extra", "{}", forebay.output());
    forebay.stop();
}

#[test]
fn the_environment_is_what_the_standard_says() {
    let Some(forebay) = app(SHOP) else { return };
    let reply =
        forebay.ask("GET /m/environ/a%20b?x=y%20z HTTP/1.1\r\nHost: h\r\nX-Thing: 1\r\n\r\n");
    assert_eq!(
        reply.text(),
        "REQUEST_METHOD='GET'\nSCRIPT_NAME='/m'\nPATH_INFO='/environ/a b'\n\
         QUERY_STRING='x=y%20z'\nSERVER_PROTOCOL='HTTP/1.1'\nHTTP_X_THING='1'\n\
         CONTENT_LENGTH=None\nwsgi.version=(1, 0)\nwsgi.url_scheme='http'\n\
         wsgi.multithread=False\nwsgi.multiprocess=True\nwsgi.run_once=False\n"
    );
    let reply = forebay.get("/environ");
    assert!(reply.text().contains("SCRIPT_NAME=''\nPATH_INFO='/environ'"), "{}", reply.text());
    // The bytes of the path as characters with the same numbers, and back.
    let reply = forebay.get("/latin/%C3%A9%ff");
    assert_eq!(reply.body, b"/latin/\xc3\xa9\xff");
    forebay.stop();
}

#[test]
fn replies_are_framed_as_they_should_be() {
    let Some(mut forebay) = app(SHOP) else { return };
    for (path, status, length, body) in [
        ("/one", 201, Some("9"), "one piece"),
        ("/pieces", 200, Some("3"), "abc"),
        ("/write", 200, Some("17"), "written, returned"),
        ("/empty", 200, Some("0"), ""),
        ("/none", 204, None, ""),
        ("/late", 503, Some("8"), "replaced"),
        ("/long", 200, Some("4"), "long"),
    ] {
        let reply = forebay.get(path);
        assert_eq!(reply.status, status, "{path}: {}", forebay.output());
        assert_eq!((reply.header("Content-Length"), reply.text()), (length, body), "{path}");
    }
    let reply = forebay.get("/one");
    assert_eq!((reply.reason.as_str(), reply.headers_named("Set-Cookie").len()), ("Made It", 2));
    assert_eq!(head(&forebay, "/one").header("Content-Length"), Some("9"));
    assert_eq!(forebay.get("/filelike").body.len(), 100_000);
    forebay.wait_for_output("closed by the server");
    forebay.wait_for_output("this is for the log");
    forebay.stop();
}

#[test]
fn bodies_arrive_exactly() {
    let Some(forebay) = app(SHOP) else { return };
    let body = pattern(3_000_000);
    let mut client = forebay.connect();
    for length in [0, 1, 65_536, 1_048_576, 1_048_577, 3_000_000] {
        client.send(format!("POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: {length}\r\n\r\n"));
        client.send(&body[..length]);
        assert!(client.reply().body == body[..length], "{length}");
    }
    client.send("POST /lines HTTP/1.1\r\nHost: h\r\nContent-Length: 13\r\n\r\none\ntwo\nthree");
    assert_eq!(client.reply().text(), r"[b'one\n', b'tw', [b'o\n', b'three'], b'']");
    drop(client);
    forebay.stop();
}

#[test]
fn files_are_sent_from_where_they_stand() {
    let Some(forebay) = app(SHOP) else { return };
    let body = pattern(500_000);
    let file = forebay.folder.write("big", &body);
    for at in [0, 499_999, 500_000, 123_456] {
        let reply = forebay.ask(format!(
            "GET /file?{at} HTTP/1.1\r\nHost: h\r\nX-File: {}\r\n\r\n",
            file.display()
        ));
        assert_eq!(reply.header("Content-Length"), Some((500_000 - at).to_string().as_str()));
        assert!(reply.body == body[at..], "{at}");
    }
    forebay.stop();
}

#[test]
fn the_validator_of_the_standard_library_finds_nothing() {
    let Some(mut forebay) = app(SHOP) else { return };
    for request in [
        "GET /valid HTTP/1.1\r\nHost: h\r\n\r\n",
        "GET /m/valid/x?y HTTP/1.1\r\nHost: h\r\n\r\n",
        "POST /valid HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\nContent-Type: a/b\r\n\r\nbody",
    ] {
        let reply = forebay.ask(request);
        assert_eq!(reply.status, 200, "{request}: {}", forebay.output());
    }
    assert_eq!(head(&forebay, "/valid").status, 200);
    forebay.wait_for_output("an error line");
    assert!(!forebay.output().contains("Traceback"), "{}", forebay.output());
    forebay.stop();
}

#[test]
fn failures_are_clean() {
    let Some(mut forebay) = app(SHOP) else { return };
    for name in ["raises", "twice", "nothing", "text", "hop", "split", "absent", "exit"] {
        assert_eq!(forebay.get(&format!("/{name}")).status, 500, "{name}: {}", forebay.output());
    }
    // The client does not take half a reply for a complete one: it gets 502, or a cut-off
    // connection if the reply has begun.
    let short = forebay.try_get("/short");
    assert!(short.map_or(true, |reply| reply.status == 502), "{}", forebay.output());
    let mut client = forebay.connect();
    client.send("GET /raiseslater HTTP/1.1\r\nHost: h\r\n\r\n");
    client.reply_to_head();
    assert!(!client.rest().ends_with(b"\r\n0\r\n\r\n"));
    assert_eq!(forebay.get("/one").status, 201);
    for word in ["before anything", "in the middle", "line break", "was called twice", "(3)"] {
        forebay.wait_for_output(word);
    }
    forebay.stop();
}

#[test]
fn nobody_writes_into_the_reply_of_another_client() {
    let Some(mut forebay) = app(SHOP) else { return };
    assert_eq!(forebay.get("/keepwrite").text(), "kept");
    assert_eq!(forebay.get("/usewrite").text(), "write was called after the end of its request");
    assert_eq!(forebay.get("/childfds").text(), "0", "sockets that a child has of the worker");
    let pid = forebay.get("/pid").text().to_owned();
    // A child that returns from the application as if it were the worker.
    for way in ["exit", "0", "1", "100000"] {
        let reply = forebay.get(&format!("/fork?{way}"));
        assert_eq!((reply.status, reply.text()), (200, "parent"), "{way}: {}", forebay.output());
        assert_eq!(forebay.get("/pid").text(), pid, "{way}");
    }
    forebay.wait_for_output("a process that the application has forked has no reply to write");
    for way in ["1", "100000"] {
        assert_eq!(forebay.get(&format!("/rawfork?{way}")).text(), "parent", "{way}");
        assert_eq!(forebay.get("/pid").text(), pid, "{way}");
    }
    forebay.stop();
}

#[test]
fn a_reply_does_not_wait_for_close() {
    let Some(mut forebay) = app(SHOP) else { return };
    assert_eq!(forebay.get("/closeslate").text(), "before close");
    forebay.folder.write("app/arrived", "");
    forebay.wait_for_output("closed True");
    forebay.stop();
}

#[test]
fn a_write_that_is_under_way_at_the_end_belongs_to_its_own_reply() {
    let Some(forebay) = app(SHOP) else { return };
    let pid = forebay.get("/pid").text().to_owned();
    for _ in 0..3 {
        let reply = forebay.get("/thread");
        // The thread may also come too late. Then it is refused.
        let length = reply.body.len();
        assert!(length == 5 || length == 30_000_005, "{length}: {}", forebay.output());
        let next = forebay.get("/pid");
        assert!(next.body == pid.as_bytes(), "{} bytes", next.body.len());
    }
    forebay.stop();
}

#[test]
fn applications_are_found_by_dotted_names_and_made_by_factories() {
    for module in ["shop:factory()", "shop:holder.inner", "shop:do_pid"] {
        let Some(forebay) = app(&format!("module = \"{module}\"\nworkers = 1")) else { return };
        let pid = forebay.get("/").text().to_owned();
        assert_eq!(forebay.get("/x").text(), pid);
        assert!(is_alive(&pid));
        forebay.stop();
        assert!(!is_alive(&pid));
    }
}

#[test]
fn an_application_that_cannot_be_loaded_says_why_at_the_start() {
    if !peer::has(&["python3"]) {
        return;
    }
    for (module, text) in [
        ("missing:app", "ModuleNotFoundError: No module named 'missing'"),
        ("shop:absent", "has no 'absent'"),
        ("shop:PLAIN", "cannot be called"),
        ("broken:app", "ZeroDivisionError"),
    ] {
        let folder = Folder::new();
        folder.write("app/shop.py", APPLICATION);
        folder.write("app/broken.py", "1 / 0\n");
        let keys = format!("module = \"{module}\"");
        let mut forebay = support::serve(folder, &configuration(&keys));
        forebay.wait_for_output(text);
        assert_eq!(forebay.get("/").status, 503, "{module}");
        forebay.stop();
    }
}

/// A small application of each framework. Its replies are the same as in other servers.
const FRAMEWORKS: [(&str, &str, &str); 3] = [
    (
        "flask",
        "python3-flask",
        "from flask import Flask, request, Response\napp = Flask(__name__)\n\
         @app.route('/hello/<name>', methods=['GET', 'POST'])\ndef hello(name):\n    \
         return Response('%s %s %s' % (name, request.args.get('q'), request.form.get('f')),\n        \
         headers={'X-Own': 'yes'}, content_type='text/plain')\n",
    ),
    (
        "bottle",
        "python3-bottle",
        "import bottle\nfrom bottle import request, response\napp = bottle.Bottle()\n\
         @app.route('/hello/<name>', method=['GET', 'POST'])\ndef hello(name):\n    \
         response.set_header('X-Own', 'yes')\n    response.content_type = 'text/plain'\n    \
         return '%s %s %s' % (name, request.query.getunicode('q'), request.forms.getunicode('f'))\n",
    ),
    (
        "django",
        "python3-django",
        "from django.conf import settings\nfrom django.core.wsgi import get_wsgi_application\n\
         from django.http import HttpResponse\nfrom django.urls import path\n\
         settings.configure(ROOT_URLCONF=__name__, ALLOWED_HOSTS=['*'], SECRET_KEY='x')\n\
         def hello(request, name):\n    text = '%s %s %s' % (name, request.GET.get('q'), \
         request.POST.get('f'))\n    response = HttpResponse(text, content_type='text/plain')\n    \
         response['X-Own'] = 'yes'\n    return response\n\
         urlpatterns = [path('hello/<name>', hello)]\napp = get_wsgi_application()\n",
    ),
];

#[test]
fn frameworks_run() {
    for (framework, package, source) in FRAMEWORKS {
        if !peer::has(&[package]) {
            continue;
        }
        let folder = Folder::new();
        folder.write("app/site_app.py", source);
        let forebay = start(folder, "module = \"site_app:app\"\nworkers = 1");
        let reply = forebay.get("/m/hello/%C3%A9l%C3%A8ve?q=%E2%82%AC");
        assert_eq!(reply.text(), "élève € None", "{framework}: {}", forebay.output());
        assert_eq!((reply.status, reply.header("X-Own")), (200, Some("yes")));
        let reply = forebay.ask(
            "POST /hello/x?q=1 HTTP/1.1\r\nHost: h\r\nContent-Length: 8\r\n\
             Content-Type: application/x-www-form-urlencoded\r\n\r\nf=%C3%A9",
        );
        assert_eq!(reply.text(), "x 1 é", "{framework}: {}", forebay.output());
        assert_eq!(forebay.get("/absent").status, 404, "{framework}");
        assert_eq!(head(&forebay, "/hello/x").status, 200);
        forebay.stop();
    }
}

#[test]
fn a_file_runs_as_with_mod_wsgi() {
    if !peer::has(&["python3"]) {
        return;
    }
    let folder = Folder::new();
    folder.write(
        "own/shop.wsgi",
        "import os, beside\n\ndef application(environ, start):\n    start('200 OK', [])\n    \
         return [repr((__file__, __name__, beside.value, os.getcwd())).encode()]\n",
    );
    folder.write("own/beside.py", "value = 'found'\n");
    let text = "[[site]]\nlisten = \"127.0.0.1:0\"\n[[site.route]]\npath = \"/*\"\napp = \"shop\"\n\
                [app.shop]\nkind = \"wsgi\"\nfile = \"own/shop.wsgi\"\n";
    let forebay = serve(folder, text);
    let own = forebay.folder.path().join("own").canonicalize().unwrap();
    let reply = forebay.get("/");
    let expected = format!(
        "('{own}/shop.wsgi', 'forebay_application', 'found', '{own}')",
        own = own.display()
    );
    assert_eq!(reply.text(), expected, "{}", forebay.output());
    forebay.stop();
}
