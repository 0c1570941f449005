//! The messages of the control socket; `hosts/perl-cgi.pl` has the other side.

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
    /// It is started and waits for requests.
    Ready,
    /// The script ended by itself. `last`: so does the worker.
    Ended { last: bool },
    /// The script failed, or could not be run, with this HTTP status.
    Failed { status: u16, last: bool },
}

impl Reply {
    /// `None` if these bytes are no message.
    pub(crate) fn parse(bytes: [u8; REPLY]) -> Option<Reply> {
        let last = match bytes[1] {
            0 => false,
            1 => true,
            _ => return None,
        };
        let status = u16::from_be_bytes([bytes[2], bytes[3]]);
        match bytes[0] {
            b'R' if !last && status == 0 => Some(Reply::Ready),
            b'E' if status == 0 => Some(Reply::Ended { last }),
            b'S' if (400..600).contains(&status) => Some(Reply::Failed { status, last }),
            _ => None,
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
        assert_eq!(Reply::parse(*b"E\x01\0\0"), Some(Reply::Ended { last: true }));
        assert_eq!(Reply::parse(*b"S\0\x01\x94"), Some(Reply::Failed { status: 404, last: false }));
        for bad in
            [b"X\0\0\0", b"E\x02\0\0", b"E\0\0\x01", b"S\0\0\0", b"S\0\xff\xff", b"R\x01\0\0"]
        {
            assert_eq!(Reply::parse(*bad), None);
        }
    }
}
