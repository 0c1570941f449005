//! Clock of the connections. Tests can replace it by a virtual one.

pub(crate) use system::now;
#[cfg(test)]
pub(crate) use system::set;

#[cfg(not(test))]
mod system {
    use std::time::Instant;

    #[inline]
    pub(crate) fn now() -> Instant {
        Instant::now()
    }
}

#[cfg(test)]
mod system {
    use std::cell::Cell;
    use std::time::Instant;

    thread_local! {
        static NOW: Cell<Option<Instant>> = const { Cell::new(None) };
    }

    /// Returns the virtual time of this thread, or the present time if none was set.
    pub(crate) fn now() -> Instant {
        NOW.get().unwrap_or_else(Instant::now)
    }

    pub(crate) fn set(now: Instant) {
        NOW.set(Some(now));
    }
}
