//! Virtual user: performs the steps of a scenario, with its own cookies and values, and checks the
//! replies.

use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_wire::http1::is_field_value;
use serde_json::Value;

use crate::cookies::SharedJar;
use crate::inspection::{Inspection, Probe};
use crate::redirect::{Redirect, is_absolute, is_redirect, resolve};
use crate::tally::{Failure, Tally};
use crate::template::{LONGEST_VALUE, RenderedStep, RequestSource, StepValues, Values};
use crate::{Error, Expectation, Extraction, ReplyPart, Scenario, ScenarioPlan, ScenarioStep, Url};

/// Virtual user. A connection with one request at a time has one user. A connection with several
/// streams has one user for each stream.
///
/// The caller performs the steps. It takes the next request with [`request`](Self::request), and
/// reports the end of this request with [`replied`](Self::replied) or [`failed`](Self::failed).
#[derive(Debug)]
pub(crate) struct VirtualUser {
    plan: Arc<ScenarioPlan>,
    url: Arc<Url>,
    jar: SharedJar,
    scenario: usize,
    /// Number of iterations that the user still performs after the current one.
    left: u64,
    /// Index and repetition of the current step; `None` between iterations.
    step: Option<(usize, u32)>,
    /// Number of redirects that the current step has followed.
    followed: u32,
    redirect: Option<Redirect>,
    /// Target of the current request, against which a redirect is resolved.
    target: String,
    /// Values that steps have extracted from replies, by their indices in the plan.
    extracted: Vec<Vec<u8>>,
    /// Number of the iteration, and row of the table.
    number: u64,
    row: u64,
    has_failed: bool,
    /// True if the first request of the iteration has started.
    is_started: bool,
    /// Time at which the iteration was due.
    begun: Instant,
    /// Time at which the next request of the iteration is due.
    next: Instant,
    random: fastrand::Rng,
}

impl VirtualUser {
    /// Creates a user, whose cookies are kept in `jar`.
    pub fn new(plan: &Arc<ScenarioPlan>, url: &Arc<Url>, jar: SharedJar) -> Self {
        let now = Instant::now();
        Self {
            plan: plan.clone(),
            url: url.clone(),
            jar,
            scenario: 0,
            left: 0,
            step: None,
            followed: 0,
            redirect: None,
            target: String::new(),
            extracted: vec![Vec::new(); plan.variables.len()],
            number: 0,
            row: 0,
            has_failed: false,
            is_started: false,
            begun: now,
            next: now,
            random: fastrand::Rng::new(),
        }
    }

    /// Returns the due time of the next step. Returns `None` between iterations.
    pub fn due(&self) -> Option<Instant> {
        self.step.map(|_| self.next)
    }

    /// Returns the time at which the pause after the last step ends.
    pub fn rests_until(&self) -> Instant {
        self.next
    }

    /// Begins an iteration that is due at `due`. If the user has performed all its iterations, a
    /// new user replaces it: `scenario` chooses the new user's scenario, and the user takes the
    /// next row of the table. Cookies and extracted values are dropped.
    pub fn begin(&mut self, due: Instant, scenario: impl FnOnce() -> usize, values: &mut Values) {
        if self.left == 0 {
            self.scenario = scenario();
            self.left = self.scenario().iterations;
            self.row = values.next_row();
            self.jar.clear();
            self.extracted.iter_mut().for_each(Vec::clear);
        }
        self.left -= 1;
        self.number = values.next_number();
        (self.step, self.has_failed, self.begun, self.next) = (Some((0, 0)), false, due, due);
        (self.followed, self.redirect, self.is_started) = (0, None, false);
    }

    /// Counts the iteration when its first request starts. An iteration that is not due before the
    /// end of the run is never counted.
    pub fn start(&mut self, tally: &mut Tally) {
        if !std::mem::replace(&mut self.is_started, true) {
            tally.iterations[self.scenario].started += 1;
        }
    }

    /// Returns the index of the next request, and the encoded request. The second value is an error
    /// if the request cannot be encoded with its values and cookies.
    pub fn request<R: Clone>(
        &mut self,
        source: &RequestSource<R>,
        values: &mut Values,
        sink: &mut Inspection,
    ) -> (usize, Result<R, Error>) {
        let index = self.step.map_or(0, |(index, _)| index);
        let scenario = &self.plan.scenarios[self.scenario];
        let step = &scenario.steps[index];
        sink.watch(step.wants_body());
        let given = StepValues { number: self.number, row: self.row, extracted: &self.extracted };
        let other = self.redirect.as_ref().filter(|redirect| !redirect.sends_credentials());
        self.jar.select_host(other.and_then(|other| other.host.as_deref()).unwrap_or_default());
        let jar = scenario.cookies.then_some(&self.jar);
        let rendered = source.render_step(step.part, values.draw(given), (jar, &self.redirect));
        let request = rendered.map(|RenderedStep { request, target }| {
            self.target = target;
            request
        });
        (step.part, request)
    }

    /// Handles a complete reply: follows a redirect, or checks the reply and goes to the next step.
    pub fn replied(
        &mut self,
        status: u16,
        inspected: &Inspection,
        times: StepTimes,
        tally: &mut Tally,
    ) {
        tally.reply(status, inspected.length());
        let Some((index, _)) = self.step else { return };
        let plan = self.plan.clone();
        let step = &plan.scenarios[self.scenario].steps[index];
        let verdict = match self.follow(status, inspected, step) {
            Ok(true) => {
                tally.complete_part(step.part, times.latency);
                self.next = times.now;
                return;
            }
            Ok(false) => self.judge(status, inspected, step),
            Err(why) => Err(why),
        };
        match verdict {
            Ok(()) => tally.complete_part(step.part, times.latency),
            Err(why) => {
                let quote = inspected.quote();
                let why = format!("{}: {why}; status {status}, {quote}", step.name);
                tally.fail(Failure::Check, step.part, &why);
                self.has_failed = true;
            }
        }
        self.advance(step, times.now, tally);
    }

    /// Handles a request that failed without a complete reply.
    pub fn failed(&mut self, now: Instant, tally: &mut Tally) {
        let Some((index, _)) = self.step else { return };
        self.has_failed = true;
        let plan = self.plan.clone();
        self.advance(&plan.scenarios[self.scenario].steps[index], now, tally);
    }

    /// If the reply is a redirect that the step follows, prepares the next request and returns
    /// true. Otherwise returns false, for example if the redirect has no `Location`, or if its
    /// status is one that the step expects. The statuses 301, 302 and 303 change the method to GET,
    /// except for HEAD.
    ///
    /// Fails if the server redirects too often, or if the `Location` cannot be followed.
    fn follow(
        &mut self,
        status: u16,
        inspected: &Inspection,
        step: &ScenarioStep,
    ) -> Result<bool, String> {
        let Some(probe) = inspected.probe().filter(|_| is_redirect(status)) else {
            return Ok(false);
        };
        let is_wanted = step.listed_statuses().is_some_and(|listed| listed.contains(&status));
        let Some(location) = probe.fields("location").next() else { return Ok(false) };
        if step.redirects == 0 || is_wanted {
            return Ok(false);
        }
        if self.followed >= step.redirects {
            return Err(format!("the server redirects more than {} times", step.redirects));
        }
        let resolved = resolve(location, &self.target, &self.url, &self.plan.hosts);
        let (host, target) =
            resolved.map_err(|why| format!("the redirect is not followed: {why}"))?;
        self.followed += 1;
        let before = self.redirect.take();
        let was_get = before.as_ref().is_some_and(|before| before.is_get);
        let host = host
            .or_else(|| before.and_then(|before| before.host).filter(|_| !is_absolute(location)));
        // Browsers and curl change the method to GET for these statuses.
        let is_get = was_get || matches!(status, 301..=303);
        let has_credentials = self.plan.shares_credentials;
        self.redirect = Some(Redirect { host, target, is_get, has_credentials });
        Ok(true)
    }

    /// Checks the reply and extracts values from it. Returns the reason of the first check or
    /// extraction that fails.
    fn judge(
        &mut self,
        status: u16,
        inspected: &Inspection,
        step: &ScenarioStep,
    ) -> Result<(), String> {
        let Some(probe) = inspected.probe() else { return Ok(()) };
        let mut reply = StepReply::new(status, probe);
        reply.check(step)?;
        for extraction in &step.extractions {
            let name = &self.plan.variables[extraction.variable];
            self.extracted[extraction.variable].clear();
            let value = reply.extract(extraction, name, |cookie| self.jar.value(cookie))?;
            self.extracted[extraction.variable] = value;
        }
        Ok(())
    }

    /// Goes to the next repetition or step, or ends the iteration. A failure ends the iteration
    /// early if the scenario has `stop_on_failure`.
    fn advance(&mut self, step: &ScenarioStep, now: Instant, tally: &mut Tally) {
        let Some((index, repetition)) = self.step else { return };
        (self.followed, self.redirect) = (0, None);
        self.next = now + step.think.draw(&mut self.random);
        let scenario = &self.plan.scenarios[self.scenario];
        self.step = if self.has_failed && scenario.stop_on_failure {
            None
        } else if repetition + 1 < step.repeat {
            Some((index, repetition + 1))
        } else {
            Some((index + 1, 0)).filter(|(index, _)| *index < scenario.steps.len())
        };
        if self.step.is_none() {
            self.start(tally);
            let time = now.saturating_duration_since(self.begun);
            tally.iterations[self.scenario].end(self.has_failed, time);
        }
    }

    fn scenario(&self) -> &Scenario {
        &self.plan.scenarios[self.scenario]
    }
}

/// Times of a complete reply.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StepTimes {
    pub now: Instant,
    pub latency: Duration,
}

// Checks the reply to a step, and extracts values from it.

/// Reply to a step: its status, and what was kept of it.
pub(crate) struct StepReply<'a> {
    pub status: u16,
    pub probe: &'a Probe,
    json: Option<Option<Value>>,
}

impl<'a> StepReply<'a> {
    pub fn new(status: u16, probe: &'a Probe) -> Self {
        Self { status, probe, json: None }
    }

    /// Compares the reply with the checks of the step.
    ///
    /// # Errors
    /// Returns the first condition that the reply does not meet.
    pub fn check(&mut self, step: &ScenarioStep) -> Result<(), String> {
        if !step.accepts(self.status) {
            let wanted = step.listed_statuses().map_or("below 400".to_owned(), |listed| {
                listed.iter().map(u16::to_string).collect::<Vec<_>>().join(" or ")
            });
            return Err(format!("the status is {}, not {wanted}", self.status));
        }
        step.checks.iter().try_for_each(|check| self.meets(check))
    }

    fn meets(&mut self, check: &Expectation) -> Result<(), String> {
        let body = self.probe.body();
        let is_met = match check {
            Expectation::Status(_) => true,
            Expectation::Field(name, pattern) => {
                self.probe.fields(name).any(|value| pattern.matches(value))
            }
            Expectation::Contains(text) => memchr::memmem::find(body, text).is_some(),
            Expectation::Matches(pattern) => pattern.matches(body),
            Expectation::Json(pointer, wanted) => {
                self.json(pointer).is_some_and(|value| is_equal(value, wanted))
            }
        };
        if is_met {
            return Ok(());
        }
        Err(match check {
            Expectation::Field(name, pattern) => {
                format!("no field {name} matches {:?}", pattern.to_string())
            }
            Expectation::Json(pointer, wanted) => match self.json(pointer) {
                Some(value) => format!("the JSON at {pointer:?} is {}, not {wanted}", short(value)),
                None => format!("the body has no JSON at {pointer:?}{}", self.cut()),
            },
            _ => format!("its body lacks the expected text{}", self.cut()),
        })
    }

    /// Returns the value of an extraction.
    ///
    /// # Errors
    /// Fails if the reply has no such value, or if the value cannot be sent. A value must not be
    /// too long. If [`Extraction::is_line`] is true, it must not have a control character.
    pub fn extract(
        &mut self,
        extraction: &Extraction,
        name: &str,
        cookie: impl FnOnce(&str) -> Option<Vec<u8>>,
    ) -> Result<Vec<u8>, String> {
        let found = match &extraction.source {
            ReplyPart::Body(pattern) => pattern.find(self.probe.body()).map(<[u8]>::to_vec),
            ReplyPart::Json(pointer) => self.json(pointer).and_then(text_of),
            ReplyPart::Field(field) => self.probe.fields(field).next().map(<[u8]>::to_vec),
            ReplyPart::Cookie(name) => cookie(name),
        };
        let value = found.ok_or_else(|| format!("it has no value for {name}{}", self.cut()))?;
        if value.len() > LONGEST_VALUE {
            return Err(format!("its value for {name} is longer than {LONGEST_VALUE} bytes"));
        }
        if extraction.is_line && !is_field_value(&value) {
            let why = "has a line break or a control character, so it is not sent";
            return Err(format!("its value for {name} {why}"));
        }
        Ok(value)
    }

    fn json(&mut self, pointer: &str) -> Option<&Value> {
        let body = self.probe.body();
        let json = self.json.get_or_insert_with(|| serde_json::from_slice(body).ok());
        json.as_ref().and_then(|json| json.pointer(pointer))
    }

    fn cut(&self) -> &'static str {
        if self.probe.is_cut() { " in its first MiB" } else { "" }
    }
}

/// Compares JSON values. Numbers are equal if they have the same value, such as `1` and `1.0`.
fn is_equal(value: &Value, wanted: &Value) -> bool {
    match (value.as_f64(), wanted.as_f64()) {
        (Some(value), Some(wanted)) => value == wanted,
        _ => value == wanted,
    }
}

/// Returns the text to send for a JSON value. Returns `None` for null.
fn text_of(value: &Value) -> Option<Vec<u8>> {
    match value {
        Value::Null => None,
        Value::String(text) => Some(text.clone().into_bytes()),
        other => Some(other.to_string().into_bytes()),
    }
}

/// Returns the beginning of a value, for a message. Replaces control characters, because a terminal
/// could execute them as commands.
fn short(value: &Value) -> String {
    let text = value.to_string();
    let start: String = text.chars().take(60).collect();
    let more = if start.len() < text.len() { "..." } else { "" };
    start.replace(char::is_control, "\u{fffd}") + more
}
