//! Access log lines of a stream's connections.

use std::fmt;
use std::io::Write;
use std::time::Duration;

use forebay_wire::ClientAddress;

use super::pattern::{append_escaped, append_json_text};

/// The values in the log line of a finished connection of a `[[stream]]`.
pub struct ConnectionEntry<'a> {
    /// TCP or UDP.
    pub protocol: &'static str,
    /// Address of the client.
    pub client: ClientAddress,
    /// Server name that the client sent (SNI).
    pub server_name: Option<&'a str>,
    /// Backend that the connection was passed to.
    pub backend: Option<&'a str>,
    /// Reason for the end of the connection.
    pub end: ConnectionEnd,
    /// Bytes sent to the client.
    pub sent: u64,
    /// Bytes received from the client.
    pub received: u64,
    /// Duration of the connection.
    pub took: Duration,
}

/// Reason for the end of a connection of a `[[stream]]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionEnd {
    /// Client and backend have finished sending.
    Closed,
    /// No bytes flowed for too long.
    Idle,
    /// A side failed or was reset.
    Lost,
    /// `allow` or `deny` refuses the client.
    Denied,
    /// The handshake with the client failed.
    NoTls,
    /// No backend could be reached.
    NoBackend,
    /// The server stopped.
    Stopped,
}

impl fmt::Display for ConnectionEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Closed => "closed",
            Self::Idle => "idle",
            Self::Lost => "lost",
            Self::Denied => "denied",
            Self::NoTls => "no-tls",
            Self::NoBackend => "no-backend",
            Self::Stopped => "stopped",
        })
    }
}

impl ConnectionEntry<'_> {
    /// Appends the line in text. `time` is the formatted time of the end.
    pub(super) fn append_text(&self, time: &str, out: &mut Vec<u8>) {
        let _ = write!(out, "{} - - [{time}] \"{} ", self.client, self.protocol);
        append_escaped(self.server_name.unwrap_or("-").as_bytes(), out);
        let Self { end, sent, received, .. } = self;
        let _ = write!(out, "\" {end} {sent} {received} {:.3} \"", self.took.as_secs_f64());
        append_escaped(self.backend.unwrap_or("-").as_bytes(), out);
        out.push(b'"');
    }

    /// Appends the line as a JSON object.
    pub(super) fn append_json(&self, time: &str, out: &mut Vec<u8>) {
        let Self { client, protocol, .. } = self;
        let _ = write!(
            out,
            "{{\"time\":\"{time}\",\"client\":\"{client}\",\"protocol\":\"{protocol}\""
        );
        for (key, value) in [("server_name", self.server_name), ("upstream", self.backend)] {
            if let Some(value) = value {
                let _ = write!(out, ",\"{key}\":\"");
                append_json_text(value.as_bytes(), out);
                out.push(b'"');
            }
        }
        let Self { end, sent, received, .. } = self;
        let _ = write!(
            out,
            ",\"end\":\"{end}\",\"bytes_sent\":{sent},\"bytes_received\":{received},\
             \"duration_us\":{}}}",
            self.took.as_micros()
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_name_both_sides_and_the_end() {
        let entry = ConnectionEntry {
            protocol: "TCP",
            client: ClientAddress::Unix,
            server_name: Some("db.example.org"),
            backend: Some("127.0.0.1:5432"),
            end: ConnectionEnd::Closed,
            sent: 7,
            received: 5,
            took: Duration::from_micros(1_234_567),
        };
        let (mut text, mut json) = (Vec::new(), Vec::new());
        entry.append_text("now", &mut text);
        entry.append_json("now", &mut json);
        let unix = ClientAddress::Unix;
        let line = "- - [now] \"TCP db.example.org\" closed 7 5 1.235 \"127.0.0.1:5432\"";
        assert_eq!(String::from_utf8(text).unwrap(), format!("{unix} {line}"));
        let object = "\"protocol\":\"TCP\",\"server_name\":\"db.example.org\",\
                      \"upstream\":\"127.0.0.1:5432\",\"end\":\"closed\",\"bytes_sent\":7,\
                      \"bytes_received\":5,\"duration_us\":1234567}";
        let start = format!("{{\"time\":\"now\",\"client\":\"{unix}\",");
        assert_eq!(String::from_utf8(json).unwrap(), format!("{start}{object}"));
    }
}
