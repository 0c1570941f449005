//! Experiments: which way of serving one application is faster, by how much, and how sure that is.
//!
//! An experiment file ([`Plan`]) names several ways of serving. [`run()`] tries each once per round.
//! Every trial has a fresh server, started and ended by a [`keeper`], which is checked before and
//! after, warmed up, loaded and watched. The servers of a round run side by side and are loaded in
//! turns, in slices of a fraction of a second, in an order shuffled by a seed; their connections stay
//! open in between. [`report`] turns the [`Experiment`] into a table, JSON, Markdown or an HTML page.
//!
//! # The experiment file
//!
//! TOML. Unknown keys are errors. Times are texts with a unit: `"500ms"`, `"5s"`, `"2m"`.
//!
//! | key | default | meaning |
//! |---|---|---|
//! | `title` | | what the reports are headed |
//! | `before`, `after` | | commands (lists) that are run before the first round and after the last, and have to end |
//! | `[load] path` | `/` | appended to each `url` |
//! | `connections` | 10 | concurrent connections |
//! | `requests` or `duration` | `"5s"` | how much one trial measures |
//! | `rounds` | 6 | trials per configuration |
//! | `warmup` | `"1s"` | time or number of requests before measuring; 0: none |
//! | `steady` | | the warm-up goes on until the rate is steady, for so long at most; a note says where it was not |
//! | `slice` | `"150ms"` | about how long a server is loaded before it is another's turn |
//! | `think` | none | pause on each connection between a reply and the next request; one server after the other |
//! | `isolated` | false | one server after the other, each loaded without a break |
//! | `threads` | 1 or 2 | client threads |
//! | `rate` | | requests per second of an open loop |
//! | `http2`, `streams` | false, 1 | HTTP/2 by prior knowledge, requests in flight on each connection |
//! | `root`, `params` | | for FastCGI, SCGI, uwsgi: where scripts lie, further variables (a table) |
//! | `secret` | | for AJP: what the servlet container asks of web servers |
//! | `keepalive` | true | whether connections are used again |
//! | `method`, `headers`, `body` | GET | the request; `headers` is a table |
//! | `timeout` | `"10s"` | for one request |
//! | `cpus` | all | cores of the load generator, such as `[1]` |
//! | `[load.client] command` | | a command (a list) that loads the server in place of the built-in generator; see below |
//! | `metric` | | where its number is: `{ pattern = 'tps = (.+)' }` or `{ json = "/a/b" }`, with `unit` and `better = "lower"` |
//! | `count` | | where it says how much was done, for CPU time of the server for each |
//! | `timeout` | `"30s"` | how much longer than `duration` it may take |
//! | `requires` | | programs or Debian packages that it needs |
//! | `[check] status` | 200 | what a right answer has |
//! | `body_contains` | | and contains |
//! | `[matrix]` | | lists of values; each combination is measured, see below |
//! | `[against] build` | | a shell command that makes an older revision ready (`--against`) |
//! | `[[service]] name` | | what every configuration needs beside its server; see below |
//! | `start`, `requires`, `env`, `cwd`, `templates`, `cpus`, timeouts | | as for a configuration |
//! | `listens` | `127.0.0.1:{port}` | `HOST:PORT` or `unix:PATH` where it is ready |
//! | `[[configuration]] name` | | in every report |
//! | `baseline` | the first | what the others are compared with |
//! | `start` | | the server's command, a list; `"forebay"` means this very program; none: it runs already |
//! | `before`, `after` | | commands that are run before each start of the server and after its end |
//! | `url` | | where it answers, such as `"http://127.0.0.1:{port}"`, or with `fcgi`, `scgi`, `uwsgi`, `ajp`, `h2c` |
//! | `path` | | in place of the load's |
//! | `requires` | | programs, Debian packages, or modules of Perl (`perl:DBI`); if one is missing the row says so |
//! | `env`, `cwd` | , `{dir}` | environment (a table) and working directory |
//! | `templates` | | files filled in and copied to `{tmp}`; see below |
//! | `ready_timeout` | `"30s"` | until the first right answer |
//! | `stop_timeout` | `"5s"` | from SIGTERM to SIGKILL |
//! | `version` | | a command whose first line of output tells the version |
//! | `cpus` | all | cores of the server |
//! | `notes` | | a remark for the report |
//! | `isolated` | as `[load]` has it | whether it runs while no other server does |
//!
//! `{port}` (free when the trial begins), `{dir}` (the experiment file's directory) and `{tmp}`
//! (the trial's own directory, gone afterwards) are replaced in `path`, `start`, `url`, `env` and
//! `cwd`. Other braces stay as they are.
//!
//! A server whose own configuration file needs them names it under `templates`: each file, given
//! relative to the experiment, is copied into `{tmp}` under its last name with the placeholders
//! replaced, so that `start = ["nginx", "-c", "{tmp}/nginx.conf"]` works. What is relative inside
//! such a file is then relative to `{tmp}`; write `{dir}/htdocs` for what lies beside the
//! experiment.
//!
//! `[matrix]` lists values for `connections`, `path`, `rate` (0: a closed loop), `streams`, `http2`, `keepalive` and
//! `body_bytes` of the load; any other key is a placeholder `{KEY}` of the configurations and their
//! templates. Each combination has its own servers, which take turns with each other alone and are
//! compared with the baseline there. With a single configuration, the combinations are compared with the
//! first.
//!
//! A client's command is run once a trial, or once in each `slice` where that is given, after a
//! run for as long as `warmup`. Its words may hold `{url}`, `{duration}` (seconds),
//! `{connections}` and `{seed}` (the same for all configurations of a round), which are in its
//! environment, too (`URL`, `DURATION`, `CONNECTIONS`, `SEED`), as is `PORT`. It has to end with
//! status 0 and to print a number above 0; where `pattern` matches more than once, the last match
//! counts. Where less is better, a ratio of 2 means half the number. A server that does not speak
//! HTTP has `tcp://HOST:PORT` or `unix:PATH` for its `url`, and is ready when it takes
//! connections.
//!
//! A service (a database, the backend of a proxy) is started afresh for each trial, before the
//! server, and ended after it; what it takes is not counted. `{NAME.port}` and `{NAME.tmp}` tell the
//! server, its templates and later services where it is. A configuration without `start` may
//! have the address of a service for its `url`, to load what the others stand in front of.
//!
//! # What counts
//!
//! One trial is one sample: a mean and a spread are over trials, never over requests. A ratio is the
//! trimmed mean over the pairs of slices in a round, and its interval that of the rounds' figures
//! (`forebay_stat::ratio_of_rounds`). `requests` are cut into 50 slices at most, of at least 20 for each
//! connection. A slice during which the machine was busy with something else, by what was seen beside
//! it and never by its result (`disturbance.rs`), is in no ratio.
//! A trial is void, and says why, if the server ended, a check failed, or the load generator was the
//! limit (`bound.rs` says exactly when). Failed requests are counted beside the rate.
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
    Amount, Better, Cell, Check, Client, Configuration, Find, Load, Plan, Printed, Problem,
    Service, ServiceValues, Template, Values,
};
pub use interrupt::Interrupt;
pub use machine::Machine;
pub use progress::ProgressLines;
pub use results::{Experiment, Results};
pub use resume::incomparable;
pub use run::{Options, run};
pub use schedule::{Executor, Group, Member, Moment, Progress, Rounds, Silent, Turn};
pub use summary::{Leak, Row, rows};
pub use trial::{Halt, Measured, Runner, Slice, Trial, TrialId};
pub use watch::{Cpu, CpuMethod, Evidence, Glance, Point, Series};
