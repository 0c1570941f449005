//! Server side of a TLS handshake.
//!
//! The ClientHello is read first, because the site that it names determines the certificate and the
//! client authentication (`rustls::server::Acceptor`). In each thread, only one handshake at a time
//! executes its costly steps, and other tasks run between these steps. Many new clients therefore
//! do not delay the requests of other clients.

use std::io;
use std::rc::Rc;
use std::sync::Arc;

use forebay_net::deadline::Activity;
use forebay_net::limit::Limit;
use forebay_net::socket::Socket;
use forebay_net::tls::{Awaited, Challenges, Handshake, ServerTls, SiteDemand, TlsSession};
use rustls::server::Acceptor;

use crate::context::FrontContext;
use crate::route::Table;

/// Size of the buffer for a ClientHello in bytes. A ClientHello with a post-quantum key share has
/// 1.8 kB.
const HELLO: usize = 2048;

/// Reply to a client that sends HTTP without TLS.
const PLAIN_REPLY: &[u8] = b"HTTP/1.1 400 Bad Request\r\n\
    Content-Type: text/plain; charset=utf-8\r\n\
    Content-Length: 66\r\n\
    Connection: close\r\n\r\n\
    400 Bad Request: this port speaks HTTPS; ask with an https:// URL\n";

/// First byte of a TLS record that carries a handshake.
const HANDSHAKE_RECORD: u8 = 0x16;

/// Alerts (RFC 8446 section 6.2): unrecognized_name if no certificate may be issued for the
/// client's server name, and internal_error if the certificate came too late.
const UNKNOWN_NAME: &[u8] = &[0x15, 3, 3, 0, 2, 2, 112];
const LATE: &[u8] = &[0x15, 3, 3, 0, 2, 2, 80];

/// Reason for a failed handshake.
enum HandshakeFailure {
    /// The client sent HTTP without TLS.
    Plain,
    /// The connection failed or violated the protocol.
    Broken,
}

impl From<io::Error> for HandshakeFailure {
    fn from(_: io::Error) -> Self {
        Self::Broken
    }
}

/// Performs the handshake with the settings that `select` returns for the client's server name.
/// `prefix` contains bytes that were already read. Returns `None` if the connection must be closed.
/// A client that speaks plain HTTP gets an error reply before the close.
pub async fn accept_tls(
    context: &FrontContext,
    socket: &Socket,
    prefix: Vec<u8>,
    select: impl Fn(&Table, Option<&str>) -> Option<Arc<ServerTls>>,
) -> Option<Rc<Handshake>> {
    let thread = &context.thread;
    let timeouts = thread.settings().timeouts.clone();
    socket.limit_writes(timeouts.write);
    // The limit applies to the whole handshake, regardless of the number of reads.
    socket.limit_read(timeouts.head);
    match shake_hands(context, socket, prefix, select).await {
        Ok(handshake) => Some(Rc::new(handshake)),
        Err(failure) => {
            // Mark the connection as busy, so that it is not evicted before the error reply is
            // sent.
            socket.set_activity(Activity::Busy);
            if socket.is_overdue() && !thread.is_stopping() {
                thread.counters.count_limit(Limit::Head);
            }
            if matches!(failure, HandshakeFailure::Plain)
                && socket.write_all(PLAIN_REPLY).await.is_ok()
            {
                socket.linger().await;
            }
            None
        }
    }
}

async fn shake_hands(
    context: &FrontContext,
    socket: &Socket,
    prefix: Vec<u8>,
    select: impl Fn(&Table, Option<&str>) -> Option<Arc<ServerTls>>,
) -> Result<Handshake, HandshakeFailure> {
    let mut bytes = if prefix.is_empty() { first_bytes(socket).await? } else { prefix };
    if bytes[0].is_ascii_alphabetic() {
        return Err(HandshakeFailure::Plain);
    }
    if bytes[0] != HANDSHAKE_RECORD {
        return Err(HandshakeFailure::Broken);
    }
    socket.set_activity(Activity::PartialHead);
    let mut acceptor = Acceptor::default();
    let (accepted, rest) = loop {
        let mut unread = &bytes[..];
        let mut accepted = None;
        while accepted.is_none() && !unread.is_empty() {
            acceptor.read_tls(&mut unread)?;
            match acceptor.accept() {
                Ok(found) => accepted = found,
                Err((_, mut alert)) => {
                    let mut reply = Vec::new();
                    alert.write_all(&mut reply)?;
                    return Err(refuse(socket, &reply).await);
                }
            }
        }
        if let Some(accepted) = accepted {
            break (accepted, unread);
        }
        bytes.clear();
        if socket.read(&mut bytes).await? == 0 {
            return Err(HandshakeFailure::Broken);
        }
    };
    let server_name = accepted.client_hello().server_name().map(str::to_owned);
    let table = context.table().clone();
    let tls = select(&table, server_name.as_deref()).ok_or(HandshakeFailure::Broken)?;
    let challenges = table.challenges.clone();
    drop(table);
    // The waits below, for a certificate and for `handshake_turn`, do not end if the connection is
    // evicted. So mark the connection as busy, so that eviction selects another connection.
    socket.set_activity(Activity::Busy);
    let challenge = match &challenges {
        None => None,
        Some(all) => match all.config(&accepted.client_hello()) {
            None => match all.unknown_name(&accepted.client_hello()) {
                // Box the future, so that all other handshakes reserve no memory for it.
                Some(name) => Box::pin(all.ask_for_config(name)).await,
                None => None,
            },
            found => found,
        },
    };
    if let Some(demand) = tls.demand()
        && !Challenges::is_challenge(&accepted.client_hello())
    {
        // Box the future, so that all other handshakes reserve no memory for it.
        Box::pin(await_certificate(context, socket, demand, server_name.as_deref())).await?;
    }
    let turn = context.thread.handshake_turn().await;
    let is_challenge = challenge.is_some();
    let config = challenge.unwrap_or_else(|| tls.config().clone());
    let connection = match accepted.into_connection(config) {
        Ok(connection) => connection,
        Err((_, mut alert)) => {
            // End the turn, so that other handshakes do not wait until the client has read the
            // alert.
            drop(turn);
            let mut reply = Vec::new();
            alert.write_all(&mut reply)?;
            return Err(refuse(socket, &reply).await);
        }
    };
    let session = TlsSession::new(connection);
    session.feed(rest)?;
    socket.start_tls(session);
    turn.end().await;
    socket.set_activity(Activity::PartialHead);
    let session = socket.finish_handshake().await?;
    socket.set_activity(Activity::Busy);
    if is_challenge {
        // The ACME authority has now seen the certificate, so close the connection.
        return Err(HandshakeFailure::Broken);
    }
    Ok(Handshake::new(tls, server_name, session))
}

/// Waits until a certificate for the client's server name exists. If no certificate is obtained in
/// time, sends an alert and returns an error.
async fn await_certificate(
    context: &FrontContext,
    socket: &Socket,
    demand: &SiteDemand,
    server_name: Option<&str>,
) -> Result<(), HandshakeFailure> {
    // Remove the limit of the handshake, because the wait for a certificate has its own limit.
    socket.unlimit_read();
    let awaited = demand.wait_for(server_name).await;
    socket.limit_read(context.thread.settings().timeouts.head);
    let alert = match awaited {
        Awaited::Shown => return Ok(()),
        Awaited::Refused => UNKNOWN_NAME,
        Awaited::Late => LATE,
    };
    context.thread.counters.count_limit(Limit::OnDemand);
    Err(refuse(socket, alert).await)
}

/// Reads the first bytes. Until they arrive, the connection holds no buffer and counts as idle.
async fn first_bytes(socket: &Socket) -> io::Result<Vec<u8>> {
    loop {
        socket.set_idle(true);
        socket.readable().await?;
        let mut bytes = Vec::with_capacity(HELLO);
        match socket.read_now(&mut bytes) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            outcome => return outcome.map(|_| bytes),
        }
    }
}

/// Sends an alert, and then reads for a moment. An immediate close could cause a reset, which could
/// destroy the alert.
async fn refuse(socket: &Socket, alert: &[u8]) -> HandshakeFailure {
    if socket.write_all(alert).await.is_ok() {
        socket.linger().await;
    }
    HandshakeFailure::Broken
}
