//! Accepts QUIC connections, which carry HTTP/3.
//!
//! Each thread has its own socket on the listener's address, and serves the connections whose
//! packets arrive on this socket. The kernel selects the socket by connection ID
//! (`sys/datagrams.rs`), so that a client may change its address. 0-RTT is off, because an attacker
//! can replay 0-RTT packets. Client certificates are not requested, because all sites of a listener
//! share one TLS configuration.

use std::future::pending;
use std::hash::{BuildHasher, RandomState};
use std::net::SocketAddr;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;

use ::aws_lc_rs::{hkdf, hmac};
use forebay_net::deadline::Activity;
use forebay_net::limit::Limit;
use forebay_net::listen::{DatagramSocket, SocketGroup};
use forebay_net::sys::datagrams::Routing;
use forebay_net::tls::{Handshake, QuicKeys, ServerTls};
use forebay_wire::http3::ErrorCode;
use quinn::crypto::rustls::{HandshakeData, QuicServerConfig};
use quinn::{
    ConnectionId, ConnectionIdGenerator, Endpoint, EndpointConfig, IdleTimeout, Incoming,
    ServerConfig, TransportConfig, VarInt,
};
use rustls::crypto::{SecureRandom, aws_lc_rs};
use rustls::server::{ClientHello, NoServerSessionStorage, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::version::TLS13;
use tokio::sync::watch;
use tokio::task::spawn_local;

use crate::admission::{Counted, is_full, make_room};
use crate::close_order::CloseOrder;
use crate::context::FrontContext;
use crate::host_index::HostIndex;
use crate::http3::connection::STREAMS;
use crate::http3::held::HeldHello;
use crate::http3::serve::serve_connection;
use crate::http3::socket::ThreadRuntime;
use crate::part::Accepted;
use crate::route::{Site, Table, select_site};

/// Maximum number of the client's unidirectional streams: the control stream, two for QPACK, and
/// some of unknown kinds.
const UNI_STREAMS: u32 = 8;

/// Maximum number of unread bytes of one stream, as with HTTP/2. `WINDOW` is the limit for all
/// streams of a connection together.
// The descriptor limit does not bound the number of QUIC connections, so bound the memory of each
// connection.
const STREAM_WINDOW: u32 = 64 * 1024;
const WINDOW: u32 = 256 * 1024;

/// Maximum unacknowledged bytes of a connection's streams.
const SEND_WINDOW: u64 = 512 * 1024;

/// Time in milliseconds without packets after which a connection ends. If no packet arrives for the
/// time `PING`, Forebay sends a keep-alive packet.
const SILENCE: VarInt = VarInt::from_u32(60_000);
const PING: Duration = Duration::from_secs(10);

/// If a thread has more concurrent handshakes than this, new clients must first prove their
/// address.
const TRUSTING: usize = 64;

/// Maximum time to finish handshakes after the listener has closed.
const HANDSHAKES: Duration = Duration::from_secs(1);

/// An endpoint that had more concurrent connections than this is replaced when it has no
/// connection.
const LARGE: usize = 512;

/// Maximum number of connections that wait for `accept`. `WAITING_BYTES` and `ALL_WAITING_BYTES`
/// limit the bytes of their further packets, per connection and in total.
const WAITING: usize = 256;
const WAITING_BYTES: u64 = 16 * 1024;
const ALL_WAITING_BYTES: u64 = 1024 * 1024;

/// Stops accepting connections when dropped. Existing connections continue.
struct ListenGuard(Endpoint);

impl Drop for ListenGuard {
    fn drop(&mut self) {
        self.0.set_server_config(None);
    }
}

/// Generates connection IDs whose first two bytes identify socket and process to the kernel.
struct Ids {
    place: u8,
    routing: Routing,
    random: &'static dyn SecureRandom,
}

/// Length of a connection ID in bytes.
const ID: usize = 8;

impl ConnectionIdGenerator for Ids {
    fn generate_cid(&mut self) -> ConnectionId {
        let mut bytes = [0; ID];
        if self.random.fill(&mut bytes).is_err() {
            bytes = RandomState::new().hash_one(ID).to_ne_bytes();
        }
        bytes[0] = of_place(bytes[0], self.place, self.routing.count.max(1));
        bytes[1] = self.routing.tag;
        ConnectionId::new(&bytes)
    }

    fn cid_len(&self) -> usize {
        ID
    }

    fn cid_lifetime(&self) -> Option<Duration> {
        None
    }
}

/// Returns a byte `b` near `random` with `b % count == place`. `place` must be less than `count`.
fn of_place(random: u8, place: u8, count: u8) -> u8 {
    let first = random - random % count;
    first.checked_add(place).unwrap_or_else(|| first - count + place)
}

/// Accepts connections until `closed` completes. Returns an error if the socket cannot be used, or
/// if this build lacks ciphers.
pub async fn accept(
    context: &Rc<FrontContext>,
    DatagramSocket { socket, place, routing, group }: DatagramSocket,
    index: usize,
    mut closed: CloseOrder,
) -> std::io::Result<()> {
    let mut sites = Sites::new(context, index).ok_or_else(|| {
        std::io::Error::other(
            "cannot configure TLS for HTTP/3: this build of Forebay lacks ciphers",
        )
    })?;
    let own = socket.local_addr()?;
    let random = aws_lc_rs::default_provider().secure_random;
    let mut of_endpoint = sites.endpoint_config(own, place);
    of_endpoint.cid_generator(move || Box::new(Ids { place, routing, random }));
    let open = |sites: &Sites| {
        let config = Some(sites.config.clone());
        let endpoint = Endpoint::new(
            of_endpoint.clone(),
            config,
            socket.try_clone()?,
            Arc::new(ThreadRuntime),
        )?;
        std::io::Result::Ok(ListenGuard(endpoint))
    };
    let mut listening = open(&sites)?;
    // True if the endpoint has had many connections. The tables of an endpoint never shrink. So a
    // new endpoint replaces a large endpoint after the last connection has ended.
    let mut is_large = false;
    // Each handshake holds a clone of the receiver, so the number of receivers is the number of
    // handshakes. The drop of the sender ends all handshakes.
    let (handshakes, handshake) = watch::channel(());
    loop {
        let incoming = tokio::select! {
            biased;
            incoming = listening.0.accept() => incoming,
            () = listening.0.wait_idle(), if is_large => {
                // The new endpoint has the same socket, and the same keys for stateless resets and
                // address tokens.
                if let Ok(small) = open(&sites) {
                    listening = small;
                }
                is_large = false;
                continue;
            }
            () = closed.wait() => {
                spawn_local(finish_handshakes(listening, (handshakes, handshake)));
                return Ok(());
            }
        };
        let Some(incoming) = incoming else {
            return Err(std::io::Error::other("its socket has failed"));
        };
        let load = &context.thread.load;
        let address = incoming.remote_address().ip();
        // Packets with forged source addresses must not displace other clients. So if many
        // handshakes are open, or a limit on connections is reached, let the client first prove its
        // address with a token.
        let is_wary = handshakes.receiver_count() > TRUSTING
            || !load.has_room()
            || is_full(context, index, address);
        if is_wary && !incoming.remote_address_validated() && incoming.may_retry() {
            let _ = incoming.retry();
            continue;
        }
        make_room(context, index, Some(address)).await;
        sites.renew(context, index);
        is_large |= listening.0.open_connections() > LARGE;
        let held = (handshake.clone(), group.clone());
        begin(context, incoming, (index, own), &sites, held).await;
    }
}

/// Lets the open handshakes finish after the listener has closed, because the clients are about to
/// send requests. Abandons handshakes that take longer than [`HANDSHAKES`].
async fn finish_handshakes(
    listening: ListenGuard,
    (handshakes, handshake): (watch::Sender<()>, watch::Receiver<()>),
) {
    listening.0.set_server_config(None);
    drop(handshake);
    let _ = tokio::time::timeout(HANDSHAKES, handshakes.closed()).await;
}

/// Starts a connection's handshake, and serves the connection in a new task. The task keeps the
/// listener's sockets open until the connection ends.
async fn begin(
    context: &Rc<FrontContext>,
    incoming: Incoming,
    (index, own): (usize, SocketAddr),
    sites: &Sites,
    (mut handshaking, sockets): (watch::Receiver<()>, Arc<SocketGroup>),
) {
    let thread = &context.thread;
    let peer = incoming.remote_address();
    let mut counted = Counted::new(thread);
    // A client with a forged source address must not use up the connections of that address.
    // Without a token, only the handshake proves the address, so count the connection after the
    // handshake.
    let is_proved = incoming.remote_address_validated();
    if is_proved && !counted.count_address(context, index, peer.into()) {
        return incoming.refuse();
    }
    let (guest, admitted) = thread.deadlines.admit();
    let ip = incoming.local_ip().filter(|_| own.ip().is_unspecified());
    let local = SocketAddr::new(ip.unwrap_or(own.ip()), own.port());
    // Wait for a turn, because `accept_with` is the costly step of the handshake.
    let turn = thread.handshake_turn().await;
    let (config, held) = sites.connection_config();
    let connecting = incoming.accept_with(config);
    turn.end().await;
    // Ignore an error, which means that the packet was invalid.
    let Ok(connecting) = connecting else { return };
    let (context, shown) = (context.clone(), sites.shown.clone());
    guest.occupancy.set(Activity::PartialHead, &thread.deadlines);
    spawn_local(async move {
        let thread = context.thread.clone();
        let limit = thread.settings().timeouts.head;
        let connecting = async {
            tokio::select! {
                biased;
                quic = connecting => quic.ok(),
                // The listener was closed, and the time `HANDSHAKES` has passed. Abandon this
                // handshake.
                _ = handshaking.changed() => None,
                () = guest.evicted.notified() => None,
                () = refused(held) => {
                    thread.counters.count_limit(Limit::OnDemand);
                    None
                }
            }
        };
        let quic = match thread.deadlines.timeout(limit, connecting).await {
            Ok(Some(quic)) => quic,
            Ok(None) => return,
            Err(_) => return thread.counters.count_limit(Limit::Head),
        };
        drop(handshaking);
        if !is_proved && !counted.count_address(&context, index, peer.into()) {
            return quic.close(ErrorCode::EXCESSIVE_LOAD.0.into(), b"");
        }
        let data = quic.handshake_data().and_then(|data| data.downcast::<HandshakeData>().ok());
        let server_name = data.and_then(|data| data.server_name);
        let tls = shown.find(server_name.as_deref()).cloned();
        drop(shown);
        if let Some(tls) = tls {
            let tls = Some(Rc::new(Handshake::of_quic(tls, server_name)));
            let accepted = Accepted { thread, peer: peer.into(), local, listener: index, tls };
            serve_connection(&context, quic, accepted, guest).await;
        }
        drop((admitted, counted, sockets));
    });
}

/// Completes when no certificate is obtained for a handshake in time, or when the handshake fails
/// after the wait. Never completes if the handshake succeeds, or if `held` is `None`.
async fn refused(held: Option<Arc<HeldHello>>) {
    match held {
        Some(held) => held.refused().await,
        None => pending().await,
    }
}

/// The certificates of a listener's sites, and the handshake configuration.
struct Sites {
    /// The table from which the sites were loaded. A weak reference lets the applications of an old
    /// table stop.
    table: Weak<Table>,
    shown: Arc<BySite>,
    config: ServerConfig,
}

impl Sites {
    fn new(context: &FrontContext, index: usize) -> Option<Self> {
        let table = context.table().clone();
        let shown = Arc::new(BySite::new(&table, index));
        let keys = shown.quic_keys();
        let mut config = match &keys {
            Some(QuicKeys { token, .. }) => {
                let token = hkdf::Salt::new(hkdf::HKDF_SHA256, &[]).extract(token);
                ServerConfig::new(crypto(&shown)?, Arc::new(token))
            }
            None => ServerConfig::with_crypto(crypto(&shown)?),
        };
        config
            .transport_config(Arc::new(transport()))
            .max_incoming(WAITING)
            .incoming_buffer_size(WAITING_BYTES)
            .incoming_buffer_size_total(ALL_WAITING_BYTES);
        Some(Self { table: Rc::downgrade(&table), shown, config })
    }

    /// Returns the settings of a new connection. If sites obtain certificates on demand, also
    /// returns the value that lets the connection's handshake wait.
    fn connection_config(&self) -> (Arc<ServerConfig>, Option<Arc<HeldHello>>) {
        let mut config = self.config.clone();
        if !self.shown.sites.iter().flatten().any(|site| site.tls.demand().is_some()) {
            return (Arc::new(config), None);
        }
        let shown = self.shown.clone();
        let find = move |name: &str| shown.find(Some(name))?.demand().cloned();
        let held = HeldHello::new(Box::new(find));
        config.crypto = held.configure(config.crypto);
        (Arc::new(config), Some(held))
    }

    /// Returns the settings of the endpoint for socket number `place` on `address`. The tokens of
    /// stateless resets depend on `place` and `address`, so a successor of this process derives the
    /// same tokens.
    ///
    /// No two endpoints may have the same tokens, because one endpoint could then reset connections
    /// of the other endpoint (RFC 9000 section 21.11).
    fn endpoint_config(&self, address: SocketAddr, place: u8) -> EndpointConfig {
        match self.shown.quic_keys() {
            Some(QuicKeys { reset, .. }) => {
                let reset = hmac::Key::new(hmac::HMAC_SHA256, &reset);
                let own = hmac::sign(&reset, format!("{address} {place}").as_bytes());
                EndpointConfig::new(Arc::new(hmac::Key::new(hmac::HMAC_SHA256, own.as_ref())))
            }
            None => EndpointConfig::default(),
        }
    }

    /// Loads the sites again if a reload has replaced the table.
    fn renew(&mut self, context: &FrontContext, index: usize) {
        let table = context.table();
        if self.table.as_ptr() == Rc::as_ptr(&table) {
            return;
        }
        self.table = Rc::downgrade(&table);
        self.shown = Arc::new(BySite::new(&table, index));
        // Replace only `crypto`, so that the keys of address tokens remain.
        if let Some(crypto) = crypto(&self.shown) {
            self.config.crypto = crypto;
        }
    }
}

/// Returns the TLS configuration of the listener's QUIC connections, or `None` if this build lacks
/// ciphers. The first site that offers HTTP/3 has the keys for the session tickets of all sites.
fn crypto(shown: &Arc<BySite>) -> Option<Arc<QuicServerConfig>> {
    let mut taken = shown.sites.iter().flatten().filter(|site| site.takes_http3);
    let tickets = taken.next().map(|site| site.tls.config().ticketer.clone());
    let mut config =
        rustls::ServerConfig::builder_with_provider(aws_lc_rs::default_provider().into())
            .with_protocol_versions(&[&TLS13])
            .ok()?
            .with_no_client_auth()
            .with_cert_resolver(shown.clone());
    if let Some(tickets) = tickets {
        config.ticketer = tickets;
    }
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.max_early_data_size = 0;
    config.alpn_protocols = vec![b"h3".to_vec()];
    QuicServerConfig::try_from(config).ok().map(Arc::new)
}

fn transport() -> TransportConfig {
    let mut transport = TransportConfig::default();
    transport
        .max_concurrent_bidi_streams(STREAMS.into())
        .max_concurrent_uni_streams(UNI_STREAMS.into())
        .stream_receive_window(STREAM_WINDOW.into())
        .receive_window(WINDOW.into())
        .send_window(SEND_WINDOW)
        .max_idle_timeout(Some(IdleTimeout::from(SILENCE)))
        .keep_alive_interval(Some(PING))
        .datagram_receive_buffer_size(None);
    transport
}

/// Selects the certificate of the site that a client names, by the rules that also apply to TLS
/// over TCP. If the site does not offer HTTP/3, no certificate is found and the handshake fails.
#[derive(Debug)]
struct BySite {
    hosts: Arc<HostIndex>,
    /// The sites that `hosts` numbers. `None` for a site without TLS.
    sites: Vec<Option<Shown>>,
}

#[derive(Debug)]
struct Shown {
    tls: Arc<ServerTls>,
    takes_http3: bool,
}

impl BySite {
    fn new(table: &Table, index: usize) -> Self {
        let shown = |site: &Rc<Site>| {
            let tls = site.tls.clone()?;
            Some(Shown { tls, takes_http3: site.http3 })
        };
        let sites = table.sites(index).iter().map(shown).collect();
        Self { hosts: table.hosts(index), sites }
    }

    /// Returns the keys of QUIC, which all sites share. Returns `None` if there are no sites.
    fn quic_keys(&self) -> Option<QuicKeys> {
        self.sites.iter().flatten().next().map(|site| site.tls.quic_keys())
    }

    fn find(&self, name: Option<&str>) -> Option<&Arc<ServerTls>> {
        let at = select_site(&self.hosts, name.unwrap_or_default().as_bytes());
        let site = self.sites.get(at)?.as_ref()?;
        site.takes_http3.then_some(&site.tls)
    }
}

impl ResolvesServerCert for BySite {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.find(hello.server_name())?.config().cert_resolver.resolve(hello)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connection_ids_lead_to_their_socket_whatever_is_drawn() {
        for count in 1..=u8::MAX {
            for place in [0, 1, count / 2, count - 1].into_iter().filter(|&place| place < count) {
                for random in 0..=u8::MAX {
                    assert_eq!(of_place(random, place, count) % count, place, "{random} {count}");
                }
            }
        }
    }
}
