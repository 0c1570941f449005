//! All metrics of `/metrics`: the one source of their HELP and TYPE lines, of the table in the manual
//! (`scripts/reference`), and of the names that the alert rules and the board of the packages may use.

use std::fmt::{self, Write as _};

/// Type of a metric in Prometheus.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Counter,
    Gauge,
    Histogram,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        })
    }
}

/// A family of values with one name.
#[derive(Clone, Copy, Debug)]
pub struct Metric {
    pub name: &'static str,
    pub kind: Kind,
    /// Names of the labels. The values of most metrics have all of them.
    pub labels: &'static [&'static str],
    /// A sentence for people.
    pub help: &'static str,
}

impl Metric {
    /// Appends the lines HELP and TYPE, which precede the values.
    pub(crate) fn begin(&self, out: &mut String) {
        let Self { name, kind, help, .. } = self;
        let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    /// Appends the value of a metric without labels.
    pub(crate) fn single(&self, out: &mut String, value: impl fmt::Display) {
        self.begin(out);
        let _ = writeln!(out, "{} {value}", self.name);
    }

    /// Appends one value. `labels` are in the syntax of Prometheus, without braces.
    pub(crate) fn value(&self, out: &mut String, labels: &str, value: impl fmt::Display) {
        let _ = writeln!(out, "{}{{{labels}}} {value}", self.name);
    }
}

macro_rules! metrics {
    ($($constant:ident $kind:ident $name:literal [$($label:literal),*] $help:literal,)*) => {
        $(pub(crate) const $constant: Metric =
            Metric { name: $name, kind: Kind::$kind, labels: &[$($label),*], help: $help };)*

        /// All metrics, in the order of the manual.
        pub const METRICS: &[Metric] = &[$($constant),*];
    };
}

metrics! {
    REQUESTS Counter "forebay_requests_total" ["class"]
        "Requests by the class of their status; `none` is no reply.",
    REQUEST_DURATION Histogram "forebay_request_duration_seconds" []
        "From the last byte of the request head to that of the reply.",
    STEP_DURATION Histogram "forebay_step_duration_seconds" ["step"]
        "Steps of requests, if `timing` is set.",
    LIMIT_REACHED Counter "forebay_limit_reached_total" ["limit"]
        "Requests and connections that reached a limit, by its key.",
    REPLY_BODY_BYTES Counter "forebay_reply_body_bytes_total" [] "Bytes of reply bodies.",
    CONNECTIONS_ACCEPTED Counter "forebay_connections_accepted_total" [] "Accepted connections.",
    CONNECTIONS Gauge "forebay_connections" [] "Open client connections.",
    BUFFERED_BYTES Gauge "forebay_buffered_bytes" []
        "Bytes buffered for slow clients: of replies, in memory and in files, and of requests that have not arrived completely, in memory.",
    ROUTE_REQUESTS Counter "forebay_route_requests_total" ["site", "route", "method", "code"]
        "Requests by route, method and status, if `route_metrics` is set; code 0 is no reply.",
    ROUTE_BODY_BYTES Counter "forebay_route_reply_body_bytes_total" ["site", "route"]
        "Bytes of reply bodies by route, if `route_metrics` is set.",
    ROUTE_DURATION Histogram "forebay_route_duration_seconds" ["site", "route"]
        "Times of requests by route, if `route_metrics` is set.",
    BACKEND_UP Gauge "forebay_backend_up" ["site", "route", "stream", "upstream", "server", "address"]
        "1 unless failures or health checks mark a backend as down. Its owner is a route of a site, a stream or an upstream.",
    BACKEND_ACTIVE Gauge "forebay_backend_active_requests" ["site", "route", "stream", "upstream", "server", "address"]
        "Current requests and tunnels of a backend.",
    BACKEND_REQUESTS Counter "forebay_backend_requests_total" ["site", "route", "stream", "upstream", "server", "address"]
        "Requests sent to a backend.",
    BACKEND_FAILURES Counter "forebay_backend_failures_total" ["site", "route", "stream", "upstream", "server", "address"]
        "Requests that a backend failed at.",
    MIRROR_REQUESTS Counter "forebay_mirror_requests_total" ["site", "route", "result"]
        "Copies of requests for a mirror, by outcome.",
    MIRROR_ACTIVE Gauge "forebay_mirror_active_requests" ["site", "route"]
        "Copies of requests that are under way.",
    WORKERS Gauge "forebay_workers" ["app", "state"]
        "Processes of an application, by state: starting, idle, busy or ending.",
    WORKERS_MEMORY Gauge "forebay_workers_memory_bytes" ["app"]
        "Resident memory of the processes of an application.",
    APP_WAITING Gauge "forebay_app_waiting" ["app"] "Requests that wait for a process.",
    WORKER_STARTS Counter "forebay_worker_starts_total" ["app"] "Processes started.",
    WORKER_CRASHES Counter "forebay_worker_crashes_total" ["app"]
        "Processes that ended unexpectedly.",
    APP_CRASH_LOOP Gauge "forebay_app_crash_loop" ["app"]
        "1 if processes end immediately after their start.",
    CACHE_REQUESTS Counter "forebay_cache_requests_total" ["result"]
        "Requests of routes with a cache: hit, miss, confirmed, stale or passed.",
    CACHE_BYTES Gauge "forebay_cache_bytes" [] "Bytes of stored replies in memory.",
    CACHE_DISK_BYTES Gauge "forebay_cache_disk_bytes" [] "Bytes of stored replies on disk.",
    CACHE_DISK_REPLIES Gauge "forebay_cache_disk_replies" [] "Stored replies on disk.",
    CACHE_DISK_EVENTS Counter "forebay_cache_disk_total" ["event"]
        "Events of the store on disk: hit, written, skipped, broken or error (such as a full disk).",
    LOG_LINES_LOST Counter "forebay_log_lines_lost_total" ["log"]
        "Log lines that were lost, by the place: queue (the thread that writes is too slow), file (such as a full disk), syslog or journald.",
    TRACED_REQUESTS Counter "forebay_traced_requests_total" ["result"]
        "Recorded requests, by the result of the export of their spans.",
    BUILD_INFO Gauge "forebay_build_info" ["version"] "1, with the version of the program.",
    CONFIG_GENERATION Gauge "forebay_config_generation" []
        "Number of the configuration, from 1. Each change increases it.",
    RELOAD_SUCCESSFUL Gauge "forebay_config_last_reload_successful" []
        "0 if the last reload failed, so that an older configuration is in use.",
    RELOAD_TIME Gauge "forebay_config_last_reload_timestamp_seconds" []
        "Time of the last reload, successful or not, or of the start.",
    RELOAD_SUCCESS_TIME Gauge "forebay_config_last_reload_success_timestamp_seconds" []
        "Time at which the configuration in use was read.",
    LEFT_OUT Gauge "forebay_left_out" []
        "Sites of `hosts_from` and users of `users_from` that are left out. `/status` says why.",
    CERTIFICATE_START Gauge "forebay_certificate_start_timestamp_seconds" ["names", "source"]
        "Begin of the validity of each certificate.",
    CERTIFICATE_EXPIRY Gauge "forebay_certificate_expiry_timestamp_seconds" ["names", "source"]
        "End of the validity of each certificate, by its names. The source is a file or `ACME`.",
    CERTIFICATE_RENEWAL Gauge "forebay_certificate_renewal_timestamp_seconds" ["names", "source"]
        "Time of the next order, for certificates by ACME.",
    CERTIFICATE_FAILURES Gauge "forebay_certificate_failed_orders" ["names", "source"]
        "Orders by ACME that failed since the last success. `/status` has the last error.",
    UPTIME Gauge "forebay_uptime_seconds" [] "Time since the start.",
    START_TIME Gauge "process_start_time_seconds" [] "Time of the start.",
    CPU Counter "process_cpu_seconds_total" []
        "CPU time of Forebay itself, without the processes of applications.",
    MEMORY Gauge "process_resident_memory_bytes" []
        "Resident memory of Forebay itself, without the processes of applications.",
}

/// All metrics as JSON, for `scripts/reference`.
pub fn metrics_json() -> String {
    let row = |metric: &Metric| {
        serde_json::json!({
            "name": metric.name, "type": metric.kind.to_string(), "labels": metric.labels,
            "help": metric.help,
        })
    };
    format!("{:#}\n", METRICS.iter().map(row).collect::<serde_json::Value>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_say_their_type_and_are_apart() {
        for (at, metric) in METRICS.iter().enumerate() {
            let Metric { name, kind, help, .. } = metric;
            assert!(METRICS[..at].iter().all(|other| other.name != *name), "{name}");
            assert_eq!(name.ends_with("_total"), *kind == Kind::Counter, "{name}");
            assert!(help.ends_with('.') && !help.contains(['\n', '\\', '|']), "{name}: {help}");
        }
    }
}
