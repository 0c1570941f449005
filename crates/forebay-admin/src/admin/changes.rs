//! Changes of the configuration, of backends and of sites: `/control/`. Over TCP, every request
//! needs the `admin_token`. Over a Unix socket, the permissions of the socket decide.
//!
//! A web page of another site cannot send such a request. A browser adds no `Authorization` field
//! by itself. If the page adds this field, the browser first asks the server for permission (CORS
//! preflight), and the server gives none.

use std::time::Duration;

use forebay_conf::{Clients, LONGEST, Setting, parse_duration};
use serde_json::{Map, Value, json};

use super::connection::AdminConnection;
use super::request::{AdminRequest, BodyFault, Method};
use super::{Admin, AdminAnswer};

/// Maximum size of a configuration in bytes, as for a configuration file.
const LONGEST_TEXT: usize = 4 * 1024 * 1024;

/// Maximum size of other bodies in bytes.
const LONGEST_ORDER: usize = 64 * 1024;

/// A change that the administrator wants, and the client that asks for it.
#[derive(Clone, Debug)]
pub struct ChangeOrder {
    /// The client, for the log.
    pub by: String,
    /// The change applies only if the running configuration has this number. `None`: it applies to
    /// any configuration.
    pub generation: Option<u64>,
    pub change: AdminChange,
}

/// A change of the configuration, of a backend or of a site.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AdminChange {
    /// Reads the configuration file again.
    Reload,
    /// Replaces the configuration with this text.
    Replace(String),
    Backend(BackendChange),
    /// Closes or opens a site.
    Maintenance(MaintenanceChange),
    /// Undoes all changes of backends and sites.
    Reset,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackendChange {
    /// Address of the backend.
    pub backend: String,
    /// Name of the group. `None`: all groups with the address.
    pub upstream: Option<String>,
    /// The new state, if it changes.
    pub state: Option<BackendState>,
    /// The new weight, if it changes.
    pub weight: Option<WeightChange>,
}

/// A state that the administrator gives a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BackendState {
    /// The state in the configuration.
    Ready,
    /// Only requests of sessions that the backend already has.
    Drain,
    /// No new requests.
    Down,
}

/// A weight that the administrator gives a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WeightChange {
    /// The weight in the configuration.
    Default,
    /// This weight, from 1 to 256.
    To(u32),
}

/// Closes or opens a site.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MaintenanceChange {
    /// A host name of the site, as in the configuration. `*`: all sites.
    pub site: String,
    /// Settings of the closed site. `None`: the site is open, unless the configuration closes it.
    pub closed: Option<ClosedSite>,
}

/// Settings of a closed site.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClosedSite {
    /// The value of `Retry-After`.
    pub retry_after: Duration,
    /// Clients that are served as usual.
    pub except: Vec<Clients>,
}

/// The outcome of a change.
#[derive(Clone, Debug)]
pub struct Changed {
    /// The number of the configuration that runs now.
    pub generation: u64,
    /// The change in words.
    pub text: String,
}

/// Reason why the server refused a change. A refusal leaves the running configuration in force.
#[derive(Clone, Debug)]
pub struct Refused {
    /// Status of the answer.
    pub status: u16,
    /// The reason, and the next step.
    pub message: String,
}

impl Refused {
    /// Creates a refusal with this status and message.
    pub fn new(status: u16, message: impl Into<String>) -> Self {
        Self { status, message: message.into() }
    }
}

const PATHS: &str = "there are /control/reload, /control/backend, /control/maintenance, \
                     /control/reset, /control/configuration, /control/plan and /control/diff";

impl Admin {
    /// Returns the answer for paths below /control/. Returns `None` for other paths.
    pub(super) fn answer_for_control(
        &self,
        request: &mut AdminRequest,
        connection: &mut AdminConnection,
    ) -> Option<AdminAnswer> {
        let what = request.path.strip_prefix("/control/")?.to_owned();
        if let Some(refusal) = self.refuse_token(request, "to change what is served") {
            return Some(as_json(refusal));
        }
        if what == "plan" && matches!(request.method, Method::Get | Method::Head) {
            return Some(self.plan());
        }
        if request.method != Method::Post {
            return Some(refuse(405, "POST is answered here").with("Allow", "POST"));
        }
        if what == "diff" {
            let answer = self.difference(request, connection);
            return Some(answer.unwrap_or_else(|refusal| refusal));
        }
        Some(match self.order(&what, request, connection) {
            Err(refusal) => refusal,
            Ok(change) => {
                let (by, generation) = (request.peer.to_string(), request.generation);
                match self.meters.control.change(ChangeOrder { by, generation, change }) {
                    Ok(Changed { generation, text }) => {
                        let body = json!({ "generation": generation, "done": text });
                        json_answer(200, &body)
                    }
                    Err(Refused { status, message }) => refuse(status, message.trim_end()),
                }
            }
        })
    }

    /// Returns the settings of the running configuration, without secrets.
    fn plan(&self) -> AdminAnswer {
        let (generation, settings) = self.meters.control.settings();
        let settings = settings.iter().map(
            |setting| json!({ "part": setting.part, "key": setting.key, "value": setting.shown }),
        );
        let settings = settings.collect::<Vec<_>>();
        json_answer(200, &json!({ "generation": generation, "settings": settings }))
    }

    /// Compares the running configuration with the settings in the body. Without settings, compares
    /// it with the configuration file. The error is the answer to an invalid request.
    fn difference(
        &self,
        request: &mut AdminRequest,
        connection: &mut AdminConnection,
    ) -> Result<AdminAnswer, AdminAnswer> {
        let mut object = read_object(request, connection, LONGEST_TEXT)?;
        let next = match object.remove("settings") {
            None | Some(Value::Null) => None,
            Some(value) => {
                let wrong = || refuse(400, "`settings` must be a list of part, key and value");
                Some(settings(&value).ok_or_else(wrong)?)
            }
        };
        nothing_left(&object).map_err(|why| refuse(400, &why))?;
        let outcome = self.meters.control.difference(next);
        let (lines, apps) = outcome.map_err(|r| refuse(r.status, r.message.trim_end()))?;
        Ok(json_answer(200, &json!({ "difference": lines, "restarted_apps": apps })))
    }

    /// Reads the change that a request wants. The error is the answer to an invalid request.
    fn order(
        &self,
        what: &str,
        request: &mut AdminRequest,
        connection: &mut AdminConnection,
    ) -> Result<AdminChange, AdminAnswer> {
        match what {
            "reload" => return Ok(AdminChange::Reload),
            "reset" => return Ok(AdminChange::Reset),
            "backend" | "maintenance" | "configuration" => {}
            _ => return Err(refuse(404, PATHS)),
        }
        if what == "configuration" {
            let body = read_body(request, connection, ("application/toml", LONGEST_TEXT))?;
            let text = String::from_utf8(body);
            return text
                .map(AdminChange::Replace)
                .map_err(|_| refuse(400, "the body is not text in UTF-8"));
        }
        let object = read_object(request, connection, LONGEST_ORDER)?;
        let change = match what {
            "backend" => backend_change(object).map(AdminChange::Backend),
            _ => maintenance_change(object).map(AdminChange::Maintenance),
        };
        change.map_err(|why| refuse(400, &why))
    }
}

/// Reads a body of this content type, and of at most this length. If the body is incomplete, too
/// long or of another type, the error is the answer for the client.
fn read_body(
    request: &mut AdminRequest,
    connection: &mut AdminConnection,
    (content_type, most): (&str, usize),
) -> Result<Vec<u8>, AdminAnswer> {
    if request.content_type != content_type {
        return Err(refuse(415, &format!("send the body as Content-Type: {content_type}")));
    }
    request.body(connection, most).map_err(|fault| match fault {
        BodyFault::NoLength => refuse(411, "send the body with Content-Length"),
        BodyFault::TooLarge => refuse(413, &format!("the body is larger than {most} bytes")),
        BodyFault::Incomplete => refuse(400, "the body is incomplete"),
    })
}

fn read_object(
    request: &mut AdminRequest,
    connection: &mut AdminConnection,
    most: usize,
) -> Result<Map<String, Value>, AdminAnswer> {
    let body = read_body(request, connection, ("application/json", most))?;
    object(&body).map_err(|why| refuse(400, &why))
}

/// Reads settings from a JSON list of objects. Returns `None` if the list, or an object in it, is
/// incomplete.
fn settings(value: &Value) -> Option<Vec<Setting>> {
    let of = |value: &Value| {
        let text = |key: &str| Some(value.get(key)?.as_str()?.to_owned());
        Some(Setting {
            part: text("part")?,
            key: text("key")?,
            value: text("value")?,
            shown: text("shown")?,
        })
    };
    value.as_array()?.iter().map(of).collect()
}

fn json_answer(status: u16, body: &Value) -> AdminAnswer {
    AdminAnswer::new(status, "application/json", format!("{body}\n"))
}

pub(super) fn refuse(status: u16, message: &str) -> AdminAnswer {
    json_answer(status, &json!({ "error": message }))
}

fn as_json(answer: AdminAnswer) -> AdminAnswer {
    refuse(answer.status, answer.body.trim_end())
}

fn object(body: &[u8]) -> Result<Map<String, Value>, String> {
    match serde_json::from_slice(body) {
        Ok(Value::Object(object)) => Ok(object),
        Ok(_) => Err("the body is not a JSON object".into()),
        Err(error) => Err(format!("the body is not JSON: {error}")),
    }
}

/// Removes the string of this key from a JSON object. Returns `None` if the key is missing, or if
/// its value is null. Fails if the value is not a string.
fn take_text(object: &mut Map<String, Value>, key: &str) -> Result<Option<String>, String> {
    match object.remove(key) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(_) => Err(format!("`{key}` must be a text")),
    }
}

fn take_required(object: &mut Map<String, Value>, key: &str) -> Result<String, String> {
    take_text(object, key)?.ok_or_else(|| format!("`{key}` is missing"))
}

fn nothing_left(object: &Map<String, Value>) -> Result<(), String> {
    object.keys().next().map_or(Ok(()), |key| Err(format!("there is no key `{key}` here")))
}

fn backend_change(mut object: Map<String, Value>) -> Result<BackendChange, String> {
    let backend = take_required(&mut object, "backend")?;
    let upstream = take_text(&mut object, "upstream")?;
    let state = match take_text(&mut object, "state")?.as_deref() {
        None => None,
        Some("ready") => Some(BackendState::Ready),
        Some("drain") => Some(BackendState::Drain),
        Some("down") => Some(BackendState::Down),
        Some(_) => return Err("`state` is \"ready\", \"drain\" or \"down\"".into()),
    };
    let weight = match object.remove("weight") {
        None | Some(Value::Null) => None,
        Some(Value::String(text)) if text == "default" => Some(WeightChange::Default),
        Some(value) => match value.as_u64() {
            Some(weight @ 1..=256) => Some(WeightChange::To(weight as u32)),
            _ => return Err("`weight` is a number from 1 to 256, or \"default\"".into()),
        },
    };
    nothing_left(&object)?;
    if state.is_none() && weight.is_none() {
        return Err("give a `state` or a `weight`".into());
    }
    Ok(BackendChange { backend, upstream, state, weight })
}

fn maintenance_change(mut object: Map<String, Value>) -> Result<MaintenanceChange, String> {
    let site = take_required(&mut object, "site")?;
    let Some(Value::Bool(is_closed)) = object.remove("closed") else {
        return Err("`closed` must be true or false".into());
    };
    let retry_after = match take_text(&mut object, "retry_after")? {
        None => Duration::from_secs(600),
        Some(text) => parse_duration(&text)
            .ok()
            .filter(|time| *time <= LONGEST)
            .ok_or_else(|| format!("\"{text}\" is not a time such as \"10m\""))?,
    };
    let except = match object.remove("except") {
        None | Some(Value::Null) => Vec::new(),
        Some(Value::Array(items)) => items.iter().map(client).collect::<Result<_, _>>()?,
        Some(_) => return Err("`except` must be a list of addresses and networks".into()),
    };
    nothing_left(&object)?;
    let closed = is_closed.then_some(ClosedSite { retry_after, except });
    Ok(MaintenanceChange { site, closed })
}

fn client(value: &Value) -> Result<Clients, String> {
    let text = value.as_str().ok_or("`except` must be a list of addresses and networks")?;
    Clients::parse(text).map_err(|_| {
        format!("\"{text}\" is not an address or a network, such as \"10.0.0.0/8\", without bits after its prefix")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_are_complete_and_have_no_unknown_keys() {
        let backend = |text: &str| object(text.as_bytes()).and_then(backend_change);
        let change = backend(r#"{"backend": "a:1", "weight": 3, "state": "drain"}"#).unwrap();
        assert_eq!(
            (change.weight, change.state),
            (Some(WeightChange::To(3)), Some(BackendState::Drain))
        );
        for wrong in [
            "",
            "[]",
            "{}",
            r#"{"backend": "a:1"}"#,
            r#"{"backend": 1, "weight": 1}"#,
            r#"{"backend": "a:1", "weight": 0}"#,
            r#"{"backend": "a:1", "weight": 257}"#,
            r#"{"backend": "a:1", "weight": -1}"#,
            r#"{"backend": "a:1", "weight": 1.5}"#,
            r#"{"backend": "a:1", "state": "off"}"#,
            r#"{"backend": "a:1", "state": "down", "all": true}"#,
        ] {
            assert!(backend(wrong).is_err(), "{wrong}");
        }
        let site = |text: &str| object(text.as_bytes()).and_then(maintenance_change);
        let change = site(r#"{"site": "*", "closed": true, "except": ["10.0.0.0/8"]}"#).unwrap();
        assert_eq!(change.closed.unwrap().retry_after, Duration::from_secs(600));
        for wrong in [
            r#"{"site": "*"}"#,
            r#"{"site": "*", "closed": "yes"}"#,
            r#"{"site": "*", "closed": true, "retry_after": "soon"}"#,
            r#"{"site": "*", "closed": true, "except": ["10.0.0.1/8"]}"#,
            r#"{"site": "*", "closed": true, "except": "10.0.0.1"}"#,
        ] {
            assert!(site(wrong).is_err(), "{wrong}");
        }
    }
}
