//! The keys of `mirror`, as the user types them.

use forebay_conf_derive::Table;
use serde_json::json;

use super::upstream::Backend;
use crate::key::{At, OneOrMany, Size, TextOr, Time};
use crate::plan::HostField;

/// A server that gets a copy of each request. Forebay drops the replies of this server.
#[derive(Debug, Default, Table)]
#[table(extend = json!({ "required": ["to"] }))]
pub struct Mirror {
    /// The addresses of the servers, as in `to` of `proxy`. Or "@NAME" for the group
    /// [upstream.NAME], which may have further keys, such as `tls`.
    pub to: Option<At<OneOrMany<TextOr<Backend>>>>,
    /// The percentage of the requests that are copied, above 0 and at most 100, such as 0.5.
    /// Forebay selects the requests at random. Default: 100.
    pub percent: Option<At<f64>>,
    /// The largest body of a copied request. Forebay keeps a copy of the body in memory while the
    /// request's own server receives it. A request with a larger body is not copied. 0: requests
    /// with a body are not copied. Default: "64k".
    pub max_body: Option<Size>,
    /// The largest number of copies at the same time, over all threads. Further requests are not
    /// copied. Default: 64.
    pub max_requests: Option<At<usize>>,
    /// The longest time of a copy, from its start to the last byte of its reply. Default: "10s".
    pub timeout: Option<Time>,
    /// Also copies the headers `Authorization`, `Proxy-Authorization` and `Cookie`. The servers can
    /// then act as the user. Default: false.
    pub credentials: Option<At<bool>>,
    /// The Host field that the servers get: "client" for the client's own, "backend" for the host
    /// and port of the server's URL. Default: "client".
    pub host: Option<HostField>,
}
