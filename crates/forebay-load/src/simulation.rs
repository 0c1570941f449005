//! Test of latencies on a virtual clock: connections with scripted servers, whose replies arrive at
//! known times.
//!
//! The connections, sessions and counts are those of a real load. Only the clock, the socket and
//! the order of events are simulated, so each latency is known exactly.

mod codec;

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use forebay_client::{
    FastcgiClient, FastcgiMux, Http1, Http2, Http3, MuxSession, Session, WebSocket,
};
use forebay_stat::Latency;
use rustix::event::epoll::EventFlags;
use rustix::io::Errno;

use crate::connection::LoadConnection;
use crate::inspection::Inspection;
use crate::mux::MuxConnection;
use crate::pacer::{Pacer, RequestBudget};
use crate::request::Requests;
use crate::schedule::Mix;
use crate::tally::Tally;
use crate::template::{RequestSource, Values};
use crate::tls::TlsClient;
use crate::transport::ServerAddresses;
use crate::transport::{HandshakeProgress, Transport};
use crate::worker::{Drive, ThreadState};
use crate::{Arrivals, Rate, Spec, Stop, TlsOptions, Url, clock};
use codec::{Codec, ServerOutput};

const CONNECTIONS: usize = 4;
const REQUESTS: u64 = 300;
const STREAMS: usize = 8;
const TIMEOUT: Duration = Duration::from_secs(2);
/// Interval between two checks of time limits, as in a load thread.
const TICK: Duration = Duration::from_millis(50);
/// Time between two requests of an open loop.
const GAP: Duration = Duration::from_millis(1);

/// Behaviour of all servers of a simulation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    /// Answers after 10 ms.
    Constant,
    /// Answers nine of ten requests after about 2 ms, and the others after about 50 ms.
    Bimodal,
    /// Answers after 5 ms, but sends nothing for 100 ms of each second.
    Stall,
    /// Answers after about 3 ms, and never answers one of 1,000 requests.
    Silent,
}

/// Servers of a simulation: their behaviour, and the times until their replies.
struct Script {
    shape: Shape,
    random: fastrand::Rng,
    begin: Instant,
    /// True for an open loop: request number n is due n gaps after the beginning.
    is_open: bool,
    arrived: u32,
    unanswered: u64,
    /// Times from the due time of each request to its reply.
    truth: Vec<Duration>,
}

/// Creates the server side of a connection.
type NewCodec = Arc<dyn Fn() -> Box<dyn Codec> + Send + Sync>;

/// Connection between a client and its server.
struct ScriptedLink {
    script: Arc<Mutex<Script>>,
    new_codec: NewCodec,
    codec: Box<dyn Codec>,
    /// IDs of requests, with the times of their replies.
    replies: Vec<(Instant, u32)>,
    /// Output that has arrived at the client.
    output: ServerOutput,
}

#[derive(Clone)]
struct SharedLink(Arc<Mutex<ScriptedLink>>);

/// Client's side of a link. The socket is connected, but carries nothing.
#[derive(Debug)]
struct Wire<const IS_DATAGRAM: bool> {
    socket: OwnedFd,
    link: SharedLink,
}

impl Script {
    /// Takes a request that arrives now. Returns the time of the reply, or `None` if the request
    /// gets no reply.
    fn take(&mut self) -> Option<Instant> {
        let now = clock::now();
        let due = if self.is_open { self.begin + GAP * self.arrived } else { now };
        self.arrived += 1;
        let us = match self.shape {
            Shape::Constant => 10_000,
            Shape::Bimodal if self.random.u32(..10) == 0 => self.random.u64(50_000..52_000),
            Shape::Bimodal => self.random.u64(2000..2200),
            Shape::Stall => 5000,
            Shape::Silent if self.random.u32(..1000) == 0 => {
                self.unanswered += 1;
                return None;
            }
            Shape::Silent => self.random.u64(2500..3500),
        };
        let mut at = now + Duration::from_micros(us);
        let since = (at - self.begin).subsec_millis();
        if self.shape == Shape::Stall && since >= 900 {
            let seconds = (at - self.begin).as_secs() + 1;
            at = self.begin + Duration::from_secs(seconds);
        }
        self.truth.push(at - due);
        Some(at)
    }
}

impl ScriptedLink {
    /// Returns the time of the next event. Returns `None` if there is no further event.
    fn next(&mut self, now: Instant) -> Option<Instant> {
        let output = (!self.output.is_empty()).then_some(now);
        let replies = self.replies.iter().map(|(at, _)| *at);
        replies.chain(output).chain(self.codec.timeout()).min()
    }

    /// Performs the events that are due now. Returns true if there is output to read.
    fn advance(&mut self, now: Instant) -> bool {
        if self.codec.timeout().is_some_and(|at| at <= now) {
            self.codec.expire(&mut self.output);
        }
        for (_, id) in self.replies.extract_if(.., |(at, _)| *at <= now) {
            self.codec.reply(id, &mut self.output);
        }
        !self.output.is_empty()
    }

    fn receive(&mut self, bytes: &[u8]) {
        for id in self.codec.receive(bytes, &mut self.output) {
            let at = self.script.lock().unwrap().take();
            self.replies.extend(at.map(|at| (at, id)));
        }
    }
}

impl SharedLink {
    fn lock(&self) -> MutexGuard<'_, ScriptedLink> {
        self.0.lock().unwrap()
    }
}

impl std::fmt::Debug for SharedLink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SharedLink")
    }
}

impl<const IS_DATAGRAM: bool> Transport for Wire<IS_DATAGRAM> {
    type Config = SharedLink;

    const IS_DATAGRAM: bool = IS_DATAGRAM;

    fn new(socket: OwnedFd, link: &SharedLink) -> std::io::Result<Self> {
        let mut opened = link.lock();
        let codec = (opened.new_codec)();
        opened.codec = codec;
        opened.output.clear();
        opened.replies.clear();
        drop(opened);
        Ok(Self { socket, link: link.clone() })
    }

    fn socket(&self) -> &OwnedFd {
        &self.socket
    }

    fn handshake(&mut self) -> std::io::Result<HandshakeProgress> {
        Ok(HandshakeProgress::Established(None))
    }

    fn send(&mut self, bytes: &[u8]) -> Result<usize, Errno> {
        self.link.lock().receive(bytes);
        Ok(bytes.len())
    }

    fn recv(&mut self, buffer: &mut [u8]) -> Result<usize, Errno> {
        let mut link = self.link.lock();
        let mut length = 0;
        while let Some(bytes) = link.output.pop_front() {
            buffer[length..length + bytes.len()].copy_from_slice(&bytes);
            length += bytes.len();
            if IS_DATAGRAM {
                break;
            }
        }
        if length == 0 { Err(Errno::AGAIN) } else { Ok(length) }
    }

    fn is_emptied(&self, _: usize, _: usize) -> bool {
        self.link.lock().output.is_empty()
    }
}

/// Settings of the simulated load, and its servers.
struct Simulation {
    spec: Spec,
    script: Arc<Mutex<Script>>,
    links: Vec<SharedLink>,
}

impl Simulation {
    fn new(spec: &Spec, shape: Shape, seed: u64, new_codec: NewCodec) -> Self {
        let begin = Instant::now();
        clock::set(begin);
        let script = Arc::new(Mutex::new(Script {
            shape,
            random: fastrand::Rng::with_seed(seed),
            begin,
            is_open: spec.rate.is_some(),
            arrived: 0,
            unanswered: 0,
            truth: Vec::new(),
        }));
        let link = |_| {
            let (script, codec, new_codec) = (script.clone(), new_codec(), new_codec.clone());
            let (replies, output) = (Vec::new(), ServerOutput::new());
            let link = ScriptedLink { script, new_codec, codec, replies, output };
            SharedLink(Arc::new(Mutex::new(link)))
        };
        let links = (0..spec.connections).map(link).collect();
        Self { spec: spec.clone(), script, links }
    }

    /// Creates a simulation whose servers have the type `D`.
    fn of<D: Codec + Default + 'static>(spec: &Spec, shape: Shape, seed: u64) -> Self {
        Self::new(spec, shape, seed, Arc::new(|| Box::new(D::default()) as _))
    }

    /// Runs the load to its end, and compares its counts with the script. Returns the number of
    /// requests without a reply. `connection` creates a connection.
    fn run<C: Drive>(&self, connection: impl Fn(usize, SharedLink) -> C) -> u64 {
        let spec = &self.spec;
        let begin = clock::now();
        let mut state = thread_state(spec, begin);
        let links = self.links.iter().cloned().enumerate();
        let mut connections: Vec<C> = links.map(|(id, link)| connection(id, link)).collect();
        for connection in &mut connections {
            connection.begin(begin, &mut state);
        }
        let (mut now, mut next_tick, mut events) = (begin, begin + TICK, 0);
        while state.active > 0 {
            events += 1;
            assert!(events < 100 * REQUESTS, "the load does not end: {:?}", state.tally);
            let links = self.links.iter().filter_map(|link| link.lock().next(now));
            now =
                links.chain(state.alarm.next()).min().unwrap_or(next_tick).min(next_tick).max(now);
            clock::set(now);
            for (id, connection) in connections.iter_mut().enumerate() {
                let has_output = self.links[id].lock().advance(now);
                if has_output {
                    connection.ready(EventFlags::IN, now, &mut state);
                }
                go_on(connection, &mut state);
            }
            while let Some(id) = state.alarm.due(now) {
                connections[id].woken(now, &mut state);
                go_on(&mut connections[id], &mut state);
            }
            if now >= next_tick {
                next_tick = now + TICK;
                for connection in &mut connections {
                    connection.check_deadline(now, &mut state);
                    go_on(connection, &mut state);
                }
            }
        }
        self.compare(&state.tally)
    }

    /// Compares the counts with the script. Returns the number of requests without a reply.
    fn compare(&self, tally: &Tally) -> u64 {
        let script = self.script.lock().unwrap();
        let mut truth = script.truth.clone();
        truth.sort();
        let what = format!("{} {:?}", self.spec.url, script.shape);
        assert_eq!(Stop::Requests(tally.completed + tally.failed), self.spec.stop, "{what}");
        assert_eq!(tally.completed, truth.len() as u64, "{what}: {tally:?}");
        assert_eq!((tally.failures.timeout, tally.failed), (script.unanswered, script.unanswered));
        let mut expected = Latency::new();
        truth.iter().for_each(|latency| expected.record(*latency));
        let figures = |of: &Latency| {
            [of.mean_us(), of.sd_us(), of.min_us() as f64, of.max_us() as f64].map(f64::to_bits)
        };
        assert_eq!(figures(&tally.latency), figures(&expected), "{what}");
        for percent in [1.0, 10.0, 50.0, 75.0, 90.0, 95.0, 99.0, 99.9] {
            let got = tally.latency.percentile_us(percent);
            assert_eq!(got, expected.percentile_us(percent), "{what}: {percent}");
            // The histogram has three significant digits, so compare with a tolerance of 0.1 %.
            let rank = (percent / 100.0 * truth.len() as f64 - 1e-6).ceil() as usize;
            let exact = truth[rank.max(1) - 1].as_micros() as u64;
            assert!(got.abs_diff(exact) * 1000 <= exact, "{what}: {percent}: {got}, not {exact}");
        }
        script.unanswered
    }
}

/// Returns the state of the only thread of a load that begins at `begin`.
pub(crate) fn thread_state(spec: &Spec, begin: Instant) -> ThreadState {
    let target = Arc::new(ServerAddresses::resolve(spec).unwrap());
    let orders = (Mix::of(spec, 1).remove(0), Values::of(spec, 1).remove(0));
    let mut state = ThreadState::new(target, orders, spec).unwrap();
    state.budget = RequestBudget::of(spec.stop, 1).remove(0);
    state.pacer = Pacer::new(spec, begin, 0, 1);
    state.mix.begin(begin);
    state.active = spec.connections;
    state
}

/// Starts the next requests of a connection whose reply has arrived, as a load thread does.
fn go_on<C: Drive>(connection: &mut C, state: &mut ThreadState) {
    while let Some((_, now)) = state.idle.take() {
        connection.go_on(now, state);
    }
}

/// Calls `one` with 20 seeds of each shape, for each rate in `loops`. The rate `None` means a
/// closed loop. `settings` has the URL, connections, streams and number of requests.
fn simulate(settings: &Spec, loops: &[Option<Rate>], one: impl Fn(&Spec, Shape, u64) -> u64) {
    let mut unanswered = 0;
    for shape in [Shape::Constant, Shape::Bimodal, Shape::Stall, Shape::Silent] {
        for rate in loops {
            for seed in 1..=20 {
                let (rate, timeout) = (*rate, TIMEOUT);
                let spec = Spec { threads: 1, timeout, rate, ..settings.clone() };
                unanswered += one(&spec, shape, seed);
            }
        }
    }
    assert!(unanswered > 0, "no request was left without a reply");
}

/// Simulates a closed and an open loop over sockets.
fn simulate_stream(scheme: &str, streams: usize, one: impl Fn(&Spec, Shape, u64) -> u64) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("socket");
    let _listener = UnixListener::bind(&path).unwrap();
    let url = Url::parse(&format!("{scheme}+unix://{}:/", path.display())).unwrap();
    let rate = Rate { per_second: 1.0 / GAP.as_secs_f64(), arrivals: Arrivals::Even };
    let stop = Stop::Requests(REQUESTS);
    let spec = Spec { connections: CONNECTIONS, streams, stop, ..Spec::new(url) };
    simulate(&spec, &[None, Some(rate)], one);
}

/// Simulates connections that carry one request at a time. `D` is the server's side of a
/// connection.
fn simulate_single<C: Session<Sink = Inspection>, D: Codec + Default + 'static>(
    scheme: &str,
    source: impl Fn(Requests) -> RequestSource<C::Request>,
    session: impl Fn(C::Request, Inspection) -> C,
) {
    simulate_stream(scheme, 1, |spec, shape, seed| {
        let requests = source(Requests::of(spec).unwrap());
        let simulation = Simulation::of::<D>(spec, shape, seed);
        simulation.run(|id, link| {
            let session = session(requests.first(), sink());
            LoadConnection::<_, Wire<false>>::new(id, session, requests.for_connection(None), link)
        })
    });
}

/// Simulates connections that carry several requests at once. `D` is the server's side of a
/// connection.
fn simulate_mux<C: MuxSession<Sink = Inspection>, D: Codec + Default + 'static>(
    scheme: &str,
    source: impl Fn(Requests) -> RequestSource<C::Request>,
    session: impl Fn(C::Request, std::vec::IntoIter<Inspection>) -> C,
) {
    simulate_stream(scheme, STREAMS, |spec, shape, seed| {
        let requests = source(Requests::of(spec).unwrap());
        let simulation = Simulation::of::<D>(spec, shape, seed);
        simulation.run(|id, link| {
            let session = session(requests.first(), sinks());
            let requests = requests.for_connection(None);
            MuxConnection::<_, Wire<false>>::new(id, session, requests, STREAMS, link)
        })
    });
}

fn sink() -> Inspection {
    Inspection::new(None, None)
}

fn sinks() -> std::vec::IntoIter<Inspection> {
    (0..STREAMS).map(|_| sink()).collect::<Vec<_>>().into_iter()
}

#[test]
fn latencies_over_http1_are_those_of_the_script() {
    simulate_single::<_, codec::Http1Codec>(
        "http",
        |requests| requests.http().unwrap(),
        Http1::new,
    );
}

#[test]
fn latencies_of_websocket_messages_are_those_of_the_script() {
    simulate_single::<_, codec::WebSocketCodec>(
        "ws",
        |requests| requests.websocket().unwrap(),
        |request, sink| WebSocket::new(request, true, sink),
    );
}

#[test]
fn latencies_over_fastcgi_are_those_of_the_script() {
    simulate_single::<_, codec::FastcgiCodec>(
        "fcgi",
        |requests| requests.fastcgi().unwrap(),
        FastcgiClient::new,
    );
}

#[test]
fn latencies_of_fastcgi_streams_are_those_of_the_script() {
    simulate_mux::<_, codec::FastcgiCodec>(
        "fcgi",
        |requests| requests.fastcgi().unwrap(),
        FastcgiMux::new,
    );
}

#[test]
fn latencies_over_http2_are_those_of_the_script() {
    simulate_mux::<_, codec::Http2Codec>(
        "h2c",
        |requests| requests.http2().unwrap(),
        |request, sinks| Http2::new(request, true, sinks),
    );
}

#[test]
fn latencies_over_http3_are_those_of_the_script() {
    // The clients connect to this socket, but exchange their datagrams with the simulated servers.
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let url = format!("https://{}/", socket.local_addr().unwrap());
    let settings = Spec {
        connections: 1,
        streams: STREAMS,
        stop: Stop::Requests(200),
        tls: TlsOptions { insecure: true, ..TlsOptions::default() },
        ..Spec::new(Url::parse(&url).unwrap().over_http3().unwrap())
    };
    let client = TlsClient::new(&settings.url, &settings.tls).unwrap();
    let server = codec::server_config();
    simulate(&settings, &[None], |spec, shape, seed| {
        let requests = Requests::of(spec).unwrap().http3().unwrap();
        let server = server.clone();
        let new_codec = Arc::new(move || Box::new(codec::Http3Codec::new(server.clone())) as _);
        let simulation = Simulation::new(spec, shape, seed, new_codec);
        simulation.run(|id, link| {
            let (config, _) = client.for_quic().unwrap();
            let session = Http3::new(requests.first(), true, sinks(), config);
            let requests = requests.for_connection(None);
            MuxConnection::<_, Wire<true>>::new(id, session, requests, STREAMS, link)
        })
    });
}
