//! Validated experiment file, with defaults for all keys that the file leaves out.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Client, seconds};

/// Validated experiment: names are unique, and exactly one configuration is the baseline.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Plan {
    /// Title of the reports.
    pub title: String,
    /// Absolute directory of the experiment file, the value of `{dir}`.
    pub dir: PathBuf,
    /// Load of every configuration.
    pub load: Load,
    /// Reply that a server must give to count as correct.
    pub check: Check,
    /// Processes that run in addition to every configuration's server, started in this order.
    pub services: Vec<Service>,
    /// The configurations in the order of the file.
    pub configurations: Vec<Configuration>,
    /// Number of trials per configuration.
    pub rounds: u32,
    /// Command that runs to its end before the first round. May contain `{dir}` and `{tmp}`.
    pub before: Vec<String>,
    /// Command that runs to its end after the last round.
    pub after: Vec<String>,
    /// Shell command that builds an older revision for a comparison.
    pub build: Option<String>,
}

/// The load of one trial.
#[derive(Clone, Debug, Deserialize, Serialize)]
// More than 20 fields: the resolved form has one for each key of the table `[load]`.
pub struct Load {
    /// Path of the request, appended to each configuration's `url`; begins with `/`.
    pub path: String,
    /// Concurrent connections.
    pub connections: u32,
    /// Amount of load during the measurement.
    pub amount: Amount,
    /// Amount of load before the measurement. With `None`, the first measured request is also the
    /// server's first request.
    pub warmup: Option<Amount>,
    /// Time limit of a warm-up that continues until the rate is steady. With `None`, the warm-up
    /// does not check the rate.
    #[serde(with = "seconds::option")]
    pub steady: Option<Duration>,
    /// Approximate time that one server is loaded before the next one.
    #[serde(with = "seconds")]
    pub slice: Duration,
    /// Runs servers one after the other instead of at the same time. A configuration can override
    /// this value.
    pub isolated: bool,
    /// Uses HTTP/2: with prior knowledge for `http://` servers, with ALPN for `https://` servers.
    pub http2: bool,
    /// Uses HTTP/3 for `https://` servers. HTTP/3 takes precedence over `http2`.
    pub http3: bool,
    /// Concurrent HTTP/2 or HTTP/3 requests per connection.
    pub streams: u32,
    /// Accepts any certificate of `https://` servers.
    pub insecure: bool,
    /// File with the certificate authorities of the servers. May contain placeholders.
    pub ca: Option<String>,
    /// Resumes TLS sessions on new connections.
    pub tls_resume: bool,
    /// Directory of scripts for FastCGI, SCGI and uwsgi. The path of the request is appended to
    /// this directory.
    pub root: Option<String>,
    /// Secret that a servlet container requires from web servers (AJP).
    pub secret: Option<String>,
    /// Variables for an application over FastCGI, SCGI or uwsgi.
    pub params: Vec<(String, String)>,
    /// Requests per second at a fixed rate (open loop); `None` sends the next request after each
    /// reply (closed loop).
    pub rate: Option<f64>,
    /// Pause on each connection between a reply and the next request. With a pause, servers run one
    /// after the other, because a slice may be shorter than the pause.
    #[serde(with = "seconds::option")]
    pub think: Option<Duration>,
    /// Number of threads of the load generator.
    pub threads: u32,
    /// Sends further requests over an open connection. If false, each request has a new connection.
    pub keepalive: bool,
    /// Method of the request.
    pub method: String,
    /// Further request headers.
    pub headers: Vec<(String, String)>,
    /// Request body, sent unchanged; empty for none.
    pub body: String,
    /// Time limit of one request.
    #[serde(with = "seconds")]
    pub timeout: Duration,
    /// Cores of the load generator; empty for all.
    pub cpus: Vec<usize>,
    /// Command that loads the servers instead of the built-in load generator.
    pub client: Option<Client>,
}

/// Amount of load: a number of requests or a time.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
pub enum Amount {
    /// A number of requests over all connections together.
    #[serde(rename = "requests")]
    Requests(u64),
    /// Time during which requests are sent, as many as the server answers.
    #[serde(rename = "duration_s", with = "seconds")]
    Duration(Duration),
}

/// File that is copied into the directory of a trial with its placeholders replaced.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Template {
    /// Path relative to the experiment file. The copy has the same file name.
    pub path: String,
    /// Content before the replacement of placeholders, read together with the experiment file.
    pub text: String,
}

/// Condition for a correct reply.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Check {
    /// Status that the reply must have.
    pub status: u16,
    /// Text that the body must contain.
    pub body_contains: Option<String>,
    /// Requests of a configuration that may fail; `None` allows no failure.
    #[serde(default)]
    pub max_failed: Option<MaxFailed>,
}

/// Process that every configuration needs in addition to its own server, such as a database or a
/// backend. A new process is started for each trial, before the server. The resource usage of
/// services is not measured.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Service {
    /// Name, used in `{NAME.port}` and `{NAME.tmp}`.
    pub name: String,
    /// Command with its arguments. May contain placeholders.
    pub start: Vec<String>,
    /// Address at which the service listens when it is ready: `HOST:PORT` or `unix:PATH`. May
    /// contain placeholders.
    pub listens: String,
    /// Programs or Debian packages that the service requires.
    pub requires: Vec<String>,
    /// Additional environment variables. Values may contain placeholders.
    pub env: Vec<(String, String)>,
    /// Working directory of the service. May contain placeholders.
    pub cwd: String,
    /// Files that are copied into the service's directory with their placeholders replaced.
    pub templates: Vec<Template>,
    /// Time limit until the service listens.
    #[serde(with = "seconds")]
    pub ready_timeout: Duration,
    /// Time that the service has to end after SIGTERM, before SIGKILL.
    #[serde(with = "seconds")]
    pub stop_timeout: Duration,
    /// Cores on which the service runs; empty for all.
    pub cpus: Vec<usize>,
}

/// A way to serve the application.
#[derive(Clone, Debug, Deserialize, Serialize)]
// More than 20 fields: the resolved form has one for each key of the table.
pub struct Configuration {
    /// Name in every report.
    pub name: String,
    /// True if the other configurations are compared with this one.
    pub baseline: bool,
    /// Command that starts the server. May contain placeholders. If the command is empty, the
    /// server runs already. The server's resource usage is then known only if the server listens on
    /// this machine.
    pub start: Vec<String>,
    /// Command that runs to its end before each start of the server. May contain placeholders.
    pub before: Vec<String>,
    /// Command that runs to its end after the server has ended.
    pub after: Vec<String>,
    /// URL of the server, without the load's path. May contain placeholders.
    pub url: String,
    /// Path to request instead of the load's path; empty if `url` is complete.
    pub path: Option<String>,
    /// Programs, Debian packages or Perl modules that the server requires. If one of these is
    /// missing, the configuration is not measured.
    pub requires: Vec<String>,
    /// Additional environment variables of the server. Values may contain placeholders.
    pub env: Vec<(String, String)>,
    /// Working directory of the server. May contain placeholders.
    pub cwd: String,
    /// Files that are copied into the trial's directory with their placeholders replaced.
    pub templates: Vec<Template>,
    /// Time limit until the first correct reply.
    #[serde(with = "seconds")]
    pub ready_timeout: Duration,
    /// Time that the server has to end after SIGTERM, before SIGKILL.
    #[serde(with = "seconds")]
    pub stop_timeout: Duration,
    /// Command that prints the server's version in its first line.
    pub version: Vec<String>,
    /// Remark for the report.
    pub notes: Option<String>,
    /// Cores on which the server runs; empty for all.
    pub cpus: Vec<usize>,
    /// Runs the server without other servers at the same time, and loads it without a break.
    pub isolated: bool,
    /// Value of `{dir}`: the directory of the experiment, or of an older revision.
    pub dir: PathBuf,
    /// Name of the configuration to compare with instead of the baseline: an earlier form of this
    /// configuration, or the baseline of the same matrix cell.
    pub reference: Option<String>,
    /// Combination of matrix values for this configuration, if there is a matrix.
    pub cell: Option<Cell>,
    /// Date of the measurement if the results come from a saved report. Such a configuration does
    /// not run again.
    pub saved: Option<String>,
}

/// Maximum number of slices of a load that is given as a number of requests. At the end of each
/// slice, connections are idle until the last reply arrives. The limit keeps this idle time a small
/// part of the result.
const MOST_SLICES_OF_REQUESTS: u64 = 50;
/// Minimum number of requests per connection in a slice. This limit also keeps the idle time small.
const FEWEST_REQUESTS: u64 = 20;

impl Load {
    /// Returns the amount of each slice of a trial. The amounts of all slices add up to the amount
    /// of the load.
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
    /// Keeps the named configurations, their references, and the baseline. The error is the first
    /// unknown name.
    pub fn keep_only(&mut self, names: &[String]) -> Result<(), String> {
        let is_named = |c: &Configuration, name: &String| {
            // In a matrix, the name `a` selects `a [CELL]` for every cell.
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

    /// Returns the load of a configuration, with the values of its matrix cell.
    pub fn load_of(&self, configuration: &Configuration) -> Load {
        let mut load = self.load.clone();
        if let Some(cell) = &configuration.cell {
            cell.change(&mut load);
        }
        load
    }

    /// Keeps only the baseline and adds a copy of it. The measured difference between the two is
    /// due to noise of the machine and the experiment.
    pub fn against_itself(&mut self) {
        self.configurations.retain(|configuration| configuration.baseline);
        let mut twin = self.baseline().clone();
        twin.baseline = false;
        twin.name = format!("{} (again)", twin.name);
        self.configurations.push(twin);
    }

    /// Returns the name of the reference: the configuration that `configuration` is compared with.
    /// Returns `None` for the baseline, and for a configuration that is the reference of another
    /// one.
    pub fn reference<'a>(&'a self, configuration: &'a Configuration) -> Option<&'a str> {
        let name = configuration.name.as_str();
        let is_reference = |other: &Configuration| other.reference.as_deref() == Some(name);
        match &configuration.reference {
            Some(reference) => Some(reference),
            None if configuration.baseline || self.configurations.iter().any(is_reference) => None,
            None => Some(&self.baseline().name),
        }
    }

    pub fn baseline(&self) -> &Configuration {
        let found = self.configurations.iter().find(|configuration| configuration.baseline);
        found.expect("a plan has exactly one baseline")
    }
}

impl Configuration {
    /// Returns the server's address if `url` is `tcp://HOST:PORT` or `unix:PATH`, the forms for
    /// servers that do not speak HTTP. Such a server is ready when it accepts connections. Returns
    /// `None` for other URLs.
    pub fn address(&self, values: &Values) -> Option<String> {
        let url = values.fill(&self.url);
        let is_path = url.starts_with("unix:");
        url.strip_prefix("tcp://").map(str::to_owned).or(is_path.then_some(url))
    }

    /// Returns the URL to request, with its placeholders replaced.
    pub fn target(&self, load: &Load, values: &Values) -> String {
        let url = values.fill(&self.url);
        match self.path.as_ref().unwrap_or(&load.path) {
            path if path.is_empty() => url,
            path => format!("{}{}", url.trim_end_matches('/'), values.fill(path)),
        }
    }
}

/// Combination of values. A value replaces the key of `[load]` with the same name, and `None` keeps
/// that key's value. `placeholders` has the values for the configurations.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct Cell {
    /// Values of the combination as text, which becomes part of configuration names.
    pub label: String,
    /// Concurrent connections.
    pub connections: Option<u32>,
    /// Path of the request.
    pub path: Option<String>,
    /// Requests per second at a fixed rate (open loop); 0 for a closed loop.
    pub rate: Option<u32>,
    /// Concurrent HTTP/2 or HTTP/3 requests per connection.
    pub streams: Option<u32>,
    /// Sends requests over HTTP/2.
    pub http2: Option<bool>,
    /// Sends requests over HTTP/3.
    pub http3: Option<bool>,
    /// Sends further requests over an open connection.
    pub keepalive: Option<bool>,
    /// Length of the request body in bytes.
    pub body_bytes: Option<u32>,
    /// Names and values of placeholders in the configurations.
    pub placeholders: Vec<(String, String)>,
}

/// Failed requests that do not count as a problem: a number, or a share of all requests.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
#[serde(try_from = "String", into = "String")]
pub enum MaxFailed {
    /// Number of a configuration's requests that may fail.
    Count(u64),
    /// Share of a configuration's requests that may fail, from 0 to 1.
    Share(f64),
}

impl MaxFailed {
    /// Returns true if `failed` of `total` requests are allowed to fail.
    pub fn allows(self, failed: u64, total: u64) -> bool {
        match self {
            Self::Count(most) => failed <= most,
            Self::Share(most) => failed as f64 <= most * total as f64,
        }
    }
}

impl Default for MaxFailed {
    fn default() -> Self {
        Self::Count(0)
    }
}

impl FromStr for MaxFailed {
    type Err = String;

    /// Parses `10` or `0.1%`.
    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || "write a number of requests, or a percentage such as 0.1%".to_owned();
        let Some(percent) = text.strip_suffix('%') else {
            return text.parse().map(Self::Count).map_err(|_| wrong());
        };
        match percent.trim().parse::<f64>() {
            Ok(percent) if (0.0..=100.0).contains(&percent) => Ok(Self::Share(percent / 100.0)),
            _ => Err(wrong()),
        }
    }
}

impl TryFrom<String> for MaxFailed {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<MaxFailed> for String {
    fn from(most: MaxFailed) -> Self {
        most.to_string()
    }
}

impl fmt::Display for MaxFailed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Count(most) => write!(f, "{most}"),
            Self::Share(most) => write!(f, "{}%", most * 100.0),
        }
    }
}

/// Values of the placeholders of one trial.
#[derive(Clone, Debug)]
pub struct Values {
    /// Port that was free when the trial began.
    pub port: u16,
    /// Absolute directory of the experiment file.
    pub dir: String,
    /// Temporary directory of the trial.
    pub tmp: String,
    /// Values for the placeholders of the services that run in the trial.
    pub services: Vec<ServiceValues>,
}

/// Values of a service's placeholders: `{NAME.port}` and `{NAME.tmp}`.
#[derive(Clone, Debug)]
pub struct ServiceValues {
    /// Name of the service.
    pub name: String,
    /// Port of the service.
    pub port: u16,
    /// Temporary directory of the service.
    pub tmp: String,
}

impl Values {
    /// Replaces the placeholders in `text`. Other text in braces stays unchanged, because a start
    /// command may be a shell or awk script with many braces.
    pub fn fill(&self, text: &str) -> String {
        let own = text
            .replace("{port}", &self.port.to_string())
            .replace("{dir}", &self.dir)
            .replace("{tmp}", &self.tmp);
        self.services.iter().fold(own, |text, service| {
            let ServiceValues { name, port, tmp } = service;
            text.replace(&format!("{{{name}.port}}"), &port.to_string())
                .replace(&format!("{{{name}.tmp}}"), tmp)
        })
    }
}

/// Returns true if both configurations have the same settings, including the value of `{dir}`.
/// Ignores name, notes, baseline, reference and saved date.
fn is_started_alike(now: &Configuration, then: &Configuration) -> bool {
    let like_now = Configuration {
        name: now.name.clone(),
        baseline: now.baseline,
        notes: now.notes.clone(),
        reference: now.reference.clone(),
        saved: now.saved.clone(),
        ..then.clone()
    };
    serde_json::to_value(now).ok() == serde_json::to_value(like_now).ok()
}

impl Plan {
    /// Adds configurations of `earlier` as references. For each current configuration `a`, the
    /// earlier configuration `a` becomes the reference, with the name `a (LABEL)`. Earlier
    /// configurations whose results came from a saved report are ignored.
    ///
    /// Returns the names of the configurations that have the same settings in `earlier`. For these
    /// configurations, adds no configuration of `earlier`, because the caller may use saved results
    /// instead.
    ///
    /// # Errors
    /// Fails if no configuration has the same name in `earlier`.
    pub fn compare_with(&mut self, earlier: &Plan, label: &str) -> Result<Vec<String>, String> {
        let mut unchanged = Vec::new();
        let mut found = Vec::new();
        for configuration in &mut self.configurations {
            let then = earlier.configurations.iter().find(|then| then.name == configuration.name);
            let Some(then) = then.filter(|then| then.saved.is_none()) else { continue };
            let name = format!("{} ({label})", configuration.name);
            configuration.reference = Some(name.clone());
            if is_started_alike(configuration, then) {
                unchanged.push(configuration.name.clone());
                continue;
            }
            let twin = Configuration { name, baseline: false, reference: None, ..then.clone() };
            found.push(Configuration { isolated: configuration.isolated, ..twin });
        }
        if found.is_empty() && unchanged.is_empty() {
            let names: Vec<&str> = earlier.configurations.iter().map(|c| c.name.as_str()).collect();
            return Err(format!("no configuration has the same name there: {}", names.join(", ")));
        }
        self.configurations.append(&mut found);
        Ok(unchanged)
    }
}

#[cfg(test)]
mod placeholder_tests {
    use super::*;

    #[test]
    fn every_occurrence_is_filled_and_other_braces_stay() {
        let services = vec![ServiceValues { name: "db".into(), port: 5432, tmp: "/s".into() }];
        let values = Values { port: 8000, dir: "/d".into(), tmp: "/t".into(), services };
        assert_eq!(values.fill("{db.port} {db.tmp}/x {other.port}"), "5432 /s/x {other.port}");
        assert_eq!(
            values.fill("{port}:{port} {dir}/{tmp} {print $1} {}"),
            "8000:8000 /d//t {print $1} {}"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_or_a_share_may_fail() {
        let allows = |text: &str, failed| text.parse::<MaxFailed>().unwrap().allows(failed, 1000);
        assert!(allows("0", 0) && !allows("0", 1) && allows("3", 3) && !allows("3", 4));
        assert!(allows("0.1%", 1) && !allows("0.1%", 2) && allows("100 %", 1000));
        for wrong in ["", "-1", "x", "101%", "nan%", "1.5"] {
            assert!(wrong.parse::<MaxFailed>().is_err(), "{wrong}");
        }
        assert_eq!("0.5%".parse::<MaxFailed>().unwrap().to_string(), "0.5%");
    }
}
