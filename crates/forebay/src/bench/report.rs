//! Report for people.

use std::fmt::Write;
use std::time::Duration;

use forebay_load::{Handshakes, Outcome, Spec};

/// Percentiles of the table.
const PERCENTILES: [(&str, f64); 6] =
    [("p50", 50.0), ("p75", 75.0), ("p90", 90.0), ("p95", 95.0), ("p99", 99.0), ("p99.9", 99.9)];

/// Least number of latencies above a percentile that is shown.
const SAMPLES_BEYOND: u64 = 10;

/// Returns the report of a run. `cancelled` is true if the run was ended early.
pub fn text(spec: &Spec, outcome: &Outcome, cancelled: bool) -> String {
    let mut out = format!(
        "{} {}: {}{}, {}, {}{}\n\n",
        spec.method,
        outcome.url,
        counted(outcome.connections as u64, "connection"),
        if outcome.protocol.is_http2() {
            format!(" of {}", counted(spec.streams as u64, "stream"))
        } else {
            String::new()
        },
        counted(outcome.threads as u64, "thread"),
        seconds(outcome.duration),
        if cancelled { " (ended early)" } else { "" },
    );
    let mut line = |name: &str, text: &str| {
        writeln!(out, "  {name:<10}{text}").expect("writing to memory does not fail");
    };
    line("Rate", &rate(spec, outcome));
    latency(spec, outcome, &mut line);
    if let Some(done) = &outcome.handshakes {
        line("TLS", &handshakes(done));
    }
    line("Replies", &replies(outcome));
    line("Failed", &failures(outcome));
    line("Received", &received(outcome));
    line("Client", &client(outcome));
    warnings(outcome, &mut out);
    out
}

fn rate(spec: &Spec, outcome: &Outcome) -> String {
    let mut text = format!(
        "{} requests/s ({} completed",
        figure(outcome.rate_per_s()),
        grouped(outcome.requests.completed)
    );
    if outcome.requests.resent > 0 {
        text += &format!(", {} resent on a new connection", grouped(outcome.requests.resent));
    }
    if let Some(rate) = spec.rate {
        text += &format!("; {} requests/s wanted", figure(rate.per_second));
    }
    text + ")"
}

fn latency(spec: &Spec, outcome: &Outcome, line: &mut impl FnMut(&str, &str)) {
    let latency = &outcome.latency;
    if latency.is_empty() {
        return line("Latency", "no request was completed");
    }
    let from = if spec.rate.is_some() { "open loop" } else { "closed loop" };
    let summary = format!(
        "mean {}, sd {}, min {}, max {} ({from})",
        time(latency.mean_us()),
        time(latency.sd_us()),
        time(latency.min_us() as f64),
        time(latency.max_us() as f64),
    );
    line("Latency", &summary);
    let shown: Vec<_> = PERCENTILES
        .iter()
        .filter(|(_, percent)| latency.samples_beyond(*percent) >= SAMPLES_BEYOND)
        .collect();
    if shown.is_empty() {
        return line("", "too few requests for percentiles");
    }
    let row = |cell: &dyn Fn(&(&str, f64)) -> String| {
        shown.iter().map(|column| format!("{:>9}", cell(column))).collect::<String>()
    };
    line("", row(&|(name, _)| (*name).to_owned()).trim_end());
    line("", row(&|(_, percent)| time(latency.percentile_us(*percent) as f64)).trim_end());
}

fn handshakes(done: &Handshakes) -> String {
    let mut text =
        format!("handshakes: {} full, {} resumed", grouped(done.full), grouped(done.resumed));
    if let Some(took) = &done.time {
        text += &format!(
            "; mean {}, p50 {}, max {}",
            time(took.mean_us()),
            time(took.percentile_us(50.0) as f64),
            time(took.max_us() as f64)
        );
    }
    text
}

fn replies(outcome: &Outcome) -> String {
    let statuses: Vec<_> = outcome
        .requests
        .status
        .iter()
        .map(|(status, count)| format!("{status}: {}", grouped(*count)))
        .collect();
    if statuses.is_empty() { "none".to_owned() } else { statuses.join(", ") }
}

fn failures(outcome: &Outcome) -> String {
    let kinds: Vec<_> = outcome
        .requests
        .failures
        .by_kind()
        .iter()
        .filter(|(_, count)| *count > 0)
        .map(|(kind, count)| format!("{kind}: {}", grouped(*count)))
        .collect();
    if kinds.is_empty() {
        return "0".to_owned();
    }
    format!("{} ({})", grouped(outcome.requests.failed), kinds.join(", "))
}

fn received(outcome: &Outcome) -> String {
    let per_second = outcome.bytes.read as f64 / outcome.duration.as_secs_f64().max(1e-9);
    format!(
        "{}, {} of them bodies ({}/s)",
        bytes(outcome.bytes.read as f64),
        bytes(outcome.bytes.body as f64),
        bytes(per_second)
    )
}

fn client(outcome: &Outcome) -> String {
    let client = &outcome.client;
    format!(
        "{} of CPU per request ({} user, {} system)",
        time(outcome.cpu_us_per_request()),
        seconds(client.cpu_user),
        seconds(client.cpu_system)
    )
}

fn warnings(outcome: &Outcome, out: &mut String) {
    let mut lines = Vec::new();
    let errors = outcome.error_replies();
    if errors > 0 {
        lines.push(match errors {
            1 => "1 reply was 4xx/5xx".to_owned(),
            _ => format!("{} replies were 4xx/5xx", grouped(errors)),
        });
    }
    if let Some(why) = &outcome.first_failure {
        lines.push(format!("the first failure was {why}"));
        if why.contains("address") {
            lines.push(
                "the system ran out of local ports: use keep-alive, or fewer requests".to_owned(),
            );
        }
    }
    if outcome.gave_up {
        lines.push("the run ended early: no further connection could be made".to_owned());
    }
    if outcome.requests.unsent > 0 {
        lines.push(format!(
            "due but not sent, as all connections were busy: {}; use more connections (-c) or a \
             lower rate (-r)",
            counted(outcome.requests.unsent, "request")
        ));
    }
    if outcome.client.saturated {
        lines.push(
            "the load threads were busy for more than 85 % of the time, so the rate may be limited \
             by the client: use more threads (-t), or put client and server on \
             different cores"
                .to_owned(),
        );
    }
    if !lines.is_empty() {
        out.push('\n');
    }
    for line in lines {
        writeln!(out, "  ! {line}").expect("writing to memory does not fail");
    }
}

/// Formats three significant digits, or all digits of a larger whole number.
fn figure(value: f64) -> String {
    match value {
        v if v >= 99.95 => grouped(v.round() as u64),
        v if v >= 9.995 => format!("{v:.1}"),
        v => format!("{v:.2}"),
    }
}

fn time(us: f64) -> String {
    match us {
        us if us < 999.5 => format!("{} us", figure(us)),
        us if us < 999_500.0 => format!("{} ms", figure(us / 1e3)),
        us => format!("{} s", figure(us / 1e6)),
    }
}

fn seconds(duration: Duration) -> String {
    format!("{} s", figure(duration.as_secs_f64()))
}

fn bytes(count: f64) -> String {
    match count {
        n if n < 999.5 => format!("{n:.0} B"),
        n if n < 999_500.0 => format!("{} kB", figure(n / 1e3)),
        n if n < 999_500_000.0 => format!("{} MB", figure(n / 1e6)),
        n => format!("{} GB", figure(n / 1e9)),
    }
}

fn counted(count: u64, noun: &str) -> String {
    format!("{} {noun}{}", grouped(count), if count == 1 { "" } else { "s" })
}

/// Formats digits in groups of three.
fn grouped(count: u64) -> String {
    let digits = count.to_string();
    let mut out = String::with_capacity(digits.len() * 4 / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_three_digits_and_units() {
        let times = [0.0, 0.5, 12.34, 340.4, 999.6, 4120.0, 1_200_000.0, 90e6].map(time);
        let expected =
            ["0.00 us", "0.50 us", "12.3 us", "340 us", "1.00 ms", "4.12 ms", "1.20 s", "90.0 s"];
        assert_eq!(times, expected);
        assert_eq!([0.0, 1234.0, 5e6, 2e9].map(bytes), ["0 B", "1.23 kB", "5.00 MB", "2.00 GB"]);
    }

    #[test]
    fn digits_are_grouped() {
        assert_eq!([0, 999, 1000, 1_234_567].map(grouped), ["0", "999", "1,000", "1,234,567"]);
        assert_eq!(counted(1, "thread"), "1 thread");
        assert_eq!(counted(1000, "thread"), "1,000 threads");
    }
}
