//! Sends the metrics of `/metrics` to an OpenTelemetry collector, with OTLP in JSON.
//!
//! The document is made from the text of `/metrics`, so both have the same values under the same
//! names. Counters and histograms count from the start of the process (cumulative).

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::SystemTime;

use forebay_conf::{self as conf, Level};
use forebay_net::collector::{Collector, LAST_EXPORT, append_text};

use crate::admin::Meters;
use crate::metrics::{Kind, METRICS};

/// The export of metrics. It ends when this is dropped.
pub struct MetricsExport {
    settings: conf::Metrics,
    /// When it is dropped, the thread exports once more, and ends.
    end: Option<Sender<()>>,
    ended: Receiver<()>,
}

impl MetricsExport {
    /// Starts the thread that exports metrics. It calls `report` when exports begin to fail, and
    /// when they succeed again.
    ///
    /// # Errors
    /// Fails if a file of the collector's TLS settings cannot be used, or without a thread.
    pub fn start(
        settings: &conf::Metrics,
        meters: Arc<Meters>,
        report: impl Fn(Level, &str) + Send + 'static,
    ) -> io::Result<Self> {
        let mut collector = Collector::new(&settings.collector, "metrics", Box::new(report))?;
        let interval = settings.interval;
        let (end, ending) = channel();
        let (has_ended, ended) = channel();
        let thread = std::thread::Builder::new().name("metrics".into());
        thread.spawn(move || {
            let started = nanoseconds(SystemTime::now() - meters.started.elapsed());
            loop {
                let is_last = ending.recv_timeout(interval) != Err(RecvTimeoutError::Timeout);
                let times = (started, nanoseconds(SystemTime::now()));
                collector.post(&encode(&collector, &meters.metrics(), times));
                if is_last {
                    drop::<Sender<()>>(has_ended);
                    return;
                }
            }
        })?;
        Ok(Self { settings: settings.clone(), end: Some(end), ended })
    }

    pub fn settings(&self) -> &conf::Metrics {
        &self.settings
    }

    /// Exports once more, and waits for the end of the thread for a limited time.
    pub fn finish(mut self) {
        self.end = None;
        let _ = self.ended.recv_timeout(LAST_EXPORT);
    }
}

fn nanoseconds(time: SystemTime) -> u64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

/// The values of one metric, or the parts of its histograms, by their labels.
#[derive(Default)]
struct Family<'t> {
    points: Vec<(Vec<(&'t str, String)>, f64)>,
    histograms: BTreeMap<Vec<(&'t str, String)>, Histogram>,
}

#[derive(Default)]
struct Histogram {
    /// The end of each bucket, and the number of values up to it.
    buckets: Vec<(String, u64)>,
    sum: f64,
}

/// Returns the document for a text of `/metrics`.
fn encode(collector: &Collector, text: &str, times: (u64, u64)) -> Vec<u8> {
    let mut families: BTreeMap<&str, Family<'_>> = BTreeMap::new();
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    for (name, labels, value) in lines.filter_map(parse) {
        add(&mut families, name, labels, value);
    }
    let mut out = b"{\"resourceMetrics\":[{".to_vec();
    collector.append_resource(&mut out);
    out.extend_from_slice(b",\"scopeMetrics\":[{\"scope\":{\"name\":\"forebay\"},\"metrics\":[");
    let mut is_first = true;
    for metric in METRICS {
        let Some(family) = families.get(metric.name) else { continue };
        if !std::mem::take(&mut is_first) {
            out.push(b',');
        }
        let mut head = String::new();
        let (name, help) = (metric.name, serde_json::Value::from(metric.help));
        let _ = write!(head, "{{\"name\":\"{name}\",\"description\":{help},");
        head += match metric.kind {
            Kind::Gauge => "\"gauge\":{",
            Kind::Counter => "\"sum\":{\"aggregationTemporality\":2,\"isMonotonic\":true,",
            Kind::Histogram => "\"histogram\":{\"aggregationTemporality\":2,",
        };
        head += "\"dataPoints\":[";
        out.extend_from_slice(head.as_bytes());
        let is_gauge = metric.kind == Kind::Gauge;
        for (number, (labels, value)) in family.points.iter().enumerate() {
            begin_point(number, labels, (times, is_gauge), &mut out);
            out.extend_from_slice(format!(",\"asDouble\":{value}}}").as_bytes());
        }
        for (number, (labels, histogram)) in family.histograms.iter().enumerate() {
            begin_point(number, labels, (times, false), &mut out);
            append_histogram(histogram, &mut out);
        }
        out.extend_from_slice(b"]}}");
    }
    out.extend_from_slice(b"]}]}]}");
    out
}

/// The name, the labels and the value of a line.
type Line<'a> = (&'a str, Vec<(&'a str, String)>, f64);

/// Reads a line of `/metrics`: the name, the labels and the value.
fn parse(line: &str) -> Option<Line<'_>> {
    let (mut rest, value) = line.rsplit_once(' ')?;
    let value = value.parse().ok().filter(|value: &f64| value.is_finite())?;
    let Some((name, labels)) = rest.split_once('{') else { return Some((rest, vec![], value)) };
    rest = labels;
    let mut found = Vec::new();
    while let Some((label, after)) = rest.split_once("=\"") {
        let mut text = String::new();
        let mut characters = after.char_indices();
        let end = loop {
            match characters.next()? {
                (at, '"') => break at + 1,
                (_, '\\') => text.push(characters.next()?.1),
                (_, other) => text.push(other),
            }
        };
        found.push((label.trim_start_matches(','), text));
        rest = &after[end..];
    }
    Some((name, found, value))
}

/// Adds a value to its metric. A line of a histogram has the name of the metric with an end.
fn add<'t>(
    families: &mut BTreeMap<&'t str, Family<'t>>,
    name: &'t str,
    mut labels: Vec<(&'t str, String)>,
    value: f64,
) {
    let part = ["_bucket", "_sum", "_count"].iter().find_map(|end| {
        let metric = METRICS.iter().find(|metric| Some(metric.name) == name.strip_suffix(end))?;
        (metric.kind == Kind::Histogram).then_some((metric.name, *end))
    });
    let Some((name, part)) = part else {
        return families.entry(name).or_default().points.push((labels, value));
    };
    let end = labels.iter().position(|(label, _)| *label == "le").map(|at| labels.remove(at).1);
    let histogram = families.entry(name).or_default().histograms.entry(labels).or_default();
    match (part, end) {
        ("_bucket", Some(end)) => histogram.buckets.push((end, value as u64)),
        ("_sum", _) => histogram.sum = value,
        // It equals the last bucket.
        _ => {}
    }
}

/// Begins a point after its comma, up to its value. `is_gauge` is true for a value without a start.
fn begin_point(
    number: usize,
    labels: &[(&str, String)],
    ((start, now), is_gauge): ((u64, u64), bool),
    out: &mut Vec<u8>,
) {
    out.extend_from_slice(if number > 0 { b",{\"attributes\":[" } else { b"{\"attributes\":[" });
    for (number, (label, value)) in labels.iter().enumerate() {
        append_text(label, value, number == 0, out);
    }
    out.extend_from_slice(b"]");
    if !is_gauge {
        out.extend_from_slice(format!(",\"startTimeUnixNano\":\"{start}\"").as_bytes());
    }
    out.extend_from_slice(format!(",\"timeUnixNano\":\"{now}\"").as_bytes());
}

/// Appends the counts of a histogram, which OTLP wants for each bucket alone, and ends the point.
fn append_histogram(Histogram { buckets, sum }: &Histogram, out: &mut Vec<u8>) {
    let count = buckets.last().map_or(0, |(_, count)| *count);
    let before = std::iter::once(0).chain(buckets.iter().map(|(_, count)| *count));
    let counts = buckets.iter().zip(before);
    let counts: Vec<_> = counts
        .map(|((_, count), before)| format!("\"{}\"", count.saturating_sub(before)))
        .collect();
    let ends: Vec<_> = buckets.iter().map(|(end, _)| &**end).filter(|end| *end != "+Inf").collect();
    let (counts, ends) = (counts.join(","), ends.join(","));
    let text = format!(
        ",\"count\":\"{count}\",\"sum\":{sum},\"bucketCounts\":[{counts}],\
         \"explicitBounds\":[{ends}]}}"
    );
    out.extend_from_slice(text.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_keep_every_character() {
        let line = "a{x=\"1\",y=\"q \\\"}{=\\\\ \u{e4}\"} 2.5";
        let labels = vec![("x", "1".to_owned()), ("y", "q \"}{=\\ \u{e4}".to_owned())];
        assert_eq!(parse(line), Some(("a", labels, 2.5)));
        assert_eq!(parse("a 1"), Some(("a", vec![], 1.0)));
        for broken in ["", "a", "a x", "a NaN", "a{x=\"1 2", "a +Inf"] {
            assert_eq!(parse(broken), None, "{broken}");
        }
    }
}
