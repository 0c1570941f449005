//! Rules that distribute a group's requests, from its configuration.

use std::time::Duration;

use forebay_conf as conf;

/// Rules that distribute requests among backends.
pub struct Balancing {
    /// Rank of each backend.
    pub to: Vec<Rank>,
    /// Method of selection.
    pub balance: conf::Balance,
    /// Number of failures within `fail_timeout` that exclude a backend. 0 never excludes a backend.
    pub max_fails: u32,
    /// Time for which failures count.
    pub fail_timeout: Duration,
    /// Time for which a backend is excluded.
    pub recover_time: Duration,
    /// Retries that a reply's status causes.
    pub retry: Option<conf::StatusRetry>,
    /// Time until a backend that has come back has its full weight.
    pub slow_start: Option<Duration>,
}

/// Settings that decide when a backend is selected.
#[derive(Clone, Copy)]
pub struct Rank {
    /// Relative share of the requests among backends of the same tier.
    pub weight: u32,
    /// True for a backup: it is used only if all backends that are not backups are down.
    pub backup: bool,
    /// Distance of the backend. A backend is used only if all backends with a smaller distance are
    /// down.
    pub distance: u32,
    /// Backend that takes over while this backend is excluded.
    pub redirect: Option<usize>,
    /// Clients that may use this backend: all, those with a session on it, or none.
    pub activation: conf::Activation,
    /// Hash of the backend's address.
    pub identity: u64,
}

/// Returns a hash that is the same in every process (FNV-1a, 64 bits).
pub fn stable_hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

/// Returns the score of a backend for a key. The backend with the highest score for a key takes
/// this key (weighted rendezvous hashing). If a backend is removed, only the keys of this backend
/// move to other backends.
pub fn score(identity: u64, weight: u64, key: u64) -> f64 {
    let mixed = mix(identity ^ key);
    // `share` is more than 0 and less than 1. So its logarithm is negative, and the score is
    // positive.
    let share = ((mixed >> 11) as f64 + 0.5) / (1u64 << 53) as f64;
    weight as f64 / -share.ln()
}

/// Returns a number whose bits each depend on all bits of `number` (SplitMix64: Steele, Lea and
/// Flood, "Fast Splittable Pseudorandom Number Generators", 2014).
pub fn mix(number: u64) -> u64 {
    let mut mixed = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

impl Balancing {
    /// Creates the rules of a group with default values and equal backends.
    pub fn equal(backends: usize) -> Self {
        let activation = conf::Activation::Active;
        let rank =
            Rank { weight: 1, backup: false, distance: 0, redirect: None, activation, identity: 0 };
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
            identity: stable_hash(backend.address.to_string().as_bytes()),
        };
        let to = upstream.to.iter().map(rank).collect();
        let conf::Upstream { balance, max_fails, fail_timeout, recover_time, slow_start, .. } =
            *upstream;
        let retry = upstream.retry.clone();
        Self { to, balance, max_fails, fail_timeout, recover_time, retry, slow_start }
    }
}
