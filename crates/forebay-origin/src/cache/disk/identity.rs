//! Identities of files, which show if a file has changed since its checksums were compared.

use std::hash::{BuildHasher, RandomState};

use rustix::fs::Stat;

/// If the last change of a file is more than this number of seconds old, a further change gives the
/// file another identity.
// Kernels keep the time of a change in ticks of up to 10 ms, and some file systems in seconds.
const SETTLED: i64 = 2;

/// Computes identities of files, which are valid in this process only.
#[derive(Debug, Default)]
pub struct Identities(RandomState);

impl Identities {
    /// Returns a number that changes if the file changes or is replaced by another file. The number
    /// is never 0.
    pub fn of(&self, found: &Stat) -> u64 {
        // No program can set a file's `ctime`.
        let changed = (found.st_ctime, found.st_ctime_nsec);
        let written = (found.st_mtime, found.st_mtime_nsec);
        let file = (found.st_dev, found.st_ino, found.st_size);
        self.0.hash_one((file, changed, written)).max(1)
    }
}

/// Returns true if the last change of the file is more than 2 s old. A further change then gives
/// the file another identity. A change shortly after another one may have the same `ctime`. `now`
/// is in seconds since 1970.
pub fn is_settled(found: &Stat, now: u64) -> bool {
    i64::try_from(now).is_ok_and(|now| found.st_ctime.saturating_add(SETTLED) < now)
}
