//! Compares the disk store's choice of entries (admission after the second request, and removal by
//! CLOCK) with LRU, under popular keys and scans. The manual has the table that
//! `ADMISSION_TABLE=1 cargo test -p forebay-origin admission -- --nocapture` prints.

use std::collections::{BTreeMap, HashMap};

use super::doorkeeper::Doorkeeper;
use super::index::{BLOCK, EntryFacts, EntryName, Index};

/// Number of entries that have space. The table of recent requests has as many places.
const PLACES: usize = 4096;
/// Blocks of an entry.
const SIZE: u32 = 2;

/// A store that removes the least recently used key (LRU), for comparison.
#[derive(Default)]
struct Lru {
    turn: u64,
    turns: HashMap<u64, u64>,
    order: BTreeMap<u64, u64>,
}

impl Lru {
    /// Returns true if the key was already stored. Otherwise stores the key.
    fn request(&mut self, key: u64) -> bool {
        self.turn += 1;
        let before = self.turns.insert(key, self.turn);
        if let Some(before) = before {
            self.order.remove(&before);
        } else if self.turns.len() > PLACES
            && let Some((_, oldest)) = self.order.pop_first()
        {
            self.turns.remove(&oldest);
        }
        self.order.insert(self.turn, key);
        before.is_some()
    }
}

/// The parts of the disk store that choose its entries.
struct Choice {
    index: Index,
    door: Option<Doorkeeper>,
    written: usize,
}

impl Choice {
    fn new(has_door: bool) -> Self {
        let capacity = PLACES as u64 * u64::from(SIZE) * BLOCK;
        let door = has_door.then(|| Doorkeeper::new(capacity));
        Self { index: Index::new(capacity), door, written: 0 }
    }

    /// Returns true if the key was already stored. Otherwise stores the key, if the doorkeeper
    /// admits it, and returns false.
    fn request(&mut self, key: u64) -> bool {
        let hash = hash(key);
        let name = EntryName { key: hash, variant: 0 };
        if self.index.facts(&name).is_some() {
            self.index.update(&name, |_| {});
            return true;
        }
        if self.door.as_ref().is_none_or(|door| door.is_known(&hash))
            && self.index.reserve(SIZE).is_some()
        {
            self.index.release(SIZE);
            self.index.insert(name, EntryFacts { blocks: SIZE, ..EntryFacts::default() });
            self.written += 1;
        }
        false
    }
}

/// Returns a hash of a key. The store uses SHA-256, which would be too slow in this test.
fn hash(key: u64) -> [u8; 16] {
    let half = |number: u64| {
        let mixed = (number ^ (number >> 31)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (mixed ^ (mixed >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9).to_be_bytes()
    };
    [half(key + 1), half(!key)].concat().try_into().expect("two halves of 8 bytes")
}

/// Popularities by Zipf's law, and the share of requests for keys that are requested only once.
#[derive(Clone, Copy, Debug)]
struct Popularity {
    keys: usize,
    exponent: f64,
    scans: f64,
    requests: usize,
}

struct Requests {
    popularity: Popularity,
    /// Sums of the popularities up to each key.
    sums: Vec<f64>,
    seed: u64,
    next_scanned: u64,
}

impl Requests {
    fn new(popularity: Popularity) -> Self {
        let mut sum = 0.0;
        let sums = (1..=popularity.keys).map(|rank| {
            sum += (rank as f64).powf(-popularity.exponent);
            sum
        });
        Self { sums: sums.collect(), popularity, seed: 1, next_scanned: popularity.keys as u64 }
    }

    fn fraction(&mut self) -> f64 {
        self.seed = self.seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.seed >> 33) as f64 / (1_u64 << 31) as f64
    }

    /// Returns a key, and true if this key is requested only once.
    fn next(&mut self) -> (u64, bool) {
        if self.fraction() < self.popularity.scans {
            self.next_scanned += 1;
            return (self.next_scanned, true);
        }
        let wanted = self.fraction() * self.sums[self.popularity.keys - 1];
        (self.sums.partition_point(|&sum| sum < wanted) as u64, false)
    }
}

/// Results of LRU, of CLOCK without admission, and of the disk store.
#[derive(Debug)]
struct Results {
    /// Hits in percent of the requests for popular keys, after the first half of the requests.
    hits: [f64; 3],
    /// Writes in percent of the requests.
    writes: [f64; 3],
}

fn results(popularity: Popularity) -> Results {
    let mut requests = Requests::new(popularity);
    let mut lru = Lru::default();
    let (mut list, mut disk) = (Choice::new(false), Choice::new(true));
    let (mut counted, mut hits, mut lru_written) = (0.0, [0.0; 3], 0);
    for number in 0..popularity.requests {
        let (key, is_scan) = requests.next();
        let found = [lru.request(key), list.request(key), disk.request(key)];
        lru_written += usize::from(!found[0]);
        if number >= popularity.requests / 2 && !is_scan {
            counted += 1.0;
            hits.iter_mut().zip(found).for_each(|(hits, found)| *hits += f64::from(found));
        }
    }
    let written = [lru_written, list.written, disk.written];
    Results {
        hits: hits.map(|hits| 100.0 * hits / counted),
        writes: written.map(|written| 100.0 * written as f64 / popularity.requests as f64),
    }
}

/// Prints the table of the manual.
fn print_table() {
    println!("keys\texponent\tscans\thits: LRU, CLOCK, Forebay\twrites: LRU, CLOCK, Forebay");
    for keys in [10 * PLACES, 100 * PLACES] {
        for exponent in [0.7, 0.9, 1.1] {
            for scans in [0.0, 0.3, 0.6] {
                let found = results(Popularity { keys, exponent, scans, requests: 1_000_000 });
                let text = |numbers: [f64; 3]| numbers.map(|number| format!("{number:.1}"));
                let (hits, writes) = (text(found.hits).join("\t"), text(found.writes).join("\t"));
                println!("{keys}\t{exponent}\t{scans}\t{hits}\t{writes}");
            }
        }
    }
}

#[test]
fn admission_keeps_popular_replies_despite_scans() {
    if std::env::var_os("ADMISSION_TABLE").is_some() {
        print_table();
    }
    let found = results(Popularity { keys: 40_000, exponent: 0.9, scans: 0.3, requests: 60_000 });
    let ([lru, list, disk], [_, many, few]) = (found.hits, found.writes);
    assert!(disk > list && disk > lru, "{found:?}");
    assert!(few * 3.0 < many, "{found:?}");
}
