//! A request as a container receives it: its head, and its body in packets.

use std::cell::Cell;

use forebay_conf as conf;
use forebay_net::fault::Fault;
use forebay_net::head::Request;
use forebay_net::limit::Limit;
use forebay_server::body::Body;
use forebay_wire::ajp13::{
    Attribute, Attributes, END_OF_BODY, Forward, RequestLine, data_header, most_data,
};
use forebay_wire::cgi::server_port;
use forebay_wire::http1::{Disguises, Field, KnownField, RequestFraming, Version, encode, host_of};
use tokio::sync::Notify;

/// Maximum length of an address as text, in bytes.
const ADDRESS: usize = 45;

/// Appends the head of `request`. Drops the client's own `X-Forwarded-*` fields, which can be
/// forged. Also drops fields such as `X_Forwarded_For`, which an application may read as another
/// field. Returns a fault if the head is too large for AJP.
pub fn append_head(
    out: &mut Vec<u8>,
    request: &Request,
    settings: &conf::Ajp,
    framing: RequestFraming,
) -> Result<(), Fault> {
    append_head_for(out, request, settings, framing, None)
}

/// Returns the value of JK_LB_ACTIVATION. From this attribute, Tomcat's LoadBalancerDrainingValve
/// learns if the container accepts new sessions.
pub fn activation_of(backend: &conf::Backend) -> &'static [u8] {
    match backend.activation {
        conf::Activation::Active => b"ACT",
        conf::Activation::Disabled => b"DIS",
        conf::Activation::Stopped => b"STP",
    }
}

/// Appends the head as [`append_head`] does. Adds `activation` as JK_LB_ACTIVATION, if given.
pub fn append_head_for(
    out: &mut Vec<u8>,
    request: &Request,
    settings: &conf::Ajp,
    framing: RequestFraming,
    activation: Option<&[u8]>,
) -> Result<(), Fault> {
    let (bytes, target) = (&request.bytes, request.target());
    let (uri, query) = match memchr::memchr(b'?', target) {
        Some(at) => (&target[..at], Some(&target[at + 1..])),
        None => (target, None),
    };
    let authority = request.head.authority.map(|span| span.of(bytes)).unwrap_or_default();
    let (mut client, mut server) = (Vec::with_capacity(ADDRESS), Vec::with_capacity(ADDRESS));
    request.client.append(&mut client);
    encode::address(&mut server, request.server.ip());
    let host = host_of(authority);
    let line = RequestLine {
        method: request.method(),
        protocol: match request.head.version {
            Version::Http10 => b"HTTP/1.0",
            Version::Http11 => b"HTTP/1.1",
            Version::Http2 => b"HTTP/2.0",
            Version::Http3 => b"HTTP/3.0",
        },
        uri,
        remote_addr: &client,
        remote_host: &client,
        server_name: if host.is_empty() { &server } else { host },
        server_port: server_port(request.server, authority, request.https),
        is_ssl: request.https,
    };
    let mut forward = Forward::new(out, &line);
    append_fields(&mut forward, request, authority, framing);
    let mut attributes = forward.attributes();
    if let Some(secret) = &settings.secret {
        attributes.attribute(Attribute::Secret, secret.as_bytes());
    }
    append_attributes(&mut attributes, request, query, &server);
    if let Some(activation) = activation {
        attributes.request_attribute(b"JK_LB_ACTIVATION", activation);
    }
    // If the head does not fit into a packet, the client's target or fields are too long. So the
    // status is 431. A very long `secret` gives this status, too.
    attributes.finish(settings.packet_size).map_err(|error| {
        let message = format!(
            "the request does not fit one packet of AJP: {error}; raise packet_size of the route and \
             packetSize of the container's connector"
        );
        Fault::client(431, message).limited_by(Limit::AjpPacket)
    })
}

fn append_fields(
    forward: &mut Forward<'_>,
    request: &Request,
    authority: &[u8],
    framing: RequestFraming,
) {
    let (head, bytes) = (&request.head, &request.bytes);
    if !authority.is_empty() {
        forward.field(b"Host", authority);
    }
    let claims = request.claims();
    let disguises = Disguises::of(head, bytes);
    for field in &head.fields {
        let name = field.name.of(bytes);
        let is_dropped = field.known != KnownField::Gateway
            && (field.known.is_hop_by_hop()
                || is_replaced(field)
                || claims.are_forged(field, head, bytes)
                || disguises.as_ref().is_some_and(|disguises| disguises.have(field))
                || head.connection_names_fields && head.connection_lists(name, bytes)
                // If Forebay has checked the password, the application does not get it, as with
                // Apache.
                || !request.user.is_empty() && name.eq_ignore_ascii_case(b"authorization"));
        if !is_dropped {
            forward.field(name, field.value.of(bytes));
        }
    }
    if let Some((name, value)) = request.subject_field.as_ref().and_then(|line| split(line)) {
        forward.field(name, value);
    }
    match framing {
        RequestFraming::Length(length) => forward.field_number(b"Content-Length", length),
        // Because of this field, Tomcat expects a body of unknown length.
        RequestFraming::Chunked => forward.field(b"Transfer-Encoding", b"chunked"),
        RequestFraming::None if head.value(KnownField::ContentLength, bytes).is_some() => {
            forward.field(b"Content-Length", b"0");
        }
        RequestFraming::None => {}
    }
}

/// Returns the name and value of a field line. Returns `None` if the line has no colon.
fn split(line: &[u8]) -> Option<(&[u8], &[u8])> {
    let at = memchr::memchr(b':', line)?;
    Some((&line[..at], line[at + 1..].trim_ascii()))
}

/// Returns the key length in bits of a cipher suite of TLS 1.2 or 1.3. These suites use AES or
/// ChaCha20.
fn key_size(cipher: &str) -> u16 {
    if cipher.contains("AES128") || cipher.contains("AES_128") { 128 } else { 256 }
}

fn is_replaced(field: &Field) -> bool {
    matches!(
        field.known,
        KnownField::Host | KnownField::ContentLength | KnownField::Expect | KnownField::Proxy
    )
}

/// Appends the attributes of the request: the user, the query, the cipher and version of TLS, the
/// client's port and the server's address.
fn append_attributes(
    attributes: &mut Attributes<'_>,
    request: &Request,
    query: Option<&[u8]>,
    server: &[u8],
) {
    if !request.user.is_empty() {
        attributes.attribute(Attribute::RemoteUser, &request.user);
        let scheme = request.head.auth_scheme(&request.bytes);
        attributes.attribute(Attribute::AuthType, scheme.as_bytes());
    }
    if let Some(query) = query {
        attributes.attribute(Attribute::QueryString, query);
    }
    for (name, value) in request.connection_variables() {
        match *name {
            "SSL_CIPHER" => {
                attributes.attribute(Attribute::SslCipher, value.as_bytes());
                attributes.ssl_key_size(key_size(value));
            }
            "SSL_PROTOCOL" => {
                attributes.request_attribute(b"AJP_SSL_PROTOCOL", value.as_bytes());
            }
            _ => {}
        }
    }
    let mut port = Vec::with_capacity(5);
    encode::decimal(&mut port, u64::from(request.client.port()));
    attributes.request_attribute(b"AJP_REMOTE_PORT", &port);
    attributes.request_attribute(b"AJP_LOCAL_ADDR", server);
}

// Divides a request's body into the data packets that the container requests.

/// The state of sending a request's body in packets, with the received bytes that were not sent
/// yet.
pub struct Packets {
    framing: RequestFraming,
    most: usize,
    /// Bytes not sent yet, if the length is known.
    left: u64,
    /// Bytes read from the client. Bytes from `start` on were not sent yet.
    carry: Vec<u8>,
    start: usize,
    /// True if more than the first packet was sent. The caller stores only the first packet.
    is_past_first: bool,
}

impl Packets {
    /// Creates the packets of a body with this framing, of at most `packet_size` bytes each.
    pub fn new(framing: RequestFraming, packet_size: usize) -> Self {
        let most = most_data(packet_size);
        let left = length_of(framing);
        Self { framing, most, left, carry: Vec::new(), start: 0, is_past_first: false }
    }

    /// Returns true if the body can be resent without reading it again. This is the case if at most
    /// the first packet was sent, because the caller stores this packet.
    pub fn is_at_hand(&self) -> bool {
        !self.is_past_first
    }

    /// Appends the first packet, which Forebay sends without a request of the container. Appends
    /// nothing if the length of the body is unknown or 0.
    pub async fn append_first(&mut self, out: &mut Vec<u8>, body: &mut Body) -> Result<(), Fault> {
        if self.left > 0 { self.append(out, self.most, body).await } else { Ok(()) }
    }

    /// Appends the packet for a container's request of `requested` bytes. If the body's length is
    /// known, first waits for `requested` bytes, or for the rest of the body if it is shorter. If
    /// the length is unknown, waits for at least one byte, and appends the bytes that have arrived.
    /// At the end of the body, appends an empty packet.
    pub async fn append_next(
        &mut self,
        out: &mut Vec<u8>,
        requested: usize,
        body: &mut Body,
    ) -> Result<(), Fault> {
        self.is_past_first = true;
        self.append(out, requested, body).await
    }

    /// Prepares to send the body again, to another container. The caller has rewound `body`, and
    /// resends the first packet itself. So this function reads and drops the bytes of the first
    /// packet.
    pub async fn rewind(&mut self, body: &mut Body) -> Result<(), Fault> {
        if !self.is_past_first {
            return Ok(());
        }
        (self.left, self.start, self.is_past_first) = (length_of(self.framing), 0, false);
        self.carry.clear();
        self.append_first(&mut Vec::new(), body).await
    }

    async fn append(
        &mut self,
        out: &mut Vec<u8>,
        requested: usize,
        body: &mut Body,
    ) -> Result<(), Fault> {
        let is_counted = self.framing != RequestFraming::Chunked;
        let mut wanted = requested.min(self.most);
        if is_counted {
            wanted = wanted.min(usize::try_from(self.left).unwrap_or(usize::MAX));
        }
        let header = out.len();
        out.extend_from_slice(&data_header(0));
        let start = out.len();
        while out.len() - start < wanted {
            let room = wanted - (out.len() - start);
            if self.start < self.carry.len() {
                let carried = &self.carry[self.start..];
                let taken = carried.len().min(room);
                out.extend_from_slice(&carried[..taken]);
                self.start += taken;
                continue;
            }
            if !is_counted && out.len() > start {
                break;
            }
            let Some(piece) = body.next().await? else { break };
            let (now, later) = piece.split_at(piece.len().min(room));
            out.extend_from_slice(now);
            self.carry.clear();
            self.carry.extend_from_slice(later);
            self.start = 0;
        }
        let length = out.len() - start;
        if length == 0 {
            out.truncate(header);
            out.extend_from_slice(END_OF_BODY);
            return Ok(());
        }
        out[header..start].copy_from_slice(&data_header(length));
        self.left = self.left.saturating_sub(length as u64);
        if is_counted && self.left == 0 {
            // All bytes were read. One more call is necessary, so that `body` recognizes its end.
            body.next().await?;
        }
        Ok(())
    }
}

fn length_of(framing: RequestFraming) -> u64 {
    match framing {
        RequestFraming::Length(length) => length,
        RequestFraming::None | RequestFraming::Chunked => 0,
    }
}

/// Number of body bytes that the container requests. The reader of the reply sets the number, and
/// the sender of the body clears it.
#[derive(Default)]
pub struct BodyDemand {
    length: Cell<Option<usize>>,
    changed: Notify,
}

impl BodyDemand {
    /// Records that the container requests `length` bytes. Returns false if the container's
    /// previous request is not fulfilled.
    pub fn raise(&self, length: usize) -> bool {
        let is_first = self.length.replace(Some(length)).is_none();
        self.changed.notify_one();
        is_first
    }

    /// Waits until the container requests a packet. Returns the number of requested bytes.
    pub async fn wait(&self) -> usize {
        loop {
            if let Some(length) = self.length.get() {
                return length;
            }
            self.changed.notified().await;
        }
    }

    /// Records that the requested packet was sent.
    pub fn meet(&self) {
        self.length.set(None);
    }

    /// Returns true if the container waits for a packet.
    pub fn is_pending(&self) -> bool {
        self.length.get().is_some()
    }
}
