//! Helpers for Forebay's own tests: processes that never outlive a test, real servers such as
//! nginx, scripted servers, a raw HTTP/1.1 client, forged fields, and readers of the corpora.
//!
//! Every helper blocks and has a deadline. At the deadline, it panics with the output so far, so
//! that a failing test ends and shows the reason. No helper uses Forebay's own codecs, because a
//! test that shares the code under test also shares its bugs.
#![forbid(unsafe_code)]

pub mod chromium;
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

/// Time limit of every wait. The limit is generous, because only a failing test waits for so long.
pub const DEADLINE: Duration = Duration::from_secs(20);

/// Interval between checks of a condition that sends no notification.
const POLL: Duration = Duration::from_millis(5);
