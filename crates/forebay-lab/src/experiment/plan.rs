//! An experiment that can be run: checked, with every default filled in.

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Cell, Client, Values, seconds};

/// A whole experiment. What exists is valid: names differ, one configuration is the baseline.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Plan {
    /// What the experiment is about.
    pub title: String,
    /// The experiment file's directory, absolute: what `{dir}` stands for.
    pub dir: PathBuf,
    /// What every configuration is given to do.
    pub load: Load,
    /// What a right answer looks like.
    pub check: Check,
    /// What runs beside every configuration's server, started in this order.
    pub services: Vec<Service>,
    /// The ways of serving, in the order of the file.
    pub configurations: Vec<Configuration>,
    /// How often each configuration is measured.
    pub rounds: u32,
    /// A command that is run before the first round, and has to end; may hold `{dir}` and `{tmp}`.
    pub before: Vec<String>,
    /// One that is run after the last.
    pub after: Vec<String>,
    /// What is run by a shell to make an older revision ready to be compared with.
    pub build: Option<String>,
}

/// The load of one trial.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Load {
    /// Appended to each configuration's `url`; begins with `/`.
    pub path: String,
    /// Concurrent connections.
    pub connections: u32,
    /// How much is measured.
    pub amount: Amount,
    /// How much is sent before measuring; none: the first measured request is a cold one.
    pub warmup: Option<Amount>,
    /// How long the warm-up goes on at most until the rate is steady; none: it is not looked at.
    #[serde(with = "seconds::option")]
    pub steady: Option<Duration>,
    /// About how long a server is loaded before it is another's turn.
    #[serde(with = "seconds")]
    pub slice: Duration,
    /// Whether servers run one after the other instead of in turns, unless a configuration says so.
    pub isolated: bool,
    /// Whether `http://` servers are asked over HTTP/2, by prior knowledge, and `https://` ones by ALPN.
    pub http2: bool,
    /// HTTP/2 requests in flight on each connection.
    pub streams: u32,
    /// Whether any certificate of an `https://` server is taken.
    pub insecure: bool,
    /// File with the certificates of those that issue the servers'; placeholders are filled in.
    pub ca: Option<String>,
    /// Whether connections that are made anew resume their sessions of TLS.
    pub tls_resume: bool,
    /// Directory below which the path names a script, for FastCGI, SCGI and uwsgi.
    pub root: Option<String>,
    /// What a servlet container asked by AJP wants of web servers.
    pub secret: Option<String>,
    /// Variables for an application asked by FastCGI, SCGI and uwsgi.
    pub params: Vec<(String, String)>,
    /// Requests per second of an open loop; none: a closed loop.
    pub rate: Option<f64>,
    /// Pause on each connection between a reply and the next request. Servers then run one after the
    /// other: a slice may be shorter than a pause.
    #[serde(with = "seconds::option")]
    pub think: Option<Duration>,
    /// Client threads.
    pub threads: u32,
    /// Whether a connection carries more than one request.
    pub keepalive: bool,
    /// Request method.
    pub method: String,
    /// Further request headers.
    pub headers: Vec<(String, String)>,
    /// Request body, sent as it is; empty: none.
    pub body: String,
    /// How long one request may take.
    #[serde(with = "seconds")]
    pub timeout: Duration,
    /// The cores that the load generator is confined to; empty: all.
    pub cpus: Vec<usize>,
    /// A command that loads the servers in place of the built-in load generator.
    pub client: Option<Client>,
}

/// How much load: a number of requests or a time.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
pub enum Amount {
    /// This many requests over all connections.
    #[serde(rename = "requests")]
    Requests(u64),
    /// As many as fit in this time.
    #[serde(rename = "duration_s", with = "seconds")]
    Duration(Duration),
}

/// A file that is filled in and placed in the directory of a trial.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Template {
    /// Its path, relative to the experiment; the last part is its name in the trial's directory.
    pub path: String,
    /// What is in it, placeholders included, as it was when the experiment was read.
    pub text: String,
}

/// What an answer must be like to count as right.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Check {
    /// The status it must have.
    pub status: u16,
    /// A text its body must contain.
    pub body_contains: Option<String>,
}

/// What every configuration needs beside its own server, such as a database or a backend. It is
/// started afresh for each trial, before the server, and what it takes is not counted.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Service {
    /// Its name: `{NAME.port}` and `{NAME.tmp}` say where it is.
    pub name: String,
    /// Its command; may hold placeholders.
    pub start: Vec<String>,
    /// What it listens on once it is ready: `HOST:PORT` or `unix:PATH`; may hold placeholders.
    pub listens: String,
    /// Programs or Debian packages without which the experiment cannot run.
    pub requires: Vec<String>,
    /// Environment variables added; values may hold placeholders.
    pub env: Vec<(String, String)>,
    /// Its working directory; may hold placeholders.
    pub cwd: String,
    /// Files, relative to the experiment, that are filled in and placed in its directory.
    pub templates: Vec<Template>,
    /// How long it may take until it listens.
    #[serde(with = "seconds")]
    pub ready_timeout: Duration,
    /// How long it may take to end after SIGTERM before it is killed.
    #[serde(with = "seconds")]
    pub stop_timeout: Duration,
    /// The cores that it is confined to; empty: all.
    pub cpus: Vec<usize>,
}

/// One way of serving the application.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Configuration {
    /// Its name in every report.
    pub name: String,
    /// Whether the others are compared with it.
    pub baseline: bool,
    /// The server's command; may hold placeholders. Empty: the server runs already, and what it takes
    /// is not known.
    pub start: Vec<String>,
    /// A command that is run before each start of its server, and has to end; may hold placeholders.
    pub before: Vec<String>,
    /// One that is run after its server has ended.
    pub after: Vec<String>,
    /// Where it answers, without the load's path; may hold placeholders.
    pub url: String,
    /// A path in place of the load's; empty: `url` is whole.
    pub path: Option<String>,
    /// Programs or Debian packages without which it is left out.
    pub requires: Vec<String>,
    /// Environment variables added to the server's; values may hold placeholders.
    pub env: Vec<(String, String)>,
    /// The server's working directory; may hold placeholders.
    pub cwd: String,
    /// Files, relative to the experiment, that are filled in and placed in the trial's directory.
    pub templates: Vec<Template>,
    /// How long it may take until the first right answer.
    #[serde(with = "seconds")]
    pub ready_timeout: Duration,
    /// How long it may take to end after SIGTERM before it is killed.
    #[serde(with = "seconds")]
    pub stop_timeout: Duration,
    /// A command whose first line of output tells the server's version.
    pub version: Vec<String>,
    /// A remark for the report.
    pub notes: Option<String>,
    /// The cores that the server is confined to; empty: all.
    pub cpus: Vec<usize>,
    /// Whether its server runs while no other does, and is loaded without a break.
    pub isolated: bool,
    /// What `{dir}` stands for: the experiment's directory, or that of an older revision.
    pub dir: PathBuf,
    /// The name of what it is compared with in place of the baseline: what it was before.
    pub reference: Option<String>,
    /// Where it stands in the matrix, if there is one.
    pub cell: Option<Cell>,
    /// When it was measured, if that was not in this experiment: it is not run again.
    pub saved: Option<String>,
}

/// A load by number of requests is cut into so many slices at most, of at least so many requests
/// for each connection: the ends of slices, where connections wait for the last reply, must not rule.
const MOST_SLICES_OF_REQUESTS: u64 = 50;
const FEWEST_REQUESTS: u64 = 20;

impl Load {
    /// What each slice of a trial's load is. All slices together are the whole amount.
    pub fn slices(&self) -> Vec<Amount> {
        if self.client.as_ref().is_some_and(|client| !client.in_slices) {
            return vec![self.amount];
        }
        match self.amount {
            Amount::Duration(duration) => {
                let ideal = duration.as_secs_f64() / self.slice.as_secs_f64();
                let count = (ideal.round() as u32).max(1);
                vec![Amount::Duration(duration / count); count as usize]
            }
            Amount::Requests(requests) => {
                let each = u64::from(self.connections) * u64::from(self.streams) * FEWEST_REQUESTS;
                let count = (requests / each).clamp(1, MOST_SLICES_OF_REQUESTS);
                let until = |slice: u64| requests * slice / count;
                (0..count).map(|k| Amount::Requests(until(k + 1) - until(k))).collect()
            }
        }
    }
}

impl Plan {
    /// Keeps the named configurations and the baseline. The error is the first unknown name.
    pub fn keep_only(&mut self, names: &[String]) -> Result<(), String> {
        let is_named = |c: &Configuration, name: &String| {
            // In a matrix, the name alone means all of its cells.
            c.name == *name || c.cell.is_some() && c.name.starts_with(&format!("{name} ["))
        };
        let known = |name: &&String| !self.configurations.iter().any(|c| is_named(c, name));
        if let Some(unknown) = names.iter().find(known) {
            return Err(unknown.clone());
        }
        let kept = |c: &&Configuration| names.iter().any(|name| is_named(c, name));
        let references: Vec<String> =
            self.configurations.iter().filter(kept).filter_map(|c| c.reference.clone()).collect();
        self.configurations.retain(|c| c.baseline || kept(&c) || references.contains(&c.name));
        Ok(())
    }

    /// The load that a configuration is given.
    pub fn load_of(&self, configuration: &Configuration) -> Load {
        let mut load = self.load.clone();
        if let Some(cell) = &configuration.cell {
            cell.change(&mut load);
        }
        load
    }

    /// Leaves the baseline and a second copy of it: the difference between the two is what this
    /// machine and this experiment produce out of nothing.
    pub fn against_itself(&mut self) {
        self.configurations.retain(|configuration| configuration.baseline);
        let mut twin = self.baseline().clone();
        twin.baseline = false;
        twin.name = format!("{} (again)", twin.name);
        self.configurations.push(twin);
    }

    /// The name of what a configuration is compared with; none of the baseline, and of what is there
    /// for others to be compared with.
    pub fn reference<'a>(&'a self, configuration: &'a Configuration) -> Option<&'a str> {
        let name = configuration.name.as_str();
        let is_reference = |other: &Configuration| other.reference.as_deref() == Some(name);
        match &configuration.reference {
            Some(reference) => Some(reference),
            None if configuration.baseline || self.configurations.iter().any(is_reference) => None,
            None => Some(&self.baseline().name),
        }
    }

    /// What the others are compared with.
    pub fn baseline(&self) -> &Configuration {
        let found = self.configurations.iter().find(|configuration| configuration.baseline);
        found.expect("a plan has exactly one baseline")
    }
}

impl Configuration {
    /// Where its server listens, `HOST:PORT` or `unix:PATH`, if its `url` is `tcp://HOST:PORT` or
    /// `unix:PATH`: for a client with a protocol of its own. Such a server is ready when it takes
    /// connections.
    pub fn address(&self, values: &Values) -> Option<String> {
        let url = values.fill(&self.url);
        let is_path = url.starts_with("unix:");
        url.strip_prefix("tcp://").map(str::to_owned).or(is_path.then_some(url))
    }

    /// The address asked and loaded, with the placeholders filled in.
    pub fn target(&self, load: &Load, values: &Values) -> String {
        let url = values.fill(&self.url);
        match self.path.as_ref().unwrap_or(&load.path) {
            path if path.is_empty() => url,
            path => format!("{}{}", url.trim_end_matches('/'), values.fill(path)),
        }
    }
}
