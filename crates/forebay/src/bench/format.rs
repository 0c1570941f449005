//! Reports in the formats of other load generators, for scripts that read these formats.
//!
//! Figures that Forebay does not measure are left out. As in each of these programs, a failed
//! request has no latency.

use std::fmt::Write;
use std::time::Duration;

use clap::ValueEnum;
use forebay_load::{Endpoint, Outcome, Spec};

/// Programs in whose format a report can be printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// wrk, with the option --latency
    Wrk,
    /// ApacheBench
    Ab,
    /// siege
    Siege,
    /// h2load
    H2load,
    /// oha, without its terminal interface
    Oha,
}

/// Returns the report of a run in the format of another program.
pub fn text(format: Format, spec: &Spec, outcome: &Outcome) -> String {
    let mut out = String::new();
    // Writing to a string does not fail.
    let _ = match format {
        Format::Wrk => wrk(&mut out, spec, outcome),
        Format::Ab => ab(&mut out, spec, outcome),
        Format::Siege => siege(&mut out, outcome),
        Format::H2load => h2load(&mut out, outcome),
        Format::Oha => oha(&mut out, outcome),
    };
    out
}

/// Appends the results as wrk prints them.
fn wrk(out: &mut String, spec: &Spec, outcome: &Outcome) -> std::fmt::Result {
    let Outcome { requests, latency, .. } = outcome;
    let unit = |us: f64| match us {
        us if us < 1e3 => format!("{us:.2}us"),
        us if us < 1e6 => format!("{:.2}ms", us / 1e3),
        us => format!("{:.2}s", us / 1e6),
    };
    let thousands = |rate: f64| match rate {
        rate if rate < 1e3 => format!("{rate:.2}"),
        rate if rate < 1e6 => format!("{:.2}k", rate / 1e3),
        rate => format!("{:.2}M", rate / 1e6),
    };
    let seconds = outcome.duration.as_secs_f64();
    writeln!(out, "Running {seconds:.0}s test @ {}", outcome.url)?;
    writeln!(out, "  {} threads and {} connections", outcome.threads, spec.connections)?;
    writeln!(out, "  Thread Stats   Avg      Stdev     Max   +/- Stdev")?;
    let (mean, sd) = (latency.mean_us(), latency.sd_us());
    let within = latency.share_between(mean - sd, mean + sd) * 100.0;
    let max = unit(latency.max_us() as f64);
    writeln!(out, "    Latency {:>9} {:>9} {max:>9} {within:>8.2}%", unit(mean), unit(sd))?;
    let rates = Rates::of(outcome);
    writeln!(
        out,
        "    Req/Sec {:>9} {:>9} {:>9} {:>8.2}%",
        thousands(rates.mean),
        thousands(rates.sd),
        thousands(rates.max),
        rates.within * 100.0
    )?;
    writeln!(out, "  Latency Distribution")?;
    for percent in [50.0, 75.0, 90.0, 99.0] {
        let value = unit(latency.percentile_us(percent) as f64);
        writeln!(out, "     {percent:.0}% {value:>9}")?;
    }
    let read = binary(outcome.bytes.read as f64);
    writeln!(out, "  {} requests in {seconds:.2}s, {read} read", requests.completed)?;
    let failures = &requests.failures;
    if requests.failed > 0 {
        writeln!(
            out,
            "  Socket errors: connect {}, read {}, write {}, timeout {}",
            failures.connect,
            failures.read + failures.protocol + failures.check,
            failures.write,
            failures.timeout
        )?;
    }
    let errors = outcome.error_replies();
    if errors > 0 {
        writeln!(out, "  Non-2xx or 3xx responses: {errors}")?;
    }
    writeln!(out, "Requests/sec: {:>10.2}", outcome.rate_per_s())?;
    writeln!(out, "Transfer/sec: {:>10}", binary(per_second(outcome.bytes.read, outcome)))
}

/// Appends the results as ab prints them.
fn ab(out: &mut String, spec: &Spec, outcome: &Outcome) -> std::fmt::Result {
    let Outcome { requests, latency, bytes, .. } = outcome;
    let (host, port) = match spec.url.endpoint() {
        Endpoint::Tcp { host, port } => (host.clone(), port.to_string()),
        Endpoint::Unix(path) => (path.display().to_string(), String::new()),
    };
    let mut line = |name: &str, value: String| writeln!(out, "{name:<23} {value}");
    let ms = |us: f64| us / 1e3;
    line("Server Hostname:", host)?;
    line("Server Port:", format!("{port}\n"))?;
    line("Document Path:", spec.url.target().to_owned())?;
    let count = requests.completed.max(1);
    let each = (bytes.body + count / 2) / count;
    line("Document Length:", format!("{each} bytes\n"))?;
    line("Concurrency Level:", spec.connections.to_string())?;
    let seconds = outcome.duration.as_secs_f64();
    line("Time taken for tests:", format!("{seconds:.3} seconds"))?;
    line("Complete requests:", requests.completed.to_string())?;
    line("Failed requests:", requests.failed.to_string())?;
    let errors = outcome.error_replies();
    if errors > 0 {
        line("Non-2xx responses:", errors.to_string())?;
    }
    line("Total transferred:", format!("{} bytes", bytes.read))?;
    line("HTML transferred:", format!("{} bytes", bytes.body))?;
    let rate = outcome.rate_per_s();
    line("Requests per second:", format!("{rate:.2} [#/sec] (mean)"))?;
    let all = if rate > 0.0 { 1e3 / rate } else { 0.0 };
    let one = all * spec.connections as f64;
    line("Time per request:", format!("{one:.3} [ms] (mean)"))?;
    line("Time per request:", format!("{all:.3} [ms] (mean, across all concurrent requests)"))?;
    let transfer = per_second(bytes.read, outcome) / 1024.0;
    line("Transfer rate:", format!("{transfer:.2} [Kbytes/sec] received\n"))?;
    // ab also has rows for parts of this time, which are not measured.
    writeln!(out, "Connection Times (ms)\n{:>32}", "min  mean[+/-sd] median   max")?;
    writeln!(
        out,
        "Total:    {:>7.0} {:>6.0} {:>6.1} {:>6.0} {:>6.0}\n",
        ms(latency.min_us() as f64),
        ms(latency.mean_us()),
        ms(latency.sd_us()),
        ms(latency.percentile_us(50.0) as f64),
        ms(latency.max_us() as f64)
    )?;
    writeln!(out, "Percentage of the requests served within a certain time (ms)")?;
    for percent in [50.0, 66.0, 75.0, 80.0, 90.0, 95.0, 98.0, 99.0] {
        let value = ms(latency.percentile_us(percent) as f64);
        writeln!(out, "  {percent:.0}% {value:>6.0}")?;
    }
    writeln!(out, " 100% {:>6.0} (longest request)", ms(latency.max_us() as f64))
}

/// Appends the results as siege prints them. For siege, an error reply is a failed transaction.
fn siege(out: &mut String, outcome: &Outcome) -> std::fmt::Result {
    let Outcome { requests, latency, bytes, .. } = outcome;
    let tried = requests.completed + requests.failed;
    let successful = requests.completed.saturating_sub(outcome.error_replies());
    let available = 100.0 * successful as f64 / tried.max(1) as f64;
    let seconds = |us: f64| us / 1e6;
    let mega = |bytes: f64| bytes / f64::from(1 << 20);
    // siege divides the sum of all transaction times by the elapsed time, which is the same number.
    let concurrency = outcome.concurrency();
    for (name, value) in [
        ("Transactions:", format!("{successful:>12} hits")),
        ("Availability:", format!("{available:>12.2} %")),
        ("Elapsed time:", format!("{:>12.2} secs", outcome.duration.as_secs_f64())),
        ("Data transferred:", format!("{:>12.2} MB", mega(bytes.body as f64))),
        ("Response time:", format!("{:>12.2} secs", seconds(latency.mean_us()))),
        ("Transaction rate:", format!("{:>12.2} trans/sec", per_second(successful, outcome))),
        ("Throughput:", format!("{:>12.2} MB/sec", mega(per_second(bytes.body, outcome)))),
        ("Concurrency:", format!("{concurrency:>12.2}")),
        ("Successful transactions:", format!("{successful:>12}")),
        ("Failed transactions:", format!("{:>12}", tried - successful)),
        ("Longest transaction:", format!("{:>12.2}", seconds(latency.max_us() as f64))),
        ("Shortest transaction:", format!("{:>12.2}", seconds(latency.min_us() as f64))),
    ] {
        writeln!(out, "{name:<24}{value}")?;
    }
    Ok(())
}

/// Appends the results as h2load prints them.
fn h2load(out: &mut String, outcome: &Outcome) -> std::fmt::Result {
    let Outcome { requests, latency, bytes, .. } = outcome;
    let unit = |us: f64| match us {
        us if us < 1e3 => format!("{us:.0}us"),
        us if us < 1e6 => format!("{:.2}ms", us / 1e3),
        us => format!("{:.2}s", us / 1e6),
    };
    let class = |first: u16| -> u64 {
        requests.status.range(first..first + 100).map(|(_, count)| count).sum()
    };
    let succeeded = class(200) + class(300);
    let done = requests.completed + requests.failed;
    writeln!(
        out,
        "\nfinished in {:.2}s, {:.2} req/s, {}/s",
        outcome.duration.as_secs_f64(),
        outcome.rate_per_s(),
        binary(per_second(bytes.read, outcome))
    )?;
    writeln!(
        out,
        "requests: {} total, {} started, {done} done, {succeeded} succeeded, {} failed, {} errored, \
         {} timeout",
        done + requests.in_flight,
        requests.sent,
        done - succeeded,
        requests.failed - requests.failures.timeout,
        requests.failures.timeout
    )?;
    let [two, three, four, five] = [200, 300, 400, 500].map(class);
    writeln!(out, "status codes: {two} 2xx, {three} 3xx, {four} 4xx, {five} 5xx")?;
    let (read, body) = (bytes.read, bytes.body);
    writeln!(
        out,
        "traffic: {} ({read}) total, {} ({body}) data",
        binary(read as f64),
        binary(body as f64)
    )?;
    writeln!(out, "                     min         max         mean         sd        +/- sd")?;
    let (mean, sd) = (latency.mean_us(), latency.sd_us());
    let within = latency.share_between(mean - sd, mean + sd) * 100.0;
    let (min, max) = (unit(latency.min_us() as f64), unit(latency.max_us() as f64));
    writeln!(
        out,
        "time for request: {min:>10}  {max:>10}  {:>10}  {:>10}  {within:>7.2}%",
        unit(mean),
        unit(sd)
    )
}

/// Appends the results as oha prints them.
fn oha(out: &mut String, outcome: &Outcome) -> std::fmt::Result {
    let Outcome { requests, latency, bytes, .. } = outcome;
    let tried = (requests.completed + requests.failed).max(1) as f64;
    let seconds = |us: f64| us / 1e6;
    writeln!(out, "Summary:")?;
    writeln!(out, "  Success rate:\t{:.2}%", 100.0 * requests.completed as f64 / tried)?;
    for (name, value) in [
        ("Total", outcome.duration.as_secs_f64()),
        ("Slowest", seconds(latency.max_us() as f64)),
        ("Fastest", seconds(latency.min_us() as f64)),
        ("Average", seconds(latency.mean_us())),
    ] {
        writeln!(out, "  {name}:\t{value:.4} sec")?;
    }
    writeln!(out, "  Requests/sec:\t{:.4}\n", outcome.rate_per_s())?;
    writeln!(out, "  Total data:\t{}", binary(bytes.body as f64))?;
    let each = bytes.body as f64 / requests.completed.max(1) as f64;
    writeln!(out, "  Size/request:\t{}", binary(each))?;
    writeln!(out, "  Size/sec:\t{}\n", binary(per_second(bytes.body, outcome)))?;
    writeln!(out, "Response time distribution:")?;
    for percent in [10.0, 25.0, 50.0, 75.0, 90.0, 95.0, 99.0, 99.9, 99.99] {
        let value = seconds(latency.percentile_us(percent) as f64);
        writeln!(out, "  {percent:.2}% in {value:.4} sec")?;
    }
    writeln!(out, "\nStatus code distribution:")?;
    for (status, count) in &requests.status {
        writeln!(out, "  [{status}] {count} responses")?;
    }
    if requests.failed > 0 {
        writeln!(out, "\nError distribution:")?;
    }
    for (kind, count) in requests.failures.by_kind().into_iter().filter(|(_, count)| *count > 0) {
        writeln!(out, "  [{count}] {kind}")?;
    }
    Ok(())
}

/// Statistics of the rate of one load thread, in requests per second. Each second of the run is one
/// sample.
struct Rates {
    mean: f64,
    sd: f64,
    max: f64,
    /// Share of the seconds whose rate is within one standard deviation of the mean.
    within: f64,
}

impl Rates {
    fn of(outcome: &Outcome) -> Self {
        let threads = outcome.threads.max(1) as f64;
        // The last second is left out, because it is not complete.
        let whole = outcome.series.split_last().map_or(&[][..], |(_, whole)| whole);
        let rates: Vec<f64> =
            whole.iter().map(|second| second.completed as f64 / threads).collect();
        if rates.is_empty() {
            let mean = outcome.rate_per_s() / threads;
            return Self { mean, sd: 0.0, max: mean, within: 1.0 };
        }
        let count = rates.len() as f64;
        let mean = rates.iter().sum::<f64>() / count;
        let sd = (rates.iter().map(|rate| (rate - mean).powi(2)).sum::<f64>() / count).sqrt();
        let near = rates.iter().filter(|rate| (**rate - mean).abs() <= sd).count();
        let max = rates.iter().copied().fold(0.0, f64::max);
        Self { mean, sd, max, within: near as f64 / count }
    }
}

fn per_second(bytes: u64, outcome: &Outcome) -> f64 {
    bytes as f64 / outcome.duration.max(Duration::from_nanos(1)).as_secs_f64()
}

/// Formats bytes in powers of 1024, as wrk, h2load and oha do.
fn binary(bytes: f64) -> String {
    const K: f64 = 1024.0;
    match bytes {
        bytes if bytes < K => format!("{bytes:.2}B"),
        bytes if bytes < K * K => format!("{:.2}KB", bytes / K),
        bytes if bytes < K * K * K => format!("{:.2}MB", bytes / K / K),
        bytes => format!("{:.2}GB", bytes / K / K / K),
    }
}

#[cfg(test)]
mod tests {
    use forebay_load::{Bytes, Failures, Requests, Second, Url};

    use super::*;

    fn outcome() -> Outcome {
        let mut outcome = Outcome { url: "http://h:8080/x".to_owned(), ..Outcome::default() };
        (1..=1000).for_each(|us| outcome.latency.record_us(us * 10));
        outcome.duration = Duration::from_secs(2);
        outcome.threads = 2;
        outcome.requests = Requests {
            sent: 1003,
            completed: 1000,
            failed: 3,
            failures: Failures { timeout: 2, read: 1, ..Failures::default() },
            status: [(200, 990), (503, 10)].into(),
            ..Requests::default()
        };
        outcome.bytes = Bytes { read: 4 << 20, body: 2 << 20 };
        let second = |completed, failed| Second { completed, failed, ..Second::default() };
        outcome.series = vec![second(400, 0), second(600, 3)];
        outcome
    }

    /// Replaces each run of white space by one space.
    fn words(text: &str) -> String {
        text.split_whitespace().collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn every_form_has_the_lines_that_scripts_look_for() {
        let spec = Spec { connections: 4, ..Spec::new(Url::parse("http://h:8080/x").unwrap()) };
        let outcome = outcome();
        let has = |format, lines: &[&str]| {
            let report = text(format, &spec, &outcome);
            for line in lines {
                assert!(words(&report).contains(line), "{format:?} lacks {line:?}:\n{report}");
            }
        };
        has(
            Format::Wrk,
            &[
                "Latency 5.0",
                "50% 5.00ms 75% 7.50ms 90% 9.0",
                "1000 requests in 2.00s, 4.00MB read",
                "Socket errors: connect 0, read 1, write 0, timeout 2",
                "Non-2xx or 3xx responses: 10",
                "Requests/sec: 500.00 Transfer/sec: 2.00MB",
            ],
        );
        has(
            Format::Ab,
            &[
                "Complete requests: 1000 Failed requests: 3 Non-2xx responses: 10",
                "Requests per second: 500.00 [#/sec] (mean)",
                "Time per request: 8.000 [ms] (mean)",
                "Connection Times (ms) min mean[+/-sd] median max Total: 0 5 2.9 5 10",
                "100% 10 (longest request)",
            ],
        );
        has(
            Format::Siege,
            &[
                "Transactions: 990 hits Availability: 98.70 %",
                "Transaction rate: 495.00 trans/sec",
                "Concurrency: 2.50 Successful transactions: 990 Failed transactions: 13",
                "Longest transaction: 0.01",
            ],
        );
        has(
            Format::H2load,
            &[
                "finished in 2.00s, 500.00 req/s, 2.00MB/s",
                "1003 total, 1003 started, 1003 done, 990 succeeded, 13 failed, 1 errored, 2 timeout",
                "status codes: 990 2xx, 0 3xx, 0 4xx, 10 5xx",
                "time for request:",
            ],
        );
        has(
            Format::Oha,
            &[
                "Success rate: 99.70%",
                "Requests/sec: 500.0000",
                "99.00% in 0.0099 sec",
                "[503] 10 responses",
                "[2] timeout",
            ],
        );
    }

    #[test]
    fn nothing_completed_is_no_panic() {
        let spec = Spec::new(Url::parse("http+unix:///s:/").unwrap());
        for format in Format::value_variants() {
            assert!(!text(*format, &spec, &Outcome::default()).contains("NaN"), "{format:?}");
        }
    }
}
