//! Latencies in the JSON of a result.

use forebay_stat::Latency;
use serde_json::{Value, json};

/// Percentiles in the report, with their names in JSON.
const PERCENTILES: [(&str, f64); 6] =
    [("p50", 50.0), ("p75", 75.0), ("p90", 90.0), ("p95", 95.0), ("p99", 99.0), ("p99_9", 99.9)];

/// Returns mean, standard deviation, minimum, maximum and percentiles. Each of them is null if
/// there are no latencies.
pub(crate) fn latency_json(latency: &Latency) -> Value {
    let known = |value: Value| if latency.is_empty() { Value::Null } else { value };
    let mut object = serde_json::Map::new();
    object.insert("mean".to_owned(), known(json!(latency.mean_us())));
    object.insert("sd".to_owned(), known(json!(latency.sd_us())));
    object.insert("min".to_owned(), known(json!(latency.min_us())));
    object.insert("max".to_owned(), known(json!(latency.max_us())));
    for (name, percent) in PERCENTILES {
        object.insert(name.to_owned(), known(json!(latency.percentile_us(percent))));
    }
    Value::Object(object)
}
