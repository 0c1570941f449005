//! Threads, listeners, fronts, the life of a request, timers and limits of the gateway.
//!
//! The engine accepts connections, reads requests, selects the route and passes an [`Exchange`] to
//! the [`Origin`] of the route. The engine knows nothing about CGI scripts or FastCGI records:
//! origins are in `forebay-origin`. Each thread runs its own event loop and shares only counters
//! with the others.
//!
//! From the bottom up, each module depends only on modules listed before it: `clock`, `sys`,
//! `limit`, `fault`, `timing`, `counters`; `memory`, `byte_stream`, `tls`, `deadline`, `socket`;
//! `head`, `log`, `pressure`, `listen`, `thread`; `stream`, `spool`, `body`, `compress`, `reply`,
//! `tunnel`, `exchange`; `forwarded`, `route`, `context`; `dispatch`, `internal_redirect`,
//! `request`; `front`, `accept`, `serving`, `server`.
#![deny(unsafe_code)]

mod accept;
mod admin;
mod body;
mod buffered;
mod byte_stream;
mod clock;
mod compress;
mod context;
mod counters;
mod deadline;
mod dispatch;
mod exchange;
mod fault;
mod forwarded;
mod free_list;
mod front;
mod head;
mod heap_watch;
mod internal_redirect;
mod limit;
mod listen;
mod log;
mod log_file;
mod log_opener;
pub mod memory;
mod memory_gateway;
mod pool;
mod pressure;
mod privileges;
mod reply;
mod request;
mod route;
mod server;
mod serving;
mod shared_streams;
mod socket;
mod spool;
mod stream;
mod sys;
mod systemd;
mod thread;
mod timing;
mod tls;
mod tunnel;

pub use admin::{AppStatus, BackendRow, BackendsOf, Control, Status, WorkerRow};
pub use body::Body;
pub use compress::{CompressedCopies, Compression, accepted_codings};
pub use deadline::{Deadlines, NEVER, Ticks};
pub use dispatch::{ambiguous_route, kept_from_scripts};
pub use exchange::{Admitting, Exchange, Gate, Origin, Serving};
pub use fault::{Fault, Retry, Side};
pub use forwarded::{ForwardedError, Trust, find_client};
pub use free_list::FreeList;
pub use head::Request;
pub use limit::Limit;
pub use listen::ListenError;
pub use log::{ErrorLog, Kept};
pub use log_file::check as check_log;
pub use log_opener::{VERB as OPEN_LOG, open_log};
pub use memory_gateway::MemoryGateway;
pub use pool::{IdleRoom, Pool};
pub use privileges::{Identity, PrivilegeError, drop_privileges, hide_memory, look_up};
pub use reply::{Length, Reply, Rules, goes_out_at_once};
pub use route::{Instead, OtherPath, OtherPaths, Route, Rule, Sendfile, Site, Table, best_site};
pub use server::{Prepare, Reload, Server, StartError, Wanted};
pub use serving::Tables;
pub use shared_streams::{SharedStream, SharedStreams, Waits, wake_waiting};
pub use socket::{Detached, Socket, yield_to_readers};
pub use spool::Spooled;
pub use sys::keep_from_programs;
pub use sys::recycled::{Block, Blocks, Recycled};
pub use systemd::{InheritError, Inherited};
pub use thread::{Settings, Thread};
pub use timing::Step;
pub use tls::{
    Alpn, Challenges, ClientTls, Handshake, ServerTls, SiteCertificate, TicketKeys, TlsError,
};
pub use tunnel::{Duplex, Tunnel};
