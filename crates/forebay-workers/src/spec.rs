//! What an application is and how its workers are kept.

use crate::error::StartError;
use std::path::PathBuf;
use std::time::Duration;

/// One application and the rules for its workers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AppSpec {
    /// The name in logs and in status.
    pub name: String,
    /// What the workers run.
    pub kind: Kind,
    /// How many workers there are.
    pub workers: Workers,
    /// A worker is replaced after this many requests (each one up to a tenth earlier, so that they
    /// do not all go at once).
    pub max_requests: Option<u64>,
    /// A request that takes longer ends its worker, with the processes that the script started.
    pub request_timeout: Duration,
    /// How many requests may wait for a worker; one more is refused.
    pub queue: usize,
    /// How long a request waits for a worker.
    pub queue_timeout: Duration,
    /// Environment variables of the workers, besides PATH, TZ, PERL5LIB and LD_LIBRARY_PATH, which
    /// they inherit.
    pub env: Vec<(String, String)>,
    /// A worker whose resident memory exceeds this many bytes is replaced after its request.
    pub max_memory: Option<u64>,
    /// Workers above `workers.min` end when idle for this long.
    pub idle_timeout: Duration,
}

impl AppSpec {
    /// An application with the defaults: 4 workers, no recycling, 60 s per request, 1,000 waiting
    /// requests for up to 30 s, 60 s idle.
    pub fn new(name: impl Into<String>, kind: Kind) -> AppSpec {
        AppSpec {
            name: name.into(),
            kind,
            workers: Workers { min: 4, max: 4 },
            max_requests: None,
            request_timeout: Duration::from_secs(60),
            queue: 1000,
            queue_timeout: Duration::from_secs(30),
            env: Vec::new(),
            max_memory: None,
            idle_timeout: Duration::from_secs(60),
        }
    }

    /// What would fail whatever is started.
    pub(crate) fn check(&self) -> Result<(), StartError> {
        let Kind::PerlCgi { dir, .. } = &self.kind;
        if !dir.is_dir() {
            return Err(StartError(format!(
                "app {}: {} is no directory; set dir to the one with the scripts",
                self.name,
                dir.display()
            )));
        }
        if self.workers.max == 0 || self.workers.min > self.workers.max {
            return Err(StartError(format!(
                "app {}: workers {} to {}: the maximum must be at least 1 and not below the minimum",
                self.name, self.workers.min, self.workers.max
            )));
        }
        Ok(())
    }
}

/// What the workers run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kind {
    /// CGI scripts written in Perl, in warm interpreters.
    PerlCgi {
        /// Where the scripts are; the workers' directory.
        dir: PathBuf,
        /// How the scripts are run.
        mode: PerlMode,
    },
}

/// How Perl scripts are run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PerlMode {
    /// As `ModPerl::Registry`: compiled once, run in place, without a change of directory.
    Registry,
    /// As `ModPerl::RegistryPrefork`: the same, in the directory of the script.
    RegistryPrefork,
}

/// How many workers there are: always `min`, more on demand up to `max`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Workers {
    /// Kept running at all times.
    pub min: usize,
    /// Never more than this, except while one replaces another.
    pub max: usize,
}
