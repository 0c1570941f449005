//! Times in JSON: a number of seconds.

use std::time::Duration;

use serde::{Deserialize, Deserializer, Serializer, de};

pub fn serialize<S: Serializer>(time: &Duration, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_f64(time.as_secs_f64())
}

pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
    Duration::try_from_secs_f64(f64::deserialize(from)?).map_err(de::Error::custom)
}
