//! QUIC handshakes that wait until their certificate exists.
//!
//! The TLS library selects the certificate while it reads the ClientHello, and cannot wait. A
//! [`HeldSession`] therefore keeps the ClientHello. When the certificate exists, the handshake
//! continues with the client's next packet. This packet arrives soon, because clients send probes
//! until a handshake ends (RFC 9002 section 6.2.2.1).

use std::any::Any;
use std::future::pending;
use std::sync::{Arc, Mutex, PoisonError};

use forebay_net::tls::{Awaited, SiteDemand};
use quinn::crypto::{
    ExportKeyingMaterialError, HeaderKey, KeyPair, Keys, PacketKey, ServerConfig, Session,
    UnsupportedVersion,
};
use quinn::{ConnectionId, Side, TransportErrorCode};
use quinn_proto::TransportError;
use quinn_proto::transport_parameters::TransportParameters;
use rustls::server::Acceptor;
use tokio::sync::Notify;

/// Maximum number of bytes that are kept for a client.
const LONGEST: usize = 64 * 1024;
/// Maximum length of a TLS record.
const LONGEST_RECORD: usize = 16 * 1024;

/// Returns the on-demand certificates of the site that a server name selects, if the site has any.
type FindDemand = Box<dyn Fn(&str) -> Option<SiteDemand> + Send + Sync>;

/// The wait of one handshake for a certificate. The TLS session and the task of the connection
/// share this value.
pub struct HeldHello {
    find: FindDemand,
    awaited: Mutex<Option<Arc<AwaitedName>>>,
    /// Notified when the handshake begins to wait.
    waits: Notify,
    /// Notified when the handshake has failed after the wait.
    failed: Notify,
}

/// A name whose certificate does not exist yet.
struct AwaitedName {
    demand: SiteDemand,
    name: String,
}

impl AwaitedName {
    fn is_ready(&self) -> bool {
        self.demand.is_ready(&self.name)
    }
}

impl HeldHello {
    pub fn new(find: FindDemand) -> Arc<Self> {
        let (waits, failed) = (Notify::new(), Notify::new());
        Arc::new(Self { find, awaited: Mutex::default(), waits, failed })
    }

    /// Returns a TLS configuration for one connection. With this configuration, `self` can stop the
    /// handshake until a certificate exists.
    pub fn configure(self: &Arc<Self>, inner: Arc<dyn ServerConfig>) -> Arc<dyn ServerConfig> {
        Arc::new(HoldingConfig { inner, held: self.clone() })
    }

    /// Returns `None` if the client need not wait for the certificate of `name`. Otherwise returns
    /// the awaited name, and lets [`Self::refused`] wait for the certificate.
    fn hold(&self, name: String) -> Option<Arc<AwaitedName>> {
        let demand = (self.find)(&name)?;
        let awaited = Arc::new(AwaitedName { demand, name });
        if awaited.is_ready() {
            return None;
        }
        *self.awaited.lock().unwrap_or_else(PoisonError::into_inner) = Some(awaited.clone());
        self.waits.notify_one();
        Some(awaited)
    }

    /// Completes when no certificate is obtained in time, or when the handshake fails after the
    /// wait. Never completes if the handshake succeeds.
    pub async fn refused(&self) {
        self.waits.notified().await;
        let awaited = self.awaited.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(awaited) = awaited else { return pending().await };
        let outcome = awaited.demand.wait_for(Some(&awaited.name)).await;
        if outcome == Awaited::Shown {
            self.failed.notified().await;
        }
    }
}

/// The TLS configuration of one connection.
struct HoldingConfig {
    inner: Arc<dyn ServerConfig>,
    held: Arc<HeldHello>,
}

impl ServerConfig for HoldingConfig {
    fn initial_keys(&self, version: u32, id: &ConnectionId) -> Result<Keys, UnsupportedVersion> {
        self.inner.initial_keys(version, id)
    }

    fn retry_tag(&self, version: u32, id: &ConnectionId, packet: &[u8]) -> [u8; 16] {
        self.inner.retry_tag(version, id, packet)
    }

    fn start_session(
        self: Arc<Self>,
        version: u32,
        params: &TransportParameters,
    ) -> Box<dyn Session> {
        Box::new(HeldSession {
            inner: self.inner.clone().start_session(version, params),
            held: self.held.clone(),
            hello: Hello::Arriving,
            bytes: Vec::new(),
        })
    }
}

/// A TLS session that may keep the client's first message.
struct HeldSession {
    inner: Box<dyn Session>,
    held: Arc<HeldHello>,
    hello: Hello,
    /// Received bytes that `inner` has not read.
    bytes: Vec<u8>,
}

/// State of a ClientHello.
enum Hello {
    /// Only a part has arrived.
    Arriving,
    /// The message waits for a certificate.
    Waiting(Arc<AwaitedName>),
    /// The session has read the message.
    Passed,
}

impl HeldSession {
    /// Lets the session read the bytes that have arrived, and returns the result of the session's
    /// `read_handshake`. While the client must wait for a certificate, reads nothing and returns
    /// false.
    fn pass_if_ready(&mut self) -> Result<bool, TransportError> {
        if let Hello::Waiting(awaited) = &self.hello
            && !awaited.is_ready()
        {
            return Ok(false);
        }
        self.hello = Hello::Passed;
        self.inner.read_handshake(&std::mem::take(&mut self.bytes))
    }
}

impl Session for HeldSession {
    fn read_handshake(&mut self, part: &[u8]) -> Result<bool, TransportError> {
        if matches!(self.hello, Hello::Passed) {
            return self.inner.read_handshake(part);
        }
        if self.bytes.len() + part.len() > LONGEST {
            let reason = "the client sends too much before its certificate exists".to_owned();
            let code = TransportErrorCode::CRYPTO_BUFFER_EXCEEDED;
            return Err(TransportError { code, frame: None, reason });
        }
        self.bytes.extend_from_slice(part);
        if matches!(self.hello, Hello::Arriving) {
            let name = match parse(&self.bytes) {
                HelloName::Incomplete => return Ok(false),
                HelloName::Known(name) => Some(name),
                HelloName::None => None,
            };
            if let Some(awaited) = name.and_then(|name| self.held.hold(name)) {
                self.hello = Hello::Waiting(awaited);
            }
        }
        self.pass_if_ready()
    }

    fn write_handshake(&mut self, out: &mut Vec<u8>) -> Option<Keys> {
        // Check the wait here, because `quinn` does not call `read_handshake` again: the client's
        // next packets contain no new handshake bytes.
        if matches!(self.hello, Hello::Waiting(_)) && self.pass_if_ready().is_err() {
            self.held.failed.notify_one();
        }
        self.inner.write_handshake(out)
    }

    fn initial_keys(&self, id: &ConnectionId, side: Side) -> Keys {
        self.inner.initial_keys(id, side)
    }

    fn handshake_data(&self) -> Option<Box<dyn Any>> {
        self.inner.handshake_data()
    }

    fn peer_identity(&self) -> Option<Box<dyn Any>> {
        self.inner.peer_identity()
    }

    fn early_crypto(&self) -> Option<(Box<dyn HeaderKey>, Box<dyn PacketKey>)> {
        self.inner.early_crypto()
    }

    fn early_data_accepted(&self) -> Option<bool> {
        self.inner.early_data_accepted()
    }

    fn is_handshaking(&self) -> bool {
        self.inner.is_handshaking()
    }

    fn transport_parameters(&self) -> Result<Option<TransportParameters>, TransportError> {
        self.inner.transport_parameters()
    }

    fn next_1rtt_keys(&mut self) -> Option<KeyPair<Box<dyn PacketKey>>> {
        self.inner.next_1rtt_keys()
    }

    fn is_valid_retry(&self, id: &ConnectionId, header: &[u8], payload: &[u8]) -> bool {
        self.inner.is_valid_retry(id, header, payload)
    }

    fn export_keying_material(
        &self,
        output: &mut [u8],
        label: &[u8],
        context: &[u8],
    ) -> Result<(), ExportKeyingMaterialError> {
        self.inner.export_keying_material(output, label, context)
    }
}

/// The server name in a ClientHello.
#[derive(Debug, PartialEq, Eq)]
enum HelloName {
    /// Only a part of the message has arrived.
    Incomplete,
    /// The client names a server.
    Known(String),
    /// There is no name, or the message is broken.
    None,
}

/// Finds the server name in the first bytes of a handshake, or reports that more bytes are needed.
fn parse(bytes: &[u8]) -> HelloName {
    const CLIENT_HELLO: u8 = 1;
    let Some((&[kind, a, b, c], _)) = bytes.split_first_chunk() else {
        return HelloName::Incomplete;
    };
    let length = 4 + u32::from_be_bytes([0, a, b, c]) as usize;
    if kind != CLIENT_HELLO || length > LONGEST_RECORD {
        return HelloName::None;
    }
    let Some(message) = bytes.get(..length) else { return HelloName::Incomplete };
    let [.., high, low] = length.to_be_bytes();
    // Wrap the message in a record, because the parser expects the records of TLS over TCP.
    let record = [&[0x16, 3, 1, high, low], message].concat();
    let mut acceptor = Acceptor::default();
    if acceptor.read_tls(&mut &record[..]).is_err() {
        return HelloName::None;
    }
    let accepted = acceptor.accept().ok().flatten();
    let name =
        accepted.and_then(|accepted| accepted.client_hello().server_name().map(str::to_owned));
    name.map_or(HelloName::None, HelloName::Known)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rustls::crypto::aws_lc_rs::default_provider;
    use rustls::pki_types::ServerName;
    use rustls::quic::{ClientConnection, Version};
    use rustls::{ClientConfig, RootCertStore};

    use super::*;

    fn hello(name: &str) -> Vec<u8> {
        let builder = ClientConfig::builder_with_provider(Arc::new(default_provider()));
        let builder = builder.with_safe_default_protocol_versions().unwrap();
        let config = builder.with_root_certificates(RootCertStore::empty()).with_no_client_auth();
        let name = ServerName::try_from(name.to_owned()).unwrap();
        let client = ClientConnection::new(Arc::new(config), Version::V1, name, vec![0; 40]);
        let mut bytes = Vec::new();
        assert!(client.unwrap().write_hs(&mut bytes).is_none());
        bytes
    }

    #[test]
    fn the_server_name_is_found_in_a_whole_message() {
        let bytes = hello("A.Example");
        assert_eq!(parse(&bytes), HelloName::Known("a.example".to_owned()));
        for length in 0..bytes.len() {
            assert_eq!(parse(&bytes[..length]), HelloName::Incomplete, "{length}");
        }
        let more = [&bytes[..], b"more"].concat();
        assert_eq!(parse(&more), HelloName::Known("a.example".to_owned()));
        assert_eq!(parse(&hello("192.0.2.1")), HelloName::None);
    }

    #[test]
    fn a_broken_message_has_no_name() {
        let bytes = hello("a.example");
        for at in 0..bytes.len() {
            let mut broken = bytes.clone();
            broken[at] ^= 0xff;
            // The parser may find another name or none, but must not panic.
            parse(&broken);
        }
        assert_eq!(parse(&[2, 0, 0, 0]), HelloName::None);
        assert_eq!(parse(&[1, 0xff, 0xff, 0xff]), HelloName::None);
        assert_eq!(parse(&[1, 0, 0, 2, 3, 3]), HelloName::None);
    }
}
