//! Helpers for Forebay's own tests: processes that never outlive a test, real peers (nginx, Apache,
//! php-fpm, fcgiwrap), scripted peers, a raw HTTP/1.1 client, forged fields and readers of the
//! corpora.
//!
//! Every helper blocks, has a deadline, and panics at the deadline with the output so far. A
//! failing test therefore ends and shows the reason. No helper uses Forebay's own codecs, because a
//! test that shares the code under test would also share its bugs.
#![forbid(unsafe_code)]

pub mod corpus;
pub mod folder;
pub mod forwarded;
pub mod http;
pub mod peer;
pub mod port;
pub mod process;
pub mod scripted;
pub mod stream;
pub mod tls;

use std::time::Duration;

/// Time limit of every wait. It is generous, because only a failing test waits that long.
pub const DEADLINE: Duration = Duration::from_secs(20);

/// Interval between checks of a condition without a notification.
const POLL: Duration = Duration::from_millis(5);
