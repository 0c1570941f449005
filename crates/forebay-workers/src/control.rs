//! The messages of the control socket; the hosts have the other side, and `hosts/psgi.pl` all of it.

/// Bytes in front of a request: lengths of the environment (4) and of the body (8), big-endian.
pub(crate) const HEAD: usize = 12;
/// Bytes of every message that a worker sends.
pub(crate) const REPLY: usize = 4;

/// What precedes the environment block and the body. `None` if the block has 4 GiB or more.
pub(crate) fn head(env_length: usize, body_length: u64) -> Option<[u8; HEAD]> {
    let mut head = [0; HEAD];
    head[..4].copy_from_slice(&u32::try_from(env_length).ok()?.to_be_bytes());
    head[4..].copy_from_slice(&body_length.to_be_bytes());
    Some(head)
}

/// What a worker says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reply {
    /// It is started, or has cleaned up, and waits for requests.
    Ready,
    /// The script ended by itself.
    Ended(Then),
    /// It ended, and so many bytes of output follow on the control socket. There is no other.
    Whole { length: u16, then: Then },
    /// The script failed, or could not be run, with this HTTP status.
    Failed { status: u16, then: Then },
    /// The script failed in the middle of a reply that must not be taken for whole.
    Aborted(Then),
}

/// What a worker does after a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Then {
    /// It waits for the next.
    Waits,
    /// It ends.
    Ends,
    /// It is busy until it says that it is ready, or that it ends.
    CleansUp,
}

impl Reply {
    /// `None` if these bytes are no message.
    pub(crate) fn parse(bytes: [u8; REPLY]) -> Option<Reply> {
        let then = match bytes[1] {
            0 => Then::Waits,
            1 => Then::Ends,
            2 => Then::CleansUp,
            _ => return None,
        };
        let number = u16::from_be_bytes([bytes[2], bytes[3]]);
        match bytes[0] {
            b'R' if then == Then::Waits && number == 0 => Some(Reply::Ready),
            b'E' if number == 0 => Some(Reply::Ended(then)),
            b'B' => Some(Reply::Whole { length: number, then }),
            b'S' if (400..600).contains(&number) => Some(Reply::Failed { status: number, then }),
            b'A' if number == 0 => Some(Reply::Aborted(then)),
            _ => None,
        }
    }

    /// What a worker that cleans up may say next: that it is ready, or that it ends.
    pub(crate) fn parse_after_cleanup(bytes: &[u8]) -> Option<Reply> {
        let reply = Reply::parse(bytes.try_into().ok()?)?;
        matches!(reply, Reply::Ready | Reply::Ended(Then::Ends)).then_some(reply)
    }

    /// Whether another message follows before the worker is ready.
    pub(crate) fn cleans_up(self) -> bool {
        match self {
            Reply::Ready => false,
            Reply::Ended(then)
            | Reply::Whole { then, .. }
            | Reply::Failed { then, .. }
            | Reply::Aborted(then) => then == Then::CleansUp,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_head_has_both_lengths() {
        assert_eq!(head(258, 5), Some([0, 0, 1, 2, 0, 0, 0, 0, 0, 0, 0, 5]));
    }

    #[test]
    fn replies_are_read_and_anything_else_refused() {
        assert_eq!(Reply::parse(*b"R\0\0\0"), Some(Reply::Ready));
        assert_eq!(Reply::parse(*b"E\x01\0\0"), Some(Reply::Ended(Then::Ends)));
        assert_eq!(
            Reply::parse(*b"S\0\x01\x94"),
            Some(Reply::Failed { status: 404, then: Then::Waits })
        );
        assert_eq!(Reply::parse(*b"A\x02\0\0"), Some(Reply::Aborted(Then::CleansUp)));
        let whole = Reply::Whole { length: 258, then: Then::Waits };
        assert_eq!(Reply::parse(*b"B\0\x01\x02"), Some(whole));
        for bad in [
            b"X\0\0\0",
            b"E\x03\0\0",
            b"R\x02\0\0",
            b"A\0\0\x01",
            b"E\0\0\x01",
            b"S\0\0\0",
            b"S\0\xff\xff",
            b"R\x01\0\0",
        ] {
            assert_eq!(Reply::parse(*bad), None);
        }
    }
}
