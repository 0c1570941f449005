//! By what rules a group shares requests out, as its configuration has them.

use std::time::Duration;

use forebay_conf as conf;

/// How requests are shared out among backends.
pub struct Balancing {
    /// When each of them is asked.
    pub to: Vec<Rank>,
    /// Which of them takes a request.
    pub balance: conf::Balance,
    /// Failures within `fail_timeout` after which one is left out; 0: never.
    pub max_fails: u32,
    /// How long failures are counted.
    pub fail_timeout: Duration,
    /// How long a backend is left out.
    pub recover_time: Duration,
}

/// When a backend is asked.
#[derive(Clone, Copy)]
pub struct Rank {
    /// Its share beside others of the same rank.
    pub weight: u32,
    /// Whether only when all that are no backups are down.
    pub backup: bool,
    /// Others are asked only when all that are nearer are down.
    pub distance: u32,
    /// Which one takes its place while it is out.
    pub redirect: Option<usize>,
    /// Who may use it.
    pub activation: conf::Activation,
}

impl Balancing {
    /// By turns, and as a group has it that sets no key.
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
