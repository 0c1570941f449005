//! By what rules a group shares requests out, as its configuration has them.

use std::time::Duration;

use forebay_conf as conf;

/// How requests are shared out among backends.
pub struct Balancing {
    /// The weight of each, whether it is asked only when all others are down, and who may use it.
    pub to: Vec<(u32, bool, conf::Activation)>,
    /// Which of them takes a request.
    pub balance: conf::Balance,
    /// Failures within `fail_timeout` after which one is left out; 0: never.
    pub max_fails: u32,
    /// How long failures are counted, and how long a backend is left out.
    pub fail_timeout: Duration,
}

impl Balancing {
    /// By turns, and as a group has it that sets no key.
    pub fn equal(backends: usize) -> Self {
        let conf::Upstream { balance, max_fails, fail_timeout, .. } =
            conf::Upstream::new(Vec::new());
        Self {
            to: vec![(1, false, conf::Activation::Active); backends],
            balance,
            max_fails,
            fail_timeout,
        }
    }
}

impl From<&conf::Upstream> for Balancing {
    fn from(upstream: &conf::Upstream) -> Self {
        let of = |backend: &conf::Backend| (backend.weight, backend.backup, backend.activation);
        let to = upstream.to.iter().map(of).collect();
        let conf::Upstream { balance, max_fails, fail_timeout, .. } = *upstream;
        Self { to, balance, max_fails, fail_timeout }
    }
}
