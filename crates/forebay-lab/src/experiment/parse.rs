//! Converts the text of an experiment file to a [`Plan`], or reports the first error.

use std::collections::BTreeMap;
use std::io::Read;
use std::ops::Range;
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use forebay_load::Protocol;
use toml::Spanned;

use super::file::{self, File};
use super::{
    Amount, Check, Configuration, Load, Plan, Problem, Service, ServiceValues, Template, Values,
};
use crate::keeper::OUTPUT_FILE;

const DEFAULT_CONNECTIONS: u32 = 10;
// The rates of two starts of one server differ by about 2 %. Only the mean over several rounds
// makes this difference small. The speed of a busy machine changes within seconds. With short
// slices, such a change affects all configurations alike.
const DEFAULT_ROUNDS: u32 = 10;
const DEFAULT_DURATION: Duration = Duration::from_secs(3);
const DEFAULT_WARMUP: Duration = Duration::from_secs(1);
const DEFAULT_SLICE: Duration = Duration::from_millis(100);
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(10);
pub(super) const DEFAULT_READY_TIMEOUT: Duration = Duration::from_secs(30);
pub(super) const DEFAULT_STOP_TIMEOUT: Duration = Duration::from_secs(5);

/// Size limit of an experiment file in bytes, checked before the file is parsed.
const LARGEST_FILE: u64 = 1024 * 1024;
pub(super) const MAX_CONNECTIONS: u32 = 60_000;
pub(super) const MAX_STREAMS: u32 = 65_536;
const MAX_ROUNDS: u32 = 1000;
const MAX_REQUESTS: u64 = 1_000_000_000_000;
const MAX_CPU: usize = 1023;
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

impl Plan {
    /// Reads and validates an experiment file.
    pub fn read(path: &Path) -> Result<Self, Problem> {
        let unreadable = |error: std::io::Error| {
            let message = format!("cannot read the experiment {}: {error}", path.display());
            Problem::whole(message, "give the path of an experiment file (TOML text in UTF-8)")
        };
        let text = read_text(path).map_err(unreadable)?;
        Self::parse(path, &text)
    }

    /// Parses and validates `text`, the content of the experiment file `path`.
    pub fn parse(path: &Path, text: &str) -> Result<Self, Problem> {
        let reader = Reader { path, text, dir: directory_of(path)? };
        let file: File = toml::from_str(text).map_err(|error| reader.not_understood(&error))?;
        reader.plan(file)
    }
}

/// Experiment file under validation, with its text for error messages that show line and column.
pub(super) struct Reader<'a> {
    path: &'a Path,
    text: &'a str,
    dir: PathBuf,
}

impl Reader<'_> {
    fn plan(&self, file: File) -> Result<Plan, Problem> {
        let title = file.title.unwrap_or_else(|| "Comparison".to_owned());
        let rounds = self.within(&file.load.get_ref().rounds, DEFAULT_ROUNDS, 1..=MAX_ROUNDS)?;
        let load = self.load(file.load)?;
        let check = self.check(file.check)?;
        let services = self.services(file.services)?;
        let configurations = self.configurations(file.configurations, &load, &services)?;
        self.refuse_in_matrix(&file.matrix, load.client.as_ref())?;
        let configurations = self.expand(file.matrix, configurations)?;
        let (before, after) = (self.command(file.before)?, self.command(file.after)?);
        let (dir, build) = (self.dir.clone(), file.against.build);
        Ok(Plan { title, dir, load, check, services, configurations, rounds, before, after, build })
    }

    /// Checks `[load]` and adds the defaults.
    fn load(&self, load: Spanned<file::Load>) -> Result<Load, Problem> {
        let load = load.into_inner();
        let connections =
            self.within(&load.connections, DEFAULT_CONNECTIONS, 1..=MAX_CONNECTIONS)?;
        let threads = default_threads(connections);
        let think = self.think(&load)?;
        let client = self.client(&load)?;
        let amount = self.amount(&load.requests, &load.duration)?;
        Ok(Load {
            amount,
            warmup: self.warmup(&load.warmup)?,
            steady: self.optional_duration(&load.steady)?,
            slice: self.slice(&load, amount, DEFAULT_SLICE)?,
            isolated: load.isolated.unwrap_or(think.is_some()),
            path: self.request_path(load.path)?,
            connections,
            http2: load.http2.unwrap_or(false),
            http3: load.http3.unwrap_or(false),
            streams: self.within(&load.streams, 1, 1..=MAX_STREAMS)?,
            insecure: load.insecure.unwrap_or(false),
            ca: load.ca,
            tls_resume: load.tls_resume.unwrap_or(false),
            root: load.root,
            secret: load.secret,
            params: self.params(load.params)?,
            rate: self.rate(&load.rate)?,
            think,
            threads: self.within(&load.threads, threads, 1..=connections)?,
            keepalive: load.keepalive.unwrap_or(true),
            method: self.method(load.method)?,
            headers: self.headers(load.headers)?,
            body: load.body.unwrap_or_default(),
            timeout: self.duration(&load.timeout, DEFAULT_TIMEOUT)?,
            cpus: self.cpus(load.cpus)?,
            client,
        })
    }

    fn check(&self, check: file::Check) -> Result<Check, Problem> {
        let status = self.within(&check.status, 200, 100..=599)?;
        let max_failed = match &check.max_failed {
            None => None,
            Some(typed) => {
                let text = match typed.get_ref() {
                    toml::Value::String(text) => text.clone(),
                    other => other.to_string(),
                };
                let wrong = |help| self.at(typed.span(), "not an amount of failures", help);
                Some(text.parse().map_err(wrong)?)
            }
        };
        Ok(Check { status, body_contains: check.body_contains, max_failed })
    }

    /// Checks all `[[configuration]]` tables together: there must be at least one table, and all
    /// names must be different. If no configuration is marked as the baseline, the first one
    /// becomes the baseline.
    fn configurations(
        &self,
        typed: Vec<Spanned<file::Configuration>>,
        load: &Load,
        services: &[Service],
    ) -> Result<Vec<Configuration>, Problem> {
        if typed.is_empty() {
            let help = "add a [[configuration]] with name, start and url for each way of serving";
            let message = format!("{} has no [[configuration]]", self.path.display());
            return Err(Problem::whole(message, help));
        }
        let mut names: Vec<String> = Vec::new();
        let mut has_baseline = false;
        let mut configurations = Vec::new();
        for configuration in typed {
            let configuration = configuration.into_inner();
            let name = configuration.name.get_ref().trim().to_owned();
            if name.is_empty() || names.contains(&name) {
                let what = if name.is_empty() { "an empty name" } else { "a name used twice" };
                return Err(self.at(configuration.name.span(), what, "give each its own name"));
            }
            let baseline = configuration.baseline.as_ref().is_some_and(|given| *given.get_ref());
            if baseline && has_baseline {
                let span = configuration.baseline.map_or(0..0, |given| given.span());
                return Err(self.at(span, "a second baseline", "mark one configuration only"));
            }
            has_baseline |= baseline;
            names.push(name);
            configurations.push(self.configuration(configuration, load, services)?);
        }
        configurations[0].baseline |= !has_baseline;
        Ok(configurations)
    }

    /// Checks one `[[configuration]]`. The URL must be one that the load generator accepts, or an
    /// address that the client's command accepts.
    fn configuration(
        &self,
        typed: file::Configuration,
        load: &Load,
        services: &[Service],
    ) -> Result<Configuration, Problem> {
        let help = "give the server's command as a list: [\"nginx\", \"-c\", \"...\"]";
        let start = match typed.start {
            Some(start) if start.get_ref().first().is_none_or(String::is_empty) => {
                return Err(self.at(start.span(), "an empty start command", help));
            }
            Some(start) => start.into_inner(),
            None if ["{port}", "{tmp}"].iter().any(|at| typed.url.get_ref().contains(at)) => {
                let message = "a server that nothing starts cannot be at a place chosen here";
                return Err(self.at(typed.url.span(), message, help));
            }
            None => Vec::new(),
        };
        let configuration = Configuration {
            name: typed.name.into_inner().trim().to_owned(),
            baseline: typed.baseline.is_some_and(Spanned::into_inner),
            start,
            before: self.command(typed.before)?,
            after: self.command(typed.after)?,
            path: typed.path.map(|path| self.request_path(Some(path))).transpose()?,
            url: typed.url.get_ref().clone(),
            requires: typed.requires,
            env: typed.env.into_iter().collect(),
            cwd: typed.cwd.unwrap_or_else(|| "{dir}".to_owned()),
            templates: self.templates(typed.templates)?,
            ready_timeout: self.duration(&typed.ready_timeout, DEFAULT_READY_TIMEOUT)?,
            stop_timeout: self.duration(&typed.stop_timeout, DEFAULT_STOP_TIMEOUT)?,
            version: typed.version.map(Spanned::into_inner).unwrap_or_default(),
            notes: typed.notes,
            isolated: self.is_isolated(&typed.isolated, load)?,
            cpus: self.cpus(typed.cpus)?,
            dir: self.dir.clone(),
            reference: None,
            saved: None,
            cell: None,
        };
        let example = example_values(services);
        if load.client.is_some() && configuration.address(&example).is_some() {
            return Ok(configuration);
        }
        match forebay_load::Url::parse(&configuration.target(load, &example)) {
            Err(error) => {
                let help =
                    "for example \"http://127.0.0.1:{port}\"; the path belongs in [load] path";
                Err(self.at(typed.url.span(), format!("not a URL to load: {error}"), help))
            }
            // Refuse gRPC and raw TCP, because an experiment file has no keys for binary bodies, or
            // for the bytes that end a raw reply.
            Ok(url) if url.protocol().is_grpc() || url.protocol() == Protocol::Tcp => {
                let message = format!("compare does not load {} servers", url.protocol());
                let help = "use `forebay bench` for grpc:// and tcp://, and compare its results with --against";
                Err(self.at(typed.url.span(), message, help))
            }
            Ok(_) => Ok(configuration),
        }
    }

    /// Reads the templates. Two templates with the same file name are an error, because all are
    /// written into one directory.
    pub(super) fn templates(&self, typed: Vec<Spanned<String>>) -> Result<Vec<Template>, Problem> {
        let mut names = vec![OUTPUT_FILE.to_owned()];
        let mut templates = Vec::new();
        for template in &typed {
            let path = Path::new(template.get_ref());
            let inside = path.components().all(|part| matches!(part, Component::Normal(_)));
            let name = path.file_name().map(|name| name.to_string_lossy().into_owned());
            let Some(name) = name.filter(|_| inside) else {
                let help = "give a path below the experiment file's directory";
                return Err(self.at(template.span(), "not a template's path", help));
            };
            if names.contains(&name) {
                let message = format!("two files named {name} in the trial's directory");
                let help = format!("templates share one directory with {OUTPUT_FILE}; rename one");
                return Err(self.at(template.span(), message, help));
            }
            if !self.dir.join(path).is_file() {
                let help = "create it beside the experiment file or correct the name";
                return Err(self.at(template.span(), "no such file", help));
            }
            let text = read_text(&self.dir.join(path)).map_err(|error| {
                let help = "a template is a text in UTF-8 of at most 1 MiB";
                self.at(template.span(), format!("cannot be read: {error}"), help)
            })?;
            names.push(name);
            templates.push(Template { path: template.get_ref().clone(), text });
        }
        Ok(templates)
    }

    fn amount(
        &self,
        requests: &Option<Spanned<u64>>,
        duration: &Option<Spanned<String>>,
    ) -> Result<Amount, Problem> {
        match (requests, duration) {
            (Some(_), Some(duration)) => {
                let help = "keep one of them";
                Err(self.at(duration.span(), "both requests and duration are given", help))
            }
            (Some(_), None) => Ok(Amount::Requests(self.within(requests, 0, 1..=MAX_REQUESTS)?)),
            (None, _) => Ok(Amount::Duration(self.duration(duration, DEFAULT_DURATION)?)),
        }
    }

    fn warmup(&self, typed: &Option<Spanned<toml::Value>>) -> Result<Option<Amount>, Problem> {
        let Some(typed) = typed else { return Ok(Some(Amount::Duration(DEFAULT_WARMUP))) };
        match typed.get_ref() {
            toml::Value::Integer(0) => Ok(None),
            toml::Value::Integer(requests) if *requests > 0 => {
                Ok(Some(Amount::Requests(*requests as u64)))
            }
            toml::Value::String(text) => Ok(Some(Amount::Duration(self.time(text, typed.span())?))),
            _ => {
                let help = "give a number of requests (500), a time (\"2s\"), or 0 for none";
                Err(self.at(typed.span(), "not an amount of warm-up", help))
            }
        }
    }

    fn think(&self, load: &file::Load) -> Result<Option<Duration>, Problem> {
        let Some(typed) = &load.think else { return Ok(None) };
        if load.rate.is_some() {
            let help = "leave out think, or rate: with a rate, requests do not wait for replies";
            return Err(self.at(typed.span(), "a pause and a rate exclude each other", help));
        }
        if load.isolated == Some(false) {
            return Err(self.in_turns(typed.span()));
        }
        self.time(typed.get_ref(), typed.span()).map(Some)
    }

    /// Returns true if a configuration's server runs without other servers at the same time.
    /// `isolated = false` together with `think` is an error.
    fn is_isolated(&self, typed: &Option<Spanned<bool>>, load: &Load) -> Result<bool, Problem> {
        match typed {
            Some(typed) if load.think.is_some() && !typed.get_ref() => {
                Err(self.in_turns(typed.span()))
            }
            Some(typed) => Ok(*typed.get_ref()),
            None => Ok(load.isolated),
        }
    }

    /// Returns the error for `isolated = false` together with `think`, the pause of clients between
    /// requests.
    fn in_turns(&self, span: Range<usize>) -> Problem {
        let help = "leave out isolated: a turn may be shorter than a pause";
        self.at(span, "servers cannot take turns when clients pause", help)
    }

    fn rate(&self, typed: &Option<Spanned<f64>>) -> Result<Option<f64>, Problem> {
        let Some(typed) = typed else { return Ok(None) };
        let rate = *typed.get_ref();
        if rate.is_finite() && rate > 0.0 {
            return Ok(Some(rate));
        }
        Err(self.at(typed.span(), "not a rate", "give requests per second, such as 500"))
    }

    pub(super) fn request_path(&self, typed: Option<Spanned<String>>) -> Result<String, Problem> {
        let Some(typed) = typed else { return Ok("/".to_owned()) };
        let clean = typed.get_ref().bytes().all(|byte| byte.is_ascii_graphic());
        if !typed.get_ref().starts_with('/') || !clean {
            let help = "begin it with / and percent-encode spaces and non-ASCII characters";
            return Err(self.at(typed.span(), "not a request path", help));
        }
        Ok(typed.into_inner())
    }

    fn method(&self, typed: Option<Spanned<String>>) -> Result<String, Problem> {
        let Some(typed) = typed else { return Ok("GET".to_owned()) };
        if typed.get_ref().is_empty() || !typed.get_ref().bytes().all(|b| b.is_ascii_uppercase()) {
            return Err(self.at(typed.span(), "not a request method", "such as GET or POST"));
        }
        Ok(typed.into_inner())
    }

    fn params(
        &self,
        typed: BTreeMap<String, Spanned<String>>,
    ) -> Result<Vec<(String, String)>, Problem> {
        let mut params = Vec::new();
        for (name, value) in typed {
            if name.is_empty() || name.contains('\0') || value.get_ref().contains('\0') {
                let help = "a variable has a name, and no NUL byte";
                return Err(self.at(value.span(), "not a variable", help));
            }
            params.push((name, value.into_inner()));
        }
        Ok(params)
    }

    /// Checks the names and values of `headers`.
    fn headers(
        &self,
        typed: BTreeMap<String, Spanned<String>>,
    ) -> Result<Vec<(String, String)>, Problem> {
        let mut headers = Vec::new();
        for (name, value) in typed {
            let name_ok = !name.is_empty()
                && name
                    .bytes()
                    .all(|b| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b));
            let value_ok = !value.get_ref().chars().any(char::is_control);
            if !name_ok || !value_ok {
                let help = "names are letters, digits and dashes; values are one line";
                return Err(self.at(value.span(), "not a request header", help));
            }
            headers.push((name, value.into_inner()));
        }
        Ok(headers)
    }

    pub(super) fn cpus(&self, typed: Option<Spanned<Vec<usize>>>) -> Result<Vec<usize>, Problem> {
        let Some(typed) = typed else { return Ok(Vec::new()) };
        if typed.get_ref().is_empty() || typed.get_ref().iter().any(|&cpu| cpu > MAX_CPU) {
            let help = "list the numbers of cores, such as [0, 1]; leave the key out for all";
            return Err(self.at(typed.span(), "not a list of cores", help));
        }
        Ok(typed.into_inner())
    }

    pub(super) fn duration(
        &self,
        typed: &Option<Spanned<String>>,
        default: Duration,
    ) -> Result<Duration, Problem> {
        match typed {
            Some(typed) => self.time(typed.get_ref(), typed.span()),
            None => Ok(default),
        }
    }

    pub(super) fn time(&self, text: &str, span: Range<usize>) -> Result<Duration, Problem> {
        let wrong = match forebay_conf::parse_duration(text) {
            Ok(duration) if duration.is_zero() => "is zero".to_owned(),
            Ok(duration) if duration > DAY => "is longer than a day".to_owned(),
            Ok(duration) => return Ok(duration),
            Err(wrong) => wrong,
        };
        let help = "give a number with its unit: \"500ms\", \"5s\", \"2m\"";
        Err(self.at(span, format!("this time {wrong}"), help))
    }

    fn within<T: Copy + PartialOrd + std::fmt::Display>(
        &self,
        typed: &Option<Spanned<T>>,
        default: T,
        range: std::ops::RangeInclusive<T>,
    ) -> Result<T, Problem> {
        let Some(typed) = typed else { return Ok(default) };
        if range.contains(typed.get_ref()) {
            return Ok(*typed.get_ref());
        }
        let help = format!("give a number from {} to {}", range.start(), range.end());
        Err(self.at(typed.span(), format!("{} is out of range", typed.get_ref()), help))
    }

    /// Converts an error of the TOML parser. For an unknown key, lists the known keys and suggests
    /// the most similar one.
    fn not_understood(&self, error: &toml::de::Error) -> Problem {
        let span = error.span().unwrap_or(0..0);
        let message = error.message().lines().next().unwrap_or("not TOML").to_owned();
        if message == "missing field `load`" {
            return self.at(span, message, "add [load] with path and requests or duration");
        }
        Problem::of_toml(self.path, self.text, error)
    }

    pub(super) fn at(
        &self,
        span: Range<usize>,
        message: impl Into<String>,
        help: impl Into<String>,
    ) -> Problem {
        Problem::at(self.path, self.text, span, message, help)
    }
}

impl Problem {
    /// Converts an error of the TOML parser. For an unknown key, lists the known keys and suggests
    /// the most similar one.
    pub fn of_toml(path: &Path, text: &str, error: &toml::de::Error) -> Self {
        let span = error.span().unwrap_or(0..0);
        let message = error.message().lines().next().unwrap_or("not TOML").to_owned();
        if let Some((found, known)) = unknown_field(&message) {
            let help = match nearest(found, &known) {
                Some(key) => format!("did you mean `{key}`? known keys: {}", known.join(", ")),
                None => format!("known keys: {}", known.join(", ")),
            };
            return Self::at(path, text, span, format!("unknown key `{found}`"), help);
        }
        let help = match message.as_str() {
            message if message.starts_with("missing field") => "add the key",
            _ => "correct the line; the format is TOML",
        };
        Self::at(path, text, span, message.clone(), help)
    }
}

/// Reads a text file of at most 1 MiB.
fn read_text(path: &Path) -> std::io::Result<String> {
    let mut text = String::new();
    std::fs::File::open(path)?.take(LARGEST_FILE + 1).read_to_string(&mut text)?;
    if text.len() as u64 > LARGEST_FILE {
        return Err(std::io::Error::other("it is larger than 1 MiB"));
    }
    Ok(text)
}

/// Returns the default number of client threads: half of the cores, but at least one and at most
/// two, and never more than `connections`. Two threads can load most servers, and more would take
/// CPU time from a server on the same machine.
fn default_threads(connections: u32) -> u32 {
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get() as u32);
    (cores / 2).clamp(1, 2).min(connections)
}

/// Returns the absolute path of the experiment file's directory. The path must be UTF-8, because
/// commands may contain it as `{dir}`.
fn directory_of(path: &Path) -> Result<PathBuf, Problem> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let directory = parent.unwrap_or(Path::new("."));
    let absolute = directory.canonicalize().map_err(|error| {
        let message = format!("cannot find the directory of {}: {error}", path.display());
        Problem::whole(message, "give the path of an existing experiment file")
    })?;
    if absolute.to_str().is_none() {
        let message = format!("the directory {} is not UTF-8", absolute.display());
        return Err(Problem::whole(
            message,
            "move the experiment to a directory with a plain name",
        ));
    }
    Ok(absolute)
}

/// Returns example values for placeholders, to validate texts before real values exist.
fn example_values(services: &[Service]) -> Values {
    let tmp = || "/tmp".to_owned();
    let at =
        |service: &Service| ServiceValues { name: service.name.clone(), port: 8080, tmp: tmp() };
    let services = services.iter().map(at).collect();
    Values { port: 8080, dir: "/dir".to_owned(), tmp: tmp(), services }
}

/// Extracts the unknown key and the known keys from serde's message. Returns `None` if the message
/// is about another error.
fn unknown_field(message: &str) -> Option<(&str, Vec<&str>)> {
    let mut names = message.strip_prefix("unknown field `")?.split('`').step_by(2);
    let found = names.next()?;
    Some((found, names.filter(|name| !name.is_empty()).collect()))
}

/// Returns the known key that needs the fewest edits to equal `found` (Levenshtein distance).
/// Returns `None` if each key needs more than two edits.
fn nearest<'a>(found: &str, known: &[&'a str]) -> Option<&'a str> {
    let scored = known.iter().map(|&key| (edits(found, key), key));
    scored.min().filter(|&(edits, _)| edits <= 2).map(|(_, key)| key)
}

fn edits(left: &str, right: &str) -> usize {
    let right: Vec<char> = right.chars().collect();
    let mut row: Vec<usize> = (0..=right.len()).collect();
    for (i, left) in left.chars().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, right) in right.iter().enumerate() {
            let changed = diagonal + usize::from(left != *right);
            let cheapest = changed.min(row[j] + 1).min(row[j + 1] + 1);
            diagonal = std::mem::replace(&mut row[j + 1], cheapest);
        }
    }
    row[right.len()]
}

impl Reader<'_> {
    pub(super) fn command(
        &self,
        typed: Option<Spanned<Vec<String>>>,
    ) -> Result<Vec<String>, Problem> {
        let Some(typed) = typed else { return Ok(Vec::new()) };
        if typed.get_ref().first().is_none_or(String::is_empty) {
            let help = "give it as a list: [\"sh\", \"-c\", \"...\"]; leave the key out for none";
            return Err(self.at(typed.span(), "an empty command", help));
        }
        Ok(typed.into_inner())
    }

    fn optional_duration(
        &self,
        typed: &Option<Spanned<String>>,
    ) -> Result<Option<Duration>, Problem> {
        typed.as_ref().map(|typed| self.time(typed.get_ref(), typed.span())).transpose()
    }
}
