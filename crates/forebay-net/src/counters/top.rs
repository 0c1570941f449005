//! Who takes the time: the clients, networks, agents and paths whose requests took longest lately.
//!
//! Each thread keeps the heaviest names of each kind in a space-saving sketch (Metwally, Agrawal and
//! El Abbadi, "Efficient computation of frequent and top-k elements in data streams", 2005): a name
//! that finds the sketch full replaces the lightest one, and inherits its time. So memory is bounded,
//! and no name that takes more than a 64th of the time is missed. All times halve every minute.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Maximum number of names of a kind that a thread keeps.
const MAX_NAMES: usize = 64;
/// Maximum length of a name in bytes.
const MAX_LENGTH: usize = 120;
/// Number of names of a kind that are shown.
const SHOWN: usize = 20;
/// Time in which all times halve.
const HALF_LIFE: Duration = Duration::from_secs(60);

/// Kinds of names, in the order of [`Top`]'s sketches.
pub const KINDS: [&str; 4] = ["clients", "networks", "agents", "paths"];

/// The times of the requests with one name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TopTimes {
    /// Microseconds in which an application or backend answered, including the wait for it.
    pub time_us: u64,
    /// Microseconds of `time_us` in which requests waited for a worker or connection.
    pub queue_us: u64,
    /// Number of requests.
    pub requests: u64,
}

impl TopTimes {
    fn add(&mut self, more: &Self) {
        self.time_us += more.time_us;
        self.queue_us += more.queue_us;
        self.requests += more.requests;
    }
}

/// The heaviest names of each kind, of one thread.
#[derive(Debug, Default)]
pub struct Top(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    sketches: [HashMap<Box<[u8]>, TopTimes>; KINDS.len()],
    halved: Option<Instant>,
}

impl Top {
    /// Counts the times of a request.
    pub fn count(&self, client: Option<IpAddr>, agent: &[u8], path: &[u8], times: TopTimes) {
        let Ok(mut state) = self.0.lock() else { return };
        state.halve(Instant::now());
        let (client, network) = names_of(client);
        let names = [client.as_bytes(), network.as_bytes(), agent, path];
        for (sketch, name) in state.sketches.iter_mut().zip(names) {
            add(sketch, &name[..name.len().min(MAX_LENGTH)], &times);
        }
    }
}

impl State {
    fn halve(&mut self, now: Instant) {
        let halved = *self.halved.get_or_insert(now);
        let halves = now.saturating_duration_since(halved).as_secs() / HALF_LIFE.as_secs();
        if halves == 0 {
            return;
        }
        let halves = u32::try_from(halves).unwrap_or(u32::MAX).min(63);
        for sketch in &mut self.sketches {
            sketch.retain(|_, times| {
                times.time_us >>= halves;
                times.queue_us >>= halves;
                times.requests >>= halves;
                times.requests > 0
            });
        }
        self.halved = Some(now);
    }
}

fn add(sketch: &mut HashMap<Box<[u8]>, TopTimes>, name: &[u8], times: &TopTimes) {
    if let Some(known) = sketch.get_mut(name) {
        return known.add(times);
    }
    let mut sum = *times;
    if sketch.len() >= MAX_NAMES {
        let lightest = sketch.iter().min_by_key(|(_, times)| times.time_us);
        let Some(lightest) = lightest.map(|(name, _)| name.clone()) else { return };
        // The new name may have taken the time of the lightest one before it was replaced.
        if let Some(inherited) = sketch.remove(&lightest) {
            sum.add(&inherited);
        }
    }
    sketch.insert(name.into(), sum);
}

/// Returns the names of a client and of its network. A client of IPv6 is a /64.
fn names_of(client: Option<IpAddr>) -> (String, String) {
    match client.map(|address| address.to_canonical()) {
        Some(IpAddr::V4(address)) => {
            let [a, b, c, _] = address.octets();
            (address.to_string(), format!("{a}.{b}.{c}.0/24"))
        }
        Some(IpAddr::V6(address)) => {
            let [a, b, c, d, ..] = address.segments();
            let network = |d| std::net::Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0);
            (format!("{}/64", network(d)), format!("{}/48", network(0)))
        }
        None => ("unix".to_owned(), "unix".to_owned()),
    }
}

/// Returns the heaviest names of each kind over all threads, the heaviest first.
pub fn heaviest<'t>(
    threads: impl Iterator<Item = &'t Top>,
) -> [Vec<(String, TopTimes)>; KINDS.len()] {
    let mut sums: [HashMap<Box<[u8]>, TopTimes>; KINDS.len()] = Default::default();
    for top in threads {
        let Ok(mut state) = top.0.lock() else { continue };
        state.halve(Instant::now());
        for (sum, sketch) in sums.iter_mut().zip(&state.sketches) {
            for (name, times) in sketch {
                sum.entry(name.clone()).or_default().add(times);
            }
        }
    }
    sums.map(|sum| {
        let text = |name: &[u8]| String::from_utf8_lossy(name).into_owned();
        let mut all: Vec<_> = sum.iter().map(|(name, times)| (text(name), *times)).collect();
        all.sort_by(|(one, a), (other, b)| b.time_us.cmp(&a.time_us).then_with(|| one.cmp(other)));
        all.truncate(SHOWN);
        all
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(time_us: u64) -> TopTimes {
        TopTimes { time_us, queue_us: time_us / 2, requests: 1 }
    }

    #[test]
    fn heavy_names_stay_in_a_crowd_of_light_ones() {
        let top = Top::default();
        for n in 0..5000_u32 {
            let crowd = IpAddr::from((0x0a00_0000 + n * 7).to_be_bytes());
            top.count(Some(crowd), format!("bot {n}").as_bytes(), b"/x", times(10));
            top.count("192.0.2.7".parse().ok(), b"heavy", b"/blame", times(1000));
        }
        assert!(top.0.lock().unwrap().sketches.iter().all(|sketch| sketch.len() <= MAX_NAMES));
        let [clients, networks, agents, paths] = heaviest([&top].into_iter());
        assert_eq!(clients[0].0, "192.0.2.7");
        assert_eq!(clients[0].1.requests, 5000);
        assert_eq!(networks[0].0, "192.0.2.0/24");
        assert_eq!(agents[0].0, "heavy");
        assert_eq!(paths.iter().map(|(path, _)| &**path).collect::<Vec<_>>(), ["/blame", "/x"]);
        assert_eq!(
            paths[0].1,
            TopTimes { time_us: 5_000_000, queue_us: 2_500_000, requests: 5000 }
        );
    }

    #[test]
    fn old_times_fade() {
        let mut state = State::default();
        let now = Instant::now();
        state.halve(now);
        add(&mut state.sketches[0], b"a", &TopTimes { requests: 4, ..times(100) });
        add(&mut state.sketches[0], b"b", &times(100));
        state.halve(now + HALF_LIFE - Duration::from_millis(1));
        assert_eq!(state.sketches[0].len(), 2);
        state.halve(now + HALF_LIFE);
        assert_eq!(state.sketches[0][&b"a"[..]].time_us, 50);
        assert!(!state.sketches[0].contains_key(&b"b"[..]));
        state.halve(now + HALF_LIFE * 100_000);
        assert!(state.sketches[0].is_empty());
    }

    #[test]
    fn names_are_cut_and_networks_are_clients_of_ipv6() {
        let top = Top::default();
        for address in ["2001:db8:1:2::1", "2001:db8:1:2::2", "::ffff:192.0.2.1"] {
            top.count(address.parse().ok(), &[b'x'; 5000], b"/", times(1));
        }
        let [clients, networks, agents, _] = heaviest([&top].into_iter());
        assert_eq!(clients[0].0, "2001:db8:1:2::/64");
        assert_eq!(clients[1].0, "192.0.2.1");
        assert_eq!(networks[0].0, "2001:db8:1::/48");
        assert_eq!(agents[0].0.len(), MAX_LENGTH);
    }
}
