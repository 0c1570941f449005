//! Processing times that a server reports in `Server-Timing` fields of its replies
//! (<https://www.w3.org/TR/server-timing/>). Forebay sends these fields with `timing = true`.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use forebay_load::{Spec, fetch};

/// Number of requests that are sent, one after the other.
const REQUESTS: usize = 20;
const PATIENCE: Duration = Duration::from_secs(2);
/// Time after which no further request is sent. These requests cannot be interrupted, so they must
/// not take long.
const LONGEST: Duration = Duration::from_secs(2);
/// Maximum number of steps, and maximum number of characters in a step's name.
const MOST_STEPS: usize = 20;
const LONGEST_NAME: usize = 40;

/// Sends up to `REQUESTS` GET requests. Returns each processing step that the server reports, with
/// its median time in milliseconds, in the order of the server. Returns an empty list if the server
/// reports no steps. Sends nothing if the load has a body, or a method other than GET.
pub fn ask(spec: &Spec) -> Vec<(String, f64)> {
    if spec.method != "GET" || !spec.body.is_empty() {
        return Vec::new();
    }
    let (mut order, mut times) = (Vec::new(), BTreeMap::<String, Vec<f64>>::new());
    let began = Instant::now();
    for _ in 0..REQUESTS {
        if began.elapsed() > LONGEST {
            break;
        }
        let Ok(reply) = fetch(&spec.url, PATIENCE, &spec.headers) else { break };
        let fields =
            reply.headers.iter().filter(|(name, _)| name.eq_ignore_ascii_case("server-timing"));
        let steps: Vec<(String, f64)> = fields.flat_map(|(_, value)| parse(value)).collect();
        if steps.is_empty() {
            break;
        }
        for (name, time) in steps {
            if !times.contains_key(&name) && order.len() < MOST_STEPS {
                order.push(name.clone());
            }
            times.entry(name).or_default().push(time);
        }
    }
    let median = |name: String| {
        let mut times = times.remove(&name)?;
        times.sort_by(f64::total_cmp);
        Some((name, *times.get(times.len() / 2)?))
    };
    order.into_iter().filter_map(median).collect()
}

fn parse(value: &str) -> Vec<(String, f64)> {
    let step = |text: &str| {
        let mut parts = text.split(';').map(str::trim);
        let name = parts.next().filter(|name| !name.is_empty())?;
        let time = parts.find_map(|part| part.strip_prefix("dur="))?;
        let time = time.trim_matches('"').parse::<f64>().ok();
        let time = time.filter(|time| time.is_finite() && *time >= 0.0)?;
        Some((name.chars().take(LONGEST_NAME).collect(), time))
    };
    value.split(',').filter_map(step).take(MOST_STEPS).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_with_a_time_are_read() {
        let steps =
            parse("head;dur=0.5, miss, db;desc=\"<a>\";dur=\"12\", x;dur=-1, y;dur=NaN,;dur=1");
        assert_eq!(steps, [("head".to_owned(), 0.5), ("db".to_owned(), 12.0)]);
    }
}
