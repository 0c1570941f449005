//! A suite for all kinds of store, and tests of each kind with hostile contents.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use forebay_conf::{Plan, SharedStore};
use forebay_store::{Count, Cursor, LARGEST_BATCH, LARGEST_ENTRY, Store, StoreError};
use forebay_testkit::peer::Redis;
use forebay_testkit::tls::Authority;

const KEY: &str = "0123456789abcdef0123456789abcdef";
const SOON: Duration = Duration::from_secs(30);
const NOW: Duration = Duration::from_millis(1);

fn settings(keys: &str) -> SharedStore {
    let text = format!(
        "[server]\n{keys}\n[[site]]\nlisten = \"127.0.0.1:1\"\n[[site.route]]\nrespond = \"x\"\n"
    );
    let plan: Plan = forebay_conf::parse(&text, "site.toml", Path::new("/")).unwrap();
    *plan.server.store.unwrap()
}

fn directory(root: &Path, key: &str) -> Store {
    Store::new(&settings(&format!("store = \"{}\"\n{key}", root.display()))).unwrap()
}

fn redis(url: &str) -> Store {
    Store::new(&settings(&format!("store = \"{url}\"\nstore_key = \"{KEY}\""))).unwrap()
}

fn read(store: &Store, name: &str) -> Option<Vec<u8>> {
    store.get(name).unwrap().map(|entry| entry.value)
}

fn messages(store: &Store, cursor: &mut Cursor, wait: Duration) -> (Vec<Vec<u8>>, usize) {
    let mut unusable = 0;
    let found = store.messages("news", cursor, wait, |_| unusable += 1);
    (found.unwrap(), unusable)
}

/// Checks two handles of one store, as two machines have them.
fn check(one: &Store, other: &Store) {
    one.probe().unwrap();
    // Entries.
    assert_eq!(read(one, "a/b"), None);
    one.put("a/b", b"1\r\n\0", None).unwrap();
    let before = other.get("a/b").unwrap().unwrap();
    assert_eq!(before.value, b"1\r\n\0");
    assert!(!other.replace("a/b", None, b"2", None).unwrap());
    assert!(other.replace("a/b", Some(&before), b"2", None).unwrap());
    assert!(!one.replace("a/b", Some(&before), b"3", None).unwrap(), "another was faster");
    assert_eq!(read(one, "a/b").as_deref(), Some(&b"2"[..]));
    one.remove("a/b").unwrap();
    one.remove("a/b").unwrap();
    assert_eq!(read(other, "a/b"), None);
    assert!(one.replace("new", None, b"", None).unwrap());
    assert_eq!(read(other, "new").as_deref(), Some(&b""[..]));
    let large = vec![b'x'; LARGEST_ENTRY - 100];
    one.put("large", &large, Some(SOON)).unwrap();
    assert_eq!(read(other, "large"), Some(large));
    assert!(matches!(
        one.put("large", &vec![0; LARGEST_ENTRY + 1], None),
        Err(StoreError::Refused(_))
    ));
    assert!(matches!(one.get("../x"), Err(StoreError::Refused(_))));
    one.put("short", b"x", Some(NOW)).unwrap();
    while read(other, "short").is_some() {}
    // Locks.
    assert!(one.lock("l", SOON).unwrap());
    assert!(one.lock("l", SOON).unwrap(), "the owner extends it");
    assert!(!other.lock("l", SOON).unwrap());
    other.unlock("l").unwrap();
    assert!(!other.lock("l", SOON).unwrap(), "only the owner ends it");
    one.unlock("l").unwrap();
    assert!(other.lock("l", NOW).unwrap());
    // The owner dies.
    while !one.lock("l", SOON).unwrap() {}
    // Messages.
    let (mut cursor, mut late) = (Cursor::default(), Cursor::default());
    one.publish("news", b"before").unwrap();
    assert_eq!(messages(other, &mut cursor, NOW), (Vec::new(), 0));
    one.publish("news", b"first").unwrap();
    assert_eq!(messages(other, &mut cursor, SOON), (vec![b"first".to_vec()], 0));
    assert_eq!(messages(other, &mut cursor, NOW), (Vec::new(), 0));
    assert_eq!(messages(one, &mut late, NOW), (Vec::new(), 0));
    let waiting = other.clone();
    let reader = thread::spawn(move || messages(&waiting, &mut cursor, SOON).0);
    one.publish("news", b"second").unwrap();
    assert_eq!(reader.join().unwrap(), [b"second"]);
    assert_eq!(messages(one, &mut late, SOON).0, [b"second"], "each machine gets it");
    // Rates.
    let second = Duration::from_secs(1);
    let count = |key, step| Count { key, step, most: second * 1000 };
    let about = |found: Duration, seconds: u32| {
        let wanted = second * seconds;
        assert!(found <= wanted && found > wanted - second * 20, "{found:?} {wanted:?}");
    };
    let ahead = add(one, "limit", &[count(1, second * 100), count(2, second * 50)]);
    about(ahead[0], 100);
    about(ahead[1], 50);
    let ahead = add(other, "limit", &[count(1, second * 100), count(9, Duration::ZERO)]);
    about(ahead[0], 200);
    assert_eq!(ahead[1], Duration::ZERO);
    let ahead = add(one, "limit", &[count(1, second * 5000)]);
    about(ahead[0], 1000);
    let many: Vec<_> = (0..=LARGEST_BATCH as u64).map(|key| count(key, second * 30)).collect();
    let ahead = add(one, "many", &many[1..]);
    assert_eq!(ahead.len(), LARGEST_BATCH);
    ahead.into_iter().for_each(|ahead| about(ahead, 30));
    assert!(add(one, "many", &[]).is_empty());
    let refused = one.advance("many", one.next_batch(), &many);
    assert!(matches!(refused, Err(StoreError::Refused(_))), "{refused:?}");
}

/// Adds a batch of counts.
fn add(store: &Store, limit: &str, counts: &[Count]) -> Vec<Duration> {
    store.advance(limit, store.next_batch(), counts).unwrap()
}

#[test]
fn a_directory_is_a_store() {
    let root = tempfile::tempdir().unwrap();
    for (name, key) in [("plain", String::new()), ("sealed", format!("store_key = \"{KEY}\""))] {
        let root = root.path().join(name);
        check(&directory(&root, &key), &directory(&root, &key));
    }
}

#[test]
fn hostile_files_are_errors() {
    let root = tempfile::tempdir().unwrap();
    let entries = root.path().join("entries");
    fs::create_dir_all(entries.join("folder")).unwrap();
    let write = |name: &str, bytes: &[u8]| fs::write(entries.join(name), bytes).unwrap();
    write("empty", b"");
    write("line", b"not a number\nx");
    write("huge", &vec![b'0'; LARGEST_ENTRY * 2]);
    write("number", b"999999999999999999999999999999999999999999999999\nx");
    std::os::unix::fs::symlink("/etc/passwd", entries.join("link")).unwrap();
    rustix::fs::mkfifoat(rustix::fs::CWD, entries.join("pipe"), rustix::fs::Mode::RWXU).unwrap();
    let store = directory(root.path(), "");
    for name in ["empty", "line", "huge", "number", "link", "pipe", "folder"] {
        let found = store.get(name);
        assert!(matches!(found, Err(StoreError::Content(_))), "{name}: {found:?}");
    }
    let sealed = directory(root.path(), &format!("store_key = \"{KEY}\""));
    write("plain", b"0\nnot encrypted");
    assert!(matches!(sealed.get("plain"), Err(StoreError::Content(_))));
    let found = sealed.get("plain");
    assert!(sealed.notice(&found).is_some() && sealed.notice(&found).is_none(), "logged once");
    assert_eq!(read(&store, "plain").as_deref(), Some(&b"not encrypted"[..]));
    // Messages and counts.
    let mut cursor = Cursor::default();
    assert_eq!(messages(&store, &mut cursor, NOW).0.len(), 0);
    let news = root.path().join("messages/news");
    fs::create_dir_all(news.join("99999999999999999999-0")).unwrap();
    fs::write(news.join("99999999999999999999-1"), vec![0; LARGEST_ENTRY + 1]).unwrap();
    fs::write(news.join("x"), "ignored").unwrap();
    store.publish("news", b"good").unwrap();
    assert_eq!(messages(&store, &mut cursor, SOON), (vec![b"good".to_vec()], 2));
    fs::create_dir_all(root.path().join("rates")).unwrap();
    fs::write(root.path().join("rates/limit"), vec![0xff; 3_000_000]).unwrap();
    let count = Count { key: 1, step: SOON, most: SOON };
    assert!(add(&store, "limit", &[count])[0] <= SOON);
    let nowhere = directory(Path::new("/dev/null/x"), "");
    let error = nowhere.put("a", b"", None).unwrap_err();
    assert!(matches!(&error, StoreError::Away(why) if why.contains("/dev/null/x")), "{error}");
    assert!(nowhere.notice(&Err::<(), _>(error)).unwrap().contains("serves on"));
}

#[test]
fn redis_is_a_store() {
    let Some(server) = Redis::start(None) else { return };
    check(&redis(&server.url(3)), &redis(&server.url(3)));
    // Nothing readable is in the database.
    redis(&server.url(4)).put("secret", b"plain text", None).unwrap();
    let select: &[&[u8]] = &[b"SELECT", b"4"];
    let search: &[&[u8]] = &[
        b"EVAL",
        b"return string.find(redis.call('GET', KEYS[1]), 'plain', 1, true) and 1 or 0",
        b"1",
        b"forebay:entry:secret",
    ];
    assert_eq!(server.send(&[select, search]), ":0");
}

#[test]
fn redis_over_tls_is_a_store() {
    let authority = Authority::new("of Redis");
    let identity = authority.issue(&["127.0.0.1"]);
    let Some(server) = Redis::start(Some((&identity.certificate, &identity.key))) else { return };
    let url = server.url(0).replace("redis://", "rediss://");
    let folder = tempfile::tempdir().unwrap();
    let ca = folder.path().join("ca.pem");
    fs::write(&ca, &authority.pem).unwrap();
    let keys = |ca: &Path| {
        format!("store = \"{url}\"\nstore_key = \"{KEY}\"\nstore_ca = \"{}\"", ca.display())
    };
    let store = Store::new(&settings(&keys(&ca))).unwrap();
    store.probe().unwrap();
    fs::write(&ca, Authority::new("another").pem).unwrap();
    let error = Store::new(&settings(&keys(&ca))).unwrap().probe().unwrap_err();
    assert!(matches!(error, StoreError::Away(_)), "{error}");
    fs::write(&ca, "no certificate").unwrap();
    assert!(Store::new(&settings(&keys(&ca))).is_err());
}

#[test]
fn hostile_values_in_redis_are_errors() {
    let Some(mut server) = Redis::start(None) else { return };
    let store = redis(&server.url(0));
    let huge = vec![b'x'; 2 * LARGEST_ENTRY];
    let set = |name: &[u8], value: &[u8]| drop(server.send(&[&[b"SET", name, value]]));
    set(b"forebay:entry:garbage", b"\xff\0garbage");
    set(b"forebay:entry:huge", &huge);
    server.send(&[&[b"LPUSH", b"forebay:entry:list", b"x"]]);
    server.send(&[&[b"LPUSH", b"forebay:lock:list", b"x"]]);
    for name in ["garbage", "huge", "list"] {
        let error = store.get(name).unwrap_err();
        assert!(matches!(&error, StoreError::Content(why) if why.contains(name)), "{error}");
    }
    assert!(store.lock("list", SOON).is_err());
    // An entry that was written for another name does not take its place.
    store.put("one", b"value", None).unwrap();
    server.send(&[&[b"COPY", b"forebay:entry:one", b"forebay:entry:two"]]);
    assert!(matches!(store.get("two"), Err(StoreError::Content(_))));
    // Messages.
    let mut cursor = Cursor::default();
    messages(&store, &mut cursor, NOW);
    let hostile: [&[&[u8]]; 3] = [&[b"m", &huge], &[b"x", b"y"], &[b"m", b"a", b"n", b"b"]];
    for fields in hostile {
        // A script, because its reply is one line.
        let script = b"redis.call('XADD', KEYS[1], '*', unpack(ARGV)) return 1";
        let mut command: Vec<&[u8]> = vec![b"EVAL", script, b"1", b"forebay:messages:news"];
        command.extend(fields);
        assert_eq!(server.send(&[&command]), ":1");
    }
    store.publish("news", b"good").unwrap();
    let (mut found, mut unusable) = (Vec::new(), 0);
    while found.is_empty() {
        let (more, skipped) = messages(&store, &mut cursor, SOON);
        found.extend(more);
        unusable += skipped;
    }
    assert_eq!((found, unusable), (vec![b"good".to_vec()], 3));
    // Counts.
    let limit = |key: u64| format!("forebay:rate:limit:{key:016x}");
    for (key, value) in [(1, "nan"), (2, "inf"), (3, "-inf"), (4, "1e300"), (5, "x"), (6, "")] {
        set(limit(key).as_bytes(), value.as_bytes());
    }
    server.send(&[&[b"LPUSH", limit(7).as_bytes(), b"x"]]);
    let counts: Vec<_> = (1..=7).map(|key| Count { key, step: NOW, most: SOON }).collect();
    let ahead = add(&store, "limit", &counts);
    assert!(ahead.iter().all(|ahead| *ahead <= SOON), "{ahead:?}");
    // Numbers of batches.
    let step = SOON / 9;
    let one_more = || add(&store, "other", &[Count { key: 1, step, most: SOON }])[0];
    one_more();
    let script = b"local key = redis.call('KEYS', 'forebay:batch:other:*')[1] \
        redis.call('DEL', key) redis.call(ARGV[1], key, ARGV[2]) return 1";
    let hostile = [
        ("SET", "nan"),
        ("SET", "x"),
        ("SET", ""),
        ("SET", "-1e300"),
        ("SET", "1e300"),
        ("SET", "inf"),
        ("LPUSH", "x"),
    ];
    for (before, (command, value)) in (1..).zip(hostile) {
        let write: &[&[u8]] = &[b"EVAL", script, b"0", command.as_bytes(), value.as_bytes()];
        assert_eq!(server.send(&[write]), ":1");
        assert!(one_more() > step * before, "{value}");
    }
    // The server goes and comes back.
    server.kill();
    let gone = store.get("one");
    assert!(matches!(gone, Err(StoreError::Away(_))), "{gone:?}");
    let line = store.notice(&gone).unwrap();
    assert!(line.contains("serves on") && !line.contains(Redis::PASSWORD), "{line}");
    assert_eq!(store.notice(&store.get("one")), None, "it is logged once");
    server.restart();
    while store.get("one").is_err() {}
    assert!(store.notice(&store.get("one")).unwrap().contains("again"));
    let wrong = redis(&server.url(0).replace("%70", "q"));
    let error = wrong.get("one").unwrap_err();
    assert!(matches!(&error, StoreError::Refused(why) if why.contains("WRONGPASS")), "{error}");
}

#[test]
fn a_server_that_is_not_redis_delays_nothing() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("redis://{}", listener.local_addr().unwrap());
    let server = thread::spawn(move || {
        for reply in [&b"HTTP/1.1 400 Bad Request\r\n\r\n"[..], b"$999999999\r\n", b"+", b""] {
            let (mut socket, _) = listener.accept().unwrap();
            let _ = socket.read(&mut [0; 1000]);
            socket.write_all(reply).unwrap();
            // A part of a reply, and no end: the client gives up.
            if reply == b"+" {
                let _ = socket.read_to_end(&mut Vec::new());
            }
        }
    });
    let store = redis(&url);
    assert!(matches!(store.get("a"), Err(StoreError::Content(_))));
    assert!(matches!(store.get("a"), Err(StoreError::Content(_))));
    assert!(matches!(store.get("a"), Err(StoreError::Away(_))));
    let begun = Instant::now();
    assert!(matches!(store.get("a"), Err(StoreError::Away(_))));
    assert!(begun.elapsed() < Duration::from_secs(20));
    drop(store);
    let _ = TcpStream::connect(url.trim_start_matches("redis://"));
    server.join().unwrap();
}

/// Reads a command from a client, and returns the name of the command. Empty at the end.
fn command(client: &mut BufReader<TcpStream>) -> String {
    let mut line = || {
        let mut line = String::new();
        client.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    };
    let Some(count) = line().strip_prefix('*').map(|count| count.parse::<usize>().unwrap()) else {
        return String::new();
    };
    let words: Vec<_> = (0..count).map(|_| (line(), line()).1).collect();
    words.first().cloned().unwrap_or_default()
}

#[test]
fn redis_adds_a_batch_once() {
    let Some(server) = Redis::start(None) else { return };
    adds_a_batch_once(&redis(&server.url(0)), &redis(&server.url(0)));
}

/// A network file system may report an error after it has taken the file.
#[test]
fn a_directory_adds_a_batch_once() {
    let root = tempfile::tempdir().unwrap();
    adds_a_batch_once(&directory(root.path(), ""), &directory(root.path(), ""));
}

/// Checks two handles of one store, as two machines have them.
fn adds_a_batch_once(one: &Store, other: &Store) {
    let count = |seconds| [Count { key: 1, step: SOON * seconds, most: SOON * 1000 }];
    let about = |found: Vec<Duration>, steps: u32| {
        assert!(found[0] <= SOON * steps && found[0] > SOON * (steps - 1), "{found:?} {steps}");
    };
    let (first, second) = (one.next_batch(), one.next_batch());
    about(one.advance("limit", first, &count(1)).unwrap(), 1);
    about(one.advance("limit", first, &count(1)).unwrap(), 1);
    // Another machine, and another limit, have numbers of their own.
    about(other.advance("limit", first, &count(1)).unwrap(), 2);
    about(one.advance("limit", second, &count(2)).unwrap(), 4);
    about(one.advance("another", first, &count(1)).unwrap(), 1);
    // A copy of the first batch that arrives after the second batch does not count either.
    about(one.advance("limit", first, &count(1)).unwrap(), 4);
}

#[test]
fn a_batch_is_sent_once_to_a_server_that_hangs_or_refuses() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("redis://{}", listener.local_addr().unwrap());
    let server = thread::spawn(move || {
        let (mut commands, mut clients) = (Vec::new(), Vec::new());
        // The first connection hangs, and the second one refuses.
        let counted = "*1\r\n:7\r\n";
        for replies in [&["+PONG\r\n"][..], &["+PONG\r\n", counted, "-ERR no\r\n", counted]] {
            let mut client = BufReader::new(listener.accept().unwrap().0);
            for reply in replies {
                commands.push(command(&mut client));
                client.get_mut().write_all(reply.as_bytes()).unwrap();
            }
            commands.push(command(&mut client));
            clients.push(client);
        }
        commands
    });
    let store = redis(&url);
    let add = || store.advance("limit", 1, &[Count { key: 1, step: NOW, most: SOON }]);
    assert!(matches!(add(), Err(StoreError::Away(_))));
    // The store is not asked again at once.
    while add().is_err() {}
    let refused = add();
    assert!(matches!(refused, Err(StoreError::Refused(_))), "{refused:?}");
    // The connection is kept after an error.
    assert_eq!(add().unwrap(), [Duration::from_micros(7)]);
    drop(store);
    assert_eq!(server.join().unwrap(), ["PING", "EVAL", "PING", "EVAL", "EVAL", "EVAL", ""]);
}

#[test]
fn a_password_that_the_server_repeats_is_not_shown() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let store = redis(&format!("redis://:sesame@{}", listener.local_addr().unwrap()));
    let server = thread::spawn(move || {
        let mut client = BufReader::new(listener.accept().unwrap().0);
        assert_eq!(command(&mut client), "AUTH");
        let reply = "-ERR unknown command 'AUTH', with args beginning with: 'sesame' \r\n";
        client.get_mut().write_all(reply.as_bytes()).unwrap();
    });
    let error = store.get("a").unwrap_err().to_string();
    assert!(error.contains("unknown command") && !error.contains("sesame"), "{error}");
    server.join().unwrap();
}
