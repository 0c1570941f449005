//! Failed requests of a run, by kind.

use serde_json::{Value, json};

/// Failed requests by kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Failures {
    /// The connect failed.
    pub connect: u64,
    /// The connection ended before the reply was complete.
    pub read: u64,
    /// The request could not be written.
    pub write: u64,
    /// No complete reply within the timeout.
    pub timeout: u64,
    /// The reply violated the protocol.
    pub protocol: u64,
    /// The reply did not pass the check.
    pub check: u64,
}

impl Failures {
    pub(crate) fn to_json(&self) -> Value {
        self.by_kind().into_iter().map(|(kind, count)| (kind.to_owned(), json!(count))).collect()
    }

    pub(crate) fn from_json(json: &Value) -> Result<Self, String> {
        let count = |name: &str| json[name].as_u64().ok_or_else(|| name.to_owned());
        Ok(Self {
            connect: count("connect")?,
            read: count("read")?,
            write: count("write")?,
            timeout: count("timeout")?,
            protocol: count("protocol")?,
            check: count("check")?,
        })
    }

    /// Adds the counts of another thread, or of another part of the run.
    pub(crate) fn add(&mut self, other: &Self) {
        self.connect += other.connect;
        self.read += other.read;
        self.write += other.write;
        self.timeout += other.timeout;
        self.protocol += other.protocol;
        self.check += other.check;
    }

    /// Returns the number of failed requests.
    pub fn total(&self) -> u64 {
        self.by_kind().iter().map(|(_, count)| count).sum()
    }

    /// Returns each kind of failure with its count.
    pub fn by_kind(&self) -> [(&'static str, u64); 6] {
        [
            ("connect", self.connect),
            ("read", self.read),
            ("write", self.write),
            ("timeout", self.timeout),
            ("protocol", self.protocol),
            ("check", self.check),
        ]
    }
}
