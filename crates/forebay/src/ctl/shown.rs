//! Answers of a server in words.

use std::fmt::Write;

use serde_json::Value;

/// Returns the outcome of a change.
pub fn done(answer: &Value) -> String {
    let text = clean(answer["done"].as_str().unwrap_or("done"));
    format!("{text}\nconfiguration {} runs\n", answer["generation"])
}

/// Returns the settings of a configuration, each on its own line.
pub fn plan(plan: &Value) -> String {
    let mut out = format!("# configuration {}\n", plan["generation"]);
    let mut part = "";
    for setting in array(&plan["settings"]) {
        if text(&setting["part"]) != part {
            part = text(&setting["part"]);
            let _ = writeln!(out, "\n{}", clean(part));
        }
        let (key, value) = (clean(text(&setting["key"])), clean(text(&setting["value"])));
        let _ = writeln!(out, "    {key} = {value}");
    }
    out
}

/// Returns the difference of two configurations.
pub fn difference(answer: &Value) -> String {
    match array(&answer["difference"]) {
        [] => "no difference\n".to_owned(),
        lines => lines.iter().map(|line| format!("{}\n", clean(text(line)))).collect(),
    }
}

/// Returns the state of a server.
pub fn status(status: &Value) -> String {
    let configuration = &status["configuration"];
    let posted = configuration["source"] == "posted";
    let file = if posted { "a posted text" } else { text(&configuration["file"]) };
    let file = if file.is_empty() { "the command line" } else { file };
    let mut out = format!(
        "forebay {}, process {}, up {}\nconfiguration {} of {}\n{} connections, {} requests\n",
        text(&status["version"]),
        status["pid"],
        time(status["uptime_s"].as_f64().unwrap_or(0.0)),
        configuration["generation"],
        clean(file),
        status["connections"],
        status["requests"],
    );
    let limits = status["limits_reached"].as_object().into_iter().flatten();
    for (limit, count) in limits.filter(|(_, count)| count.as_u64() > Some(0)) {
        let _ = writeln!(out, "limit {limit} reached {count} times");
    }
    for one in array(&status["left_out"]) {
        let (name, problem) = (clean(text(&one["name"])), clean(text(&one["problem"])));
        let _ = writeln!(out, "{name} is left out: {problem}; {}", clean(text(&one["help"])));
    }
    for change in array(&configuration["changes"]) {
        let _ = writeln!(out, "changed: {}", clean(text(change)));
    }
    append_backends(&mut out, array(&status["backends"]));
    for app in array(&status["apps"]) {
        let workers = array(&app["workers"]).len();
        let _ = writeln!(
            out,
            "app {}: {workers} processes, {} requests wait, {} crashes{}",
            clean(text(&app["name"])),
            app["waiting"],
            app["crashes"],
            if app["crash_loop"].is_string() { ", ENDS AT ITS START" } else { "" },
        );
    }
    out
}

/// Returns the state of each script in mode `prove`.
pub fn proofs(status: &Value) -> String {
    let mut out = String::new();
    for app in array(&status["apps"]) {
        for proof in array(&app["proofs"]) {
            let _ = writeln!(out, "{} {}", clean(text(&app["name"])), proof_text(proof));
        }
    }
    if out.is_empty() {
        return "no application in mode \"prove\" has had a request\n".to_owned();
    }
    out
}

/// Returns a script with its state, and the finding if it is refused.
pub fn proof_text(proof: &Value) -> String {
    let script = clean(text(&proof["script"]));
    let number = |name: &str| proof[name].as_u64().unwrap_or(0);
    let finding = &proof["finding"];
    match text(&proof["state"]) {
        "proved" => format!(
            "{script}: proved after {} requests, {} checks since",
            number("requests"),
            number("checks")
        ),
        "refused" => {
            let mut out = format!(
                "{script}: refused\n    {}: {}",
                clean(text(&finding["variable"])),
                clean(text(&finding["why"]))
            );
            if !text(&finding["place"]).is_empty() {
                let _ = write!(out, "\n    assigned in {}", clean(text(&finding["place"])));
            }
            for value in array(&finding["values"]) {
                let _ = write!(out, "\n    value: {}", clean(text(value)));
            }
            let _ = write!(out, "\n    cure: {}", clean(text(&finding["cure"])));
            out
        }
        _ => format!(
            "{script}: proving, {} of {} requests, {} different inputs (5 needed)",
            number("requests"),
            number("needed"),
            number("inputs")
        ),
    }
}

fn append_backends(out: &mut String, backends: &[Value]) {
    if backends.is_empty() {
        return;
    }
    let _ = writeln!(
        out,
        "\n{:<24} {:<28} {:<12} {:>6} {:>7} {:>10} {:>9}",
        "BACKEND OF", "ADDRESS", "STATE", "WEIGHT", "ACTIVE", "REQUESTS", "FAILURES"
    );
    for backend in backends {
        let of = match (backend["upstream"].as_str(), backend["stream"].as_u64()) {
            (Some(name), _) => name.to_owned(),
            (None, Some(stream)) => format!("stream {stream}"),
            _ => format!("site {}, route {}", backend["site"], backend["route"]),
        };
        let state = match text(&backend["activation"]) {
            "active" => text(&backend["state"]).to_owned(),
            activation => format!("{activation}, {}", text(&backend["state"])),
        };
        let _ = writeln!(
            out,
            "{:<24} {:<28} {:<12} {:>6} {:>7} {:>10} {:>9}",
            clean(&of),
            clean(text(&backend["address"])),
            state,
            backend["weight"].to_string(),
            backend["active"].to_string(),
            backend["requests"].to_string(),
            backend["failures"].to_string(),
        );
    }
    out.push('\n');
}

fn array(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// Removes control characters, so that a name cannot change the terminal.
fn clean(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

fn time(seconds: f64) -> String {
    match seconds as u64 {
        seconds @ 0..=119 => format!("{seconds} s"),
        seconds @ 120..=7199 => format!("{} min", seconds / 60),
        seconds @ 7200..=172_799 => format!("{} h", seconds / 3600),
        seconds => format!("{} days", seconds / 86_400),
    }
}
