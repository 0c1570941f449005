//! A request to one backend over HTTP of any version, and the settings of its route.

use std::rc::Rc;
use std::time::Duration;

use forebay_conf as conf;
use forebay_net::free_list::FreeList;
use forebay_net::thread::Thread;
use forebay_wire::http1::ResponseHead;

use super::rewrite::Rewrite;
use super::scope_line::ScopeLine;
use super::variables::Variables;
use crate::http::prefix::BackendView;
use crate::sticky::Sticky;
use crate::upstream::{self, Backend};

/// Size of a receive buffer, in bytes.
pub const INBOX: usize = 16 * 1024;

/// Buffers of one exchange with a backend.
pub struct Buffers {
    pub out: Vec<u8>,
    pub inbox: Vec<u8>,
    pub head: ResponseHead,
}

impl Default for Buffers {
    fn default() -> Self {
        let (out, inbox) = (Vec::with_capacity(INBOX), Vec::with_capacity(INBOX));
        Self { out, inbox, head: ResponseHead::default() }
    }
}

/// Settings of a route to HTTP backends, and the buffers of its requests.
pub struct ProxySettings {
    pub thread: Rc<Thread>,
    /// The longest time without data on a tunnel. `None` uses the server's setting.
    pub tunnel_idle: Option<Duration>,
    pub sticky: Option<Sticky>,
    /// `Host` for each backend. `None` keeps the client's host.
    pub hosts: Option<Vec<String>>,
    pub strip_prefix: Option<String>,
    pub decodes_path: bool,
    pub rewrite: Option<Rewrite>,
    pub send_proxy: Option<conf::ProxyHeader>,
    /// If present, the backend is `hosts/rack.rb` and gets variables instead of an HTTP head.
    pub variables: Option<Variables>,
    /// If present, the backend is `hosts/asgi.py` and gets a scope line before the HTTP head.
    pub scope_line: Option<ScopeLine>,
    pub buffers: Rc<FreeList<Box<Buffers>>>,
}

impl ProxySettings {
    /// Returns buffers for one request. An HTTP/1.1 request without a body holds no buffers while
    /// it waits for its reply.
    pub fn take_buffers(&self) -> Box<Buffers> {
        self.buffers.take().unwrap_or_default()
    }

    /// Returns the longest time without data on a tunnel.
    pub fn tunnel_idle(&self) -> Duration {
        self.tunnel_idle.unwrap_or_else(|| self.thread.settings().timeouts.tunnel_idle)
    }

    pub fn keep_buffers(&self, mut buffers: Box<Buffers>) {
        // Over HTTP/2, `out` may become a buffer with a whole window of received data. Do not keep
        // a buffer of that size.
        if buffers.out.capacity() > INBOX {
            buffers.out = Vec::with_capacity(INBOX);
        }
        if buffers.inbox.capacity() <= INBOX {
            self.buffers.give(buffers);
        }
    }
}

/// A request to one backend.
pub struct ProxyAttempt<'a> {
    pub proxy: &'a ProxySettings,
    pub to: &'a upstream::Attempt<'a>,
    pub wanted: Option<usize>,
    pub is_upgrade: bool,
}

impl<'a> ProxyAttempt<'a> {
    pub fn backend(&self) -> &'a Backend {
        self.to.backend
    }

    /// Returns the `Host` that replaces the client's `Host`, or `None` if the client's `Host`
    /// remains.
    pub fn host(&self) -> Option<&str> {
        self.proxy.hosts.as_ref().map(|hosts| hosts[self.to.index()].as_str())
    }

    /// How the backend sees the request's resource.
    pub fn view(&self) -> BackendView<'_> {
        BackendView {
            strip_prefix: self.proxy.strip_prefix.as_deref(),
            decodes_path: self.proxy.decodes_path,
            host: self.host(),
            https: self.backend().is_https(),
        }
    }
}
