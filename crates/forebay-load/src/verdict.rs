//! Checks the reply to a step, and extracts values from it.

use forebay_wire::http1::is_field_value;
use serde_json::Value;

use crate::inspection::Probe;
use crate::template::LONGEST_VALUE;
use crate::{Expectation, Extraction, ReplyPart, ScenarioStep};

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
