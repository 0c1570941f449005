//! Keys that encrypt session tickets, and keys of QUIC.
//!
//! A process makes its keys itself and replaces the ticket key every six hours. An upgrade in place
//! passes the keys to the new process. Machines that share a store have the same keys: one of the
//! machines makes the next key some minutes before all machines begin to use it.
//!
//! A ticket is the name of its key (16 bytes), a random salt (24 bytes), and the output of
//! AES-256-GCM. Each ticket has its own key, HMAC-SHA256 of the salt, because many machines would
//! otherwise use up the nonces of one key.

use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{SystemTime, UNIX_EPOCH};

use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use aws_lc_rs::{hmac, rand};
use rustls::server::ProducesTickets;

/// Time in seconds after which the next key is used.
const PERIOD: u64 = 6 * 3600;
/// Life of a ticket in seconds.
const LIFE: u64 = 12 * 3600;
/// Time in seconds between the creation of a shared key and its first use. All machines read the
/// store in this time.
const LEAD: u64 = 300;
/// Maximum number of keys from one source.
const MOST_KEYS: usize = 16;

const NAME: usize = 16;
const SALT: usize = 24;

/// The keys of this process, for all threads. A reload keeps them.
#[derive(Clone)]
pub struct TicketKeys(Arc<RwLock<KeyRing>>);

impl fmt::Debug for TicketKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TicketKeys")
    }
}

struct KeyRing {
    /// Sorted by the time of their first use.
    ring: Vec<TicketKey>,
    quic: QuicKeys,
}

/// Keys of QUIC.
#[derive(Clone, Copy)]
pub struct QuicKeys {
    /// Signs the tokens that prove a client's address.
    pub token: [u8; 32],
    /// Derives the tokens of stateless resets.
    pub reset: [u8; 32],
}

/// A key for tickets.
#[derive(Clone, PartialEq, Eq)]
struct TicketKey {
    name: [u8; NAME],
    secret: [u8; 32],
    /// Time of its first use, in seconds since 1970.
    from: u64,
    /// True if other machines have this key.
    is_shared: bool,
}

impl TicketKey {
    fn new(from: u64, is_shared: bool) -> Option<Self> {
        Some(Self { name: random()?, secret: random()?, from, is_shared })
    }

    fn key(&self, salt: &[u8; SALT]) -> Option<LessSafeKey> {
        let secret = hmac::Key::new(hmac::HMAC_SHA256, &self.secret);
        let key = UnboundKey::new(&AES_256_GCM, hmac::sign(&secret, salt).as_ref()).ok()?;
        Some(LessSafeKey::new(key))
    }
}

/// Returns a constant nonce, because the key of each ticket is used only once.
fn nonce() -> Nonce {
    Nonce::assume_unique_for_key([0; NONCE_LEN])
}

impl TicketKeys {
    /// Creates new keys. Returns `None` if the system's random number generator fails.
    pub fn new() -> Option<Self> {
        let quic = QuicKeys { token: random()?, reset: random()? };
        let keys = KeyRing { ring: vec![TicketKey::new(seconds_now(), false)?], quic };
        Some(Self(Arc::new(RwLock::new(keys))))
    }

    /// Returns the keys of QUIC.
    pub fn quic(&self) -> QuicKeys {
        self.0.read().unwrap_or_else(PoisonError::into_inner).quic
    }

    /// Replaces the QUIC token key by `token`, which machines with the same store share.
    pub fn share_quic_token(&self, token: [u8; 32]) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).quic.token = token;
    }

    /// Returns all keys as text, for another process of this machine.
    pub fn to_text(&self) -> String {
        let keys = self.0.read().unwrap_or_else(PoisonError::into_inner);
        format!("{};{};{}", hex(&keys.quic.token), hex(&keys.quic.reset), ring_text(&keys.ring))
    }

    /// Takes the keys of another process of this machine. Keeps the current keys if the text is
    /// malformed.
    pub fn take_text(&self, text: &str) {
        let mut parts = text.splitn(3, ';');
        let mut next = || parts.next();
        let taken = (|| {
            let quic = QuicKeys { token: bytes(next()?)?, reset: bytes(next()?)? };
            Some((quic, parse_ring(next()?)?))
        })();
        if let Some((quic, ring)) = taken {
            let mut keys = self.0.write().unwrap_or_else(PoisonError::into_inner);
            keys.quic = quic;
            keys.merge(ring, seconds_now());
        }
    }

    /// Adds the keys in `stored`, the text in the store of all machines. If it is time for the next
    /// key, returns a new text with this key, for the store. Otherwise returns `None`.
    ///
    /// # Errors
    /// Fails if the text is malformed, or if a key is too far in the future. The caller may then
    /// store the text of [`fresh_ring`].
    pub fn share(&self, stored: &str) -> Result<Option<String>, String> {
        let ring = parse_ring(stored).ok_or("the keys of session tickets are malformed")?;
        let now = seconds_now();
        if ring.iter().any(|key| key.from > now + PERIOD + LEAD) {
            return Err("a key of session tickets is for the future; check the clocks".to_owned());
        }
        let next = next_ring(&ring, now).map(|ring| ring_text(&ring));
        let shared = ring.into_iter().map(|key| TicketKey { is_shared: true, ..key });
        let mut keys = self.0.write().unwrap_or_else(PoisonError::into_inner);
        keys.merge(shared.collect(), now);
        Ok(next)
    }

    /// Returns the keys that other machines have, as text to store. Returns `None` if other
    /// machines have no keys.
    pub fn shared_text(&self) -> Option<String> {
        let keys = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let shared: Vec<_> = keys.ring.iter().filter(|key| key.is_shared).cloned().collect();
        (!shared.is_empty()).then(|| ring_text(&shared))
    }

    /// Marks all keys as not shared with other machines. This process then makes new keys itself.
    pub fn end_sharing(&self) {
        let mut keys = self.0.write().unwrap_or_else(PoisonError::into_inner);
        keys.ring.iter_mut().for_each(|key| key.is_shared = false);
    }

    /// Adds a key if there is none, or if the newest one is old and not shared with other machines.
    fn renew(&self, now: u64) {
        let is_due = |keys: &KeyRing| {
            keys.newest(now).is_none_or(|key| !key.is_shared && key.from + PERIOD <= now)
        };
        if !is_due(&self.0.read().unwrap_or_else(PoisonError::into_inner)) {
            return;
        }
        let mut keys = self.0.write().unwrap_or_else(PoisonError::into_inner);
        if is_due(&keys)
            && let Some(key) = TicketKey::new(now, false)
        {
            keys.merge(vec![key], now);
        }
    }
}

/// Returns a text for the store of all machines: one new key, which they may use at once. Returns
/// `None` if the system's random number generator fails.
pub fn fresh_ring() -> Option<String> {
    Some(ring_text(&[TicketKey::new(seconds_now(), true)?]))
}

/// Returns the needed keys of `ring` and the next key. Returns `None` if it is too early for the
/// next key, or if the system's random number generator fails.
fn next_ring(ring: &[TicketKey], now: u64) -> Option<Vec<TicketKey>> {
    let newest = ring.last()?;
    if newest.from + PERIOD > now + LEAD {
        return None;
    }
    let from = (newest.from + PERIOD).max(now + LEAD);
    let mut next: Vec<_> = ring.iter().filter(|key| is_needed(ring, key, now)).cloned().collect();
    next.push(TicketKey::new(from, true)?);
    Some(next)
}

/// Returns true if tickets of this key may still be valid. The newest key of the ring and the
/// newest shared key are always needed.
fn is_needed(ring: &[TicketKey], key: &TicketKey, now: u64) -> bool {
    let replaces =
        |other: &&TicketKey| other.from > key.from && (other.is_shared || !key.is_shared);
    let successor = ring.iter().find(replaces);
    successor.is_none_or(|successor| successor.from + LIFE > now)
}

impl KeyRing {
    /// Returns the key that encrypts new tickets: the newest shared key, else the newest key.
    /// Ignores keys that begin after `now`. Returns `None` if all keys begin later, or if there is
    /// no key.
    fn newest(&self, now: u64) -> Option<&TicketKey> {
        let mut usable = self.ring.iter().rev().filter(|key| key.from <= now);
        let newest = usable.clone().next();
        usable.find(|key| key.is_shared).or(newest)
    }

    fn merge(&mut self, more: Vec<TicketKey>, now: u64) {
        for key in more {
            self.ring.retain(|known| known.name != key.name);
            self.ring.push(key);
        }
        self.ring.sort_by_key(|key| key.from);
        let ring = self.ring.clone();
        self.ring.retain(|key| is_needed(&ring, key, now));
        let excess = self.ring.len().saturating_sub(2 * MOST_KEYS);
        self.ring.drain(..excess);
    }
}

impl ProducesTickets for TicketKeys {
    fn enabled(&self) -> bool {
        true
    }

    fn lifetime(&self) -> u32 {
        LIFE as u32
    }

    fn encrypt(&self, plain: &[u8]) -> Option<Vec<u8>> {
        let now = seconds_now();
        self.renew(now);
        let keys = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let key = keys.newest(now)?;
        let salt = random::<SALT>()?;
        let mut content = plain.to_vec();
        let aad = Aad::from(key.name);
        key.key(&salt)?.seal_in_place_append_tag(nonce(), aad, &mut content).ok()?;
        let mut ticket = Vec::with_capacity(NAME + SALT + content.len());
        ticket.extend_from_slice(&key.name);
        ticket.extend_from_slice(&salt);
        ticket.append(&mut content);
        Some(ticket)
    }

    fn decrypt(&self, ticket: &[u8]) -> Option<Vec<u8>> {
        let (name, rest) = ticket.split_first_chunk::<NAME>()?;
        let (salt, content) = rest.split_first_chunk::<SALT>()?;
        let keys = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let key = keys.ring.iter().find(|key| key.name == *name)?;
        let mut content = content.to_vec();
        let opened = key.key(salt)?.open_in_place(nonce(), Aad::from(*name), &mut content);
        let length = opened.ok()?.len();
        content.truncate(length);
        Some(content)
    }
}

fn seconds_now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

fn random<const N: usize>() -> Option<[u8; N]> {
    let mut bytes = [0; N];
    rand::fill(&mut bytes).ok()?;
    Some(bytes)
}

fn ring_text(ring: &[TicketKey]) -> String {
    let key = |key: &TicketKey| {
        let shared = if key.is_shared { "s" } else { "l" };
        format!("{}:{}:{}:{shared}", hex(&key.name), hex(&key.secret), key.from)
    };
    ring.iter().map(key).collect::<Vec<_>>().join(",")
}

fn parse_ring(text: &str) -> Option<Vec<TicketKey>> {
    let key = |text: &str| {
        let mut parts = text.split(':');
        let name = bytes(parts.next()?)?;
        let secret = bytes(parts.next()?)?;
        let from = parts.next()?.parse().ok().filter(|from| *from < u64::MAX / 2)?;
        let is_shared = match parts.next()? {
            "s" => true,
            "l" => false,
            _ => return None,
        };
        parts.next().is_none().then_some(TicketKey { name, secret, from, is_shared })
    };
    let mut ring = text.split(',').map(key).collect::<Option<Vec<_>>>()?;
    ring.sort_by_key(|key| key.from);
    (ring.len() <= 2 * MOST_KEYS).then_some(ring)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn bytes<const N: usize>(text: &str) -> Option<[u8; N]> {
    let mut bytes = [0; N];
    if text.len() != 2 * N || !text.is_ascii() {
        return None;
    }
    for (at, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * at..2 * at + 2], 16).ok()?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys() -> TicketKeys {
        TicketKeys::new().unwrap()
    }

    fn newest(keys: &TicketKeys, now: u64) -> [u8; NAME] {
        keys.0.read().unwrap().newest(now).unwrap().name
    }

    #[test]
    fn a_ticket_is_opened_with_its_key_alone() {
        let (one, other) = (keys(), keys());
        let ticket = one.encrypt(b"session").unwrap();
        assert_eq!(one.decrypt(&ticket).as_deref(), Some(&b"session"[..]));
        assert_eq!(other.decrypt(&ticket), None);
        assert_ne!(ticket, one.encrypt(b"session").unwrap());
        for at in 0..ticket.len() {
            assert_eq!(one.decrypt(&ticket[..at]), None);
            let mut changed = ticket.clone();
            changed[at] ^= 1;
            assert_eq!(one.decrypt(&changed), None);
        }
    }

    #[test]
    fn a_key_is_used_for_six_hours_and_kept_for_twelve_more() {
        let keys = keys();
        let start = seconds_now();
        let ticket = keys.encrypt(b"session").unwrap();
        let first = newest(&keys, start);
        keys.renew(start + PERIOD - 1);
        assert_eq!(newest(&keys, start + PERIOD), first);
        keys.renew(start + PERIOD + 10);
        assert_ne!(newest(&keys, start + PERIOD + 10), first);
        assert!(keys.decrypt(&ticket).is_some());
        for hours in 13..40 {
            keys.renew(start + hours * 3600);
        }
        assert_eq!(keys.decrypt(&ticket), None);
        assert!(keys.0.read().unwrap().ring.len() <= 4);
    }

    #[test]
    fn a_successor_has_the_keys() {
        let (old, new) = (keys(), keys());
        let ticket = old.encrypt(b"session").unwrap();
        let before = new.encrypt(b"other").unwrap();
        for text in ["", ";;", "a;b;c", "ä", &old.to_text()[1..], &format!("{}x", old.to_text())] {
            new.take_text(text);
            assert_eq!(new.decrypt(&ticket), None, "{text}");
        }
        new.take_text(&old.to_text());
        assert!(new.decrypt(&ticket).is_some() && new.decrypt(&before).is_some());
        assert_eq!(new.quic().reset, old.quic().reset);
    }

    #[test]
    fn machines_rotate_together() {
        let (one, other) = (keys(), keys());
        let own = one.encrypt(b"before").unwrap();
        let ring = fresh_ring().unwrap();
        assert_eq!((one.share(&ring), other.share(&ring)), (Ok(None), Ok(None)));
        let ticket = one.encrypt(b"session").unwrap();
        assert!(other.decrypt(&ticket).is_some());
        assert!(one.decrypt(&own).is_some(), "its own tickets stay valid");
        assert_eq!(one.shared_text(), Some(ring.clone()));
        // The next key exists before it is used.
        let now = seconds_now();
        let parsed = parse_ring(&ring).unwrap();
        assert!(next_ring(&parsed, now + PERIOD - LEAD - 10).is_none());
        let next = next_ring(&parsed, now + PERIOD - LEAD + 10).unwrap();
        assert!(next[1].from >= now + PERIOD && next[0] == parsed[0]);
        let mut ring = parsed;
        for hour in 0..100 {
            ring = next_ring(&ring, now + hour * 3600).unwrap_or(ring);
        }
        assert!(ring.len() <= 5, "{}", ring.len());
        // One machine alone never replaces the shared keys.
        one.renew(now + 100 * PERIOD);
        assert_eq!(newest(&one, now + 100 * PERIOD), newest(&one, now));
    }

    #[test]
    fn a_shared_key_stays_in_use_without_the_store() {
        let keys = keys();
        let shared = TicketKey::new(seconds_now() - PERIOD / 2, true).unwrap();
        assert_eq!(keys.share(&ring_text(std::slice::from_ref(&shared))), Ok(None));
        // The machine's own key is newer, but the shared key stays in use.
        let late = seconds_now() + 5 * LIFE;
        keys.0.write().unwrap().merge(Vec::new(), late);
        assert_eq!(newest(&keys, late), shared.name);
    }

    #[test]
    fn a_machine_that_shares_no_more_replaces_its_keys() {
        let keys = keys();
        keys.share(&fresh_ring().unwrap()).unwrap();
        let ticket = keys.encrypt(b"session").unwrap();
        let (now, before) = (seconds_now(), newest(&keys, seconds_now()));
        keys.end_sharing();
        assert!(keys.decrypt(&ticket).is_some() && keys.shared_text().is_none());
        keys.renew(now + PERIOD + 10);
        assert_ne!(newest(&keys, now + PERIOD + 10), before);
    }

    #[test]
    fn hostile_keys_are_refused() {
        let keys = keys();
        let good = fresh_ring().unwrap();
        let future = good.replace(&seconds_now().to_string()[..6], "999999");
        let many = vec![good.as_str(); 100].join(",");
        for text in ["", "x", ":::", &good[1..], &many, &future, &good.replace(":s", ":x")] {
            assert!(keys.share(text).is_err(), "{text}");
        }
    }
}
