//! Rules that distribute a group's requests, from its configuration.

use std::time::Duration;

use forebay_conf as conf;

/// Rules that distribute requests among backends.
pub struct Balancing {
    /// Rank of each backend.
    pub to: Vec<Rank>,
    /// Method of selection.
    pub balance: conf::Balance,
    /// Failures within `fail_timeout` that exclude a backend; 0: never.
    pub max_fails: u32,
    /// Time for which failures count.
    pub fail_timeout: Duration,
    /// Time for which a backend is excluded.
    pub recover_time: Duration,
}

/// Order in which a backend is used.
#[derive(Clone, Copy)]
pub struct Rank {
    /// Share of requests among backends of equal rank.
    pub weight: u32,
    /// True if it is used only when all non-backups are down.
    pub backup: bool,
    /// Backends with a larger distance are used only when all nearer ones are down.
    pub distance: u32,
    /// Backend that replaces it while it is excluded.
    pub redirect: Option<usize>,
    /// Clients that may use it.
    pub activation: conf::Activation,
}

impl Balancing {
    /// Creates the rules of a group with default values and equal backends.
    pub fn equal(backends: usize) -> Self {
        let activation = conf::Activation::Active;
        let rank = Rank { weight: 1, backup: false, distance: 0, redirect: None, activation };
        Self { to: vec![rank; backends], ..Self::from(&conf::Upstream::new(Vec::new())) }
    }
}

impl From<&conf::Upstream> for Balancing {
    fn from(upstream: &conf::Upstream) -> Self {
        let rank = |backend: &conf::Backend| Rank {
            weight: backend.weight,
            backup: backend.backup,
            distance: backend.distance,
            redirect: backend.redirect,
            activation: backend.activation,
        };
        let to = upstream.to.iter().map(rank).collect();
        let conf::Upstream { balance, max_fails, fail_timeout, recover_time, .. } = *upstream;
        Self { to, balance, max_fails, fail_timeout, recover_time }
    }
}
