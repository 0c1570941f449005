//! The difference of a configuration file and a running server (`--diff`).

use std::path::Path;

use forebay_conf::{Plan, Setting};
use forebay_gateway::Difference;
use serde_json::{Value, json};

use crate::ctl::client::CtlServer;

/// Exit codes of the manual: wrong usage or configuration, and a server that cannot be reached.
const WRONG: u8 = 2;
const UNREACHABLE: u8 = 3;

/// Returns what a reload of `plan` would change, as text. `running` is the address of a server or
/// its configuration file. An error contains the exit code and the reason.
pub fn with(running: &str, plan: &Plan) -> Result<String, (u8, String)> {
    let next = plan.file.settings();
    let path = Path::new(running);
    if path.exists() {
        let now = forebay_conf::load(path).map_err(|error| (WRONG, error.to_string()))?;
        return Ok(Difference::of(&now.file.settings(), &next).text());
    }
    let server = CtlServer::find(Some(running), None, None).map_err(|why| {
        (WRONG, format!("--diff {running} is neither a file nor an address: {why}"))
    })?;
    let server = server.or_token(plan.server.admin_token.clone());
    // Send the settings to the server, which compares them. The server does not send its own
    // settings, because they contain secrets.
    let settings = next.iter().map(|Setting { part, key, value, shown }| {
        json!({ "part": part, "key": key, "value": value, "shown": shown })
    });
    let body = json!({ "settings": settings.collect::<Vec<_>>() }).to_string();
    let answer = server.post("/control/diff", "application/json", None, body);
    let answer = answer.map_err(|why| (UNREACHABLE, why))?;
    let parsed: Value = serde_json::from_str(&answer.body).unwrap_or_default();
    if answer.status != 200 {
        let why = parsed["error"].as_str().unwrap_or("the server refuses");
        return Err((WRONG, why.to_owned()));
    }
    Ok(crate::ctl::shown::difference(&parsed))
}
