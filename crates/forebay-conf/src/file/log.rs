//! The keys of a site's or route's `log`, of `[traces]` and of `[metrics]`, as the user types them.

use std::collections::BTreeMap;

use forebay_conf_derive::Table;

use super::tls::BackendTls;
use crate::key::{At, Time};
use crate::plan::{Rotation, TraceClients};

/// An access log of a site or route.
#[derive(Debug, Default, Table)]
pub struct LogFile {
    /// The destination of the log, with the values of `access` in `[log]`. Default: that of
    /// `[log]`.
    pub access: Option<At<String>>,
    /// The format of the log, with the values of `format` in `[log]`. Default: that of `[log]`.
    pub format: Option<At<String>>,
    /// Rotation of the file. Default: that of `[log]`.
    pub rotate: Option<At<Rotation>>,
}

/// Traces of requests, sent to an OpenTelemetry collector.
#[derive(Debug, Default, Table)]
pub struct Traces {
    /// The collector: "http://HOST:PORT" or "https://HOST:PORT" of OTLP over HTTP, such as
    /// "http://127.0.0.1:4318". Without a path, Forebay adds /v1/traces. Default: no traces.
    pub to: Option<At<String>>,
    /// Fields that the collector needs, such as `Authorization`. `{file.PATH}` and `{env.NAME}` in
    /// the values keep secrets out of this file. Default: none.
    #[key(default)]
    pub headers: BTreeMap<String, At<String>>,
    /// TLS with an https:// collector. Default: the collector's certificate must be for its host,
    /// from an authority that this machine trusts.
    pub tls: Option<At<BackendTls>>,
    /// The share of new traces that are recorded, from 0 to 1. If the `traceparent` of a request is
    /// accepted, its sender decides instead. Default: 1.
    pub sample: Option<At<f64>>,
    /// The clients whose `traceparent` is accepted: "trusted" for `trusted_proxies` of the site,
    /// "all" or "none". From other clients, the field is removed. Default: "trusted".
    pub accept: Option<At<TraceClients>>,
    /// Sends the query of each URL to the collector, too (`url.query`). Queries may contain secrets,
    /// such as tokens and the signatures of `signed_url`. Default: false.
    pub query: Option<At<bool>>,
    /// The name of this server in traces. Default: "forebay".
    pub service: Option<At<String>>,
}

/// The metrics of /metrics, sent to an OpenTelemetry collector, also without `admin`.
#[derive(Debug, Default, Table)]
pub struct Metrics {
    /// The collector: "http://HOST:PORT" or "https://HOST:PORT" of OTLP over HTTP, such as
    /// "http://127.0.0.1:4318". Without a path, Forebay adds /v1/metrics. Default: no export.
    pub to: Option<At<String>>,
    /// The time between two exports. Default: "1m".
    pub interval: Option<Time>,
    /// Fields that the collector needs, such as `Authorization`. `{file.PATH}` and `{env.NAME}` in
    /// the values keep secrets out of this file. Default: none.
    #[key(default)]
    pub headers: BTreeMap<String, At<String>>,
    /// TLS with an https:// collector. Default: the collector's certificate must be for its host,
    /// from an authority that this machine trusts.
    pub tls: Option<At<BackendTls>>,
    /// The name of this server in metrics. Default: "forebay".
    pub service: Option<At<String>>,
}
