//! A store in a server with the Redis protocol: Redis, Valkey and others. The server must support
//! streams (Redis 5) and scripts.
//!
//! The client is our own (`redis/connection.rs`, `forebay_wire::resp`), because the crate `redis`
//! (1.8) reads a reply of any size into memory. Any program that may write to the database could
//! then end Forebay on all machines with one large value. This client refuses a reply that is too
//! large as soon as the server announces its length. The crate `fred` needs an event loop, which
//! the threads that use the store do not have.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use forebay_conf::RedisServer;
use forebay_wire::resp::{RespError, RespValue};

use crate::StoreError;
use crate::backend::{Batch, Change, Cursor, Expected, Messages, StoreBackend};

mod connection;

use connection::{ConnectionError, Connector, RedisConnection};

/// Time limit for one operation, with the connection and its handshake.
const LIMIT: Duration = Duration::from_secs(2);
/// After a failure, all operations fail immediately for this time, so that no thread waits
/// repeatedly.
const PAUSE: Duration = Duration::from_millis(250);
/// Life of the number of a process's last batch of counts, in milliseconds: a day.
const BATCH_LIFE: &[u8] = b"86400000";
/// Number of messages that a channel keeps. All of them are removed when no message has come for
/// `MESSAGE_LIFE` milliseconds.
const KEPT_MESSAGES: &[u8] = b"1000";
const MESSAGE_LIFE: &[u8] = b"3600000";

/// Sets an entry if it has the expected content.
const REPLACE: &str = "if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end \
    if ARGV[3] == '' then redis.call('SET', KEYS[1], ARGV[2]) \
    else redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3]) end return 1";

const LOCK: &str = "if redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then return 1 end \
    if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end \
    redis.call('PEXPIRE', KEYS[1], ARGV[2]) return 1";

const UNLOCK: &str = "if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('DEL', KEYS[1]) end \
    return 1";

/// Adds each count to the due time of its key. Due times are in microseconds of the server's clock,
/// so the clocks of the machines need not agree. If a key has no number, or has NaN, its due time
/// is now. The conditions are negated, because every comparison with NaN is false.
///
/// The first key has the number of the owner's last batch. If the number of this batch is not
/// larger, the server has already added the batch, and the script only reads. Forebay never writes
/// 2^53 or a larger number, so such a number counts as 0. The script writes the number before the
/// due times. A server without free memory refuses this first write, so that nothing changes.
const ADVANCE: &str = "local t = redis.call('TIME') local now = t[1] * 1000000 + t[2] local out = {} \
    local last = redis.pcall('GET', KEYS[1]) last = type(last) == 'string' and tonumber(last) or 0 \
    if not (last < 9007199254740992) then last = 0 end \
    local is_new = not (last >= tonumber(ARGV[1])) \
    if is_new then redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2]) end \
    for i = 2, #KEYS do local key = KEYS[i] \
    local step, most = tonumber(ARGV[2 * i - 1]), tonumber(ARGV[2 * i]) \
    local v = redis.pcall('GET', key) local due = type(v) == 'string' and tonumber(v) or now \
    if not (due >= now) then due = now end if is_new then due = due + step end \
    if not (due <= now + most) then due = now + most end \
    if is_new and due > now then redis.call('SET', key, string.format('%.0f', due), 'PX', \
    math.ceil((due - now) / 1000) + 1) end \
    out[i - 1] = due - now end return out";

const PUBLISH: &str = "redis.call('XADD', KEYS[1], 'MAXLEN', '~', ARGV[2], '*', 'm', ARGV[1]) \
    redis.call('PEXPIRE', KEYS[1], ARGV[3]) return 1";

/// Returns the ID of the last message.
const LAST: &str = "local r = redis.call('XREVRANGE', KEYS[1], '+', '-', 'COUNT', '1') \
    if r[1] then return r[1][1] end return '0-0'";

/// Returns the ID of the first message after a given ID, without the message's content.
const NEXT: &str = "local r = redis.call('XREAD', 'COUNT', '1', 'STREAMS', KEYS[1], ARGV[1]) \
    if r then return r[1][2][1][1] end return ARGV[1]";

pub struct Redis {
    connector: Connector,
    commands: Mutex<Slot>,
    /// Connection that waits for messages.
    reader: Mutex<Slot>,
}

/// A connection that is opened when a command needs it. `failure` has the time and the reason of
/// the last failure.
#[derive(Default)]
struct Slot {
    connection: Option<RedisConnection>,
    failure: Option<(Instant, String)>,
}

impl Redis {
    pub fn new(server: &RedisServer) -> Result<Self, String> {
        let connector = Connector::new(server)?;
        Ok(Self { connector, commands: Mutex::default(), reader: Mutex::default() })
    }

    fn call(&self, arguments: &[&[u8]]) -> Result<RespValue, StoreError> {
        self.call_on(&self.commands, arguments, LIMIT).map_err(|error| self.convert(error))
    }

    /// Sends a command and returns the reply. If the kept connection is broken, sends the command
    /// once more over a new connection, because the server may have closed the idle connection.
    /// Does not send the command again after a timeout, because the server may have run it. Within
    /// [`PAUSE`] after a failure, fails without a new connection.
    fn call_on(
        &self,
        slot: &Mutex<Slot>,
        arguments: &[&[u8]],
        limit: Duration,
    ) -> Result<RespValue, ConnectionError> {
        let mut slot = slot.lock().unwrap_or_else(PoisonError::into_inner);
        let deadline = Instant::now() + limit;
        if let Some(mut connection) = slot.connection.take() {
            match connection.call(arguments, deadline) {
                Ok(reply) => match of_server(reply) {
                    Err(ConnectionError::Away(_)) => {}
                    outcome => {
                        slot.connection = Some(connection);
                        return outcome;
                    }
                },
                Err(ConnectionError::Late(why)) => {
                    slot.failure = Some((Instant::now(), why.clone()));
                    return Err(ConnectionError::Late(why));
                }
                Err(_) => {}
            }
        }
        if let Some((at, why)) = &slot.failure
            && at.elapsed() < PAUSE
        {
            return Err(ConnectionError::Away(why.clone()));
        }
        let deadline = deadline.max(Instant::now() + LIMIT);
        let opened = self.connector.connect(deadline);
        let outcome = opened.and_then(|mut connection| {
            let reply = connection.call(arguments, deadline).and_then(of_server)?;
            slot.connection = Some(connection);
            Ok(reply)
        });
        slot.failure = match &outcome {
            Err(ConnectionError::Away(why) | ConnectionError::Late(why)) => {
                Some((Instant::now(), why.clone()))
            }
            _ => None,
        };
        outcome
    }

    fn script(&self, script: &str, key: &str, more: &[&[u8]]) -> Result<RespValue, StoreError> {
        let mut arguments = vec![b"EVAL", script.as_bytes(), b"1", key.as_bytes()];
        arguments.extend_from_slice(more);
        self.call(&arguments)
    }

    fn convert(&self, error: ConnectionError) -> StoreError {
        match error {
            ConnectionError::Away(why) | ConnectionError::Late(why) => StoreError::Away(why),
            ConnectionError::Refused(why) if why.starts_with("WRONGTYPE") => {
                StoreError::Content("another program has used its name for another type".to_owned())
            }
            ConnectionError::Refused(why) => StoreError::Refused(why),
            ConnectionError::Broken(RespError::TooLarge) => {
                StoreError::Content("it is too large".to_owned())
            }
            ConnectionError::Broken(error) => StoreError::Content(error.to_string()),
        }
    }
}

/// Returns the reply. If the server has replied with an error, returns that error as `Err`.
fn of_server(reply: RespValue) -> Result<RespValue, ConnectionError> {
    let RespValue::Error(text) = reply else { return Ok(reply) };
    let text = connection::shown(&text);
    let kind = text.split(' ').next().unwrap_or_default();
    // These errors mean that this server cannot carry out the command now. `Away` makes the caller
    // reconnect, and the new connection may reach another server.
    let kinds = ["LOADING", "READONLY", "MASTERDOWN", "BUSY", "TRYAGAIN", "CLUSTERDOWN"];
    let is_away = kinds.contains(&kind);
    Err(if is_away { ConnectionError::Away(text) } else { ConnectionError::Refused(text) })
}

fn unexpected() -> StoreError {
    StoreError::Content("the server answers with another type than asked for".to_owned())
}

fn is_one(reply: &RespValue) -> Result<bool, StoreError> {
    match reply {
        RespValue::Number(number) => Ok(*number == 1),
        _ => Err(unexpected()),
    }
}

fn text(reply: RespValue) -> Result<String, StoreError> {
    match reply {
        RespValue::Bytes(bytes) => String::from_utf8(bytes).map_err(|_| unexpected()),
        _ => Err(unexpected()),
    }
}

fn milliseconds(time: Duration) -> String {
    time.as_millis().max(1).to_string()
}

fn entry(name: &str) -> String {
    format!("forebay:entry:{name}")
}

fn lock(name: &str) -> String {
    format!("forebay:lock:{name}")
}

fn channel_key(name: &str) -> String {
    format!("forebay:messages:{name}")
}

/// Puts the name of an entry before the text of a `Content` error. Other errors stay unchanged.
fn about(name: &str) -> impl Fn(StoreError) -> StoreError {
    move |error| match error {
        StoreError::Content(why) => StoreError::Content(format!("{name}: {why}")),
        error => error,
    }
}

impl StoreBackend for Redis {
    fn get(&self, name: &str) -> Result<Option<Vec<u8>>, StoreError> {
        match self.call(&[b"GET", entry(name).as_bytes()]).map_err(about(name))? {
            RespValue::Nil => Ok(None),
            RespValue::Bytes(bytes) => Ok(Some(bytes)),
            _ => Err(unexpected()),
        }
    }

    fn set(
        &self,
        name: &str,
        Change { value, expected, life }: Change<'_>,
    ) -> Result<bool, StoreError> {
        let key = entry(name);
        let life = life.map(milliseconds).unwrap_or_default();
        if let Expected::Content(before) = expected {
            let more = [before, value, life.as_bytes()];
            return is_one(&self.script(REPLACE, &key, &more).map_err(about(name))?);
        }
        let mut arguments: Vec<&[u8]> = vec![b"SET", key.as_bytes(), value];
        if !life.is_empty() {
            arguments.extend([b"PX", life.as_bytes()]);
        }
        if matches!(expected, Expected::Nothing) {
            arguments.push(b"NX");
        }
        Ok(self.call(&arguments)? != RespValue::Nil)
    }

    fn remove(&self, name: &str) -> Result<(), StoreError> {
        self.call(&[b"DEL", entry(name).as_bytes()]).map(drop)
    }

    fn lock(&self, name: &str, owner: &str, lease: Duration) -> Result<bool, StoreError> {
        let lease = milliseconds(lease);
        let more = [owner.as_bytes(), lease.as_bytes()];
        is_one(&self.script(LOCK, &lock(name), &more).map_err(about(name))?)
    }

    fn unlock(&self, name: &str, owner: &str) -> Result<(), StoreError> {
        self.script(UNLOCK, &lock(name), &[owner.as_bytes()]).map(drop).map_err(about(name))
    }

    fn advance(&self, limit: &str, batch: &Batch<'_>) -> Result<Vec<Duration>, StoreError> {
        let Batch { owner, number, counts } = *batch;
        let last = format!("forebay:batch:{limit}:{owner}");
        let rates = counts.iter().map(|count| format!("forebay:rate:{limit}:{:016x}", count.key));
        let keys: Vec<_> = std::iter::once(last).chain(rates).collect();
        let times = counts.iter().flat_map(|count| [count.step, count.most]);
        let times: Vec<_> = times.map(|time| time.as_micros().to_string()).collect();
        let (number, length) = (number.to_string(), keys.len().to_string());
        let mut arguments = vec![&b"EVAL"[..], ADVANCE.as_bytes(), length.as_bytes()];
        arguments.extend(keys.iter().map(String::as_bytes));
        arguments.extend([number.as_bytes(), BATCH_LIFE]);
        arguments.extend(times.iter().map(String::as_bytes));
        let RespValue::Array(found) = self.call(&arguments)? else { return Err(unexpected()) };
        if found.len() != counts.len() {
            return Err(unexpected());
        }
        let ahead = found.into_iter().map(|value| match value {
            RespValue::Number(time) => Ok(Duration::from_micros(u64::try_from(time).unwrap_or(0))),
            _ => Err(unexpected()),
        });
        ahead.collect()
    }

    fn publish(&self, channel: &str, message: &[u8]) -> Result<(), StoreError> {
        let more = [message, KEPT_MESSAGES, MESSAGE_LIFE];
        self.script(PUBLISH, &channel_key(channel), &more).map(drop).map_err(about(channel))
    }

    fn messages(
        &self,
        channel: &str,
        Cursor(cursor): &mut Cursor,
        wait: Duration,
    ) -> Result<Messages, StoreError> {
        let key = channel_key(channel);
        let last = match cursor {
            Some(last) => last.concat(),
            None => text(self.script(LAST, &key, &[]).map_err(about(channel))?)?,
        };
        *cursor = Some(vec![last.clone()]);
        let block = milliseconds(wait);
        // Ask for only one message per reply. If a reply with several messages were too large, all
        // of its messages would be lost.
        let arguments: [&[u8]; 8] = [
            b"XREAD",
            b"COUNT",
            b"1",
            b"BLOCK",
            block.as_bytes(),
            b"STREAMS",
            key.as_bytes(),
            last.as_bytes(),
        ];
        match self.call_on(&self.reader, &arguments, wait + LIMIT) {
            Ok(RespValue::Nil) => Ok(Messages::default()),
            Ok(reply) => {
                let (id, content) = message(reply).ok_or_else(unexpected)?;
                *cursor = Some(vec![id]);
                Ok(match content {
                    Some(content) => Messages { found: vec![content], skipped: Vec::new() },
                    None => skipped(channel, "has another form"),
                })
            }
            Err(ConnectionError::Broken(RespError::TooLarge)) => {
                *cursor = Some(vec![text(self.script(NEXT, &key, &[last.as_bytes()])?)?]);
                Ok(skipped(channel, "is too large"))
            }
            Err(error) => Err(about(channel)(self.convert(error))),
        }
    }
}

fn skipped(channel: &str, why: &str) -> Messages {
    Messages { found: Vec::new(), skipped: vec![format!("a message of {channel} {why}")] }
}

/// Returns the ID and the content of the message in a reply to `XREAD`: `[[key, [[id, ["m",
/// content]]]]]`. The content is `None` if the message does not have exactly the field `m`. Returns
/// `None` if the reply has no message.
fn message(reply: RespValue) -> Option<(String, Option<Vec<u8>>)> {
    let array = |value: RespValue| match value {
        RespValue::Array(values) => Some(values),
        _ => None,
    };
    let messages = array(array(array(reply)?.pop()?)?.pop()?)?;
    let mut message = array(messages.into_iter().next()?)?.into_iter();
    let id = text(message.next()?).ok()?;
    let fields = array(message.next()?).unwrap_or_default();
    let content = match <[RespValue; 2]>::try_from(fields) {
        Ok([RespValue::Bytes(name), RespValue::Bytes(content)]) if name == b"m" => Some(content),
        _ => None,
    };
    Some((id, content))
}
