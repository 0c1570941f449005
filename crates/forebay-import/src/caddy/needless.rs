//! Lines of a Caddyfile that need no translation, each with the reason.

/// Reasons, and the lines that need no key for this reason: the name of the line around each line,
/// and its own name.
const NEEDLESS: &[(&str, &[(&str, &str)])] = &[
    (
        "Forebay sends each part of a reply at once, and sets a field after the application has",
        &[("reverse_proxy", "flush_interval"), ("header", "defer")],
    ),
    (
        "Forebay chooses its buffers and its connections to servers itself",
        &[
            ("transport", "compression"),
            ("transport", "keepalive"),
            ("transport", "keepalive_idle_conns"),
            ("transport", "keepalive_idle_conns_per_host"),
            ("transport", "keepalive_interval"),
            ("transport", "read_buffer"),
            ("transport", "versions"),
            ("transport", "write_buffer"),
            ("reverse_proxy", "request_buffers"),
            ("reverse_proxy", "response_buffers"),
        ],
    ),
    (
        "Forebay tries another server by itself after a failed connection",
        &[
            ("reverse_proxy", "lb_retries"),
            ("reverse_proxy", "lb_try_duration"),
            ("reverse_proxy", "lb_try_interval"),
        ],
    ),
    (
        "Forebay logs the errors of applications, and finds scripts below the real directory",
        &[
            ("php_fastcgi", "capture_stderr"),
            ("php_fastcgi", "dial_timeout"),
            ("php_fastcgi", "resolve_root_symlink"),
            ("php_fastcgi", "write_timeout"),
        ],
    ),
    (
        "it concerns the process of Caddy",
        &[("", "admin"), ("", "debug"), ("", "log"), ("", "persist_config")],
    ),
];

/// Returns true if a line within a line of the name `around` needs no key.
pub fn is_needless(around: &str, name: &str) -> bool {
    NEEDLESS.iter().any(|(_, lines)| lines.contains(&(around, name)))
}
