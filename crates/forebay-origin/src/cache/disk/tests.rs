//! The store on disk under faults: broken files, foreign files, errors of the disk, restarts.

use std::collections::{BTreeSet, HashSet};
use std::fs;
use std::os::unix::fs::{FileExt, symlink};
use std::path::{Path, PathBuf};

use forebay_admin::{Purge, Purged};
use forebay_net::head::Request;
use forebay_net::log::Kept;
use forebay_wire::caching::{CacheControl, Freshness};
use forebay_wire::http1::{RequestHead, RequestParser};

use super::super::purging::RouteKeys;
use super::super::resource_key::MOST_REMOVED;
use super::super::stored::{StoredBody, wall_clock};
use super::super::vary::Variant;
use super::entry::EntryHead;
use super::*;

const CAPACITY: u64 = 1 << 20;
/// Largest body that is read into memory.
const IN_MEMORY: u64 = 64 * 1024;

struct Place {
    dir: tempfile::TempDir,
    log: ErrorLog,
    kept: Kept,
}

impl Place {
    fn new() -> Self {
        let (log, kept) = ErrorLog::kept();
        Self { dir: tempfile::tempdir().unwrap(), log, kept }
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join("cache")
    }

    /// Opens the store, and waits until its index is complete.
    fn open(&self) -> Arc<Disk> {
        let disk = self.open_now();
        until(|| disk.status().state == "ready");
        disk
    }

    fn open_now(&self) -> Arc<Disk> {
        Disk::open(&self.path(), CAPACITY, IN_MEMORY, &self.log).unwrap()
    }

    /// Returns the files of all entries.
    fn files(&self) -> BTreeSet<PathBuf> {
        let parts = fs::read_dir(self.path()).unwrap().map(|part| part.unwrap().path());
        let parts = parts.filter(|part| part.is_dir() && !part.ends_with("tmp"));
        parts
            .flat_map(|part| fs::read_dir(part).unwrap())
            .map(|file| file.unwrap().path())
            .collect()
    }

    fn temporary(&self) -> usize {
        fs::read_dir(self.path().join("tmp")).unwrap().count()
    }
}

fn key_of(url: &[u8]) -> Key {
    Key::from(std::str::from_utf8(url).unwrap())
}

fn key_hash(url: &[u8]) -> KeyHash {
    key_of(url).hash()
}

fn invalidate(disk: &Disk, url: &[u8]) {
    let mut changes = ChangedKeys::default();
    changes.add(key_of(url));
    disk.invalidate(&changes);
}

/// Waits for the writing thread.
fn until(mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < Duration::from_secs(60), "it did not happen");
        std::thread::yield_now();
    }
}

fn reply(url: &str, tag: &str, body: StoredBody) -> Arc<Stored> {
    let head = EntryHead {
        key: Vec::new(),
        url: url.as_bytes().to_vec(),
        other_url: Vec::new(),
        status: 200,
        lines: format!("Cache-Tag: {tag}\r\nETag: \"{url}\"\r\n").into_bytes(),
        variant: Variant::default(),
        control: CacheControl::default(),
        freshness: Freshness { initial_age: 0, lifetime: 1000, is_explicit: true },
        arrived: wall_clock(),
    };
    Arc::new(Stored::of_entry(head, false, body, wall_clock()))
}

fn small(url: &str) -> Arc<Stored> {
    reply(url, url, StoredBody::Memory(Arc::new(format!("body of {url}").into_bytes())))
}

/// Writes replies whose key is their URL, and waits until they are on disk.
fn write(disk: &Disk, replies: &[Arc<Stored>]) {
    let before = disk.status().written;
    for stored in replies {
        assert!(disk.write(&key_of(&stored.url), stored));
    }
    until(|| disk.status().written == before + replies.len() as u64);
}

fn spill(disk: &Disk, url: &str, body: &[u8]) {
    let mut spill = disk.spill(key_hash(url.as_bytes()), u64::MAX).unwrap();
    for piece in body.chunks(10_000) {
        assert!(spill.push(piece));
    }
    spill.finish(&Key::from(url), &reply(url, url, StoredBody::Memory(Arc::default())));
}

fn read(disk: &Disk, url: &str) -> Option<Stored> {
    let directory = disk.shared.directory.get().unwrap();
    let (name, _) = disk.shared.lock().index.variants(&key_hash(url.as_bytes())).pop()?;
    disk.shared.read(directory, &name, url.as_bytes())
}

fn body(stored: &Stored) -> Vec<u8> {
    match &stored.body {
        StoredBody::Memory(bytes) => bytes.to_vec(),
        StoredBody::File(file) => {
            let mut bytes = vec![0; usize::try_from(stored.body.len()).unwrap()];
            file.file.read_exact_at(&mut bytes, file.offset).unwrap();
            bytes
        }
        StoredBody::Named(_) => panic!("not opened"),
    }
}

fn purge(disk: &Disk, what: Purged, is_soft: bool) -> usize {
    let purging = RouteKeys::default().prepare(&Purge { what, is_soft });
    disk.purge(&purging, &HashSet::new())
}

#[test]
fn replies_survive_a_restart() {
    let place = Place::new();
    let large = vec![7; 100_000];
    let disk = place.open();
    write(&disk, &[small("/a"), small("/b")]);
    spill(&disk, "/large", &large);
    drop(disk);
    let disk = place.open();
    assert_eq!(disk.status().replies, 3);
    let stored = read(&disk, "/a").unwrap();
    assert_eq!((body(&stored), stored.status), (b"body of /a".to_vec(), 200));
    assert_eq!(stored.etag.as_deref(), Some(&b"\"/a\""[..]));
    assert!(stored.is_fresh());
    assert_eq!(body(&read(&disk, "/large").unwrap()), large);
    assert!(read(&disk, "/c").is_none());
}

#[test]
fn a_file_with_a_changed_bit_or_length_is_never_served() {
    let place = Place::new();
    let disk = place.open();
    write(&disk, &[small("/a")]);
    let file = place.files().pop_first().unwrap();
    let right = fs::read(&file).unwrap();
    let cut = (0..right.len()).step_by(13).map(|length| right[..length].to_vec());
    let flipped = (0..right.len() * 8).step_by(5).map(|bit| {
        let mut bytes = right.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        bytes
    });
    let longer = [[&right[..], b"x"].concat(), vec![0; 100], b"<?php".to_vec()];
    for bytes in cut.chain(flipped).chain(longer) {
        let name = EntryName { key: key_hash(b"/a"), variant: 0 };
        fs::write(&file, &bytes).unwrap();
        let facts = EntryFacts { blocks: 1, ..EntryFacts::default() };
        disk.shared.lock().index.insert(name, facts);
        match read(&disk, "/a") {
            None => assert!(!file.exists(), "a broken file is removed"),
            // The mark of a soft purge is the only byte without a checksum.
            Some(stored) => assert!(!stored.is_fresh() && body(&stored) == b"body of /a"),
        }
    }
}

#[test]
fn a_large_body_that_changes_later_is_not_served() {
    let place = Place::new();
    let disk = place.open();
    spill(&disk, "/large", &vec![7; 120_000]);
    assert!(read(&disk, "/large").is_some());
    let file = place.files().pop_first().unwrap();
    fs::OpenOptions::new().write(true).open(&file).unwrap().write_all_at(b"x", 110_000).unwrap();
    assert!(read(&disk, "/large").is_none());
    assert_eq!((disk.status().broken, place.files().len()), (1, 0));
}

#[test]
fn a_small_file_is_checked_again_only_after_a_change() {
    let place = Place::new();
    let disk = place.open();
    write(&disk, &[small("/a")]);
    let path = place.files().pop_first().unwrap();
    let file = fs::OpenOptions::new().read(true).write(true).open(&path).unwrap();
    file.write_all_at(b"B", entry::PREAMBLE as u64).unwrap();
    let found = rustix::fs::fstat(&file).unwrap();
    let verified = disk.shared.identities.of(&found);
    let name = EntryName { key: key_hash(b"/a"), variant: 0 };
    disk.shared.lock().index.update(&name, |facts| facts.verified = verified);
    let directory = disk.shared.directory.get().unwrap();
    assert_eq!(body(&read(&disk, "/a").unwrap()), b"Body of /a", "it was checked before");
    assert!(disk.shared.read(directory, &name, b"/b").is_none(), "the key is compared each time");
    let times = fs::FileTimes::new().set_modified(std::time::UNIX_EPOCH);
    file.set_times(times).unwrap();
    assert!(read(&disk, "/a").is_none(), "the checksum is wrong");
    assert_eq!((disk.status().broken, place.files().len()), (1, 0));
}

#[test]
fn a_check_right_after_a_change_does_not_count() {
    let found = rustix::fs::fstat(tempfile::tempfile().unwrap()).unwrap();
    let changed = u64::try_from(found.st_ctime).unwrap();
    let is_settled = |now| identity::is_settled(&found, now);
    assert_eq!([0, changed, changed + 2, changed + 3].map(is_settled), [false, false, false, true]);
}

#[test]
fn large_files_wait_for_their_check_and_a_checked_one_does_not() {
    let place = Place::new();
    spill(&place.open(), "/large", &vec![7; 120_000]);
    let disk = place.open();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap();
    let read = async || {
        let (name, facts) = disk.shared.lock().index.variants(&key_hash(b"/large")).pop().unwrap();
        disk.read_aside(name, facts, b"/large").await
    };
    runtime.block_on(async {
        let all = u32::try_from(CHECKS).unwrap();
        let turns = disk.checks.clone().try_acquire_many_owned(all).unwrap();
        assert!(read().await.is_none(), "no turn is free");
        drop(turns);
        assert_eq!(read().await.map(|stored| stored.body.len()), Some(120_000));
        let _turns = disk.checks.clone().try_acquire_many_owned(all).unwrap();
        assert!(read().await.is_some(), "the file is checked");
    });
}

/// Returns the reply to a request with `NAME: 1`, with `Vary: NAME` and this age.
fn varying(url: &str, name: &str, initial_age: u64) -> Arc<Stored> {
    let head = EntryHead {
        key: Vec::new(),
        url: url.as_bytes().to_vec(),
        other_url: Vec::new(),
        status: 200,
        lines: Vec::new(),
        variant: Variant::from_fields(vec![(name.to_owned(), b"\n1".to_vec())]),
        control: CacheControl::default(),
        freshness: Freshness { initial_age, lifetime: 1000, is_explicit: true },
        arrived: wall_clock(),
    };
    let body = StoredBody::Memory(Arc::new(name.into()));
    Arc::new(Stored::of_entry(head, false, body, wall_clock()))
}

#[test]
fn the_newest_of_several_matching_replies_is_found_after_a_restart() {
    let bytes = b"GET / HTTP/1.1\r\nHost: h\r\na: 1\r\nb: 1\r\n\r\n".to_vec();
    let mut head = RequestHead::default();
    RequestParser::default().parse(&bytes, &mut head).unwrap();
    let address: std::net::SocketAddr = "192.0.2.7:4000".parse().unwrap();
    let request = Request::new(bytes, head, address.into(), address);
    let place = Place::new();
    let disk = place.open();
    // The order of the names in the directory differs between these resources.
    let urls: Vec<_> = (0..8).map(|number| format!("/{number}")).collect();
    for url in &urls {
        let (old, new) = if url < &urls[4] { ("a", "b") } else { ("b", "a") };
        write(&disk, &[varying(url, old, 50), varying(url, new, 10)]);
    }
    drop(disk);
    let disk = place.open();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    for url in &urls {
        let key = &Key::from(&**url);
        let expected = if url < &urls[4] { "b" } else { "a" };
        // The first search records the names in `Vary` in the index. The second search uses them.
        for _ in 0..2 {
            let found = runtime.block_on(disk.find(key, &request, |_| true)).unwrap();
            assert_eq!(body(&found), expected.as_bytes(), "{url}");
        }
        let stale = |stored: &Stored| stored.freshness.age(0) >= 50;
        let found = runtime.block_on(disk.find(key, &request, stale)).unwrap();
        assert_ne!(body(&found), expected.as_bytes(), "only the older one may be used");
    }
}

#[test]
fn a_hash_collision_does_not_serve_another_resource() {
    let place = Place::new();
    let disk = place.open();
    write(&disk, &[small("/a"), small("/b")]);
    let directory = disk.shared.directory.get().unwrap();
    let name = EntryName { key: key_hash(b"/a"), variant: 0 };
    assert!(disk.shared.read(directory, &name, b"/b").is_none());
    assert!(read(&disk, "/a").is_some(), "the right key still gets it");
}

#[test]
fn planted_files_are_not_followed() {
    let place = Place::new();
    drop(place.open());
    let secret = place.dir.path().join("secret");
    fs::write(&secret, "secret").unwrap();
    let file_of = |url: &str| {
        let key = key_hash(url.as_bytes());
        let name = format!("{:032x}-{:016x}", u128::from_be_bytes(key), 0);
        place.path().join(format!("{:02x}", key[0] % 64)).join(name)
    };
    symlink(&secret, file_of("/link")).unwrap();
    fs::create_dir(file_of("/dir")).unwrap();
    fs::write(file_of("/text"), "not an entry").unwrap();
    fs::write(place.path().join("00/readme"), "foreign").unwrap();
    fs::hard_link(&secret, file_of("/hard")).unwrap();
    rustix::fs::mkfifoat(rustix::fs::CWD, file_of("/fifo"), rustix::fs::Mode::RUSR).unwrap();
    let disk = place.open();
    // Add the files to the index, as if they were planted after the index was loaded.
    for url in ["/link", "/dir", "/text", "/fifo", "/hard"] {
        let name = EntryName { key: key_hash(url.as_bytes()), variant: 0 };
        disk.shared.lock().index.insert(name, EntryFacts::default());
        assert!(read(&disk, url).is_none(), "{url}");
    }
    assert_eq!(fs::read(&secret).unwrap(), b"secret");
    assert!(place.path().join("00/readme").exists());
    assert!(place.kept.errors().iter().any(|line| line.contains("1 files")), "said in the log");
}

#[test]
fn removed_replies_stay_away() {
    let place = Place::new();
    let disk = place.open();
    write(&disk, &[small("/a"), small("/b"), small("/c"), small("/d/1"), small("/d/2")]);
    invalidate(&disk, b"/a");
    assert_eq!(purge(&disk, Purged::Url(b"/b".to_vec()), false), 1);
    assert_eq!(purge(&disk, Purged::Prefix(b"/d/".to_vec()), false), 2);
    assert_eq!(purge(&disk, Purged::Tag(b"/c".to_vec()), true), 1);
    assert_eq!(purge(&disk, Purged::Tag(b"other".to_vec()), false), 0);
    drop(disk);
    let disk = place.open();
    assert_eq!(disk.status().replies, 1);
    assert!(!read(&disk, "/c").unwrap().is_fresh(), "a soft purge only ends the lifetime");
    assert_eq!(purge(&disk, Purged::All, false), 1);
    assert_eq!(place.files().len(), 0);
}

#[test]
fn a_reply_that_is_removed_on_its_way_is_not_published() {
    let place = Place::new();
    let disk = place.open();
    for round in 0..200 {
        let url = format!("/{round}");
        assert!(disk.write(&Key::from(&*url), &small(&url)) || round > 0);
        invalidate(&disk, url.as_bytes());
    }
    let mut half = disk.spill(key_hash(b"/large"), u64::MAX).unwrap();
    assert!(half.push(&[1; 100_000]));
    invalidate(&disk, b"/large");
    half.finish(&key_of(b"/large"), &small("/large"));
    disk.finish();
    assert_eq!((place.files().len(), place.temporary()), (0, 0));
    assert_eq!(disk.status().bytes, 0);
}

#[test]
fn files_stay_within_the_limit() {
    let place = Place::new();
    let disk = place.open();
    let size = |files: BTreeSet<PathBuf>| -> u64 {
        let blocks = |file: &PathBuf| fs::metadata(file).unwrap().len().div_ceil(4096);
        files.iter().map(blocks).sum::<u64>() * 4096
    };
    for round in 0..40 {
        let replies: Vec<_> = (0..20).map(|at| small(&format!("/{round}/{at}"))).collect();
        write(&disk, &replies);
        spill(&disk, "/large", &vec![round; 90_000]);
        assert!(size(place.files()) <= CAPACITY);
        assert!(disk.status().bytes <= CAPACITY);
    }
    let mut too_large = disk.spill(key_hash(b"/huge"), u64::MAX).unwrap();
    let pushed = (0..1000).take_while(|_| too_large.push(&[0; 10_000])).count() as u64;
    assert!(pushed * 10_000 <= disk.most());
    drop(too_large);
    assert_eq!(place.temporary(), 0);
    drop(disk);
    let disk = place.open();
    assert!(disk.status().bytes <= CAPACITY);
    assert_eq!(disk.status().bytes, size(place.files()));
}

#[test]
fn errors_of_the_disk_lose_replies_and_are_logged_once() {
    let place = Place::new();
    let disk = place.open();
    fs::remove_dir(place.path().join("tmp")).unwrap();
    for at in 0..20 {
        disk.write(&key_of(b"/a"), &small(&format!("/{at}")));
        assert!(disk.spill(key_hash(b"/large"), 1000).is_none());
    }
    until(|| disk.status().errors == 40);
    assert_eq!((disk.status().replies, disk.status().bytes), (0, 0));
    let lines = place.kept.errors();
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(lines[0].contains(&place.path().display().to_string()), "{lines:?}");
}

#[test]
fn a_second_process_waits_and_makes_up_for_what_it_missed() {
    let place = Place::new();
    let first = place.open();
    write(&first, &[small("/a"), small("/b"), small("/c")]);
    let second = place.open_now();
    assert!(!second.write(&key_of(b"/x"), &small("/x")));
    invalidate(&second, b"/a");
    assert_eq!(purge(&second, Purged::Url(b"/b".to_vec()), false), 0);
    assert_eq!(second.status().state, "waiting for another process");
    first.finish();
    drop(first);
    until(|| second.status().state == "ready");
    assert!(read(&second, "/a").is_none() && read(&second, "/b").is_none());
    assert!(read(&second, "/c").is_some());
}

#[test]
fn waiting_replies_take_a_bounded_memory() {
    let place = Place::new();
    let disk = place.open();
    let stored = reply("/a", "x", StoredBody::Memory(Arc::new(vec![1; 60_000])));
    let size = stored.size() as u64;
    let fitting = (0..100).take_while(|_| disk.shared.queue(size)).count() as u64;
    assert!(fitting * size <= IN_MEMORY * QUEUED && fitting > 0);
    assert!(!disk.write(&key_of(b"/a"), &stored), "there is no space");
    (0..fitting).for_each(|_| disk.shared.unqueue(size));
    write(&disk, &[stored]);
    until(|| disk.shared.queued.load(Ordering::Relaxed) == 0);
    assert_eq!(disk.status().skipped, 1);
}

#[test]
fn a_reply_that_the_memory_serves_stays_on_disk() {
    let place = Place::new();
    let disk = place.open();
    let hot = small("/hot");
    write(&disk, &[hot.clone(), small("/cold")]);
    let mut marked = 0;
    for round in 0..2000 {
        write(&disk, &[small(&format!("/{round}"))]);
        if hot.on_disk.renew(disk.epoch()) {
            assert!(disk.touch(&key_of(b"/hot"), &hot), "round {round}");
            marked += 1;
        }
    }
    assert!(read(&disk, "/hot").is_some() && read(&disk, "/cold").is_none());
    assert!((8..100).contains(&marked), "marked {marked} times");
}

#[test]
fn leftovers_of_a_crash_are_removed() {
    let place = Place::new();
    drop(place.open());
    fs::write(place.path().join("tmp/5"), "half").unwrap();
    let disk = place.open();
    assert_eq!(place.temporary(), 0);
    write(&disk, &[small("/a")]);
    assert!(Path::exists(place.files().first().unwrap()));
}

/// Returns an alias of a plain key.
fn alias(plain: &str, own: u8) -> Key {
    Key::new(format!("{plain}{own}").into_bytes(), plain.len(), || [own; 8])
}

fn write_alias(disk: &Disk, key: &Key) {
    let before = disk.status().written;
    assert!(disk.write(key, &small("/alias")));
    until(|| disk.status().written == before + 1);
}

/// Returns changes that remove the group of a plain key, the group of the client's own targets with
/// the hash `own`, or both.
fn changes(plain: Option<&str>, own: Option<u8>) -> ChangedKeys {
    let mut changes = ChangedKeys::default();
    plain.into_iter().for_each(|plain| changes.add(Key::from(plain)));
    changes.groups.extend(own.map(|own| Group::Own([own; 8])));
    changes
}

#[test]
fn aliases_are_removed_after_a_restart_and_while_another_process_works() {
    let place = Place::new();
    let first = place.open();
    let keys = ["/a", "/b", "/c"].map(|plain| [1, 2, 3].map(|own| alias(plain, own)));
    keys.iter().flatten().for_each(|key| write_alias(&first, key));
    let exists =
        |disk: &Disk, key: &Key| !disk.shared.lock().index.variants(&key.hash()).is_empty();
    drop(first);
    // As after `kill -9`, only the names of the files remain.
    let first = place.open();
    first.invalidate(&changes(Some("/a"), None));
    assert!(keys[0].iter().all(|key| !exists(&first, key)));
    assert_eq!(place.files().len(), 6);
    let second = place.open_now();
    second.invalidate(&changes(Some("/b"), Some(3)));
    drop(first);
    until(|| second.status().state == "ready");
    assert_eq!(place.files().len(), 2);
    assert!(exists(&second, &keys[2][0]) && exists(&second, &keys[2][1]));
    // While a process loads the index, it searches the directory with `changed_entries`.
    let directory = second.shared.directory.get().unwrap();
    assert_eq!(directory.changed_entries(&changes(Some("/c"), None)).len(), 2);
    assert_eq!(directory.changed_entries(&changes(Some("/x"), Some(1))), []);
    // A removal also discards an alias that is being written.
    for round in 0..50 {
        assert!(second.write(&alias("/d", round), &small("/alias")) || round > 0);
        second.invalidate(&changes(Some("/d"), None));
    }
    second.finish();
    assert_eq!((place.files().len(), place.temporary()), (2, 0));
}

#[test]
fn a_group_with_many_members_stays() {
    let place = Place::new();
    let disk = place.open();
    let name = |at: u16| {
        let own = [at.to_be_bytes(), [0; 2], [1; 2], [1; 2]].concat();
        let own: [u8; 8] = own.try_into().unwrap();
        let key = Key::new(format!("/{at}").into_bytes(), 1, || own);
        EntryName { key: key.hash(), variant: 0 }
    };
    let most = u16::try_from(MOST_REMOVED).unwrap();
    for at in 0..=most {
        disk.shared.lock().index.insert(name(at), EntryFacts::default());
    }
    disk.invalidate(&changes(Some("/"), None));
    assert_eq!(disk.status().replies, MOST_REMOVED + 1);
    disk.shared.lock().index.remove(&name(0));
    disk.invalidate(&changes(Some("/"), None));
    assert_eq!(disk.status().replies, 0);
}
