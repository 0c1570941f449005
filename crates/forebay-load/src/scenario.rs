//! Scenarios of virtual users: steps that follow each other, with values from earlier replies.

use std::fmt;
use std::time::Duration;

use regex_automata::meta::Regex;
use regex_automata::util::syntax;
use serde_json::Value;

use crate::{Error, Protocol, Url};

/// Scenarios of a run.
#[derive(Clone, Debug, Default)]
pub struct ScenarioPlan {
    /// Scenarios, chosen by their weights.
    pub scenarios: Vec<Scenario>,
    /// Names of the values that steps extract.
    pub variables: Vec<String>,
    /// Other names of the server, as `host` or `host:port`. Redirects may lead to them.
    pub hosts: Vec<String>,
    /// Sends Authorization fields and cookies to all of `hosts`. The host of the run and `hosts`
    /// then share all cookies.
    pub shares_credentials: bool,
}

/// Steps that a virtual user performs in each iteration.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// Name for the report.
    pub name: String,
    /// Weight relative to the other scenarios.
    pub weight: u32,
    /// Number of iterations after which a new user, without cookies and values, replaces the user.
    pub iterations: u64,
    /// Sends the cookies that the server has set for the user.
    pub cookies: bool,
    /// Ends the iteration after a failed step.
    pub stop_on_failure: bool,
    /// The steps, in their order.
    pub steps: Vec<ScenarioStep>,
}

/// Step of a scenario.
#[derive(Clone, Debug)]
pub struct ScenarioStep {
    /// Name for the report.
    pub name: String,
    /// Index of the step's request in the parts of the run.
    pub part: usize,
    /// Number of times that the step is performed.
    pub repeat: u32,
    /// Pause after each reply to the step.
    pub think: ThinkTime,
    /// Maximum number of redirects that are followed.
    pub redirects: u32,
    /// Conditions that the reply must meet.
    pub checks: Vec<Expectation>,
    /// Values to take from the reply.
    pub extractions: Vec<Extraction>,
}

/// Pause between a reply and the next step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ThinkTime {
    /// No pause.
    #[default]
    None,
    /// Always the same time.
    Constant(Duration),
    /// A time between two limits.
    Uniform(Duration, Duration),
    /// Exponentially distributed, with this mean and at most ten times this mean.
    Exponential(Duration),
}

/// Condition that the reply to a step must meet.
#[derive(Clone, Debug)]
pub enum Expectation {
    /// The status is one of these.
    Status(Vec<u16>),
    /// A field with this name has a value that the pattern matches.
    Field(String, Pattern),
    /// The body contains these bytes.
    Contains(Vec<u8>),
    /// The pattern matches in the body.
    Matches(Pattern),
    /// The JSON body has this value at this pointer (RFC 6901).
    Json(String, Value),
}

/// Value to take from a reply.
#[derive(Clone, Debug)]
pub struct Extraction {
    /// Index of the value in [`ScenarioPlan::variables`].
    pub variable: usize,
    /// Part of the reply with the value.
    pub source: ReplyPart,
    /// True if a header field or a multipart body contains the value, so that line breaks are
    /// refused.
    pub is_line: bool,
}

/// Part of a reply from which a value is extracted.
#[derive(Clone, Debug)]
pub enum ReplyPart {
    /// First match in the body: its first group, or the whole match if the pattern has none.
    Body(Pattern),
    /// Value at this pointer of the JSON body.
    Json(String),
    /// Field with this name.
    Field(String),
    /// Cookie with this name.
    Cookie(String),
}

/// Regular expression. The time of a search is linear in the length of the text.
#[derive(Clone)]
pub struct Pattern {
    regex: Regex,
    text: String,
}

/// Maximum memory of a compiled pattern in bytes.
const LARGEST_PATTERN: usize = 4 << 20;

impl Pattern {
    /// Compiles a regular expression.
    ///
    /// # Errors
    /// Returns an error message of the parser.
    pub fn new(text: &str) -> Result<Self, String> {
        let syntax = syntax::Config::new().unicode(false).utf8(false);
        let config = Regex::config().utf8_empty(false).nfa_size_limit(Some(LARGEST_PATTERN));
        let regex = Regex::builder().syntax(syntax).configure(config).build(text);
        let regex = regex.map_err(|error| match error.syntax_error() {
            Some(error) => error.to_string().lines().last().unwrap_or_default().to_owned(),
            None => error.to_string(),
        })?;
        Ok(Self { regex, text: text.to_owned() })
    }

    /// Returns true if the pattern matches somewhere in `text`.
    pub(crate) fn matches(&self, text: &[u8]) -> bool {
        self.regex.is_match(text)
    }

    /// Returns the first group of the first match, or the whole match if the pattern has no group.
    /// Returns `None` without a match.
    pub(crate) fn find<'a>(&self, text: &'a [u8]) -> Option<&'a [u8]> {
        let mut captures = self.regex.create_captures();
        self.regex.captures(text, &mut captures);
        let group = usize::from(captures.group_len() > 1);
        captures.get_group(group).map(|span| &text[span.range()])
    }
}

impl fmt::Debug for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pattern({:?})", self.text)
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl ScenarioPlan {
    /// Checks that the scenarios can run with this URL and this number of requests.
    pub(crate) fn validate(&self, url: &Url, parts: usize) -> Result<(), Error> {
        let refuse = |what: &str| Err(Error::Invalid(what.to_owned()));
        let protocol = url.protocol();
        if protocol.is_websocket() || protocol.is_grpc() || protocol == Protocol::Tcp {
            return refuse("a scenario has HTTP requests and replies: use http:// or https://");
        }
        let steps = || self.scenarios.iter().flat_map(|scenario| &scenario.steps);
        let is_empty = self.scenarios.iter().any(|scenario| scenario.steps.is_empty());
        if self.scenarios.is_empty() || is_empty {
            return refuse("a scenario needs at least one step");
        }
        let is_positive = |scenario: &Scenario| scenario.weight > 0 && scenario.iterations > 0;
        if !self.scenarios.iter().all(is_positive) || steps().any(|step| step.repeat == 0) {
            return refuse("weight, iterations and repeat must be above 0");
        }
        if steps().any(|step| step.part >= parts) {
            return refuse("each step of a scenario needs a request");
        }
        Ok(())
    }

    /// Returns the name of the step that sends request `part`. Returns `None` if there is no such
    /// step.
    pub(crate) fn step_name(&self, part: usize) -> Option<&str> {
        let mut steps = self.scenarios.iter().flat_map(|scenario| &scenario.steps);
        steps.find(|step| step.part == part).map(|step| step.name.as_str())
    }
}

impl ThinkTime {
    /// Returns the next pause.
    pub(crate) fn draw(self, random: &mut fastrand::Rng) -> Duration {
        match self {
            Self::None => Duration::ZERO,
            Self::Constant(time) => time,
            Self::Uniform(low, high) => low + high.saturating_sub(low).mul_f64(random.f64()),
            // Apply the inverse of the distribution function. `f64()` is less than 1, so the
            // logarithm is finite.
            Self::Exponential(mean) => mean.mul_f64((-(1.0 - random.f64()).ln()).min(10.0)),
        }
    }
}

impl ScenarioStep {
    /// Returns true if a check or an extraction needs the body.
    pub(crate) fn wants_body(&self) -> bool {
        let checks = self.checks.iter().any(|check| {
            matches!(
                check,
                Expectation::Contains(_) | Expectation::Matches(_) | Expectation::Json(..)
            )
        });
        let needs_body = |extraction: &Extraction| {
            matches!(extraction.source, ReplyPart::Body(_) | ReplyPart::Json(_))
        };
        checks || self.extractions.iter().any(needs_body)
    }

    /// Returns true if the step's check lists this status. Without such a check, every status below
    /// 400 is accepted.
    pub(crate) fn accepts(&self, status: u16) -> bool {
        self.listed_statuses().map_or(status < 400, |listed| listed.contains(&status))
    }

    pub(crate) fn listed_statuses(&self) -> Option<&[u16]> {
        self.checks.iter().find_map(|check| match check {
            Expectation::Status(listed) => Some(listed.as_slice()),
            _ => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn think_times_have_their_mean_and_limits() {
        let mut random = fastrand::Rng::with_seed(3);
        let [low, mean] = [Duration::from_millis(100), Duration::from_millis(200)];
        let mut draw = |think: ThinkTime| {
            let times: Vec<_> = (0..20_000).map(|_| think.draw(&mut random)).collect();
            let sum: f64 = times.iter().map(Duration::as_secs_f64).sum();
            (*times.iter().min().unwrap(), *times.iter().max().unwrap(), sum / 20_000.0)
        };
        assert_eq!(draw(ThinkTime::None).1, Duration::ZERO);
        assert_eq!(draw(ThinkTime::Constant(low)).0, low);
        let (least, most, average) = draw(ThinkTime::Uniform(low, mean));
        assert!(least >= low && most <= mean && (average - 0.15).abs() < 0.001, "{average}");
        let (_, most, average) = draw(ThinkTime::Exponential(mean));
        assert!(most <= mean * 10 && (average - 0.2).abs() < 0.005, "{average}");
    }

    #[test]
    fn patterns_find_their_first_group() {
        let find = |pattern: &str, text: &'static [u8]| Pattern::new(pattern).unwrap().find(text);
        assert_eq!(find("token=(\\w+)", b"a token=x1; token=y"), Some(&b"x1"[..]));
        assert_eq!(find("\\d+", b"\xff\xfe 42"), Some(&b"42"[..]));
        assert_eq!(find("a(b)?", b"a"), None);
        assert!(Pattern::new("(").unwrap_err().contains("unclosed group"));
        assert!(Pattern::new("(?:a{1000}){1000}").is_err());
    }
}
