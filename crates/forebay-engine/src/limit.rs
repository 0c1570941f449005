//! The limits that requests and connections run into, as they are counted.

macro_rules! limits {
    ($($variant:ident $key:literal $doc:literal,)*) => {
        /// A limit, named as its key in the configuration, where it has one.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Limit {
            $(#[doc = $doc] $variant,)*
        }

        impl Limit {
            /// All of them, in order.
            pub const ALL: [Self; [$($key),*].len()] = [$(Self::$variant),*];

            /// Its key.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $key,)*
                }
            }
        }
    };
}

limits! {
    HeadSize "head_size" "A request head was larger.",
    Fields "fields" "A request had more header fields.",
    Target "target" "A request target was longer.",
    MaxBody "max_body" "A request body was larger.",
    GetBody "get_body" "A GET or HEAD had a body.",
    BodyRate "body_rate" "A request body came in slower.",
    Connections "connections" "No place was free when a connection came.",
    ClosedForOthers "closed_for_others" "A connection without a request was closed at the limit to admit another; it has no key.",
    ConnectionsPerAddress "connections_per_address" "A connection was closed at once.",
    KeepaliveRequests "keepalive_requests" "A connection had carried its last request.",
    Head "head" "No request head came in time.",
    BodyIdle "body_idle" "A request body stopped coming.",
    ReplyIdle "reply_idle" "A backend sent nothing; the `reply_timeout` of a route counts here.",
    Write "write" "A client or backend took nothing.",
    KeepAlive "keep_alive" "No further request came.",
    Connect "connect" "A backend could not be reached in time; `connect_timeout` counts here.",
    TunnelIdle "tunnel_idle" "A tunnel carried nothing.",
    MaxConnections "max_connections" "No connection to a backend became free in time.",
    MaxProcesses "max_processes" "No place for a CGI process became free in time.",
    MaxOutput "max_output" "A script printed more.",
    Timeout "timeout" "A CGI script took longer.",
    Http2Frames "http2_frames" "An HTTP/2 client sent too many frames of no use; it has no key.",
    Http3Frames "http3_frames" "An HTTP/3 client sent too many frames of no use; it has no key.",
    AjpPings "ajp_pings" "A web server sent too many pings in a row over AJP; it has no key.",
    Queue "queue" "As many requests waited for an application already.",
    QueueTimeout "queue_timeout" "No worker became free in time.",
    BufferFile "buffer_file" "A reply had to wait for its client, as its buffer was full.",
    BufferTotal "buffer_total" "A reply had to wait for its client, as all buffers were full.",
    PasswordChecks "password_checks" "Others' passwords were checked for too long; it has no key.",
    RequestTimeout "request_timeout" "An application took longer.",
}

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
}
