//! Sends many requests for many keys through `forebay serve`, whose store on disk is much smaller
//! than all replies together. Checks each reply, and the bounds of the store.
//!
//!     examples/cache/keys [REQUESTS [KEYS]]
//!
//! This program is the backend and the clients. It uses only the standard library, so that the
//! script next to it can compile it with rustc. A test of the crate `forebay` runs it with fewer
//! requests.

use std::collections::VecDeque;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use std::{env, fs, process, thread};

/// Limits of the store in bytes.
#[derive(Clone, Copy)]
pub struct Limits {
    pub memory: u64,
    pub disk: u64,
}

const LIMITS: Limits = Limits { memory: 16 << 20, disk: 256 << 20 };
const CONNECTIONS: u64 = 8;
/// Number of requests that a client sends before it reads their replies.
const DEPTH: usize = 16;
/// A key that is a multiple of this number has a body that is stored only on disk.
const RARE: u64 = 10_000;
const LARGE: usize = 1_200_000;

/// Returns the length of the body for a key.
fn length(key: u64) -> usize {
    if key.is_multiple_of(RARE) { LARGE } else { 200 + (mix(key) % 8000) as usize }
}

/// Returns a number that looks random (the last step of splitmix64).
fn mix(number: u64) -> u64 {
    let mixed = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// Writes the body for a key: a line with the key, repeated and cut.
fn append_body(key: u64, reply: &mut Vec<u8>) {
    let (line, start) = (format!("key {key}\n"), reply.len());
    reply.extend_from_slice(line.as_bytes());
    while reply.len() - start < length(key) {
        let copied = (reply.len() - start).min(length(key) + start - reply.len());
        reply.extend_from_within(start..start + copied);
    }
    reply.truncate(start + length(key));
}

/// Returns true if the body is the one for the key.
fn is_right(key: u64, body: &[u8]) -> bool {
    let line = format!("key {key}\n");
    // If the body repeats its first line, each byte equals the one a line before.
    body.len() == length(key)
        && body.starts_with(line.as_bytes())
        && body[line.len()..] == body[..body.len() - line.len()]
}

/// Answers requests for `/KEY`, and counts them. Returns the address.
pub fn start_backend(asked: &Arc<AtomicU64>) -> io::Result<SocketAddr> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let address = listener.local_addr()?;
    let asked = asked.clone();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let asked = asked.clone();
            thread::spawn(move || answer(&stream, &asked));
        }
    });
    Ok(address)
}

fn answer(stream: &TcpStream, asked: &AtomicU64) -> io::Result<()> {
    let mut lines = BufReader::new(stream);
    let (mut line, mut reply) = (String::new(), Vec::new());
    loop {
        line.clear();
        if lines.read_line(&mut line)? == 0 {
            return Ok(());
        }
        let key = line.split(' ').nth(1).and_then(|target| target[1..].parse().ok());
        let key = key.ok_or(io::ErrorKind::InvalidData)?;
        while line != "\r\n" {
            line.clear();
            lines.read_line(&mut line)?;
        }
        reply.clear();
        let length = length(key);
        write!(reply, "HTTP/1.1 200 OK\r\nCache-Control: max-age=86400\r\n")?;
        write!(reply, "Content-Length: {length}\r\n\r\n")?;
        append_body(key, &mut reply);
        asked.fetch_add(1, Ordering::Relaxed);
        (&*stream).write_all(&reply)?;
    }
}

/// Load, and its results so far.
pub struct Load {
    address: SocketAddr,
    requests: u64,
    keys: u64,
    begun: AtomicU64,
    pub done: AtomicU64,
    /// A flag for each key that was requested.
    seen: Vec<AtomicU64>,
}

impl Load {
    pub fn new(address: SocketAddr, requests: u64, keys: u64) -> Self {
        let seen = (0..keys.div_ceil(64)).map(|_| AtomicU64::new(0)).collect();
        let (begun, done) = (AtomicU64::new(0), AtomicU64::new(0));
        Self { address, requests, keys, begun, done, seen }
    }

    /// Returns the number of different keys so far.
    pub fn different(&self) -> u32 {
        self.seen.iter().map(|flags| flags.load(Ordering::Relaxed).count_ones()).sum()
    }

    /// Returns the key of a request. Half of the requests are for a quarter of the keys, and the
    /// order of the keys says nothing about their popularity.
    fn key(&self, request: u64) -> u64 {
        let fraction = (mix(request + 1) >> 11) as f64 / (1_u64 << 53) as f64;
        let rank = (fraction * fraction * self.keys as f64) as u64;
        rank.wrapping_mul(1_000_003) % self.keys
    }

    /// Sends the requests of one client. Returns an error if a reply is not the right one.
    pub fn run(&self) -> Result<(), String> {
        let failed = |error: io::Error| format!("the connection failed: {error}");
        let stream = TcpStream::connect(self.address).map_err(failed)?;
        stream.set_nodelay(true).map_err(failed)?;
        let mut replies = BufReader::with_capacity(64 * 1024, &stream);
        let (mut sent, mut text, mut body) = (VecDeque::new(), String::new(), Vec::new());
        loop {
            text.clear();
            while sent.len() < DEPTH {
                let request = self.begun.fetch_add(1, Ordering::Relaxed);
                if request >= self.requests {
                    break;
                }
                let key = self.key(request);
                self.seen[(key / 64) as usize].fetch_or(1 << (key % 64), Ordering::Relaxed);
                text.push_str(&format!("GET /{key} HTTP/1.1\r\nHost: keys\r\n\r\n"));
                sent.push_back(key);
            }
            if sent.is_empty() {
                return Ok(());
            }
            (&stream).write_all(text.as_bytes()).map_err(failed)?;
            for key in sent.drain(..) {
                read_reply(&mut replies, &mut body).map_err(failed)?;
                if !is_right(key, &body) {
                    let start = String::from_utf8_lossy(&body[..body.len().min(40)]).into_owned();
                    return Err(format!("/{key} got {} bytes: {start:?}", body.len()));
                }
                self.done.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}

fn read_reply(replies: &mut impl BufRead, body: &mut Vec<u8>) -> io::Result<()> {
    let (mut line, mut length) = (String::new(), 0);
    replies.read_line(&mut line)?;
    if !line.starts_with("HTTP/1.1 200 ") {
        return Err(io::Error::other(format!("the reply starts with {line:?}")));
    }
    while line != "\r\n" {
        line.clear();
        if replies.read_line(&mut line)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if let Some((name, value)) = line.split_once(':')
            && name.eq_ignore_ascii_case("content-length")
        {
            length = value.trim().parse().map_err(io::Error::other)?;
        }
    }
    body.resize(length, 0);
    replies.read_exact(body)
}

/// The bytes and files of the store at one time.
#[derive(Debug)]
pub struct Sample {
    /// Bytes in memory, and on disk, as `/status` reports them.
    pub memory: u64,
    pub disk: u64,
    /// Hits of both levels, and of the disk.
    pub hits: u64,
    pub disk_hits: u64,
    /// Files that had an error.
    pub broken: u64,
    /// Space that the files take, as the file system reports it, and their number.
    pub space: u64,
    pub files: u64,
    /// Resident memory of the process in bytes.
    pub resident: u64,
}

impl Sample {
    pub fn take(admin: SocketAddr, process: u32, cache: &Path) -> io::Result<Self> {
        let mut stream = TcpStream::connect(admin)?;
        stream
            .write_all(b"GET /status HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
        let mut status = String::new();
        stream.read_to_string(&mut status)?;
        let cache_row = status.split("\"cache\":").nth(1).unwrap_or_default();
        let (memory, disk) = cache_row.split_once("\"disk\":").unwrap_or_default();
        // The order of the keys differs between rows, so look only inside the row of the disk.
        let disk_row = disk.split('}').next().unwrap_or_default();
        let rest = disk.split_once('}').map_or("", |(_, rest)| rest);
        let memory_row = format!("{memory}{}", rest.split('}').next().unwrap_or_default());
        let (space, files) = space(cache);
        let resident = fs::read_to_string(format!("/proc/{process}/status"))?;
        let resident = resident.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let resident = resident.and_then(|text| text.trim().trim_end_matches(" kB").parse().ok());
        Ok(Self {
            memory: number(&memory_row, "bytes")?,
            disk: number(disk_row, "bytes")?,
            hits: number(&memory_row, "hits")?,
            disk_hits: number(disk_row, "hits")?,
            broken: number(disk_row, "broken")?,
            space,
            files,
            resident: resident.unwrap_or(0) * 1024,
        })
    }

    /// Returns an error if a bound does not hold.
    pub fn check(&self, limits: Limits, is_quiet: bool) -> Result<(), String> {
        let Limits { memory, disk } = limits;
        // Files come and go while their space is added up, so the sum under load is not exact.
        let most = if is_quiet { disk } else { disk + disk / 50 + 2 * LARGE as u64 };
        let is_within = self.memory <= memory && self.disk <= disk && self.space <= most;
        if is_within && self.broken == 0 { Ok(()) } else { Err(format!("bounds: {self:?}")) }
    }
}

fn number(row: &str, key: &str) -> io::Result<u64> {
    let text = row.split_once(&format!("\"{key}\":")).map_or("", |(_, rest)| rest).trim_start();
    let digits = text.split(|byte: char| !byte.is_ascii_digit()).next().unwrap_or_default();
    digits.parse().map_err(|_| io::Error::other(format!("/status has no {key}: {row}")))
}

/// Returns the space that all files take, and their number.
fn space(directory: &Path) -> (u64, u64) {
    let (mut space, mut files) = (0, 0);
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let Ok(found) = entry.metadata() else { continue };
        let (more_space, more_files) =
            if found.is_dir() { self::space(&entry.path()) } else { (found.blocks() * 512, 1) };
        space += more_space;
        files += more_files;
    }
    (space, files)
}

/// Returns the configuration of the server.
pub fn configuration(
    limits: Limits,
    (backend, admin): (SocketAddr, SocketAddr),
    cache: &Path,
) -> String {
    let Limits { memory, disk } = limits;
    format!(
        "[server]\nadmin = \"{admin}\"\ncache_memory = \"{memory}\"\ncache_dir = \"{}\"\n\
         cache_disk = \"{disk}\"\n[[site]]\nlisten = \"127.0.0.1:0\"\n[[site.route]]\n\
         proxy = \"http://{backend}\"\ncache = {{ max_size = \"2MiB\" }}\n",
        cache.display()
    )
}

/// Runs the load, and `sample` many times until its end.
pub fn run(load: &Load, mut sample: impl FnMut() -> Result<(), String>) -> Result<(), String> {
    thread::scope(|scope| {
        let clients: Vec<_> = (0..CONNECTIONS).map(|_| scope.spawn(|| load.run())).collect();
        while !clients.iter().all(|client| client.is_finished()) {
            sample()?;
            thread::sleep(Duration::from_millis(100));
        }
        clients.into_iter().try_for_each(|client| client.join().expect("a client panicked"))
    })
}

/// Returns the sample after the writing thread has ended its work.
pub fn quiet(limits: Limits, sample: impl Fn() -> io::Result<Sample>) -> Result<Sample, String> {
    let mut before = sample().map_err(|error| error.to_string())?;
    for _ in 0..100 {
        thread::sleep(Duration::from_millis(100));
        let after = sample().map_err(|error| error.to_string())?;
        let is_same = |of: fn(&Sample) -> u64| of(&before) == of(&after);
        if is_same(|sample| sample.disk) && is_same(|sample| sample.space) {
            after.check(limits, true)?;
            return Ok(after);
        }
        before = after;
    }
    Err("the files still change 10 s after the last request".to_owned())
}

/// A server process that is killed when this value is dropped.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts the server. Returns its address.
fn serve(program: &str, file: &Path) -> Result<(Server, SocketAddr), String> {
    let mut command = Command::new(program);
    let child = command.arg("serve").arg(file).stderr(Stdio::piped()).spawn();
    let mut child = child.map_err(|error| format!("cannot start {program}: {error}"))?;
    let lines = child.stderr.take().map(BufReader::new);
    let server = Server(child);
    let mut lines = lines.into_iter().flat_map(BufRead::lines).map_while(Result::ok);
    let address = lines.find_map(|line| line.split("serving http://").nth(1)?.parse().ok());
    thread::spawn(move || lines.for_each(|line| eprintln!("{line}")));
    Ok((server, address.ok_or("the server did not start")?))
}

fn measure(program: &str, (requests, keys): (u64, u64), dir: &Path) -> Result<(), String> {
    let failed = |error: io::Error| error.to_string();
    let asked = Arc::default();
    let backend = start_backend(&asked).map_err(failed)?;
    let cache = dir.join("cache");
    let admin = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|free| free.local_addr());
    let admin = admin.map_err(failed)?;
    let file = dir.join("site.toml");
    fs::write(&file, configuration(LIMITS, (backend, admin), &cache)).map_err(failed)?;
    let (server, address) = serve(program, &file)?;
    let load = Load::new(address, requests, keys);
    let all: u64 = (0..keys).map(|key| length(key) as u64).sum();
    println!("{requests} requests, {keys} keys, {} MB of bodies", all / 1_000_000);
    println!("limits: {} bytes in memory, {} bytes on disk", LIMITS.memory, LIMITS.disk);
    println!("requests\ttime, s\tin memory\ton disk\tspace\tfiles\tresident\thits\tof the disk");
    let (start, mut next) = (Instant::now(), 0);
    let take = || Sample::take(admin, server.0.id(), &cache);
    let print = |done: u64, sample: &Sample| {
        let Sample { memory, disk, space, files, resident, hits, disk_hits, .. } = sample;
        let row = [done, start.elapsed().as_secs(), *memory, *disk, *space, *files];
        let row = row.iter().chain([resident, hits, disk_hits]).map(u64::to_string);
        println!("{}", row.collect::<Vec<_>>().join("\t"));
    };
    run(&load, || {
        let done = load.done.load(Ordering::Relaxed);
        if done < next {
            return Ok(());
        }
        next += requests.div_ceil(20);
        let sample = take().map_err(failed)?;
        print(done, &sample);
        sample.check(LIMITS, false)
    })?;
    print(requests, &quiet(LIMITS, take)?);
    println!("all replies were right; {} different keys", load.different());
    println!("the backend answered {} requests", asked.load(Ordering::Relaxed));
    Ok(())
}

/// Arguments: the program, a directory, the number of requests and of keys.
#[allow(dead_code)] // The test that includes this file has its own.
fn main() {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let parsed = |at: usize| arguments.get(at).and_then(|text| text.parse().ok());
    let (Some(requests), Some(keys)) = (parsed(2), parsed(3)) else {
        eprintln!("usage: keys PROGRAM DIRECTORY REQUESTS KEYS");
        process::exit(2);
    };
    let result = measure(&arguments[0], (requests, keys), &PathBuf::from(&arguments[1]));
    if let Err(error) = result {
        eprintln!("{error}");
        process::exit(1);
    }
}
