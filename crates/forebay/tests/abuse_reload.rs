//! SIGHUP under load for every kind of origin: no request is lost, and no replies are mixed up.

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use forebay_testkit::folder::Folder;
use forebay_testkit::peer::php_fpm;
use forebay_testkit::process::eventually;
use rustix::process::Signal;
use support::hostile::{Hostile, Protocol};
use support::identity::{Asker, Outcome, PERL, PHP};
use support::{Forebay, proc, serve, write_configuration};

const CLIENTS: usize = 5;
const RELOADS: usize = 10;
/// Maximum number of requests of a client.
const MOST: usize = 20_000;
const DONE: &str = "serving by the configuration as it is now";
const PATHS: [&str; 6] =
    ["/id.php", "/app/id.pl", "/cgi/id.pl", "/fastcgi", "/proxied", "/own/id.php"];

/// Every second round changes the application, so the old one has to drain.
fn configuration(round: usize, php: &str, fastcgi: &Hostile, http: &Hostile) -> String {
    let changed = round / 2;
    let user = if rustix::process::geteuid().is_root() { "user = \"www-data\"" } else { "" };
    format!(
        "[[site]]\nlisten = \"127.0.0.1:0\"\n\
         [[site.route]]\npath = \"/own/*\"\napp = \"php\"\n\
         [[site.route]]\nsuffix = \".php\"\n\
         fastcgi = {{ to = \"unix:{php}\", root = \"htdocs\", max_connections = 4 }}\n\
         [[site.route]]\npath = \"/app/*\"\napp = \"scripts\"\n\
         [[site.route]]\npath = \"/cgi/*\"\ncgi = {{ dir = \"htdocs\" }}\n\
         [[site.route]]\npath = \"/fastcgi\"\n\
         fastcgi = {{ to = \"{}\", root = \"/nowhere\", index = \"index.cgi\" }}\n\
         [[site.route]]\nproxy = \"http://{}\"\n\
         [app.scripts]\nkind = \"perl-cgi\"\ndir = \"htdocs\"\nworkers = 2\n\
         env = {{ ROUND = \"{changed}\" }}\n\
         [app.php]\nkind = \"php\"\nroot = \"htdocs\"\nworkers = 4\n{user}\n\
         env = {{ ROUND = \"{changed}\" }}\n",
        fastcgi.authority(),
        http.authority(),
    )
}

#[test]
fn ten_reloads_lose_no_request_of_any_origin() {
    let Some(php) = php_fpm(4) else { return };
    let socket = php.socket().to_str().expect("a plain name");
    let nothing = Arc::new(Vec::new());
    let fastcgi = Hostile::start(Protocol::Fastcgi, &nothing);
    let http = Hostile::start(Protocol::Http, &nothing);
    let folder = Folder::new();
    folder.write("htdocs/id.php", PHP);
    folder.write("htdocs/own/id.php", PHP);
    folder.script("htdocs/id.pl", PERL);
    let mut forebay = serve(folder, &configuration(0, socket, &fastcgi, &http));
    let (stop, served) = (AtomicBool::new(false), AtomicUsize::new(0));
    thread::scope(|scope| {
        for name in 0..CLIENTS {
            let (stop, served, address) = (&stop, &served, forebay.address);
            scope.spawn(move || {
                let mut asker = Asker::new(address, name);
                for turn in name..MOST {
                    let paths = [PATHS[turn % PATHS.len()], PATHS[(turn + 1) % PATHS.len()]];
                    let outcomes = asker.ask_pipelined(&paths[..1 + turn / 5 % 2]);
                    assert!(
                        outcomes.iter().all(|o| *o == Outcome::Whole),
                        "{paths:?} {outcomes:?}"
                    );
                    served.fetch_add(outcomes.len(), Ordering::Relaxed);
                    if stop.load(Ordering::Relaxed) {
                        return;
                    }
                }
            });
        }
        for round in 1..=RELOADS {
            let before = served.load(Ordering::Relaxed);
            reload(&mut forebay, &configuration(round, socket, &fastcgi, &http));
            let is_served = || served.load(Ordering::Relaxed) > before + 10 * CLIENTS;
            assert!(eventually(is_served), "{}", forebay.output());
        }
        stop.store(true, Ordering::Relaxed);
    });
    // Only the workers of the last applications are left.
    let pid = forebay.process.id();
    let workers = || proc::children_that_run(pid, "perl");
    assert!(eventually(|| workers().len() == 2), "{:?}", workers());
    let php = || proc::children(pid).into_iter().flat_map(proc::children);
    assert!(eventually(|| php().count() == 1), "{:?}", php().collect::<Vec<_>>());
    forebay.stop();
}

fn reload(forebay: &mut Forebay, configuration: &str) {
    let before = forebay.output().matches(DONE).count();
    write_configuration(&forebay.folder, configuration);
    forebay.signal(Signal::HUP);
    forebay
        .process
        .wait_until("reloaded", |process| process.output().matches(DONE).count() > before)
        .unwrap_or_else(|error| panic!("{error}"));
}
