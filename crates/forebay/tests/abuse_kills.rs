//! SIGKILL ends backends under load, again and again. Each client gets complete replies to its own
//! requests, documented errors, or a connection that ends visibly.

mod support;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use forebay_testkit::folder::Folder;
use forebay_testkit::http::Client;
use forebay_testkit::peer::{Peer, fcgiwrap, has_php_cgi, has_php_fpm, nginx, php_fpm};
use forebay_testkit::process::{self, Process, eventually};
use forebay_testkit::stream::Address;
use support::identity::{Asker, Outcome, PERL, PHP};
use support::{Forebay, proc, site};

const CLIENTS: usize = 4;
const KILLS: usize = 20;
/// Replies that clients get between two kills.
const BETWEEN: usize = 30;
/// Maximum number of requests of a client.
const MOST: usize = 50_000;

type Counts = BTreeMap<Outcome, usize>;

/// Loads `path` and kills one of `victims` after the other. Returns the results of the clients.
fn kill_under_load(forebay: &Forebay, path: &str, victims: impl Fn() -> Vec<u32>) -> Counts {
    let (stop, served) = (AtomicBool::new(false), AtomicUsize::new(0));
    thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|name| {
                let (stop, served, address) = (&stop, &served, forebay.address);
                scope.spawn(move || load(&mut Asker::new(address, name), path, stop, served))
            })
            .collect();
        for kill in 0..KILLS {
            let before = served.load(Ordering::Relaxed);
            let is_ended = || clients.iter().any(std::thread::ScopedJoinHandle::is_finished);
            let is_time = || served.load(Ordering::Relaxed) >= before + BETWEEN || is_ended();
            assert!(eventually(is_time), "{path} is no longer served: {}", forebay.output());
            let victims = victims();
            if let Some(&victim) = victims.get(kill % victims.len().max(1)) {
                proc::kill(victim);
            }
        }
        stop.store(true, Ordering::Relaxed);
        let mut sum = Counts::new();
        for client in clients {
            for (outcome, count) in client.join().expect("no reply was mixed") {
                *sum.entry(outcome).or_default() += count;
            }
        }
        sum
    })
}

fn load(asker: &mut Asker, path: &str, stop: &AtomicBool, served: &AtomicUsize) -> Counts {
    let mut counts = Counts::new();
    for turn in 0..MOST {
        let outcomes = asker.ask_pipelined(&[path; 3][..1 + turn % 3]);
        for outcome in outcomes {
            let is_whole = outcome == Outcome::Whole;
            served.fetch_add(usize::from(is_whole), Ordering::Relaxed);
            *counts.entry(outcome).or_default() += 1;
        }
        if stop.load(Ordering::Relaxed) {
            break;
        }
    }
    counts
}

/// Kills processes under load. Afterwards, everything works again, there are `count` possible
/// victims as before, and nothing is left.
fn survives(mut forebay: Forebay, path: &str, count: usize, victims: impl Fn() -> Vec<u32>) {
    let open = proc::descriptors(forebay.process.id()).len();
    let counts = kill_under_load(&forebay, path, &victims);
    let whole = counts.get(&Outcome::Whole).copied().unwrap_or(0);
    let others: usize = counts.values().sum::<usize>() - whole;
    assert!(whole >= KILLS * BETWEEN, "{counts:?}");
    // Each kill costs the requests that the victim had begun, those pipelined after them, and those
    // that came before a new process ran.
    assert!(others < whole / 2, "{counts:?}: {}", forebay.output());
    let mut asker = Asker::new(forebay.address, CLIENTS);
    assert!(eventually(|| asker.ask(path) == Outcome::Whole), "{}", forebay.output());
    drop(asker);
    assert!(!forebay.process.has_ended(), "{}", forebay.output());
    let are_all = || victims().len() == count;
    assert!(eventually(are_all), "{:?} are not {count}: {}", victims(), forebay.output());
    let pid = forebay.process.id();
    // Idle connections to the backend may stay.
    let is_tidy = || proc::descriptors(pid).len() <= open + 2 * CLIENTS + 8;
    assert!(eventually(is_tidy), "{open} and now {:?}", proc::descriptors(pid));
    forebay.stop();
}

fn folder() -> Folder {
    let folder = Folder::new();
    folder.write("htdocs/id.php", PHP);
    folder.script("htdocs/id.pl", PERL);
    folder
}

fn socket(peer: &Peer) -> String {
    format!("unix:{}", peer.socket().display())
}

#[test]
fn processes_of_php_fpm() {
    let Some(mut php) = php_fpm(4) else { return };
    let route = format!(
        "[[site.route]]\nfastcgi = {{ to = \"{}\", root = \"htdocs\", max_connections = 4 }}\n",
        socket(&php)
    );
    let master = php.process().id();
    survives(site(folder(), &route), "/id.php", 4, || proc::children(master));
}

#[test]
fn processes_of_fcgiwrap() {
    let Some(mut wrapper) = fcgiwrap(4) else { return };
    let route = format!(
        "[[site.route]]\nfastcgi = {{ to = \"{}\", root = \"htdocs\", index = \"id.pl\", \
         keep_conn = false }}\n",
        socket(&wrapper)
    );
    let master = wrapper.process().id();
    survives(site(folder(), &route), "/id.pl", 4, || proc::children(master));
}

#[test]
fn workers_of_nginx() {
    let http = format!(
        "server {{ listen 127.0.0.1:{{port}}; location / {{ default_type text/plain; \
         set $some \"{}\"; return 200 \"{}\"; }} }}",
        "$arg_id;".repeat(300),
        "$some".repeat(10)
    );
    let Some(mut nginx) = nginx(&http) else { return };
    let route = format!(
        "[[site.route]]\nproxy = {{ to = \"http://127.0.0.1:{}\", max_fails = 0 }}\n",
        nginx.port()
    );
    let master = nginx.process().id();
    survives(site(folder(), &route), "/", 1, || proc::children(master));
}

#[test]
fn workers_of_an_application() {
    let route = "[[site.route]]\npath = \"/*\"\napp = \"scripts\"\n\
         [app.scripts]\nkind = \"perl-cgi\"\ndir = \"htdocs\"\nworkers = 3\n";
    let forebay = site(folder(), route);
    let pid = forebay.process.id();
    survives(forebay, "/id.pl", 3, || proc::children_that_run(pid, "perl"));
}

#[test]
fn processes_of_cgi_scripts() {
    let route = "[[site.route]]\npath = \"/*\"\ncgi = { dir = \"htdocs\" }\n";
    let forebay = site(folder(), route);
    let pid = forebay.process.id();
    survives(forebay, "/id.pl", 0, || proc::children_that_run(pid, "perl"));
}

/// Returns a site whose scripts a program of its own runs. Also returns functions for the process
/// ids: parents, each below a guardian, or their children.
fn of_a_program(keys: &str) -> (Forebay, impl Fn() -> Vec<u32>, impl Fn() -> Vec<u32>) {
    let user = if rustix::process::geteuid().is_root() { "user = \"www-data\"\n" } else { "" };
    let forebay = site(
        folder(),
        &format!("[[site.route]]\npath = \"/*\"\napp = \"php\"\n[app.php]\n{user}{keys}"),
    );
    let pid = forebay.process.id();
    let below = |all: Vec<u32>| all.into_iter().flat_map(proc::children).collect::<Vec<_>>();
    let parents = move || below(proc::children(pid));
    (forebay, parents, move || below(parents()))
}

const PHP_APP: &str = "kind = \"php\"\nroot = \"htdocs\"\nworkers = 4\n";
const PHP_CGI: &str = "kind = \"command\"\nrun = [\"php-cgi\", \"-b\", \"{socket}\"]\n\
    root = \"htdocs\"\nspeaks = \"fastcgi\"\nconnections = 4\n\
    env = { PHP_FCGI_CHILDREN = \"4\" }\n";

#[test]
fn parents_of_a_php_application() {
    if has_php_fpm() {
        let (forebay, parents, _) = of_a_program(PHP_APP);
        survives(forebay, "/id.php", 1, parents);
    }
}

#[test]
fn children_of_a_php_application() {
    if has_php_fpm() {
        let (forebay, _, children) = of_a_program(PHP_APP);
        survives(forebay, "/id.php", 4, children);
    }
}

#[test]
fn parents_of_php_cgi() {
    if has_php_cgi() {
        let (forebay, parents, _) = of_a_program(PHP_CGI);
        survives(forebay, "/id.php", 1, parents);
    }
}

#[test]
fn children_of_php_cgi() {
    if has_php_cgi() {
        let (forebay, _, children) = of_a_program(PHP_CGI);
        survives(forebay, "/id.php", 4, children);
    }
}

/// Answers over one of four protocols with its own number. It writes each reply at once, so a reply
/// is complete or missing. It keeps connections if the protocol can.
const BACKEND: &str = r##"
use strict; use warnings;
use IO::Select; use IO::Socket::UNIX;
my ($protocol, $path, $number) = @ARGV;
my $listener = IO::Socket::UNIX->new(Local => $path, Listen => 128) or die "$path: $!";
my ($ready, %unread) = (IO::Select->new($listener));
my %length_of_request = (
    http => sub { my $end = index $_[0], "\r\n\r\n"; $end < 0 ? 0 : $end + 4 },
    scgi => sub { $_[0] =~ /^(\d+):/ ? length($1) + $1 + 2 : 0 },
    uwsgi => sub { length $_[0] < 4 ? 0 : 4 + unpack 'x v', $_[0] },
    fastcgi => sub {
        for (my $at = 0; $at + 8 <= length $_[0];) {
            my ($kind, $length, $padding) = unpack "x$at x C x2 n C", $_[0];
            $at += 8 + $length + $padding;
            return $at if $kind == 5 && $length == 0;
        }
        0
    },
);
my $printed = "Content-Type: text/plain\r\n\r\n$number";
my %reply = (
    http => "HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n$number",
    scgi => $printed,
    uwsgi => $printed,
    fastcgi => pack('C2n2x2a*', 1, 6, 1, length $printed, $printed) . pack('C2n2x2x8', 1, 3, 1, 8),
);
while (1) {
    for my $socket ($ready->can_read) {
        if ($socket == $listener) { $ready->add(scalar $listener->accept); next }
        my $open = sysread $socket, $unread{$socket}, 65536, length($unread{$socket} // '');
        my $length = $open ? $length_of_request{$protocol}->($unread{$socket}) : 0;
        if ($length && $length <= length $unread{$socket}) {
            substr $unread{$socket}, 0, $length, '';
            syswrite $socket, $reply{$protocol};
            next if $protocol eq 'http' || $protocol eq 'fastcgi';
            $open = 0;
        }
        next if $open;
        $ready->remove($socket); delete $unread{$socket}; close $socket;
    }
}
"##;

/// Starts five backends and kills one after the other under load, until one is left. Each request
/// gets an answer.
fn costs_no_request(protocol: &str, keys: &str) {
    let folder = folder();
    let script = folder.write("backend.pl", BACKEND);
    let start = |number: usize| {
        let path = folder.path().join(format!("{number}.sock"));
        let mut command = process::command("perl");
        command.arg(&script).arg(protocol).arg(&path).arg(number.to_string());
        let mut backend = Process::start(command);
        backend.wait_until_listening(Address::Unix(path));
        backend
    };
    let mut backends: Vec<_> = (0..5).map(start).collect();
    let to: Vec<_> = (0..5).map(|number| format!("\"unix:{{tmp}}/{number}.sock\"")).collect();
    let key = if protocol == "http" { "proxy" } else { protocol };
    let route = format!("[[site.route]]\n{key} = {{ to = [{}]{keys} }}\n", to.join(", "));
    let forebay = site(folder, &route);
    let (stop, served) = (AtomicBool::new(false), [const { AtomicUsize::new(0) }; CLIENTS]);
    let ask_on = |served: &AtomicUsize| {
        let mut client = Client::connect(forebay.address);
        let mut answered_by = [0; 5];
        while !stop.load(Ordering::Relaxed) {
            let reply = client.get("/x.pl");
            assert_eq!(reply.status, 200, "{}", forebay.output());
            let number: usize = reply.text().parse().expect("a backend's number");
            answered_by[number] += 1;
            served.fetch_add(1, Ordering::Relaxed);
        }
        answered_by
    };
    thread::scope(|scope| {
        let clients: Vec<_> = served.iter().map(|served| scope.spawn(|| ask_on(served))).collect();
        loop {
            // At the time of the next kill, each client has got the answer that was pending at this
            // kill.
            let before = served.each_ref().map(|served| served.load(Ordering::Relaxed));
            let is_time = || {
                let mut all = served.iter().zip(before);
                all.all(|(served, before)| served.load(Ordering::Relaxed) >= before + BETWEEN)
                    || clients.iter().any(std::thread::ScopedJoinHandle::is_finished)
            };
            let goes_on = eventually(is_time);
            if !goes_on || backends.len() == 1 {
                stop.store(true, Ordering::Relaxed);
                assert!(goes_on, "{protocol} is no longer served: {}", forebay.output());
                break;
            }
            let mut victim = backends.pop().expect("there are several");
            victim.signal(rustix::process::Signal::KILL);
        }
        let counts = clients.into_iter().map(|client| client.join().expect("no request failed"));
        let sums = counts.fold([0; 5], |sums, counts| {
            std::array::from_fn(|number| sums[number] + counts[number])
        });
        assert!(sums.iter().all(|&count| count > 0), "each had its turn: {sums:?}");
    });
}

#[test]
fn dead_http_backends_cost_no_request_while_one_is_up() {
    costs_no_request("http", "");
}

#[test]
fn dead_fastcgi_backends_cost_no_request_while_one_is_up() {
    costs_no_request("fastcgi", ", root = \"{tmp}/no\", scripts = \"*\"");
}

#[test]
fn dead_scgi_backends_cost_no_request_while_one_is_up() {
    costs_no_request("scgi", "");
}

#[test]
fn dead_uwsgi_backends_cost_no_request_while_one_is_up() {
    costs_no_request("uwsgi", "");
}
