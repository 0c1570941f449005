//! Serialization of durations as a number of seconds.

use std::time::Duration;

use serde::{Deserialize, Deserializer, Serializer, de};

pub fn serialize<S: Serializer>(time: &Duration, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_f64(time.as_secs_f64())
}

pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
    Duration::try_from_secs_f64(f64::deserialize(from)?).map_err(de::Error::custom)
}

/// Serialization of optional durations.
pub mod option {
    use super::{Deserialize, Deserializer, Duration, Serializer, de};

    pub fn serialize<S: Serializer>(time: &Option<Duration>, to: S) -> Result<S::Ok, S::Error> {
        match time {
            Some(time) => super::serialize(time, to),
            None => to.serialize_none(),
        }
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Duration>, D::Error> {
        let seconds = Option::<f64>::deserialize(from)?;
        seconds.map(Duration::try_from_secs_f64).transpose().map_err(de::Error::custom)
    }
}
