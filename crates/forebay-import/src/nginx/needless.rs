//! Directives that need no translation, each with the reason.

use super::syntax::Directive;

/// Reasons, and the directives that need no key for this reason. The reason ends the sentence
/// "Forebay needs no key for NAMES: ...".
const NEEDLESS: &[(&str, &[&str])] = &[
    (
        "it chooses its buffers, caches of files and system calls itself",
        &[
            "aio",
            "client_body_buffer_size",
            "client_body_temp_path",
            "client_header_buffer_size",
            "connection_pool_size",
            "directio",
            "fastcgi_buffer_size",
            "fastcgi_buffering",
            "fastcgi_buffers",
            "fastcgi_busy_buffers_size",
            "fastcgi_max_temp_file_size",
            "fastcgi_request_buffering",
            "fastcgi_temp_file_write_size",
            "fastcgi_temp_path",
            "gzip_buffers",
            "map_hash_bucket_size",
            "map_hash_max_size",
            "open_file_cache",
            "open_file_cache_errors",
            "open_file_cache_min_uses",
            "open_file_cache_valid",
            "open_log_file_cache",
            "mp4_buffer_size",
            "mp4_max_buffer_size",
            "output_buffers",
            "postpone_output",
            "preread_buffer_size",
            "proxy_buffer_size",
            "proxy_buffers",
            "proxy_busy_buffers_size",
            "proxy_headers_hash_bucket_size",
            "proxy_headers_hash_max_size",
            "proxy_max_temp_file_size",
            "proxy_temp_file_write_size",
            "proxy_temp_path",
            "scgi_buffering",
            "scgi_temp_path",
            "proxy_send_lowat",
            "send_lowat",
            "sendfile",
            "sendfile_max_chunk",
            "server_names_hash_bucket_size",
            "server_names_hash_max_size",
            "ssi_min_file_chunk",
            "ssi_value_length",
            "tcp_nodelay",
            "tcp_nopush",
            "types_hash_bucket_size",
            "types_hash_max_size",
            "uwsgi_buffer_size",
            "uwsgi_buffering",
            "uwsgi_buffers",
            "uwsgi_busy_buffers_size",
            "uwsgi_temp_path",
            "variables_hash_bucket_size",
            "variables_hash_max_size",
        ],
    ),
    (
        "they concern the processes, modules and connections of nginx",
        &[
            "accept_mutex",
            "daemon",
            "env",
            "events",
            "http2_max_concurrent_streams",
            "keepalive_disable",
            "lingering_close",
            "lingering_time",
            "lingering_timeout",
            "load_module",
            "lock_file",
            "master_process",
            "min_delete_depth",
            "multi_accept",
            "pcre_jit",
            "pid",
            "quic_gso",
            "quic_retry",
            "reset_timedout_connection",
            "ssl_engine",
            "thread_pool",
            "timer_resolution",
            "use",
            "worker_connections",
            "worker_cpu_affinity",
            "worker_priority",
            "worker_processes",
            "worker_rlimit_core",
            "worker_rlimit_nofile",
            "worker_shutdown_timeout",
            "working_directory",
            "zone",
        ],
    ),
    (
        "it decides this for each reply itself",
        &[
            "absolute_redirect",
            "chunked_transfer_encoding",
            "etag",
            "if_modified_since",
            "port_in_redirect",
            "recursive_error_pages",
            "rewrite_log",
            "server_name_in_redirect",
            "server_tokens",
            "uninitialized_variable_warn",
        ],
    ),
    (
        "it compresses replies for all clients that accept it, with its own effort",
        &[
            "brotli",
            "brotli_comp_level",
            "brotli_types",
            "gzip_comp_level",
            "gzip_disable",
            "gzip_http_version",
            "gzip_proxied",
            "gzip_vary",
        ],
    ),
    (
        "its TLS has no weak versions, suites or curves, and has its own sessions and tickets",
        &[
            "ssl_buffer_size",
            "ssl_ciphers",
            "ssl_conf_command",
            "ssl_dhparam",
            "ssl_early_data",
            "ssl_ecdh_curve",
            "ssl_handshake_timeout",
            "ssl_prefer_server_ciphers",
            "ssl_session_cache",
            "ssl_session_ticket_key",
            "ssl_session_tickets",
            "ssl_session_timeout",
            "ssl_stapling",
            "ssl_stapling_verify",
            "ssl_trusted_certificate",
            "ssl_verify_depth",
        ],
    ),
    (
        "with TLS to backends, it verifies certificates, sends names, and uses safe versions",
        &[
            "proxy_ssl_ciphers",
            "proxy_ssl_protocols",
            "proxy_ssl_server_name",
            "proxy_ssl_session_reuse",
            "proxy_ssl_verify",
            "proxy_ssl_verify_depth",
        ],
    ),
    ("listeners with TLS offer HTTP/2, and `listen` selects HTTP/3", &["http2", "http3"]),
    (
        "it has one such value for connections to clients or to backends",
        &[
            "fastcgi_keep_conn",
            "fastcgi_send_timeout",
            "grpc_send_timeout",
            "keepalive_requests",
            "keepalive_time",
            "keepalive_timeout",
            "preread_timeout",
            "proxy_half_close",
            "proxy_http_version",
            "proxy_send_timeout",
            "proxy_socket_keepalive",
            "uwsgi_send_timeout",
            "scgi_send_timeout",
        ],
    ),
    (
        "it resolves names again when their time to live has passed",
        &["resolver", "resolver_timeout"],
    ),
    (
        "its own log of errors has them",
        &[
            "error_log",
            "log_not_found",
            "log_subrequest",
            "limit_req_log_level",
            "limit_conn_log_level",
        ],
    ),
    (
        "its store is in memory, and `cache_dir` and `cache_disk` of [server] add one on disk",
        &["fastcgi_cache_path", "proxy_cache_path", "scgi_cache_path", "uwsgi_cache_path"],
    ),
    (
        "its cache stores replies to GET, from the first request on",
        &[
            "fastcgi_cache_methods",
            "fastcgi_cache_min_uses",
            "proxy_cache_methods",
            "proxy_cache_min_uses",
            "scgi_cache_methods",
            "scgi_cache_min_uses",
            "uwsgi_cache_methods",
            "uwsgi_cache_min_uses",
        ],
    ),
    (
        "its cache always does this",
        &[
            "fastcgi_cache_background_update",
            "fastcgi_cache_lock",
            "fastcgi_cache_lock_age",
            "fastcgi_cache_lock_timeout",
            "fastcgi_cache_revalidate",
            "proxy_cache_background_update",
            "proxy_cache_lock",
            "proxy_cache_lock_age",
            "proxy_cache_lock_timeout",
            "proxy_cache_revalidate",
            "scgi_cache_background_update",
            "scgi_cache_lock",
            "scgi_cache_lock_age",
            "scgi_cache_lock_timeout",
            "scgi_cache_revalidate",
            "uwsgi_cache_background_update",
            "uwsgi_cache_lock",
            "uwsgi_cache_lock_age",
            "uwsgi_cache_lock_timeout",
            "uwsgi_cache_revalidate",
        ],
    ),
    (
        "it passes on these fields, and skips all trusted proxies",
        &["fastcgi_pass_header", "proxy_pass_header", "real_ip_recursive"],
    ),
    ("too many requests get 429", &["limit_req_status", "limit_conn_status"]),
    (
        "a stream has its servers in turn, and no count of datagrams",
        &["proxy_requests", "proxy_responses"],
    ),
];

/// Directives that only define a name. The lines that use this name are translated or reported.
const DEFINITIONS: &[&str] = &[
    "geo",
    "limit_conn_zone",
    "limit_req_zone",
    "log_format",
    "map",
    "split_clients",
    "upstream",
    "valid_referers",
];

/// Directives about files. The translation of a location that sends files marks them as read. So a
/// directive of this list without the mark has no effect.
const OF_FILES: &[&str] = &[
    "autoindex",
    "brotli_static",
    "default_type",
    "gzip_static",
    "index",
    "max_ranges",
    "root",
    "types",
];

/// Returns the reason why Forebay needs no key for a directive; `None` if it needs one.
pub fn reason(name: &str) -> Option<&'static str> {
    NEEDLESS.iter().find(|(_, names)| names.contains(&name)).map(|(reason, _)| *reason)
}

/// Returns true for a directive that does not change replies, or that needs no key in Forebay.
pub fn is_needless(name: &str) -> bool {
    reason(name).is_some()
}

/// Returns true for a directive that only defines a name.
pub fn is_definition(directive: &Directive) -> bool {
    // For these two variables, `set` also changes a setting of nginx.
    let is_setting = matches!(directive.arg(0), "$args" | "$limit_rate");
    let name = directive.name.as_str();
    DEFINITIONS.contains(&name) || name == "set" && !is_setting
}

/// Returns true for a directive about files.
pub fn is_of_files(name: &str) -> bool {
    OF_FILES.contains(&name)
}

/// A test that selects directives. It selects `proxy_pass` for `proxy_buffering`, which has an
/// effect only together with `proxy_pass`.
type Beside = fn(&Directive) -> bool;

/// Returns a test for the directive that the directive `name` needs, and the name of the test. For
/// example, `proxy_buffering` needs `proxy_pass`, so the test is true for `proxy_pass`. The needed
/// directive may be in the same block, in a block around it, or in a block inside it. Returns
/// `None` if `name` needs no other directive.
pub fn needs(name: &str) -> Option<(&'static str, Beside)> {
    const GROUPS: [(&str, Beside); 32] = [
        ("proxy_ssl_", passes_to_tls),
        ("proxy_cache_", caches),
        ("proxy_no_cache", caches),
        ("fastcgi_cache_", caches),
        ("fastcgi_no_cache", caches),
        ("scgi_cache_", caches),
        ("scgi_no_cache", caches),
        ("uwsgi_cache_", caches),
        ("uwsgi_no_cache", caches),
        ("proxy_", |other| other.name == "proxy_pass"),
        ("fastcgi_", |other| other.name == "fastcgi_pass"),
        ("grpc_", |other| other.name == "grpc_pass"),
        ("scgi_", |other| other.name == "scgi_pass"),
        ("uwsgi_", |other| other.name == "uwsgi_pass"),
        ("ssl_preread", |other| other.name == "map"),
        ("ssl_client_", verifies_clients),
        ("ssl_crl", verifies_clients),
        ("ssl_ocsp", verifies_clients),
        ("ssl_", listens_with_tls),
        ("gzip_", |other| is_on(other, "gzip")),
        ("ssi_", |other| is_on(other, "ssi")),
        ("autoindex_", |other| is_on(other, "autoindex")),
        ("sub_filter_", |other| other.name == "sub_filter"),
        ("charset_", |other| other.name == "charset"),
        ("limit_rate_", |other| other.name == "limit_rate"),
        ("mirror_", |other| other.name == "mirror"),
        ("limit_req_", |other| other.name == "limit_req"),
        ("limit_conn_", |other| other.name == "limit_conn"),
        ("real_ip_", |other| other.name == "set_real_ip_from"),
        ("auth_basic_", |other| other.name == "auth_basic" && other.arg(0) != "off"),
        ("auth_request_", |other| other.name == "auth_request" && other.arg(0) != "off"),
        ("auth_delay", |other| other.name.starts_with("auth_") && other.name != "auth_delay"),
    ];
    // Report a second `proxy_pass` of a block, because only the first one has a route.
    if name.ends_with("_pass") || name == "proxy_protocol" {
        return None;
    }
    GROUPS.iter().find(|(start, _)| name.starts_with(start)).copied()
}

fn is_on(directive: &Directive, name: &str) -> bool {
    directive.name == name && directive.arg(0) == "on"
}

fn caches(directive: &Directive) -> bool {
    directive.name.ends_with("_cache")
        && !directive.name.ends_with("_no_cache")
        && directive.arg(0) != "off"
}

fn passes_to_tls(directive: &Directive) -> bool {
    let is_tls = |url: &str| ["https:", "grpcs:", "$"].iter().any(|start| url.starts_with(start));
    matches!(directive.name.as_str(), "proxy_pass" | "grpc_pass") && is_tls(directive.arg(0))
        || is_on(directive, "proxy_ssl")
}

fn verifies_clients(directive: &Directive) -> bool {
    directive.name == "ssl_verify_client" && directive.arg(0) != "off"
}

fn listens_with_tls(directive: &Directive) -> bool {
    let is_option = |arg: &String| matches!(arg.as_str(), "ssl" | "quic");
    directive.name == "listen" && directive.args.iter().any(is_option) || is_on(directive, "ssl")
}
