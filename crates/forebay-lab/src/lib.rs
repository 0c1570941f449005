//! Experiments: which way of serving an application is faster, by how much, and with what
//! certainty.
//!
//! An experiment file ([`Plan`]) names several ways of serving. [`run()`] tries each once per round.
//! Every trial has a fresh server, started and ended by a [`keeper`]. The server is checked before
//! and after the load, warmed up, loaded and watched. The servers of a round run at the same time
//! and are loaded in turns, in slices of a fraction of a second. A seed determines the order of the
//! turns. Connections stay open between turns. [`report`] converts the [`Experiment`] to a table,
//! JSON, Markdown or an HTML page.
//!
//! # The experiment file
//!
//! The format is TOML. Unknown keys are errors. Times are strings with a unit: `"500ms"`, `"5s"`,
//! `"2m"`.
//!
//! | key | default | meaning |
//! |---|---|---|
//! | `title` | | title of the reports |
//! | `before`, `after` | | commands (lists) that run to their end before the first round and after the last |
//! | `[load] path` | `/` | appended to each `url` |
//! | `connections` | 10 | concurrent connections |
//! | `requests` or `duration` | `"3s"` | amount of load of one trial |
//! | `rounds` | 10 | trials per configuration |
//! | `warmup` | `"1s"` | time or number of requests before the measurement; 0: none |
//! | `steady` | | continues the warm-up until the rate is steady, at most for this time; a note reports a rate that was not |
//! | `slice` | `"100ms"` | approximate time that a server is loaded before the next server's turn |
//! | `think` | none | pause on each connection between a reply and the next request; servers then run one after the other |
//! | `isolated` | false | runs one server after the other, each loaded without a break |
//! | `threads` | 1 or 2 | client threads |
//! | `rate` | | requests per second of an open loop |
//! | `http2`, `streams` | false, 1 | HTTP/2 with prior knowledge, and concurrent requests per connection |
//! | `root`, `params` | | for FastCGI, SCGI, uwsgi: directory of scripts, further variables (a table) |
//! | `secret` | | for AJP: secret that the servlet container requires from web servers |
//! | `keepalive` | true | reuses connections |
//! | `method`, `headers`, `body` | GET | the request; `headers` is a table |
//! | `timeout` | `"10s"` | time limit of one request |
//! | `cpus` | all | cores of the load generator, such as `[1]` |
//! | `[load.client] command` | | a command (a list) that loads the server instead of the built-in generator; see below |
//! | `metric` | | position of its result: `{ pattern = 'tps = (.+)' }` or `{ json = "/a/b" }`, with `unit` and `better = "lower"` |
//! | `count` | | position of the amount of work; the server's CPU time is divided by it |
//! | `timeout` | `"30s"` | time that it may take in addition to `duration` |
//! | `requires` | | programs or Debian packages that it requires |
//! | `[check] status` | 200 | status of a correct reply |
//! | `body_contains` | | text in the body of a correct reply |
//! | `max_failed` | 0 | requests of a configuration that may fail: a number, or `"0.1%"`; more are an exit code of 1 |
//! | `[matrix]` | | lists of values; each combination is measured, see below |
//! | `[against] build` | | a shell command that builds an older revision (`--against`) |
//! | `[[service]] name` | | a process that every configuration needs in addition to its server; see below |
//! | `start`, `requires`, `env`, `cwd`, `templates`, `cpus`, timeouts | | as for a configuration |
//! | `listens` | `127.0.0.1:{port}` | `HOST:PORT` or `unix:PATH`; the service is ready when it listens there |
//! | `[[configuration]] name` | | name in every report |
//! | `baseline` | the first | the others are compared with this configuration |
//! | `start` | | command of the server, a list; `"forebay"` means this program; none: the server runs already |
//! | `before`, `after` | | commands that run before each start of the server and after its end |
//! | `url` | | URL of the server, such as `"http://127.0.0.1:{port}"`, or with `fcgi`, `scgi`, `uwsgi`, `ajp`, `h2c` |
//! | `path` | | used instead of the load's path |
//! | `requires` | | programs, Debian packages, or Perl modules (`perl:DBI`); the row reports a missing one |
//! | `env`, `cwd` | , `{dir}` | environment (a table) and working directory |
//! | `templates` | | files copied to `{tmp}` with their placeholders replaced; see below |
//! | `ready_timeout` | `"30s"` | time limit until the first correct reply |
//! | `stop_timeout` | `"5s"` | time from SIGTERM to SIGKILL |
//! | `version` | | a command that prints the version in its first line |
//! | `cpus` | all | cores of the server |
//! | `notes` | | a remark for the report |
//! | `isolated` | as in `[load]` | runs without other servers at the same time |
//!
//! The placeholders `{port}` (free when the trial begins), `{dir}` (the experiment file's directory)
//! and `{tmp}` (the trial's own directory, removed afterwards) are replaced in `path`, `start`,
//! `url`, `env` and `cwd`. Other braces stay unchanged.
//!
//! If the server's own configuration file needs placeholders, list the file in `templates`. Each
//! file is given relative to the experiment and copied into `{tmp}` under its file name, with the
//! placeholders replaced. For example, `start = ["nginx", "-c", "{tmp}/nginx.conf"]` then works.
//! Relative paths inside such a file are relative to `{tmp}`. Write `{dir}/htdocs` for a directory
//! next to the experiment file.
//!
//! `[matrix]` lists values for the load's `connections`, `path`, `rate` (0: a closed loop),
//! `streams`, `http2`, `keepalive` and `body_bytes`. Any other key is a placeholder `{KEY}` of the
//! configurations and their templates. Each combination has its own servers, which take turns only
//! with each other and are compared with the baseline of the same combination. With a single
//! configuration, the combinations are compared with the first.
//!
//! A client's command runs once per trial, or once per `slice` if that key is given, after a warm-up
//! run of length `warmup`. Its arguments may contain `{url}`, `{duration}` (seconds),
//! `{connections}` and `{seed}` (equal for all configurations of a round). The environment has the
//! values, too (`URL`, `DURATION`, `CONNECTIONS`, `SEED`, and also `PORT`). The command must exit
//! with status 0 and print a number greater than 0. If `pattern` matches more than once, the last
//! match counts. If less is better, a ratio of 2 means half the number. A server that does not
//! speak HTTP has `tcp://HOST:PORT` or `unix:PATH` as its `url`, and is ready when it accepts
//! connections.
//!
//! A service (a database, the backend of a proxy) is restarted for each trial, before the server,
//! and ended after the server. Its resource usage is not measured. The server, its templates and
//! later services use `{NAME.port}` and `{NAME.tmp}` for its address. A configuration without
//! `start` may use the address of a service as its `url`, to measure the backend without a proxy.
//!
//! # What counts
//!
//! A trial is one sample: means and spreads are computed over trials, never over requests. A ratio
//! is the trimmed mean over the pairs of slices in a round, and its interval is computed from the
//! rounds' figures (`forebay_stat::ratio_of_rounds`). `requests` are divided into at most 50 slices
//! with at least 20 requests per connection. Slices that other work on the machine disturbed are in
//! no ratio. The evidence for that (`disturbance.rs`) is measured beside the slice and is never its
//! result.
//!
//! A trial is void, with a reason, if the server ended or gave no correct reply, or if the load
//! generator was the limit (`bound.rs` has the exact rule). Failed requests are reported next to the
//! rate; more than `max_failed` of them are a problem of the configuration.
//!
//! A configuration that cannot start loses its row, and the others are measured. `forebay` watches
//! the processes of a server that it did not start, if they listen on this machine.
#![forbid(unsafe_code)]

mod bound;
mod client;
mod command;
mod disturbance;
mod experiment;
mod interrupt;
pub mod keeper;
mod listening;
mod machine;
pub mod number;
mod overrun;
mod pairing;
pub mod profile;
mod profiling;
mod progress;
pub mod report;
mod results;
mod resume;
mod round;
mod run;
mod schedule;
mod service;
mod steady;
mod summary;
mod trial;
mod watch;

pub use forebay_stat::Verdict;

pub use experiment::{
    Amount, Better, Cell, Check, Client, Configuration, Find, Load, MaxFailed, Plan, Printed,
    Problem, Service, ServiceValues, Template, Values,
};
pub use interrupt::Interrupt;
pub use machine::Machine;
pub use progress::ProgressLines;
pub use results::{Experiment, Results};
pub use resume::incomparable;
pub use run::{Options, run};
pub use schedule::{Executor, Group, Member, Moment, Progress, Rounds, Silent, Turn};
pub use summary::{Leak, Row, rows};
pub use trial::{Halt, Measured, Runner, Slice, StartFailure, Trial, TrialId};
pub use watch::{Cpu, CpuMethod, Evidence, Glance, Point, Series};
