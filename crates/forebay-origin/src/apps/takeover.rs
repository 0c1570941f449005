//! Applications that take over the client's connection (PSGI's `psgix.io`). The output of such an
//! application begins with a 101. After the 101, bytes pass in both directions without parsing.
//!
//! The gateway's end of the worker's output socket becomes the backend's end of the tunnel. The
//! worker takes no further requests.

use forebay_net::fault::Fault;
use forebay_net::socket::Socket;
use forebay_net::thread::Thread;
use forebay_server::exchange::Exchange;
use forebay_server::reply::Reply;
use forebay_server::tunnel::Tunnel;
use forebay_upstream::fields::inform;
use forebay_upstream::upgrade;
use forebay_wire::http1::{
    Field, Http1Limits, KnownField, RequestFraming, ResponseHead, ResponseParser, encode,
};
use forebay_wire::reply::{ReplyReader, ReplyStep};
use forebay_workers::{Lease, LeaseEvent};
use tokio::net::UnixStream;

use crate::apps::fault::worker_fault;

/// Variable that permits the application to take over the connection of a request.
pub const VARIABLE: &[u8] = b"FOREBAY_TAKEOVER";

/// Returns true if the application may take over the client's connection: the request asks for an
/// upgrade, and has no body.
pub fn is_possible(exchange: &Exchange) -> bool {
    upgrade::is_requested(&exchange.request) && exchange.body.framing() == RequestFraming::None
}

/// Beginning of the output of a takeover. An application that declines begins with a header line.
const START: &[u8] = b"HTTP/1.";

/// Returns true if the first output of an application takes the connection over. Returns `None` if
/// the output is too short to decide.
pub fn has_begun(output: &[u8]) -> Option<bool> {
    let length = output.len().min(START.len());
    (length == START.len() || output[..length] != START[..length])
        .then(|| output.starts_with(START))
}

/// Sends the 101 at the beginning of `output` to the client, and opens the tunnel.
pub async fn complete(
    mut lease: Lease,
    mut output: Vec<u8>,
    exchange: &mut Exchange,
    thread: &Thread,
) -> Result<(), Fault> {
    let head = read_head(&mut lease, &mut output, &mut exchange.reply).await?;
    let request = &exchange.request;
    if !upgrade::is_answered(&request.head.fields, &request.bytes, &head.fields, &output) {
        return Err(Fault::app(
            502,
            "the application switched to a protocol that the client did not request",
        ));
    }
    let reply = &mut exchange.reply;
    reply.begin(101, head.reason.of(&output));
    upgrade::append_fields(reply.field_lines(), &head.fields, &output);
    let is_length = |field: &Field| field.known == KnownField::ContentLength;
    encode::forward_response_fields(reply.field_lines(), &head, &output, is_length);
    let (socket, worker) = lease.into_tunnel(&mut output).map_err(lost)?;
    let socket = UnixStream::from_std(socket).map_err(lost)?;
    reply.switch().await?;
    exchange.open_tunnel(Box::new(Tunnel {
        backend: Box::new(Socket::unix(socket, &thread.deadlines)),
        backend_prefix: output.split_off(head.len),
        idle: thread.settings().timeouts.tunnel_idle,
        held: Box::new(worker),
    }));
    Ok(())
}

/// Reads the worker's output until the head of the 101 is complete. Sends interim replies to the
/// client.
async fn read_head(
    lease: &mut Lease,
    output: &mut Vec<u8>,
    reply: &mut Reply,
) -> Result<ResponseHead, Fault> {
    let mut heads = ReplyReader::new(ResponseParser::new(Http1Limits::default(), false));
    let mut head = ResponseHead::default();
    loop {
        let step = heads.read_mending(output, &mut head);
        match step.map_err(|error| Fault::app(502, format!("{error} in a takeover")))? {
            ReplyStep::Final(_) if head.status == 101 => return Ok(head),
            ReplyStep::Final(_) => {
                let message = "the application took the connection over without a 101";
                return Err(Fault::app(502, message));
            }
            ReplyStep::Interim(len) => {
                inform(reply, &head, output).await?;
                output.drain(..len);
                continue;
            }
            ReplyStep::Partial => {}
        }
        if let LeaseEvent::End(_) = lease.read(output).await.map_err(worker_fault)? {
            return Err(Fault::app(502, "the application ended in the head of its 101"));
        }
    }
}

fn lost(error: std::io::Error) -> Fault {
    Fault::app(502, format!("cannot use the worker's socket: {error}"))
}

#[cfg(test)]
mod tests {
    use super::has_begun;

    #[test]
    fn a_takeover_is_told_by_the_first_bytes() {
        for (output, expected) in [
            ("", None),
            ("H", None),
            ("HTTP/1", None),
            ("HTTP/1.", Some(true)),
            ("HTTP/1.1 101 S", Some(true)),
            ("Ho", Some(false)),
            ("Status: 200", Some(false)),
            ("HTTP/2.", Some(false)),
        ] {
            assert_eq!(has_begun(output.as_bytes()), expected, "{output}");
        }
    }
}
