//! Ends loops. In a loop, a route sends a request to a listener of this server, and this listener
//! passes the request to the route again.
//!
//! Only routes whose backend may be a listener of this server count the passages of a request, in a
//! header field. So requests to other backends need no time for the count. A request keeps the
//! field on its further way.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

use forebay_conf::{Address, Listen};
use forebay_net::fault::Fault;
use forebay_net::head::Request;
use forebay_server::exchange::{Exchange, Origin, OriginFuture};
use forebay_wire::Span;
use forebay_wire::http1::{Field, KnownField};

use crate::upstream::{Endpoint, Name};

/// Name of the field that counts the passages.
const NAME: &str = "Forebay-Hops";

/// Maximum number of passages. nginx follows as many internal redirects.
const MOST: u32 = 10;

/// Addresses of listeners that accept connections for sites.
#[derive(Debug, Default)]
pub struct OwnListeners {
    tcp: BTreeSet<SocketAddr>,
    unix: BTreeSet<PathBuf>,
}

impl<'l> FromIterator<&'l Listen> for OwnListeners {
    /// Collects the addresses of TCP and Unix listeners. Ignores UDP listeners, and sockets that a
    /// service manager passes on, because their addresses are unknown.
    fn from_iter<I: IntoIterator<Item = &'l Listen>>(listen: I) -> Self {
        let mut found = Self::default();
        for listen in listen {
            match listen.socket() {
                Listen::Tcp(address) => drop(found.tcp.insert(*address)),
                Listen::Unix(path) => drop(found.unix.insert(path.clone())),
                _ => {}
            }
        }
        found
    }
}

impl OwnListeners {
    /// Returns true if a connection to `address` reaches one of the listeners. Returns false for
    /// all host names except `localhost`.
    pub fn take(&self, address: &Address) -> bool {
        let text = match address {
            Address::Unix(path) => return self.take_unix(path),
            Address::Tcp(text) => text,
        };
        if let Ok(address) = text.parse() {
            return self.take_tcp(address);
        }
        let Some((host, port)) = text.rsplit_once(':') else { return false };
        let is_local = host.trim_end_matches('.').eq_ignore_ascii_case("localhost");
        let loopback = [IpAddr::from([127, 0, 0, 1]), "::1".parse().expect("this is an address")];
        is_local
            && port.parse().is_ok_and(|port| {
                loopback.into_iter().any(|ip| self.take_tcp(SocketAddr::new(ip, port)))
            })
    }

    fn take_unix(&self, path: &Path) -> bool {
        self.unix.contains(path)
    }

    fn take_tcp(&self, address: SocketAddr) -> bool {
        let ip = match address.ip().to_canonical() {
            // A connection to `0.0.0.0` or `::` reaches this machine, as a connection to
            // `127.0.0.1` does.
            ip if ip.is_unspecified() => IpAddr::from([127, 0, 0, 1]),
            ip => ip,
        };
        let accepts = |own: &SocketAddr| {
            let own_ip = own.ip().to_canonical();
            own.port() == address.port()
                && (own_ip == ip || own_ip.is_unspecified() && is_of_this_machine(ip))
        };
        self.tcp.iter().any(accepts)
    }

    fn have_port(&self, port: u16) -> bool {
        self.tcp.iter().any(|own| own.port() == port)
    }
}

/// Returns true if the address belongs to this machine. Tries to bind a socket to it, but sends
/// nothing.
fn is_of_this_machine(ip: IpAddr) -> bool {
    ip.is_loopback() || UdpSocket::bind((ip, 0)).is_ok()
}

/// An origin whose backend may be a listener of this server.
pub struct HopLimit {
    origin: Box<dyn Origin>,
    listeners: Rc<OwnListeners>,
    /// True if the address of a backend is that of a listener.
    is_certain: bool,
    /// Backends that have a host name, and the port of a listener.
    names: Vec<KnownName>,
}

/// A name, and the last decision about its addresses.
struct KnownName {
    name: Arc<Name>,
    /// [`Name::generation`] at the time of the decision.
    generation: Cell<u64>,
    leads_here: Cell<bool>,
}

impl HopLimit {
    /// Wraps `origin` if one of its backends' addresses, `endpoints`, may be a listener of this
    /// server. Otherwise returns `origin` unchanged.
    pub fn around<'e>(
        origin: Box<dyn Origin>,
        endpoints: impl Iterator<Item = &'e Endpoint>,
        listeners: &Rc<OwnListeners>,
    ) -> Box<dyn Origin> {
        let (mut names, mut is_certain) = (Vec::new(), false);
        for endpoint in endpoints {
            match endpoint {
                Endpoint::Tcp(address) => is_certain |= listeners.take_tcp(*address),
                Endpoint::Unix(path) => is_certain |= listeners.take_unix(path),
                Endpoint::Name(name) if listeners.have_port(name.port()) => {
                    let (name, generation) = (name.clone(), Cell::new(u64::MAX));
                    names.push(KnownName { name, generation, leads_here: Cell::new(false) });
                }
                Endpoint::Name(_) => {}
            }
        }
        if !is_certain && names.is_empty() {
            return origin;
        }
        Box::new(Self { origin, listeners: listeners.clone(), is_certain, names })
    }

    /// Returns true if a present address of a backend is also the address of a listener of this
    /// server.
    fn leads_here(&self) -> bool {
        let leads = |known: &KnownName| {
            let generation = known.name.generation();
            if known.generation.replace(generation) != generation {
                let addresses = known.name.addresses();
                let leads = addresses.iter().any(|address| self.listeners.take_tcp(*address));
                known.leads_here.set(leads);
            }
            known.leads_here.get()
        };
        self.is_certain || self.names.iter().any(leads)
    }

    /// Increments the request's count of passages through this server, and lets the origin answer.
    /// Returns a fault with status 508 if the count has reached [`MOST`].
    async fn pass(&self, exchange: &mut Exchange) -> Result<(), Fault> {
        let passages = passages(&exchange.request);
        if passages >= MOST {
            return Err(Fault::us(
                508,
                format!(
                    "a loop: the request has come back to this server {MOST} times; a route sends \
                     it to a listener of this server"
                ),
            ));
        }
        let fields = exchange.request.head.fields.clone();
        set_passages(&mut exchange.request, passages + 1);
        let outcome = self.origin.serve(exchange).await;
        exchange.request.head.fields = fields;
        outcome
    }
}

impl Origin for HopLimit {
    fn serve<'a>(&'a self, exchange: &'a mut Exchange) -> OriginFuture<'a> {
        if !self.leads_here() {
            return self.origin.serve(exchange);
        }
        OriginFuture::new(&exchange.blocks(), || self.pass(exchange))
    }

    fn wrapped(&self) -> Option<&dyn Origin> {
        Some(&*self.origin)
    }
}

/// Returns true if `request` has the field that counts passages through this server. A route of
/// this server adds this field if its backend may be this server.
pub fn has_passed(request: &Request) -> bool {
    request.head.fields.iter().any(|field| is_count(field, &request.bytes))
}

fn is_count(field: &Field, bytes: &[u8]) -> bool {
    field.name.of(bytes).eq_ignore_ascii_case(NAME.as_bytes())
}

/// Returns the number of times that the request has passed through this server. A forged field can
/// only increase the number, and only for the client's own request.
fn passages(request: &Request) -> u32 {
    let fields = request.head.fields.iter().filter(|field| is_count(field, &request.bytes));
    let counts = fields.filter_map(|field| str::from_utf8(field.value.of(&request.bytes)).ok());
    counts.filter_map(|count| count.parse().ok()).max().unwrap_or(0)
}

fn set_passages(request: &mut Request, passages: u32) {
    let line = format!("{NAME}: {passages}\r\n");
    let at = request.head.len;
    // Pipelined requests follow the head, so insert the line before them.
    request.bytes.splice(at..at, line.bytes());
    request.head.len += line.len();
    let bytes = &request.bytes;
    request.head.fields.retain(|field| !is_count(field, bytes));
    request.head.fields.push(Field {
        name: Span::new(at, at + NAME.len()),
        value: Span::new(at + NAME.len() + ": ".len(), at + line.len() - "\r\n".len()),
        line: Span::new(at, at + line.len()),
        // A client cannot remove a field of this kind by a name in `Connection`.
        known: KnownField::Gateway,
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listeners(addresses: &[&str]) -> OwnListeners {
        let tcp = addresses.iter().map(|address| Listen::Tcp(address.parse().unwrap()));
        let listen: Vec<_> = tcp.chain([Listen::Unix("/run/a.sock".into())]).collect();
        listen.iter().collect()
    }

    fn address(text: &str) -> Address {
        match text.strip_prefix("unix:") {
            Some(path) => Address::Unix(path.into()),
            None => Address::Tcp(text.to_owned()),
        }
    }

    #[test]
    fn a_listener_is_recognised_in_each_form_of_its_address() {
        let any = listeners(&["[::]:80"]);
        let one = listeners(&["127.0.0.1:80"]);
        for text in ["127.0.0.1:80", "localhost:80", "LocalHost.:80", "[::ffff:127.0.0.1]:80"] {
            assert!(any.take(&address(text)) && one.take(&address(text)), "{text}");
        }
        for text in ["127.1.2.3:80", "[::1]:80", "0.0.0.0:80", "[::]:80"] {
            assert!(any.take(&address(text)), "{text}");
        }
        for text in ["127.0.0.1:81", "192.0.2.1:80", "localhost:", "h:80", "unix:/run/b.sock"] {
            assert!(!any.take(&address(text)) && !one.take(&address(text)), "{text}");
        }
        assert!(!one.take(&address("127.0.0.2:80")) && !one.take(&address("[::1]:80")));
        assert!(one.take(&address("unix:/run/a.sock")));
    }
}
