//! Helpers for Forebay's own tests: processes that never outlive a test, real peers (nginx, Apache,
//! php-fpm, fcgiwrap), scripted peers, a raw HTTP/1.1 client, forged fields and the readers of the corpora.
//!
//! Everything here blocks, has a deadline, and panics with what it saw when the deadline passes:
//! a test that goes wrong says why and ends. None of it uses Forebay's own codecs, so that a test
//! does not agree with the code under test by sharing its mistakes.
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

/// How long a helper waits for anything before it panics. Generous, as only a failing test waits.
pub const DEADLINE: Duration = Duration::from_secs(20);

/// How long a helper rests between two looks at a thing that cannot wake it.
const POLL: Duration = Duration::from_millis(5);
