//! The limits on requests and connections that the metrics count.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! limits {
    ($($variant:ident $key:literal $doc:literal,)*) => {
        /// A limit, named as its configuration key, if it has one.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Limit {
            $(#[doc = $doc] $variant,)*
        }

        impl Limit {
            /// All limits, in order.
            pub const ALL: [Self; [$($key),*].len()] = [$(Self::$variant),*];

            /// Returns the name in the metrics: the configuration key, if the limit has one.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $key,)*
                }
            }
        }
    };
}

limits! {
    HeadSize "head_size" "A request head was too large.",
    Fields "fields" "A request had too many header fields.",
    Target "target" "A request target was too long.",
    AjpPacket "packet_size" "A request head did not fit one packet to an AJP container.",
    MaxBody "max_body" "A request body was too large.",
    GetBody "get_body" "A GET or HEAD had a body.",
    Linger "linger" "A client went on sending after it had its reply; `linger_size` counts here.",
    BodyRate "body_rate" "A request body arrived too slowly.",
    Connections "connections" "The limit was reached when a connection arrived.",
    ClosedForOthers "closed_for_others" "A connection without a request was closed at the limit to admit another; no key.",
    ConnectionsPerAddress "connections_per_address" "A connection was closed at once, because its client address had too many connections.",
    KeepaliveRequests "keepalive_requests" "A connection had carried its last request.",
    Head "head" "No request head arrived in time.",
    BodyIdle "body_idle" "A request body stopped arriving.",
    ReplyIdle "reply_idle" "A backend sent nothing; the `reply_timeout` of a route counts here.",
    Write "write" "A client or backend accepted no data.",
    KeepAlive "keep_alive" "No further request arrived.",
    Connect "connect" "A backend could not be reached in time; `connect_timeout` counts here.",
    TunnelIdle "tunnel_idle" "A tunnel carried nothing.",
    MaxConnections "max_connections" "No connection to a backend became free in time.",
    MaxProcesses "max_processes" "No place for a CGI process became free in time.",
    ReplyHead "reply_head_size" "The head of a reply from a backend or application was too large; `reply_fields` counts here.",
    MaxOutput "max_output" "A script printed too much.",
    Timeout "timeout" "A CGI script took too long.",
    Http2Frames "http2_frames" "An HTTP/2 client sent too many useless frames; no key.",
    Http3Frames "http3_frames" "An HTTP/3 client sent too many useless frames; no key.",
    HeldHeads "held_heads" "The heads of the active requests of an HTTP/2 or HTTP/3 connection were too large together; no key.",
    AjpPings "ajp_pings" "A web server sent too many pings in a row over AJP; no key.",
    Queue "queue" "Too many requests waited for an application.",
    QueueTimeout "queue_timeout" "No worker became free in time.",
    BufferFile "buffer_file" "A reply had to wait for its client, because its buffer was full.",
    BufferTotal "buffer_total" "A reply had to wait for its client, or a request with a body got 503, because all buffers were full.",
    SpoolDir "spool_dir" "A file of a body could not be written, such as on a full disk.",
    PasswordChecks "password_checks" "Checks of other passwords took too long; no key.",
    RateLimit "rate_limit" "Too many requests had the same key.",
    ConcurrencyLimit "concurrency_limit" "Too many requests with the same key ran at once.",
    RequestTimeout "request_timeout" "An application took too long.",
    OnDemand "on_demand" "A TLS handshake failed: its name may have no certificate, or the certificate came too late.",
}

/// A value for each limit, in the order of [`Limit::ALL`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PerLimit<T>(pub [T; Limit::ALL.len()]);

impl<T: Default> Default for PerLimit<T> {
    fn default() -> Self {
        // The standard library implements `Default` only for arrays of up to 32 elements.
        Self(std::array::from_fn(|_| T::default()))
    }
}

// Counts the bytes that all threads buffer: of replies for slow clients, and of requests that have
// not arrived completely.

/// Number of buffered bytes of all connections of all threads.
#[derive(Default)]
pub struct Buffered(AtomicU64);

impl Buffered {
    /// Returns the current total.
    pub fn bytes(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Reserves up to `wanted` bytes and keeps the total at or below `most`. Returns the number of
    /// reserved bytes.
    pub fn take(&self, wanted: u64, most: u64) -> u64 {
        let mut taken = 0;
        let _ = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
            taken = wanted.min(most.saturating_sub(used));
            Some(used + taken)
        });
        taken
    }

    /// Releases `bytes` reserved bytes.
    pub fn give_back(&self, bytes: u64) {
        self.0.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// The bytes that one request has reserved. They are released when it is dropped.
pub struct Reserved {
    total: Arc<Buffered>,
    bytes: u64,
}

impl Reserved {
    /// Creates a reservation of no bytes in `total`.
    pub fn new(total: Arc<Buffered>) -> Self {
        Self { total, bytes: 0 }
    }

    /// Changes the reservation to `bytes`. Fails, and changes nothing, if the total would exceed
    /// `most`.
    pub fn set(&mut self, bytes: usize, most: u64) -> Result<(), Full> {
        let bytes = bytes as u64;
        if let Some(more) = bytes.checked_sub(self.bytes).filter(|&more| more > 0) {
            let taken = self.total.take(more, most);
            if taken < more {
                self.total.give_back(taken);
                return Err(Full);
            }
        } else if bytes < self.bytes {
            self.total.give_back(self.bytes - bytes);
        }
        self.bytes = bytes;
        Ok(())
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        self.total.give_back(self.bytes);
    }
}

/// The total of all buffers has reached its limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_apart() {
        for (at, limit) in Limit::ALL.into_iter().enumerate() {
            assert_eq!(limit as usize, at);
            assert!(Limit::ALL[..at].iter().all(|other| other.name() != limit.name()));
        }
    }

    #[test]
    fn reservations_keep_to_the_total_and_end_with_their_owner() {
        let total = Arc::<Buffered>::default();
        let (mut one, mut other) = (Reserved::new(total.clone()), Reserved::new(total.clone()));
        assert_eq!((one.set(6, 10), other.set(5, 10)), (Ok(()), Err(Full)));
        assert_eq!((other.set(4, 10), total.bytes()), (Ok(()), 10));
        assert_eq!((one.set(2, 10), other.set(8, 10), total.bytes()), (Ok(()), Ok(()), 10));
        drop(other);
        assert_eq!(total.bytes(), 2);
    }
}
