//! Serves a connection with its protocol. Each protocol creates a stream for each request.

use std::rc::Rc;

use forebay_net::socket::Socket;

use crate::context::FrontContext;
use crate::part::Accepted;
use crate::{ajp, http1, http2};

/// The protocol of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// HTTP/1, or HTTP/2 if the client begins with its preface (RFC 9113 section 3.3).
    Any,
    /// Only HTTP/1.
    Http1,
    /// Only HTTP/2.
    Http2,
    /// AJP 1.3.
    Ajp,
}

/// Serves a connection until it closes. `prefix` contains bytes that were already read.
pub async fn serve_connection(
    context: &Rc<FrontContext>,
    socket: Socket,
    accepted: Accepted,
    protocol: Protocol,
    prefix: Vec<u8>,
) {
    if protocol == Protocol::Ajp {
        return Box::pin(ajp::connection::serve_connection(context, socket, accepted, prefix))
            .await;
    }
    let other = match protocol {
        Protocol::Http2 => Some((socket, accepted, prefix)),
        _ => {
            let may_be_http2 = protocol == Protocol::Any;
            http1::connection::serve_connection(context, socket, accepted, prefix, may_be_http2)
                .await
        }
    };
    if let Some((socket, accepted, prefix)) = other {
        Box::pin(http2::serve::serve_connection(context, socket, accepted, prefix)).await;
    }
}
