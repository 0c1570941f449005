//! Number of failed requests that an experiment allows.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Failed requests that do not count as a problem: a number, or a share of all requests.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
#[serde(try_from = "String", into = "String")]
pub enum MaxFailed {
    /// Number of a configuration's requests that may fail.
    Count(u64),
    /// Share of a configuration's requests that may fail, from 0 to 1.
    Share(f64),
}

impl MaxFailed {
    /// Returns true if `failed` of `total` requests are allowed to fail.
    pub fn allows(self, failed: u64, total: u64) -> bool {
        match self {
            Self::Count(most) => failed <= most,
            Self::Share(most) => failed as f64 <= most * total as f64,
        }
    }
}

impl Default for MaxFailed {
    fn default() -> Self {
        Self::Count(0)
    }
}

impl FromStr for MaxFailed {
    type Err = String;

    /// Parses `10` or `0.1%`.
    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || "write a number of requests, or a percentage such as 0.1%".to_owned();
        let Some(percent) = text.strip_suffix('%') else {
            return text.parse().map(Self::Count).map_err(|_| wrong());
        };
        match percent.trim().parse::<f64>() {
            Ok(percent) if (0.0..=100.0).contains(&percent) => Ok(Self::Share(percent / 100.0)),
            _ => Err(wrong()),
        }
    }
}

impl TryFrom<String> for MaxFailed {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<MaxFailed> for String {
    fn from(most: MaxFailed) -> Self {
        most.to_string()
    }
}

impl fmt::Display for MaxFailed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Count(most) => write!(f, "{most}"),
            Self::Share(most) => write!(f, "{}%", most * 100.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_or_a_share_may_fail() {
        let allows = |text: &str, failed| text.parse::<MaxFailed>().unwrap().allows(failed, 1000);
        assert!(allows("0", 0) && !allows("0", 1) && allows("3", 3) && !allows("3", 4));
        assert!(allows("0.1%", 1) && !allows("0.1%", 2) && allows("100 %", 1000));
        for wrong in ["", "-1", "x", "101%", "nan%", "1.5"] {
            assert!(wrong.parse::<MaxFailed>().is_err(), "{wrong}");
        }
        assert_eq!("0.5%".parse::<MaxFailed>().unwrap().to_string(), "0.5%");
    }
}
