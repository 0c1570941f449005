//! The fields `traceparent` and `tracestate` (<https://www.w3.org/TR/trace-context/>).

/// Length of a `traceparent` of version 00.
const LENGTH: usize = 55;
/// Maximum length of a `tracestate` that is passed on. A longer `tracestate` is dropped, which the
/// specification permits.
const LONGEST_STATE: usize = 512;
/// Maximum number of members of a `tracestate`.
const MOST_MEMBERS: usize = 32;

/// A `traceparent`: the trace of a request, and the span of the request's sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceParent {
    /// Identifier of the trace; not zero.
    pub trace_id: [u8; 16],
    /// Identifier of the sender's span; not zero.
    pub span_id: [u8; 8],
    /// True if the sender records the trace.
    pub is_sampled: bool,
}

impl TraceParent {
    /// Parses the value of a field. Returns `None` if the value breaks a rule.
    ///
    /// A later version of the format may have more text after the flags. This text is ignored.
    pub fn parse(value: &[u8]) -> Option<Self> {
        let (known, more) = value.split_at_checked(LENGTH)?;
        let [version] = hex(&known[..2])?;
        let has_dashes = [2, 35, 52].into_iter().all(|at| known[at] == b'-');
        let is_whole = match version {
            0 => more.is_empty(),
            0xff => false,
            _ => more.is_empty() || more.starts_with(b"-"),
        };
        let (trace_id, span_id) = (hex::<16>(&known[3..35])?, hex::<8>(&known[36..52])?);
        let [flags] = hex(&known[53..])?;
        let has_ids = trace_id != [0; 16] && span_id != [0; 8];
        let is_sampled = flags & 1 == 1;
        (has_dashes && is_whole && has_ids).then_some(Self { trace_id, span_id, is_sampled })
    }

    /// Appends the value of a field, in version 00.
    pub fn append(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(b"00-");
        append_hex(&self.trace_id, out);
        out.push(b'-');
        append_hex(&self.span_id, out);
        out.extend_from_slice(if self.is_sampled { b"-01" } else { b"-00" });
    }
}

/// Parses `2 * N` lower-case hexadecimal digits. Returns `None` for any other text, also for
/// upper-case digits, which the specification forbids.
fn hex<const N: usize>(digits: &[u8]) -> Option<[u8; N]> {
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    let mut bytes = [0; N];
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    (digits.len() == 2 * N).then_some(bytes)
}

/// Appends bytes as lower-case hexadecimal digits.
pub fn append_hex(bytes: &[u8], out: &mut Vec<u8>) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    for byte in bytes {
        out.extend([DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]]);
    }
}

/// Returns the members of a `tracestate`, which may have several lines, as one value. Returns `None`
/// if there are none, if a member breaks a rule, or if the value has more than 32 members or 512
/// bytes.
pub fn trace_state<'a>(lines: impl Iterator<Item = &'a [u8]>) -> Option<Vec<u8>> {
    let (mut state, mut count) = (Vec::new(), 0);
    for member in lines.flat_map(|line| line.split(|&byte| byte == b',')) {
        let member = member.trim_ascii();
        if member.is_empty() {
            continue;
        }
        let at = member.iter().position(|&byte| byte == b'=')?;
        let (key, value) = (&member[..at], &member[at + 1..]);
        if !is_key(key) || !is_value(value) {
            return None;
        }
        if count > 0 {
            state.push(b',');
        }
        count += 1;
        state.extend_from_slice(member);
    }
    (count > 0 && count <= MOST_MEMBERS && state.len() <= LONGEST_STATE).then_some(state)
}

fn is_key(key: &[u8]) -> bool {
    let is_plain =
        |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"_-*/@".contains(byte);
    let begins = key.first().is_some_and(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
    begins && key.len() <= 256 && key.iter().all(is_plain)
}

fn is_value(value: &[u8]) -> bool {
    let is_plain = |byte: &u8| matches!(byte, b' '..=b'~') && *byte != b'=' && *byte != b',';
    !value.is_empty() && value.len() <= 256 && value.iter().all(is_plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn a_parent_is_read_and_written() {
        let parent = TraceParent::parse(PARENT.as_bytes()).unwrap();
        assert!(parent.is_sampled);
        assert_eq!(parent.span_id, [0, 0xf0, 0x67, 0xaa, 0x0b, 0xa9, 0x02, 0xb7]);
        let mut out = Vec::new();
        parent.append(&mut out);
        assert_eq!(out, PARENT.as_bytes());
        let later = PARENT.replacen("00", "cc", 1) + "-what-follows";
        assert_eq!(TraceParent::parse(later.as_bytes()), Some(parent));
    }

    #[test]
    fn a_malformed_parent_is_refused() {
        let ids = "4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7";
        for value in [
            String::new(),
            "00".to_owned(),
            PARENT.to_uppercase(),
            format!("ff-{ids}-01"),
            format!("00-{ids}-01-more"),
            format!("cc-{ids}-01more"),
            format!("00-{ids}-0"),
            format!("00-{ids}-0g"),
            format!("00-{ids}-01 "),
            format!("00-{}-00f067aa0ba902b7-01", "0".repeat(32)),
            format!("00-4bf92f3577b34da6a3ce929d0e0e4736-{}-01", "0".repeat(16)),
            PARENT.replace('-', "_"),
            PARENT.replace("4bf9", "4b\u{e9}"),
            format!("{PARENT}, {PARENT}"),
        ] {
            assert_eq!(TraceParent::parse(value.as_bytes()), None, "{value}");
        }
    }

    #[test]
    fn a_state_is_one_list_of_valid_members() {
        let state = |lines: &[&str]| {
            let state = trace_state(lines.iter().map(|line| line.as_bytes()));
            state.map(|state| String::from_utf8(state).unwrap())
        };
        let joined = Some("a=1,t@v=x y".to_owned());
        assert_eq!(state(&["a=1 , ,", "t@v=x y"]), joined);
        for line in ["", " , ", "a", "=1", "a=", "A=1", "a=1,b=\u{e9}", "a=1=2", "a=\x01"] {
            assert_eq!(state(&[line]), None, "{line}");
        }
        assert_eq!(state(&[&"a=1,".repeat(33)]), None);
        assert_eq!(state(&[&format!("a={},b={}", "x".repeat(256), "x".repeat(256))]), None);
    }
}
