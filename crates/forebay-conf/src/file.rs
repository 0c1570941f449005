//! The configuration as typed: one type per table, one field per key, nothing resolved.
//!
//! The doc comments of fields are the descriptions of the JSON Schema, so they speak to the
//! person who writes the file. Values keep the place they were typed at ([`At`]). What is not a
//! string, a number or a boolean by itself is looked at in `resolve`.

mod ajp;
mod app;
mod compress;
mod places;
mod proxy;
mod route;
mod shape;
mod tls;
mod upstream;

use std::collections::BTreeMap;

use schemars::generate::SchemaSettings;
use schemars::transform::RecursiveTransform;
use schemars::{JsonSchema, Schema};
use serde::Deserialize;
use serde_json::Value;

pub use ajp::{Ajp, Ping};
pub use app::{App, AppProtocol, Cgroup, Kind, Limits as AppLimits, Listening, Range, Workers};
pub use compress::{Coding, Compress};
pub(crate) use places::places;
pub use proxy::{HostField, Proxy, Redirects};
pub use route::{
    BasicAuth, Cgi, Fastcgi, Files, Multiplex, PathParameters, Precompressed, Redirect, Respond,
    Route, Scgi, ScriptsBelow, Symlinks, Uwsgi,
};
pub use shape::{AllOrList, At, BoolOr, NumberOrText, OneOrMany, Size, Table, TextOr, Time};
pub use tls::{Acme, AcmeChallenge, BackendTls, ClientAuth, Tls};
pub use upstream::{
    Activation, Backend, Balance, Health, HttpVersion, ProxyHeader, Sticky, Upstream,
};

/// The JSON Schema of a configuration file, as indented text.
pub fn schema() -> String {
    serde_json::to_string_pretty(&root_schema()).expect("a schema is plain JSON")
}

fn root_schema() -> Schema {
    let settings = SchemaSettings::draft2020_12().with_transform(RecursiveTransform(as_toml));
    let mut schema = settings.into_generator().into_root_schema_for::<File>();
    schema.insert("title".into(), "Forebay configuration".into());
    schema
}

/// TOML has no null, and descriptions are not broken where the source is.
fn as_toml(schema: &mut Schema) {
    if schema.get("default").is_some_and(Value::is_null) {
        schema.remove("default");
    }
    if let Some(Value::Array(types)) = schema.get_mut("type") {
        types.retain(|name| name != "null");
        if let [only] = &types[..] {
            let only = only.clone();
            schema.insert("type".into(), only);
        }
    }
    if let Some(Value::Array(forms)) = schema.get_mut("anyOf") {
        forms.retain(|form| form["type"] != "null");
        if let [Value::Object(only)] = &forms[..] {
            let only = only.clone();
            schema.remove("anyOf");
            only.into_iter().for_each(|(key, value)| {
                schema.ensure_object().entry(key).or_insert(value);
            });
        }
    }
    if let Some(Value::String(text)) = schema.get_mut("description") {
        *text = text.replace('\n', " ");
        if let Some(value) = documented_default(text) {
            schema.insert("default".into(), value);
        }
    }
}

/// Returns the value that a description names as its key's default: the text from "Default: " to the
/// end of that sentence, if it is a value of TOML. A default in words stays in the description alone.
fn documented_default(description: &str) -> Option<Value> {
    let (_, default) = description.split_once("Default: ")?;
    let end = default.find(". ").or_else(|| default.strip_suffix('.').map(str::len))?;
    let table: toml::Table = toml::from_str(&format!("value = {}", &default[..end])).ok()?;
    serde_json::to_value(table.get("value")?).ok()
}

/// A configuration file of Forebay. Paths in it are relative to the file.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(extend("required" = ["site"]))]
pub struct File {
    /// What holds for the whole process.
    pub server: Table<Server>,
    /// Where requests are logged. Errors always go to standard error.
    pub log: Table<Log>,
    /// Sites: listeners, the host names they answer for, and what to do with each path.
    #[schemars(length(min = 1))]
    pub site: Option<Vec<At<Table<Site>>>>,
    /// Applications that Forebay starts and looks after, by a name of your choice.
    pub app: BTreeMap<String, At<Table<App>>>,
    /// Groups of servers that routes pass requests to, by a name of your choice: to = "@NAME".
    pub upstream: BTreeMap<String, At<Table<Upstream>>>,
}

/// What holds for the whole process.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Server {
    /// Threads that serve requests. Default: one for each processor that Forebay may use, by its
    /// affinity and the quota of its control group.
    pub threads: Option<At<usize>>,
    /// Whether each thread keeps to a processor of its own, and workers of applications whose requests
    /// only compute to that of the thread which uses them. Only where there is a thread for each
    /// processor that Forebay may run on, and more than one. Default: true.
    pub affinity: Option<At<bool>>,
    /// Address and port of /status, /metrics and /healthz. Default: they are not served.
    pub admin: Option<At<NumberOrText>>,
    /// Host names that `admin` may be asked by, beside addresses and "localhost": others are answered
    /// with 421, so that no web page can read it by a name of its own. Default: none.
    pub admin_hosts: Option<At<OneOrMany<String>>>,
    /// What `admin` is to be told with POST /apps/NAME/restart, 16 characters at least. Default: no
    /// application can be restarted there.
    pub admin_token: Option<At<String>>,
    /// The user to become once sockets and logs are open; needs root. Default: stay who we are.
    pub user: Option<At<String>>,
    /// The group to become, and the only one. Default: the groups of `user`.
    pub group: Option<At<String>>,
    /// Where request bodies wait that are too large for memory, in files without a name. Default: what
    /// TMPDIR says, else /tmp.
    pub spool_dir: Option<At<String>>,
    /// How long requests in flight may take to finish after a signal to stop. Default: "30s".
    pub grace: Option<Time>,
    /// Whether the steps of each request are timed: replies tell in a Server-Timing field, and
    /// /metrics and /status have a histogram per step. Clients see how long what took. Default:
    /// false.
    pub timing: Option<At<bool>>,
    /// How long each step of a request may take.
    pub timeouts: Table<Timeouts>,
    /// How large and how many.
    pub limits: Table<Limits>,
}

/// How long each step of a request may take.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Timeouts {
    /// From the first byte of a request head to its last. Default: "60s".
    pub head: Option<Time>,
    /// Between two reads of a request body. Default: "60s".
    pub body_idle: Option<Time>,
    /// Between two reads of a backend's reply, the wait for its head included. Default: "60s".
    pub reply_idle: Option<Time>,
    /// Between two writes to a client that takes nothing. Default: "60s".
    pub write: Option<Time>,
    /// Between two requests on one connection; "0s" closes it after each reply. Default: "75s".
    pub keep_alive: Option<Time>,
    /// To connect to a backend. Default: "10s".
    pub connect: Option<Time>,
    /// On an upgraded connection (a WebSocket, say) that carries nothing. Default: "1h".
    pub tunnel_idle: Option<Time>,
}

/// How large and how many.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// A whole request head, request line included. Default: "32KiB".
    pub head_size: Option<Size>,
    /// Header fields in a request. Default: 100.
    pub fields: Option<At<usize>>,
    /// The request target (path and query). Default: "8KiB".
    pub target: Option<Size>,
    /// A request body, or "unlimited". A site or route may say otherwise. Default: "16MiB".
    pub max_body: Option<Size>,
    /// Bytes per second that a request body has to come in at, on average, once `body_idle` of
    /// [server.timeouts] was waited for it in all; 0: no limit. Default: 0.
    pub body_rate: Option<Size>,
    /// Client connections at once; 0: what the limit on open files allows. Default: 0.
    pub connections: Option<At<usize>>,
    /// Client connections at once from one address; 0: no limit. Default: 0.
    pub connections_per_address: Option<At<usize>>,
    /// Whether GET and HEAD may have a body, as clients of search engines send it; otherwise 400. A
    /// backend that does not expect it takes it for another request. Default: false.
    pub get_body: Option<At<bool>>,
    /// Requests on one client connection before it is closed; 0: no limit. Default: 0.
    pub keepalive_requests: Option<At<u64>>,
    /// What is kept in memory of one reply that its client does not take (`buffer` of a route);
    /// more goes to a file. Default: "64KiB".
    pub buffer_memory: Option<Size>,
    /// What is kept of it in an unlinked file, in `spool_dir`; more is held back. 0: no file. Default:
    /// "256MiB".
    pub buffer_file: Option<Size>,
    /// What is kept of all replies together, in memory and files. Default: "2GiB".
    pub buffer_total: Option<Size>,
}

/// Where requests are logged. Errors always go to standard error.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Log {
    /// A path, "stdout" or "off". Default: "off".
    pub access: Option<At<String>>,
    /// "common", "combined", "json", or a pattern of Apache's % directives; beside `access`.
    /// Default: "combined".
    pub format: Option<At<String>>,
}

/// Which fields trusted proxies write about clients.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ForwardedFields {
    /// One of the two sorts, or both with the same in them.
    Either,
    /// X-Forwarded-For and X-Forwarded-Proto.
    #[serde(rename = "x-forwarded")]
    XForwarded,
    /// Forwarded (RFC 7239).
    Forwarded,
}

/// What becomes of paths with %2F, a backslash or %5C in them.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum EncodedSlashes {
    /// They are answered with 404.
    Refuse,
    /// They are passed on as they came, unless another route took them if those were slashes.
    Pass,
}

/// Listeners, the host names they answer for, and what to do with each path.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(extend("required" = ["listen", "route"]))]
pub struct Site {
    /// Where it listens: "address:port", ":port" or a bare port for all addresses, "unix:path", or
    /// "fd:name" for the sockets that a service manager passes on under that name. "https://" in front
    /// of it: with TLS. "ajp://" in front of it: from web servers that speak AJP 1.3 (mod_jk,
    /// mod_proxy_ajp).
    pub listen: Option<At<OneOrMany<NumberOrText>>>,
    /// Host names it answers for, such as "example.org" or "*.example.org". Default: any.
    pub hosts: Option<At<OneOrMany<String>>>,
    /// Addresses or networks ("10.0.0.0/8") whose X-Forwarded-For, X-Forwarded-Proto and Forwarded
    /// are believed; "unix" for those that connect to a unix: socket. Default: none.
    pub trusted_proxies: Option<At<OneOrMany<String>>>,
    /// Which fields trusted proxies write; others that clients send are not looked at then.
    /// Default: "either"; a request whose fields contradict each other is refused.
    pub forwarded: Option<At<ForwardedFields>>,
    /// Whether connections begin with a PROXY header (version 1 or 2), from a peer in
    /// `trusted_proxies` if that is given; others are closed. Default: false.
    pub proxy_protocol: Option<At<bool>>,
    /// What web servers have to send along with each request to its ajp:// listeners: `secret` of
    /// mod_jk's workers and of ProxyPass. Default: nothing, where all of them are on loopback addresses
    /// or Unix sockets; others need one.
    pub ajp_secret: Option<At<String>>,
    /// The largest packet on its ajp:// listeners, from 8192 bytes to 65536: max_packet_size of mod_jk,
    /// ProxyIOBufferSize of mod_proxy_ajp. Default: 8192.
    pub ajp_packet_size: Option<Size>,
    /// The permission bits of its unix: sockets, such as "0666" for all users of this machine: who may
    /// write to a socket may connect. Default: "0660".
    pub socket_mode: Option<At<String>>,
    /// The owner of its unix: sockets; needs root. Default: `user` of [server].
    pub socket_user: Option<At<String>>,
    /// The group of its unix: sockets, such as that of the proxy that connects; needs root, or to be a
    /// group of the user that starts Forebay. Default: `group` of [server], or that of the owner.
    pub socket_group: Option<At<String>>,
    /// What becomes of paths with %2F, a backslash or %5C in them, which a backend may take for a
    /// slash: "refuse" (404), or "pass" where no route depends on it. Default: "refuse".
    pub encoded_slashes: Option<EncodedSlashes>,
    /// The largest request body, or "unlimited". Default: that of [server.limits].
    pub max_body: Option<Size>,
    /// Whether requests without TLS are sent to the same place by https://. Default: false.
    pub redirect_to_https: Option<At<bool>>,
    /// Whether its https:// listeners speak HTTP/3, too, over UDP on the same address and port; replies by
    /// HTTP/1.1 and HTTP/2 then tell so in an Alt-Svc field, unless they have one. Default: false, as it is
    /// new.
    pub http3: Option<At<bool>>,
    /// What the clients of its https:// listeners are shown.
    pub tls: Option<At<Table<Tls>>>,
    /// What to do with a request: the first route that matches takes it.
    #[schemars(length(min = 1))]
    pub route: Option<Vec<At<Table<Route>>>>,
}
