//! Finds the ends of messages in the frames of a WebSocket server (RFC 6455), without decoding
//! them.
//!
//! A relay may add a close frame only between two messages. Extensions may use the reserved bits,
//! so these are ignored.

/// Position in the stream of frames that a server sends.
#[derive(Clone, Copy, Debug, Default)]
pub struct MessageBounds {
    /// The bytes of an incomplete frame header.
    head: [u8; 10],
    /// Number of bytes in `head`.
    length: usize,
    /// Number of bytes of the payload that have not arrived.
    left: u64,
    /// True after a fragment that is not the last one of its message.
    is_in_message: bool,
    /// True after a close frame, or a frame that no server sends.
    is_over: bool,
}

const FIN: u8 = 0x80;
const MASKED: u8 = 0x80;
const CLOSE: u8 = 8;

impl MessageBounds {
    /// Moves the position past `bytes`, which the server has sent next.
    pub fn pass(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() && !self.is_over {
            if self.left > 0 {
                let taken = self.left.min(bytes.len() as u64);
                self.left -= taken;
                bytes = &bytes[taken as usize..];
                continue;
            }
            self.head[self.length] = bytes[0];
            self.length += 1;
            bytes = &bytes[1..];
            if self.length == self.head_length() {
                self.begin_payload();
            }
        }
    }

    /// Returns true if the last message is complete, so that a relay may add a close frame. Returns
    /// false after a close frame, and after an invalid frame.
    pub fn is_between_messages(&self) -> bool {
        self.left == 0 && self.length == 0 && !self.is_in_message && !self.is_over
    }

    fn head_length(&self) -> usize {
        match self.head[1] & 0x7f {
            _ if self.length < 2 => 2,
            126 => 4,
            127 => 10,
            _ => 2,
        }
    }

    fn begin_payload(&mut self) {
        let [first, second, rest @ ..] = self.head;
        self.left = match second & 0x7f {
            126 => u64::from(u16::from_be_bytes([rest[0], rest[1]])),
            127 => u64::from_be_bytes(rest),
            short => u64::from(short),
        };
        let opcode = first & 0x0f;
        if opcode < CLOSE {
            self.is_in_message = first & FIN == 0;
        }
        self.is_over = opcode == CLOSE || second & MASKED != 0;
        self.length = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the positions after which a close frame may follow.
    fn bounds(bytes: &[u8]) -> Vec<usize> {
        let mut bounds = MessageBounds::default();
        let mut found = Vec::new();
        for (at, byte) in bytes.iter().enumerate() {
            if bounds.is_between_messages() {
                found.push(at);
            }
            bounds.pass(std::slice::from_ref(byte));
        }
        if bounds.is_between_messages() {
            found.push(bytes.len());
        }
        let mut whole = MessageBounds::default();
        whole.pass(bytes);
        assert_eq!(whole.is_between_messages(), bounds.is_between_messages());
        found
    }

    #[test]
    fn a_close_frame_fits_only_between_messages() {
        assert_eq!(bounds(&[0x81, 2, b'h', b'i', 0x82, 0]), [0, 4, 6]);
        // Two fragments, with a ping in between. The first is compressed (a reserved bit).
        assert_eq!(bounds(&[0x41, 1, b'a', 0x89, 1, b'p', 0x80, 1, b'b']), [0, 9]);
        let long = [&[0x82, 126, 0, 200][..], &[0; 200]].concat();
        assert_eq!(bounds(&long), [0, 204]);
        let longer = [&[0x82, 127, 0, 0, 0, 0, 0, 1, 0, 0][..], &[0x88; 65_536]].concat();
        assert_eq!(bounds(&longer), [0, 65_546]);
        // Nothing may follow the server's own close frame, or a masked frame.
        assert_eq!(bounds(&[0x88, 2, 3, 0xe8]), [0]);
        assert_eq!(bounds(&[0x81, 0x80, 0, 0, 0, 0]), [0]);
        // After one byte, a frame of the largest length has not ended.
        assert_eq!(bounds(&[0x82, 127, 255, 255, 255, 255, 255, 255, 255, 255, 1]), [0]);
    }
}
