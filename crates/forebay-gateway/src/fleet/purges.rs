//! Purges as messages: the name of the sender, `hard` or `soft`, the kind, and the value after a
//! line break.

use std::hash::{BuildHasher, RandomState};

use forebay_admin::{Purge, Purged};

/// Channel of the messages.
pub const CHANNEL: &str = "purges";

/// Returns a name for this process in messages.
pub fn own_name() -> u64 {
    RandomState::new().hash_one(std::process::id())
}

/// Formats a message.
pub fn text(own: u64, purge: &Purge) -> Vec<u8> {
    let softness = if purge.is_soft { "soft" } else { "hard" };
    let (kind, value): (_, &[u8]) = match &purge.what {
        Purged::Url(value) => ("url", value),
        Purged::Prefix(value) => ("prefix", value),
        Purged::Tag(value) => ("tag", value),
        Purged::All => ("all", b""),
    };
    let mut text = format!("{own:016x} {softness} {kind}\n").into_bytes();
    text.extend_from_slice(value);
    text
}

/// Parses a message. Returns the sender's name and the purge. Returns `None` if the message is
/// invalid.
pub fn parse(text: &[u8]) -> Option<(u64, Purge)> {
    let end = text.iter().position(|byte| *byte == b'\n')?;
    let mut words = std::str::from_utf8(&text[..end]).ok()?.split(' ');
    let own = u64::from_str_radix(words.next()?, 16).ok()?;
    let is_soft = match words.next()? {
        "soft" => true,
        "hard" => false,
        _ => return None,
    };
    let value = text[end + 1..].to_vec();
    let what = match words.next()? {
        "url" if !value.is_empty() => Purged::Url(value),
        "prefix" if !value.is_empty() => Purged::Prefix(value),
        "tag" if !value.is_empty() => Purged::Tag(value),
        "all" if value.is_empty() => Purged::All,
        _ => return None,
    };
    words.next().is_none().then_some((own, Purge { what, is_soft }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_purge_survives_the_way() {
        for what in [
            Purged::Url(b"http://h/a\nb\0".to_vec()),
            Purged::Prefix(b"http://h/".to_vec()),
            Purged::Tag(b"t".to_vec()),
            Purged::All,
        ] {
            let purge = Purge { what, is_soft: true };
            assert_eq!(parse(&text(7, &purge)), Some((7, purge)));
        }
        for wrong in [
            &b""[..],
            b"x",
            b"7 hard all",
            b"7 hard all\nx",
            b"7 hard url\n",
            b"7 firm all\n",
            b"7 hard all x\n",
            b"\xff hard all\n",
            b"7 hard everything\n",
        ] {
            assert_eq!(parse(wrong), None);
        }
    }
}
