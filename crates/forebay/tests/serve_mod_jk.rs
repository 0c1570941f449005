//! Tomcats as backends of Forebay and of Apache's mod_jk. The same requests reach the same Tomcats,
//! even if some are down, disabled, stopped, distant or replaced.
//!
//! Two differences are not in the table. If a request has two sessions, mod_jk takes the one in the
//! path, while Forebay and Tomcat take the cookie's. If no Tomcat is up, mod_jk answers 503 and
//! Forebay 502.

mod support;

use std::collections::BTreeSet;
use std::thread;
use std::time::{Duration, Instant};

use forebay_testkit::folder::Folder;
use forebay_testkit::http::Client;
use forebay_testkit::peer::{self, Peer};
use forebay_testkit::stream::Address;
use support::gate::Gate;
use support::{Forebay, site};

const CONNECTOR: &str = "secret=\"s3cret\"";
/// Longer than the test.
const NEVER: u32 = 3600;
/// Minimum number of requests of a kind, each over its own connection.
const TIMES: usize = 6;
/// Maximum number of requests while a possible worker has not answered. mod_jk counts requests with
/// sessions, and balances them with other requests; Forebay counts only the other requests.
const MOST: usize = 100;

/// The configuration of a worker, in mod_jk's terms.
#[derive(Clone, Copy)]
struct Worker {
    distance: u32,
    redirect: &'static str,
    activation: &'static str,
}

const ACTIVE: Worker = Worker { distance: 0, redirect: "", activation: "active" };
const DISABLED: Worker = Worker { activation: "disabled", ..ACTIVE };
const STOPPED: Worker = Worker { activation: "stopped", ..ACTIVE };
const FAR: Worker = Worker { distance: 1, ..ACTIVE };

#[derive(Clone, Copy)]
enum Request {
    Plain,
    Post,
    /// With a cookie JSESSIONID.
    Cookie(&'static str),
    /// With ;jsessionid=.
    Path(&'static str),
}

use Request::{Cookie, Path, Plain, Post};

#[derive(Clone, Copy)]
enum Step {
    /// These workers alone answer this many requests, each at least one. Empty: no worker answers.
    Ask(Request, &'static str),
    /// Kills a worker; 1 is the first.
    Down(usize),
    /// Starts the worker again.
    Up(usize),
    /// This worker answers the request sooner or later.
    Becomes(Request, &'static str),
}

use Step::{Ask, Becomes, Down, Up};

struct Case {
    name: &'static str,
    /// t1, t2 and t3. The first one is a separate Tomcat.
    workers: [Worker; 3],
    /// In seconds.
    recover_time: u32,
    steps: &'static [Step],
}

const TABLE: &[Case] = &[
    Case {
        name: "sessions stay where they are",
        workers: [ACTIVE, ACTIVE, STOPPED],
        recover_time: NEVER,
        steps: &[
            Ask(Plain, "t1 t2"),
            Ask(Cookie("A.t1"), "t1"),
            Ask(Cookie("A.t2"), "t2"),
            Ask(Path("A.t1"), "t1"),
            Ask(Path("A.t2"), "t2"),
            Ask(Cookie("A.other; JSESSIONID=A.t2"), "t2"),
            Ask(Cookie("\"A.t1\""), "t1"),
            Ask(Cookie("A.other"), "t1 t2"),
            Ask(Cookie("A"), "t1 t2"),
            Ask(Path("A"), "t1 t2"),
        ],
    },
    Case {
        name: "a disabled worker keeps its sessions, a stopped one nothing",
        workers: [ACTIVE, DISABLED, STOPPED],
        recover_time: NEVER,
        steps: &[
            Ask(Plain, "t1"),
            Ask(Cookie("A.t2"), "t2"),
            Ask(Path("A.t2"), "t2"),
            Ask(Cookie("A.t3"), "t1"),
            Ask(Path("A.t3"), "t1"),
            Down(2),
            Ask(Cookie("A.t2"), "t1"),
        ],
    },
    Case {
        name: "the nearest are asked",
        workers: [ACTIVE, FAR, FAR],
        recover_time: NEVER,
        steps: &[
            Ask(Plain, "t1"),
            Ask(Cookie("A.t3"), "t3"),
            Down(1),
            Ask(Plain, "t2 t3"),
            Ask(Cookie("A.t1"), "t2 t3"),
            Ask(Post, "t2 t3"),
            Down(2),
            Ask(Plain, "t3"),
        ],
    },
    Case {
        name: "a hot standby",
        workers: [Worker { redirect: "t3", ..ACTIVE }, ACTIVE, DISABLED],
        recover_time: NEVER,
        steps: &[
            Ask(Plain, "t1 t2"),
            Ask(Cookie("A.t3"), "t3"),
            Down(1),
            Ask(Cookie("A.t1"), "t3"),
            Ask(Path("A.t1"), "t3"),
            Ask(Plain, "t2"),
            Down(2),
            Ask(Cookie("A.t2"), "t3"),
            Ask(Plain, "t3"),
            Ask(Post, "t3"),
        ],
    },
    Case {
        name: "a worker that is stopped sends its sessions elsewhere",
        workers: [ACTIVE, Worker { redirect: "t3", ..STOPPED }, FAR],
        recover_time: NEVER,
        steps: &[Ask(Plain, "t1"), Ask(Cookie("A.t2"), "t3"), Down(3), Ask(Cookie("A.t2"), "t1")],
    },
    Case {
        name: "a dead worker costs nothing, and is left alone",
        workers: [ACTIVE, ACTIVE, STOPPED],
        recover_time: NEVER,
        steps: &[
            Ask(Plain, "t1 t2"),
            Down(1),
            Ask(Plain, "t2"),
            Ask(Post, "t2"),
            Ask(Cookie("A.t1"), "t2"),
            Up(1),
            Ask(Cookie("A.t1"), "t2"),
            Ask(Plain, "t2"),
        ],
    },
    Case {
        name: "who has recovered has its sessions back",
        workers: [ACTIVE, ACTIVE, STOPPED],
        recover_time: 1,
        steps: &[
            Down(1),
            Ask(Cookie("A.t1"), "t2"),
            Ask(Plain, "t2"),
            Up(1),
            Becomes(Cookie("A.t1"), "t1"),
            Ask(Cookie("A.t1"), "t1"),
            Ask(Plain, "t1 t2"),
        ],
    },
    Case {
        name: "all are tried when none is up",
        workers: [ACTIVE, ACTIVE, STOPPED],
        recover_time: NEVER,
        steps: &[
            Down(1),
            Down(2),
            Ask(Plain, ""),
            Ask(Cookie("A.t1"), ""),
            Up(2),
            Ask(Cookie("A.t1"), "t2"),
            Ask(Plain, "t2"),
        ],
    },
];

#[test]
fn requests_reach_the_same_tomcats_as_behind_mod_jk() {
    if !peer::has(&["apache2", "libapache2-mod-jk", "tomcat10"]) {
        return;
    }
    let tomcat = |name: &str| {
        let page = format!("<%@ page session=\"false\" %>{name}");
        peer::tomcat(&[("who.jsp", &page)], CONNECTOR, name).expect("it is installed")
    };
    let tomcats = thread::scope(|scope| {
        ["t1", "t2"].map(|name| scope.spawn(move || tomcat(name))).map(|it| it.join().unwrap())
    });
    let mut wrong = Vec::new();
    for case in TABLE {
        for start in [Front::forebay, Front::mod_jk] {
            let gates = [0, 1, 1].map(|index| Gate::to(tomcats[index].port()));
            let mut front = start(case, &gates);
            wrong.extend(front.walk(case, &gates));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The server before the Tomcats.
enum Front {
    Forebay(Forebay),
    ModJk(Peer),
}

impl Front {
    fn forebay(case: &Case, gates: &[Gate; 3]) -> Self {
        let to = case.workers.iter().zip(gates).enumerate().map(|(index, (worker, gate))| {
            let Worker { distance, redirect, activation } = worker;
            let redirect = match *redirect {
                "" => String::new(),
                name => format!(", redirect = \"{name}\""),
            };
            format!(
                "{{ url = \"127.0.0.1:{}\", route = \"t{}\", distance = {distance}, \
                 activation = \"{activation}\"{redirect} }}",
                gate.port(),
                index + 1
            )
        });
        let (to, time) = (to.collect::<Vec<_>>().join(", "), case.recover_time);
        Self::Forebay(site(
            Folder::new(),
            &format!(
                "[[site.route]]\npath = \"/*\"\n\
                 ajp = {{ to = [{to}], secret = \"s3cret\", recover_time = \"{time}s\" }}\n"
            ),
        ))
    }

    fn mod_jk(case: &Case, gates: &[Gate; 3]) -> Self {
        let mut lines = format!(
            "JkLogFile /dev/stderr\nJkLogLevel error\nJkShmFile {{tmp}}/shm\nJkMount /* lb\n\
             JkWorkerProperty worker.list=lb\nJkWorkerProperty worker.maintain=1\n\
             JkWorkerProperty worker.lb.type=lb\nJkWorkerProperty worker.lb.balance_workers=t1,t2,t3\n\
             JkWorkerProperty worker.lb.recover_time={}\n\
             JkWorkerProperty worker.lb.error_escalation_time=0\n",
            case.recover_time
        );
        for (index, (worker, gate)) in case.workers.iter().zip(gates).enumerate() {
            let Worker { distance, redirect, activation } = worker;
            for property in [
                "type=ajp13".to_owned(),
                "host=127.0.0.1".to_owned(),
                format!("port={}", gate.port()),
                "secret=s3cret".to_owned(),
                format!("distance={distance}"),
                format!("redirect={redirect}"),
                format!("activation={activation}"),
            ] {
                if !property.ends_with('=') {
                    lines += &format!("JkWorkerProperty worker.t{}.{property}\n", index + 1);
                }
            }
        }
        Self::ModJk(peer::apache(&["jk"], &lines).expect("it is installed"))
    }

    fn name(&self) -> &'static str {
        match self {
            Self::Forebay(_) => "Forebay",
            Self::ModJk(_) => "mod_jk",
        }
    }

    fn address(&self) -> Address {
        match self {
            Self::Forebay(forebay) => forebay.address.into(),
            Self::ModJk(apache) => apache.address().clone(),
        }
    }

    /// Returns the differences from the table.
    fn walk(&mut self, case: &Case, gates: &[Gate; 3]) -> Vec<String> {
        let mut wrong = Vec::new();
        for (at, step) in case.steps.iter().enumerate() {
            match *step {
                Down(worker) => gates[worker - 1].close(),
                Up(worker) => gates[worker - 1].open(),
                Becomes(request, expected) => {
                    let until = Instant::now() + Duration::from_secs(120);
                    while self.ask(request, gates) != expected {
                        assert!(Instant::now() < until, "{}: {}, {at}", self.name(), case.name);
                        thread::sleep(Duration::from_millis(20));
                    }
                }
                Ask(request, expected) => {
                    let mut who = BTreeSet::new();
                    for n in 0..MOST {
                        if n >= TIMES && joined(&who) == expected {
                            break;
                        }
                        who.insert(self.ask(request, gates));
                    }
                    let who = joined(&who);
                    if who != expected {
                        wrong.push(format!(
                            "{}: {}, step {at}: \"{who}\" in place of \"{expected}\"",
                            self.name(),
                            case.name
                        ));
                    }
                }
            }
        }
        wrong
    }

    /// Returns the worker that answers a request; an empty text if the server reports that there is
    /// none.
    fn ask(&self, request: Request, gates: &[Gate; 3]) -> String {
        let before = gates.each_ref().map(Gate::passed);
        let mut client = Client::connect(self.address());
        let (method, parameter, fields) = match request {
            Plain => ("GET", String::new(), String::new()),
            Post => ("POST", String::new(), "Content-Length: 5\r\n".into()),
            Cookie(value) => ("GET", String::new(), format!("Cookie: JSESSIONID={value}\r\n")),
            Path(value) => ("GET", format!(";jsessionid={value}"), String::new()),
        };
        let body = if method == "POST" { "hello" } else { "" };
        client.send(format!(
            "{method} /who.jsp{parameter} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n{fields}\r\n{body}"
        ));
        let reply = client.reply();
        if reply.status != 200 {
            assert!(matches!(reply.status, 502 | 503), "{}: {}", self.name(), reply.status);
            return String::new();
        }
        let reached: Vec<_> =
            (0..gates.len()).filter(|&index| gates[index].passed() > before[index]).collect();
        let [index] = reached[..] else { panic!("{}: {reached:?} were reached", self.name()) };
        assert_eq!(reply.text().trim(), ["t1", "t2", "t2"][index]);
        format!("t{}", index + 1)
    }
}

fn joined(names: &BTreeSet<String>) -> String {
    names.iter().map(String::as_str).collect::<Vec<_>>().join(" ")
}
