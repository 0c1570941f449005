//! Header fields with the client's address, for tests of trusted proxies. The tests send the same
//! cases to Forebay, nginx and Apache.

/// Values of `X-Forwarded-For` in a request from 127.0.0.1, with the client address that a server
/// must find. Trusted proxies are 127.0.0.0/8, 10.0.0.0/8 and fd00::/8.
pub const CASES: [(&[&str], &str); 20] = [
    (&[], "127.0.0.1"),
    (&["192.0.2.1"], "192.0.2.1"),
    (&["  192.0.2.1  "], "192.0.2.1"),
    (&["192.0.2.1, 10.0.0.1"], "192.0.2.1"),
    (&["192.0.2.1,10.0.0.1,10.0.0.2"], "192.0.2.1"),
    // The owner of the rightmost untrusted address can forge all addresses on its left.
    (&["203.0.113.9, 192.0.2.1"], "192.0.2.1"),
    (&["10.0.0.9, 192.0.2.1, 10.0.0.1"], "192.0.2.1"),
    (&["127.0.0.1, 192.0.2.1"], "192.0.2.1"),
    (&["203.0.113.9, 192.0.2.1, 10.0.0.1, 10.1.2.3"], "192.0.2.1"),
    // If all addresses are trusted, the leftmost one counts.
    (&["10.0.0.1"], "10.0.0.1"),
    (&["10.0.0.1, 10.0.0.2"], "10.0.0.1"),
    (&["2001:db8::1"], "2001:db8::1"),
    (&["2001:db8::1, 10.0.0.1"], "2001:db8::1"),
    (&["2001:db8::1, fd00::1"], "2001:db8::1"),
    (&["192.0.2.1, fd00::1, 10.0.0.1"], "192.0.2.1"),
    // The search from the right ends at the first text that is not an address.
    (&["unknown"], "127.0.0.1"),
    (&["192.0.2.1, unknown, 10.0.0.1"], "10.0.0.1"),
    (&["evil.example, 192.0.2.1"], "192.0.2.1"),
    // Several fields with this name form one list.
    (&["192.0.2.1", "10.0.0.1"], "192.0.2.1"),
    (&["203.0.113.9", "192.0.2.1, 10.0.0.1"], "192.0.2.1"),
];

/// Forged header fields about the client and the URL of a request. The fields include every
/// spelling that a backend may map to the variable of a trusted field.
pub const FORGED: &str = "X_Forwarded_For: 6.6.6.1\r\nx_real_ip: 6.6.6.2\r\nX.Forwarded.Proto: 6.6.6.3\r\n\
    X_FORWARDED_HOST: 6.6.6.4\r\nX-Forwarded-Port: 6.6.6.5\r\nX-Forwarded-Ssl: 6.6.6.6\r\n\
    X-Forwarded-Prefix: 6.6.6.7\r\nX-Forwarded-Server: 6.6.6.8\r\nX-Forwarded-Scheme: 6.6.6.9\r\n\
    X-Forwarded-Host: 6.6.6.10\r\nX-Forwarded_Port: 6.6.6.11\r\nX-Original-URL: 6.6.6.12\r\n\
    X-Rewrite-URL: 6.6.6.13\r\nFront-End-Https: 6.6.6.14\r\nX-Scheme: 6.6.6.15\r\n\
    X-Real-IP: 6.6.6.16\r\nForwarded: for=6.6.6.17\r\nX-Forwarded-For: 6.6.6.18\r\n\
    X-Forwarded-Proto: 6.6.6.19\r\nX-Forwarded-User: 6.6.6.20\r\nX-Own: fine\r\nX_Key: fine\r\n";
