//! Experiments: measure which of several server setups serves an application fastest, by how much,
//! and with what certainty.
//!
//! An experiment file ([`Plan`]) names several configurations: ways to serve the same application.
//! [`run()`] measures each configuration once per round; such a measurement is a trial. A
//! [`keeper`] process starts a fresh server for every trial and ends it afterwards. A trial checks
//! the server, warms it up, loads it, watches its resource usage, and checks it again.
//!
//! The servers of a round run at the same time, but only one is loaded at any moment. After a slice
//! of a fraction of a second, the next server has its turn. A seed determines the order of the
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
//! | `before`, `after` | | commands (lists): `before` runs to its end before the first round, `after` after the last |
//! | `[load] path` | `/` | appended to each `url` |
//! | `connections` | 10 | concurrent connections |
//! | `requests` or `duration` | `"3s"` | amount of load of one trial |
//! | `rounds` | 10 | trials per configuration |
//! | `warmup` | `"1s"` | time or number of requests before the measurement; 0: none |
//! | `steady` | | continues the warm-up until the rate is steady, at most for this time; a note reports a rate that was still not steady |
//! | `slice` | `"100ms"` | approximate time that one server is loaded before the next one |
//! | `think` | none | pause on each connection between a reply and the next request; servers then run one after the other |
//! | `isolated` | false | runs one server after the other, each loaded without a break |
//! | `threads` | 1 or 2 | threads of the load generator |
//! | `rate` | | requests per second at a fixed rate (open loop) |
//! | `http2`, `streams` | false, 1 | HTTP/2 with prior knowledge, and concurrent requests per connection |
//! | `http3` | false | HTTP/3 for `https` URLs, also with `streams` |
//! | `root`, `params` | | for FastCGI, SCGI, uwsgi: directory of scripts, further variables (a table) |
//! | `secret` | | for AJP: secret that the servlet container requires from web servers |
//! | `keepalive` | true | sends further requests over open connections |
//! | `method`, `headers`, `body` | GET | the request; `headers` is a table |
//! | `timeout` | `"10s"` | time limit of one request |
//! | `cpus` | all | cores of the load generator, such as `[1]` |
//! | `[load.client] command` | | a command (a list) that loads the server instead of the built-in generator; see below |
//! | `metric` | | finds the result in its output: `{ pattern = 'tps = (.+)' }` or `{ json = "/a/b" }`, with `unit` and `better = "lower"` |
//! | `count` | | finds the amount of work in its output; the server's CPU time is divided by this amount |
//! | `timeout` | `"30s"` | time that the command may take in addition to `duration` |
//! | `requires` | | programs or Debian packages that the command requires |
//! | `[check] status` | 200 | status of a correct reply |
//! | `body_contains` | | text in the body of a correct reply |
//! | `max_failed` | 0 | number or share (`"0.1%"`) of a configuration's requests that may fail; if more fail, the exit code is 1 |
//! | `[matrix]` | | lists of values; each combination is measured, see below |
//! | `[against] build` | | a shell command that builds an older revision (`--against`) |
//! | `[[service]] name` | | a process that every configuration needs in addition to its server; see below |
//! | `start`, `requires`, `env`, `cwd`, `templates`, `cpus`, timeouts | | as for a configuration |
//! | `listens` | `127.0.0.1:{port}` | `HOST:PORT` or `unix:PATH`; the service is ready when it listens there |
//! | `[[configuration]] name` | | name in every report |
//! | `baseline` | the first | compares the other configurations with this one |
//! | `start` | | command of the server, a list; `"forebay"` means this program; without it, the server runs already |
//! | `before`, `after` | | commands that run before each start of the server and after its end |
//! | `url` | | URL of the server, such as `"http://127.0.0.1:{port}"`, or with the scheme `fcgi`, `scgi`, `uwsgi`, `ajp` or `h2c` |
//! | `path` | | used instead of the load's path |
//! | `requires` | | programs, Debian packages, or Perl modules (`perl:DBI`); if one is missing, the configuration is not measured and its row names it |
//! | `env`, `cwd` | none, `{dir}` | environment (a table) and working directory |
//! | `templates` | | files copied to `{tmp}` with their placeholders replaced; see below |
//! | `ready_timeout` | `"30s"` | time limit until the first correct reply |
//! | `stop_timeout` | `"5s"` | time that the server has to end after SIGTERM, before SIGKILL |
//! | `version` | | a command that prints the version in its first line |
//! | `cpus` | all | cores of the server |
//! | `notes` | | a remark for the report |
//! | `isolated` | as in `[load]` | runs without other servers at the same time |
//!
//! The placeholders are `{port}` (a port that is free when the trial begins), `{dir}` (the
//! experiment file's directory) and `{tmp}` (the trial's own directory, removed afterwards).
//! Placeholders are replaced in `path`, `start`, `before`, `after`, `url`, `env`, `cwd`, `root`,
//! `params` and `ca`. Other text in braces stays unchanged.
//!
//! If the server's own configuration file needs placeholders, list the file in `templates`, with a
//! path relative to the experiment file. Each file is copied into `{tmp}` under its file name, and
//! its placeholders are replaced. For example, `start = ["nginx", "-c", "{tmp}/nginx.conf"]` then
//! works. Relative paths inside such a file are relative to `{tmp}`. Write `{dir}/htdocs` for a
//! directory next to the experiment file.
//!
//! `[matrix]` lists values for the load's `connections`, `path`, `rate` (0: as fast as possible, a
//! closed loop), `streams`, `http2`, `http3`, `keepalive` and `body_bytes`. Any other key becomes a
//! placeholder `{KEY}` in the configurations and their templates. Each combination of values has
//! its own servers. The servers of a combination take turns only with each other, and are compared
//! with the baseline of this combination. If there is only one configuration, the first combination
//! is the baseline of the others.
//!
//! The command of `[load.client]` runs once per trial, or once per `slice` if that key is given.
//! Before the measurement, the command runs once for the time `warmup`. Its arguments may contain
//! `{url}`, `{duration}` (seconds), `{connections}` and `{seed}` (equal for all configurations of a
//! round). The environment variables `URL`, `DURATION`, `CONNECTIONS` and `SEED` have these values,
//! too, and `PORT` has the server's port. The command must exit with status 0 and print a number
//! greater than 0. If `pattern` matches more than once, the last match counts. With `better =
//! "lower"`, a ratio of 2 means that the number is half as large. For a server that does not speak
//! HTTP, `url` is `tcp://HOST:PORT` or `unix:PATH`. Such a server is ready when it accepts
//! connections.
//!
//! A service (a database, or the backend of a proxy) is started before the server of each trial,
//! and ended after the server. Its resource usage is not measured. The server, its templates and
//! later services can use its address: `{NAME.port}` and `{NAME.tmp}`. A configuration without
//! `start` may use the address of a service as its `url`, to measure the backend without a proxy.
//!
//! # What counts
//!
//! A trial is one sample: means and standard deviations are computed over trials, never over
//! requests. The ratio of a round is the trimmed mean over its pairs of slices. The interval is
//! computed from the ratios of all rounds (`forebay_stat::ratio_of_rounds`). A load given as a
//! number of `requests` is divided into at most 50 slices, each with at least 20 requests per
//! connection. If other work on the machine disturbed a slice, no ratio includes it.
//! `disturbance.rs` decides that from counters of the machine, never from the slice's own rate.
//!
//! A trial is void if the server ended or gave no correct reply, or if the load generator was the
//! limit (exact rule: `client_bound` in `disturbance.rs`). The report states the reason. Failed requests are reported next
//! to the rate. More than `max_failed` of them are a problem of the configuration.
//!
//! If a configuration cannot start, its row has no figures, and the others are measured. If a
//! configuration has no `start`, Forebay watches the processes that listen at `url` on this
//! machine.
#![forbid(unsafe_code)]

mod client;
mod disturbance;
mod experiment;
pub mod keeper;
mod machine;
pub mod number;
pub mod profile;
mod profiling;
mod progress;
pub mod report;
mod results;
mod round;
mod run;
mod schedule;
mod service;
mod summary;
mod trial;
mod watch;

pub use experiment::{
    Amount, Better, Cell, Check, Client, Configuration, Find, Load, MaxFailed, Plan, Printed,
    Problem, Service, ServiceValues, Template, Values,
};
pub use forebay_stat::Verdict;
pub use machine::Machine;
pub use progress::ProgressLines;
pub use results::{Experiment, Results, incomparable};
pub use run::{Options, run};
pub use schedule::{Executor, Group, Member, Moment, Progress, Rounds, Silent, Turn};
pub use summary::{Leak, Row, rows};
pub use trial::{Halt, Interrupt, Measured, Runner, Slice, StartFailure, Trial, TrialId};
pub use watch::{Cpu, CpuMethod, Evidence, Glance, Point, Series};
