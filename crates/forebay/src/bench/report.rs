//! Report of `forebay bench` for people.

use std::fmt::Write;
use std::time::Duration;

use forebay_load::{
    Failures, GrpcCounts, Handshakes, IterationCounts, Merged, Outcome, PartCounts, Protocol,
    ReplayRun, ServerCounts, SlowCounts, StageCounts, Url,
};

/// Percentiles that the table lists.
const PERCENTILES: [(&str, f64); 6] =
    [("p50", 50.0), ("p75", 75.0), ("p90", 90.0), ("p95", 95.0), ("p99", 99.0), ("p99.9", 99.9)];

/// Minimum number of latencies above a percentile. With fewer, the percentile is not shown.
const SAMPLES_BEYOND: u64 = 10;

/// Width of the terminal, in columns, that the report must fit.
pub const WIDTH: usize = 80;

/// Maximum number of requests of a mixed load that the report lists.
const MOST_PARTS: usize = 20;

/// Column at which the figures start.
pub const INDENT: usize = 12;

/// Returns the report of a run.
pub fn text(outcome: &Outcome) -> String {
    let what = match outcome.parts.len() {
        // Raw bytes have no method.
        0 if outcome.url.starts_with("tcp") => outcome.url.clone(),
        0 => format!("{} {}", outcome.method, outcome.url),
        parts => {
            let server = Url::parse(&outcome.url).map(|url| url.endpoint().to_string());
            let server = match outcome.servers.len() {
                0 => server.unwrap_or_else(|_| outcome.url.clone()),
                servers => counted(servers as u64, "server"),
            };
            let noun = if outcome.iterations.is_empty() { "request" } else { "step" };
            format!("{} on {server}", counted(parts as u64, noun))
        }
    };
    let head = format!(
        "{what}: {}{}, {}, {}{}",
        counted(outcome.connections as u64, "connection"),
        if outcome.protocol.has_streams() || outcome.streams > 1 {
            format!(" of {}", counted(outcome.streams as u64, "stream"))
        } else {
            String::new()
        },
        counted(outcome.threads as u64, "thread"),
        seconds(outcome.duration),
        if outcome.is_interrupted { " (interrupted)" } else { "" },
    );
    let mut out = wrapped(&clean(&head), WIDTH).join("\n") + "\n\n";
    let mut line = |name: &str, text: &str| {
        for (index, part) in wrapped(&clean(text), WIDTH - INDENT).iter().enumerate() {
            let name = if index == 0 { name } else { "" };
            writeln!(out, "  {name:<10}{part}").expect("writing to memory does not fail");
        }
    };
    line("Rate", &rate(outcome));
    latency(outcome, &mut line);
    if let Some(done) = &outcome.handshakes {
        line("TLS", &handshakes(done));
    }
    line("Replies", &replies(outcome));
    if let Some(grpc) = &outcome.requests.grpc {
        line("gRPC", &calls(grpc));
    }
    line("Failed", &failures(outcome));
    if let Some(text) = unanswered(outcome) {
        line("Not sent", &text);
    }
    if let Some(slow) = &outcome.slow {
        line("Slow", &slow_peers(slow));
        line("", &held(outcome));
    }
    line("Received", &received(outcome));
    for (index, counts) in outcome.stages.iter().enumerate() {
        line(if index == 0 { "Stages" } else { "" }, &stage(counts, outcome));
    }
    for (index, counts) in outcome.iterations.iter().enumerate() {
        line(if index == 0 { "Iterations" } else { "" }, &iterations(counts));
    }
    let parts = if outcome.iterations.is_empty() { "Requests" } else { "Steps" };
    for (index, part) in outcome.parts.iter().take(MOST_PARTS).enumerate() {
        line(if index == 0 { parts } else { "" }, &by_url(part));
    }
    for (index, counts) in outcome.servers.iter().take(MOST_PARTS).enumerate() {
        line(if index == 0 { "Servers" } else { "" }, &by_server(counts));
    }
    if outcome.parts.len() > MOST_PARTS {
        line("", &format!("and {} more (--json)", outcome.parts.len() - MOST_PARTS));
    }
    if let Some(run) = &outcome.replay {
        line("Replay", &replay(run));
    }
    line("Client", &client(outcome));
    warnings(outcome, &mut out);
    out
}

/// Returns the reasons to doubt a merged result, and the table of its machines.
pub fn shards(merged: &Merged) -> String {
    let mut out = String::new();
    for doubt in &merged.doubts {
        for (index, part) in wrapped(&clean(doubt), WIDTH - 4).iter().enumerate() {
            let mark = if index == 0 { '!' } else { ' ' };
            writeln!(out, "  {mark} {part}").expect("writing to memory does not fail");
        }
    }
    out.push('\n');
    for shard in &merged.shards {
        let figures = format!(
            "{} requests/s, {} completed, {} failed, {:.0} % of CPU",
            figure(shard.rate_per_s()),
            grouped(shard.completed),
            grouped(shard.failed),
            shard.busy * 100.0,
        );
        // The label has a host name from a result file, which may contain control characters.
        let label = clean(&shard.label());
        writeln!(out, "  {label}\n      {figures}").expect("writing to memory does not fail");
    }
    out
}

/// Returns the rate, the numbers of completed, resent and unfinished requests, and how many were
/// under way at once.
fn rate(outcome: &Outcome) -> String {
    let mut text = format!(
        "{} requests/s ({} completed",
        figure(outcome.rate_per_s()),
        grouped(outcome.requests.completed)
    );
    if outcome.requests.resent > 0 {
        text += &format!(", {} resent", grouped(outcome.requests.resent));
    }
    if outcome.requests.in_flight > 0 {
        text += &format!(", {} in flight at the end", grouped(outcome.requests.in_flight));
    }
    if let Some(rate) = outcome.rate {
        let mean = if outcome.stages.is_empty() { "" } else { " on average" };
        text += &format!("; {} {}/s wanted{mean}", figure(rate.per_second), outcome.unit());
    }
    text + &format!("), {} at once", figure(outcome.concurrency()))
}

/// Prints the latency. Leaves out a percentile if fewer than [`SAMPLES_BEYOND`] requests took
/// longer than this percentile.
fn latency(outcome: &Outcome, line: &mut impl FnMut(&str, &str)) {
    let latency = &outcome.latency;
    if latency.is_empty() {
        return line("Latency", "no request was completed");
    }
    let from = if outcome.is_open_loop() { "open loop" } else { "closed loop" };
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
    // Raw replies have no status, so print only their number.
    if statuses.is_empty() && outcome.protocol == Protocol::Tcp {
        return grouped(outcome.requests.completed + outcome.requests.failures.check);
    }
    if statuses.is_empty() { "none".to_owned() } else { statuses.join(", ") }
}

/// Returns the number of slow connections that the server closed, and percentiles of the time until
/// the close.
fn slow_peers(counts: &SlowCounts) -> String {
    let closed = &counts.closed;
    let mut text = format!("{} closed by the server", grouped(closed.count()));
    if !closed.is_empty() {
        let percentile = |percent| time(closed.percentile_us(percent) as f64);
        let (half, most, last) = (percentile(50.0), percentile(99.0), closed.max_us() as f64);
        text += &format!(" after p50 {half}, p99 {most}, max {}", time(last));
    }
    text
}

/// Returns the number of slow connections that the server did not close.
fn held(outcome: &Outcome) -> String {
    let requests = &outcome.requests;
    let timeouts = requests.failures.timeout;
    format!(
        "{} open until --timeout, {} at the end",
        grouped(timeouts),
        grouped(requests.in_flight)
    )
}

/// Returns the counts of gRPC replies by status, and the number of messages.
fn calls(grpc: &GrpcCounts) -> String {
    let statuses: Vec<_> = grpc
        .status
        .iter()
        .map(|(status, count)| format!("{status}: {}", grouped(*count)))
        .collect();
    let messages = counted(grpc.messages, "message");
    if statuses.is_empty() {
        return format!("no status; {messages} received");
    }
    format!("{}; {messages} received", statuses.join(", "))
}

fn failures(outcome: &Outcome) -> String {
    let kinds = kinds(&outcome.requests.failures);
    if kinds.is_empty() {
        return "0".to_owned();
    }
    format!("{} ({kinds})", grouped(outcome.requests.failed))
}

/// Returns the kinds of failures that occurred, with their counts.
fn kinds(failures: &Failures) -> String {
    let kinds = failures.by_kind();
    let kinds = kinds.iter().filter(|(_, count)| *count > 0);
    let kinds: Vec<_> = kinds.map(|(kind, n)| format!("{kind}: {}", grouped(*n))).collect();
    kinds.join(", ")
}

/// Formats the counts of the iterations of one scenario.
fn iterations(counts: &IterationCounts) -> String {
    let mut text = format!("{:>11}  {}", grouped(counts.completed), counts.name);
    let took = &counts.time;
    if took.samples_beyond(99.0) >= SAMPLES_BEYOND {
        let p50 = time(took.percentile_us(50.0) as f64);
        let p99 = time(took.percentile_us(99.0) as f64);
        text += &format!(" (p50 {p50}, p99 {p99})");
    } else if !took.is_empty() {
        text += &format!(" (mean {})", time(took.mean_us()));
    }
    if counts.failed > 0 {
        text += &format!(", {} failed", grouped(counts.failed));
    }
    if counts.interrupted > 0 {
        text += &format!(", {} interrupted by the end", grouped(counts.interrupted));
    }
    text
}

/// Formats the counts of one stage of a ramp.
fn stage(counts: &StageCounts, outcome: &Outcome) -> String {
    let StageCounts { from, stage, latency, .. } = counts;
    let unit = match outcome.rate {
        Some(_) => format!("{}/s", outcome.unit()),
        None => "connections".to_owned(),
    };
    let value = |value: f64| {
        if value.fract() == 0.0 { grouped(value as u64) } else { figure(value) }
    };
    let mut text = format!("{} to {} {unit}", value(*from), value(stage.target));
    if stage.time.is_zero() {
        return text + " at once";
    }
    text += &format!(
        " in {}: {} requests/s",
        time(stage.time.as_secs_f64() * 1e6),
        figure(counts.rate_per_s())
    );
    if latency.samples_beyond(99.0) >= SAMPLES_BEYOND {
        let [p50, p99] = [50.0, 99.0].map(|percent| time(latency.percentile_us(percent) as f64));
        text += &format!(", p50 {p50}, p99 {p99}");
    } else if !latency.is_empty() {
        text += &format!(", mean {}", time(latency.mean_us()));
    }
    if counts.failed > 0 {
        text += &format!(", {} failed", grouped(counts.failed));
    }
    text
}

/// Formats the counts of one of several servers.
fn by_server(counts: &ServerCounts) -> String {
    let mut text = format!(
        "{:>11}  {}: {} requests/s over {}",
        grouped(counts.completed),
        counts.server,
        figure(counts.rate_per_s()),
        counted(counts.connections as u64, "connection")
    );
    let latency = &counts.latency;
    if latency.samples_beyond(99.0) >= SAMPLES_BEYOND {
        let [p50, p99] = [50.0, 99.0].map(|percent| time(latency.percentile_us(percent) as f64));
        text += &format!(" (p50 {p50}, p99 {p99})");
    }
    if counts.failed > 0 {
        text += &format!(", {} failed ({})", grouped(counts.failed), kinds(&counts.failures));
    }
    if counts.error_replies() > 0 {
        text += &format!(", {} were 4xx/5xx", grouped(counts.error_replies()));
    }
    text
}

/// Formats the counts of one request of a mixed load.
fn by_url(part: &PartCounts) -> String {
    let target = Url::parse(&part.url).map_or(part.url.clone(), |url| url.target().to_owned());
    let name = part.name.clone().unwrap_or_else(|| format!("{} {target}", part.method));
    let mut text = format!("{:>11}  {name}", grouped(part.completed));
    match &part.latency {
        Some(latency) if latency.samples_beyond(99.0) >= SAMPLES_BEYOND => {
            let p50 = time(latency.percentile_us(50.0) as f64);
            let p99 = time(latency.percentile_us(99.0) as f64);
            text += &format!(" (p50 {p50}, p99 {p99})");
        }
        _ if part.completed > 0 => {
            text += &format!(" (mean {})", time(part.mean.as_secs_f64() * 1e6));
        }
        _ => {}
    }
    if part.failed > 0 {
        text += &format!(", {} failed", grouped(part.failed));
        if part.name.is_some() {
            text += &format!(" ({})", kinds(&part.failures));
        }
    }
    text
}

fn replay(run: &ReplayRun) -> String {
    let speed = match run.speed {
        Some(speed) => format!("at {speed} times their pace"),
        None => "not at their own pace".to_owned(),
    };
    let mut text = format!("{} of a log, {speed}", counted(run.requests, "request"));
    if run.skipped > 0 {
        text += &format!("; {} could not be sent", counted(run.skipped, "line"));
    }
    text
}

fn unanswered(outcome: &Outcome) -> Option<String> {
    let unsent = outcome.requests.unsent;
    (unsent > 0).then(|| format!("{} that were due", grouped(unsent)))
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

/// Appends the reasons to doubt the results.
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
    if outcome.requests.resent > 0 {
        lines.push(format!(
            "resent on a new connection, as the server had not processed them: {}",
            counted(outcome.requests.resent, "request")
        ));
    }
    if !outcome.is_interrupted {
        lines.extend(outcome.problems());
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
        for (index, part) in wrapped(&clean(&line), WIDTH - 4).iter().enumerate() {
            let mark = if index == 0 { '!' } else { ' ' };
            writeln!(out, "  {mark} {part}").expect("writing to memory does not fail");
        }
    }
}

/// Breaks text at its spaces into lines of at most `width` characters. A longer word is not broken.
pub fn wrapped(text: &str, width: usize) -> Vec<String> {
    // A short line is not changed, because its spaces may align figures.
    if text.chars().count() <= width {
        return vec![text.to_owned()];
    }
    let mut lines: Vec<String> = Vec::new();
    for word in text.split(' ') {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= width => {
                *line = format!("{line} {word}");
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

/// Replaces control characters and characters that change the direction of text, so that text from
/// a server or a URL cannot control the terminal.
pub fn clean(text: &str) -> String {
    let is_hostile = |c: char| {
        c.is_control()
            || matches!(c, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    text.chars().map(|c| if is_hostile(c) { '\u{fffd}' } else { c }).collect()
}

/// Formats a number with at most two decimals: `3.14`, `31.4`, `314`, `3,142`.
pub fn figure(value: f64) -> String {
    match value {
        v if v >= 99.95 => grouped(v.round() as u64),
        v if v >= 9.995 => format!("{v:.1}"),
        v => format!("{v:.2}"),
    }
}

pub fn time(us: f64) -> String {
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

/// Formats a number with a comma after each group of thousands.
pub fn grouped(count: u64) -> String {
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
    fn lines_are_broken_at_spaces() {
        assert_eq!(wrapped("  a  b", 6), ["  a  b"]);
        assert_eq!(wrapped("one two three", 7), ["one two", "three"]);
        assert_eq!(wrapped("http://a.long.name/ x", 5), ["http://a.long.name/", "x"]);
    }

    #[test]
    fn digits_are_grouped() {
        assert_eq!([0, 999, 1000, 1_234_567].map(grouped), ["0", "999", "1,000", "1,234,567"]);
        assert_eq!(counted(1, "thread"), "1 thread");
        assert_eq!(counted(1000, "thread"), "1,000 threads");
    }
}
