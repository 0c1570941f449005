//! How many descriptors our children may open: as many as we found that we may, not as many as a
//! gateway needs. Programs that use `select`, or close all there could be, suffer from a high limit.

use std::sync::OnceLock;

use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};

static FOUND: OnceLock<Rlimit> = OnceLock::new();

/// Takes note of the limit, before it is raised. The first time counts.
pub fn record_descriptors() {
    let _ = FOUND.set(getrlimit(Resource::Nofile));
}

/// The soft limit that was found, where it has been raised since.
pub fn found_descriptors() -> Option<u64> {
    let found = FOUND.get()?;
    found.current.filter(|_| getrlimit(Resource::Nofile) != *found)
}

/// Gives a process that has just been started the limit that was found. It may see ours for its
/// first moments: to set it before would take a `fork`, which costs more the larger we are.
pub fn give_back_descriptors(process: Pid) {
    let Some(found) = FOUND.get() else { return };
    if getrlimit(Resource::Nofile) != *found {
        // A process that has ended already needs none.
        let _ = prlimit(Some(process), Resource::Nofile, *found);
    }
}
