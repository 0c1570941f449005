//! The names of nginx's directives: those with a translation, those that need none, and the next
//! step for others.

/// Directives that the translation reads.
pub const READ: &[&str] = &[
    "proxy_cache",
    "proxy_cache_valid",
    "proxy_cache_key",
    "proxy_cache_use_stale",
    "proxy_cache_bypass",
    "proxy_no_cache",
    "fastcgi_cache",
    "fastcgi_cache_valid",
    "fastcgi_cache_key",
    "fastcgi_cache_use_stale",
    "fastcgi_cache_bypass",
    "fastcgi_no_cache",
    "uwsgi_cache",
    "uwsgi_cache_valid",
    "uwsgi_cache_key",
    "uwsgi_cache_use_stale",
    "uwsgi_cache_bypass",
    "uwsgi_no_cache",
    "scgi_cache",
    "scgi_cache_valid",
    "scgi_cache_key",
    "scgi_cache_use_stale",
    "scgi_cache_bypass",
    "scgi_no_cache",
    "absolute_redirect",
    "access_log",
    "add_header",
    "alias",
    "allow",
    "auth_basic",
    "auth_basic_user_file",
    "auth_request",
    "auth_request_set",
    "autoindex",
    "brotli_static",
    "break",
    "charset",
    "client_body_timeout",
    "client_header_timeout",
    "client_max_body_size",
    "default_type",
    "deny",
    "error_page",
    "expires",
    "fastcgi_connect_timeout",
    "fastcgi_hide_header",
    "fastcgi_index",
    "fastcgi_param",
    "fastcgi_intercept_errors",
    "fastcgi_pass",
    "fastcgi_read_timeout",
    "fastcgi_split_path_info",
    "geo",
    "grpc_pass",
    "grpc_read_timeout",
    "grpc_set_header",
    "gzip",
    "gzip_min_length",
    "gzip_static",
    "gzip_types",
    "http",
    "http2",
    "http3",
    "if",
    "index",
    "internal",
    "uwsgi_ignore_headers",
    "scgi_ignore_headers",
    "fastcgi_ignore_headers",
    "proxy_ignore_headers",
    "keepalive_requests",
    "keepalive_timeout",
    "limit_conn",
    "limit_conn_zone",
    "limit_except",
    "limit_req",
    "limit_req_zone",
    "limit_req_status",
    "limit_rate",
    "limit_rate_after",
    "listen",
    "location",
    "log_format",
    "map",
    "merge_slashes",
    "underscores_in_headers",
    "ignore_invalid_headers",
    "mirror",
    "mirror_request_body",
    "proxy_buffering",
    "proxy_connect_timeout",
    "proxy_hide_header",
    "proxy_intercept_errors",
    "proxy_next_upstream",
    "proxy_next_upstream_tries",
    "proxy_pass",
    "proxy_pass_request_headers",
    "fastcgi_pass_request_headers",
    "scgi_pass_request_headers",
    "uwsgi_pass_request_headers",
    "proxy_read_timeout",
    "proxy_redirect",
    "proxy_request_buffering",
    "proxy_set_header",
    "proxy_ssl_certificate",
    "proxy_ssl_certificate_key",
    "proxy_ssl_name",
    "proxy_ssl_server_name",
    "proxy_ssl_trusted_certificate",
    "proxy_ssl_verify",
    "proxy_ssl_verify_depth",
    "real_ip_header",
    "real_ip_recursive",
    "return",
    "rewrite",
    "root",
    "satisfy",
    "scgi_param",
    "scgi_pass",
    "scgi_read_timeout",
    "send_timeout",
    "server",
    "server_name",
    "set",
    "set_real_ip_from",
    "split_clients",
    "ssi",
    "ssi_last_modified",
    "ssi_types",
    "ssl_certificate",
    "ssl_certificate_key",
    "ssl_client_certificate",
    "ssl_ocsp",
    "ssl_protocols",
    "ssl_stapling_file",
    "ssl_verify_client",
    "stream",
    "stub_status",
    "sub_filter",
    "sub_filter_last_modified",
    "sub_filter_once",
    "sub_filter_types",
    "try_files",
    "types",
    "upstream",
    "user",
    "uwsgi_modifier1",
    "uwsgi_modifier2",
    "uwsgi_param",
    "uwsgi_pass",
    "uwsgi_read_timeout",
    "valid_referers",
];

/// Directives that the translation reads only for the whole process.
pub const NOT_IN_SERVERS: [&str; 2] = ["client_header_timeout", "stub_status"];

/// Directives that the translation reads only for servers, or for the whole process.
pub const NOT_IN_LOCATIONS: [&str; 2] = ["set_real_ip_from", "real_ip_header"];

/// The next step for a directive that the translation reads only in other blocks.
pub const ELSEWHERE: &str =
    "Forebay has no such key for this block alone: set it for the site or in [server]";

/// Directives that do not change replies, or that need no key in Forebay.
const NEEDLESS: &[&str] = &[
    "proxy_cache_path",
    "proxy_cache_lock",
    "proxy_cache_lock_timeout",
    "proxy_cache_lock_age",
    "proxy_cache_background_update",
    "proxy_cache_revalidate",
    "proxy_cache_methods",
    "proxy_cache_min_uses",
    "fastcgi_cache_path",
    "fastcgi_cache_lock",
    "fastcgi_cache_lock_timeout",
    "fastcgi_cache_lock_age",
    "fastcgi_cache_background_update",
    "fastcgi_cache_revalidate",
    "fastcgi_cache_methods",
    "fastcgi_cache_min_uses",
    "uwsgi_cache_path",
    "uwsgi_cache_lock",
    "uwsgi_cache_lock_timeout",
    "uwsgi_cache_lock_age",
    "uwsgi_cache_background_update",
    "uwsgi_cache_revalidate",
    "uwsgi_cache_methods",
    "uwsgi_cache_min_uses",
    "scgi_cache_path",
    "scgi_cache_lock",
    "scgi_cache_lock_timeout",
    "scgi_cache_lock_age",
    "scgi_cache_background_update",
    "scgi_cache_revalidate",
    "scgi_cache_methods",
    "scgi_cache_min_uses",
    "accept_mutex",
    "aio",
    "brotli",
    "brotli_comp_level",
    "brotli_types",
    "chunked_transfer_encoding",
    "client_body_buffer_size",
    "client_body_temp_path",
    "client_header_buffer_size",
    "connection_pool_size",
    "daemon",
    "directio",
    "env",
    "error_log",
    "etag",
    "events",
    "fastcgi_buffer_size",
    "fastcgi_buffering",
    "fastcgi_buffers",
    "fastcgi_busy_buffers_size",
    "fastcgi_keep_conn",
    "fastcgi_pass_header",
    "fastcgi_request_buffering",
    "fastcgi_send_timeout",
    "fastcgi_temp_file_write_size",
    "fastcgi_temp_path",
    "fastcgi_max_temp_file_size",
    "grpc_send_timeout",
    "gzip_buffers",
    "gzip_comp_level",
    "gzip_disable",
    "gzip_http_version",
    "gzip_proxied",
    "gzip_vary",
    "http2_max_concurrent_streams",
    "if_modified_since",
    "keepalive_disable",
    "large_client_header_buffers",
    "lingering_close",
    "lingering_time",
    "lingering_timeout",
    "load_module",
    "log_not_found",
    "log_subrequest",
    "map_hash_bucket_size",
    "map_hash_max_size",
    "max_ranges",
    "min_delete_depth",
    "multi_accept",
    "open_file_cache",
    "open_file_cache_errors",
    "open_file_cache_min_uses",
    "open_file_cache_valid",
    "output_buffers",
    "pcre_jit",
    "pid",
    "port_in_redirect",
    "postpone_output",
    "proxy_buffer_size",
    "proxy_buffers",
    "proxy_busy_buffers_size",
    "proxy_headers_hash_bucket_size",
    "proxy_headers_hash_max_size",
    "proxy_http_version",
    "proxy_max_temp_file_size",
    "proxy_pass_header",
    "proxy_pass_request_body",
    "proxy_send_timeout",
    "proxy_socket_keepalive",
    "proxy_ssl_protocols",
    "proxy_ssl_session_reuse",
    "proxy_temp_file_write_size",
    "proxy_temp_path",
    "quic_gso",
    "quic_retry",
    "recursive_error_pages",
    "reset_timedout_connection",
    "resolver",
    "resolver_timeout",
    "rewrite_log",
    "scgi_temp_path",
    "send_lowat",
    "sendfile",
    "sendfile_max_chunk",
    "server_name_in_redirect",
    "server_names_hash_bucket_size",
    "server_names_hash_max_size",
    "server_tokens",
    "ssi_min_file_chunk",
    "ssi_value_length",
    "ssl_buffer_size",
    "ssl_ciphers",
    "ssl_conf_command",
    "ssl_dhparam",
    "ssl_early_data",
    "ssl_ecdh_curve",
    "ssl_prefer_server_ciphers",
    "ssl_session_cache",
    "ssl_session_tickets",
    "ssl_session_timeout",
    "ssl_session_ticket_key",
    "ssl_stapling",
    "ssl_stapling_verify",
    "ssl_trusted_certificate",
    "ssl_verify_depth",
    "tcp_nodelay",
    "tcp_nopush",
    "thread_pool",
    "timer_resolution",
    "types_hash_bucket_size",
    "types_hash_max_size",
    "uninitialized_variable_warn",
    "use",
    "uwsgi_buffer_size",
    "uwsgi_buffers",
    "uwsgi_buffering",
    "uwsgi_busy_buffers_size",
    "uwsgi_send_timeout",
    "uwsgi_temp_path",
    "variables_hash_bucket_size",
    "variables_hash_max_size",
    "worker_connections",
    "worker_cpu_affinity",
    "worker_priority",
    "worker_processes",
    "worker_rlimit_nofile",
    "worker_shutdown_timeout",
    "working_directory",
    "zone",
];

/// Returns true for a directive that does not change replies, or that needs no key in Forebay.
pub fn is_needless(name: &str) -> bool {
    NEEDLESS.contains(&name)
}

/// Returns true for a directive that may restrict access and has no translation. Its location is
/// then closed.
pub fn restricts(name: &str) -> bool {
    const STARTS: [&str; 13] = [
        "auth_",
        "access_by",
        "rewrite_by",
        "secure_link",
        "modsecurity",
        "naxsi",
        "js_access",
        "shib_",
        "testcookie",
        "wallarm_mode",
        "app_protect",
        "accesskey",
        "waf",
    ];
    const NAMES: [&str; 8] = [
        "include",
        "perl",
        "SecRulesEnabled",
        "BasicRule",
        "geoip2_deny",
        // Without these directives, the backend would get another request.
        "proxy_method",
        "proxy_set_body",
        // Without this directive, Forebay follows symbolic links that nginx would not follow.
        "disable_symlinks",
    ];
    // `auth_delay` only slows refusals down.
    let is_gate = STARTS.iter().any(|start| name.starts_with(start)) && name != "auth_delay";
    is_gate || NAMES.contains(&name)
}

/// Returns true for a directive that answers requests and has no translation.
pub fn answers(name: &str) -> bool {
    name.ends_with("_pass")
        || name.starts_with("content_by")
        || matches!(
            name,
            "js_content"
                | "api"
                | "flv"
                | "mp4"
                | "hls"
                | "empty_gif"
                | "image_filter"
                | "random_index"
                | "dav_methods"
                | "passenger_enabled"
                | "passenger_app_root"
                | "echo"
        )
}

/// Returns the next step for a directive without a translation.
pub fn next_step(name: &str) -> &'static str {
    match name {
        "include" => "the file does not exist: copy it here, and import again",
        "auth_delay" => "Forebay limits the rate of wrong passwords: remove the line",
        "proxy_method" | "proxy_set_body" => {
            "let the application accept the client's request, then remove `respond`"
        }
        "disable_symlinks" => "check the symbolic links of the directory, then remove `respond`",
        "ssl_ocsp" => {
            "revoked client certificates are not looked up: issue certificates with a short lifetime"
        }
        "mail" => "Forebay has no mail proxy: keep nginx for this block",
        "ssi_silent_errors" => "write <!--#config errmsg=\"\" --> into the pages",
        "mirror_request_body" => "see `max_body` of `mirror`",
        "fastcgi_next_upstream" => {
            "Forebay tries another server after a failed connection by itself"
        }
        "proxy_cookie_path" | "proxy_cookie_domain" | "proxy_cookie_flags" => {
            "cookies get the client's host and prefix by `redirect = \"rewrite\"`, the default; other changes are left to the application"
        }
        "ssl_crl" => {
            "revoked client certificates are not looked up: issue certificates with a short lifetime"
        }
        "autoindex_format" => {
            "with `listing = true`, clients get JSON if they send `Accept: application/json`"
        }
        _ if name.starts_with("autoindex_") || name.starts_with("fancyindex") => {
            "write a page for listings: listing = { template = \"listing.html\" }"
        }
        _ if name.starts_with("proxy_cache") || name.starts_with("fastcgi_cache") => {
            "see `cache` in the guide on caching"
        }
        _ if name.starts_with("secure_link") => "use `signed_url`, then remove `respond`",
        _ if name.starts_with("auth_") => {
            "use `basic_auth` or `forward_auth`, then remove `respond`"
        }
        _ if name.starts_with("limit_") => "see `rate_limit` and [server.limits] of the reference",
        _ if name.contains("_by_lua") || name.starts_with("js_") || name.starts_with("perl") => {
            "move this code into the application"
        }
        _ if name.starts_with("ssl_") => "Forebay has no such key: see the guide on TLS",
        _ => {
            "Forebay has no such key: look for one in the configuration reference, or remove the line"
        }
    }
}

#[cfg(test)]
mod tests;
