//! The result of a connection's TLS handshake, which selects sites, and provides variables for CGI
//! scripts and backends.

use std::cell::OnceCell;
use std::sync::Arc;

use rustls::{Connection, ProtocolVersion, SupportedCipherSuite};
use x509_parser::objects::{oid_registry, oid2abbrev};
use x509_parser::x509::X509Name;

use crate::tls::server::ServerTls;
use crate::tls::session::TlsSession;

/// A successful handshake.
pub struct Handshake {
    tls: Arc<ServerTls>,
    server_name: Option<String>,
    version: Option<ProtocolVersion>,
    suite: Option<SupportedCipherSuite>,
    client: Option<Box<ClientCertificate>>,
    variables: OnceCell<Vec<(&'static str, String)>>,
}

/// A client certificate, issued by one of the site's authorities.
struct ClientCertificate {
    subject: String,
    issuer: String,
    serial: String,
}

impl Handshake {
    pub fn new(tls: Arc<ServerTls>, server_name: Option<String>, session: &TlsSession) -> Self {
        Self {
            tls,
            server_name,
            version: session.look(|connection| connection.protocol_version()),
            suite: session.look(|connection| connection.negotiated_cipher_suite()),
            client: session.look(client_certificate).map(Box::new),
            variables: OnceCell::new(),
        }
    }

    /// Creates the handshake of a QUIC connection, which uses TLS 1.3. Its cipher suite is unknown.
    pub fn of_quic(tls: Arc<ServerTls>, server_name: Option<String>) -> Self {
        Self {
            tls,
            server_name,
            version: Some(ProtocolVersion::TLSv1_3),
            suite: None,
            client: None,
            variables: OnceCell::new(),
        }
    }

    /// Returns the name that the client sent (SNI), or `None`.
    pub fn server_name(&self) -> Option<&str> {
        self.server_name.as_deref()
    }

    /// Returns the TLS configuration that the handshake used.
    pub fn tls(&self) -> &ServerTls {
        &self.tls
    }

    /// Returns the CGI variables about the handshake.
    pub fn variables(&self) -> &[(&'static str, String)] {
        self.variables.get_or_init(|| {
            let mut variables = Vec::new();
            match self.version {
                Some(ProtocolVersion::TLSv1_2) => {
                    variables.push(("SSL_PROTOCOL", "TLSv1.2".into()));
                }
                Some(ProtocolVersion::TLSv1_3) => {
                    variables.push(("SSL_PROTOCOL", "TLSv1.3".into()));
                }
                _ => {}
            }
            if let Some(suite) = self.suite {
                variables.push(("SSL_CIPHER", name_of_openssl(suite)));
            }
            if let Some(name) = &self.server_name {
                variables.push(("SSL_TLS_SNI", name.clone()));
            }
            let verified = if self.client.is_some() { "SUCCESS" } else { "NONE" };
            variables.push(("SSL_CLIENT_VERIFY", verified.into()));
            if let Some(client) = &self.client {
                variables.push(("SSL_CLIENT_S_DN", client.subject.clone()));
                variables.push(("SSL_CLIENT_I_DN", client.issuer.clone()));
                variables.push(("SSL_CLIENT_M_SERIAL", client.serial.clone()));
            }
            variables
        })
    }

    /// Returns the subject of the client's certificate (RFC 4514), if any.
    pub(crate) fn client_subject(&self) -> Option<&str> {
        self.client.as_ref().map(|client| &*client.subject)
    }
}

fn client_certificate(connection: &Connection) -> Option<ClientCertificate> {
    let certificate = connection.peer_certificates()?.first()?;
    let (_, certificate) = x509_parser::parse_x509_certificate(certificate).ok()?;
    Some(ClientCertificate {
        subject: distinguished_name(certificate.subject()),
        issuer: distinguished_name(certificate.issuer()),
        serial: certificate.raw_serial().iter().map(|byte| format!("{byte:02X}")).collect(),
    })
}

/// Formats a distinguished name as text (RFC 4514) in printable ASCII.
fn distinguished_name(name: &X509Name<'_>) -> String {
    let mut text = String::new();
    let parts: Vec<_> = name.iter_rdn().collect();
    for part in parts.iter().rev() {
        for (at, attribute) in part.iter().enumerate() {
            if !text.is_empty() {
                text.push(if at == 0 { ',' } else { '+' });
            }
            match oid2abbrev(attribute.attr_type(), oid_registry()) {
                Ok(short) => text.push_str(short),
                Err(_) => text.push_str(&attribute.attr_type().to_id_string()),
            }
            text.push('=');
            escape(attribute.attr_value().data, &mut text);
        }
    }
    text
}

fn escape(value: &[u8], text: &mut String) {
    for (at, &byte) in value.iter().enumerate() {
        let is_at_edge = at == 0 || at + 1 == value.len();
        match byte {
            b'"' | b'+' | b',' | b';' | b'<' | b'>' | b'\\' | b'=' => {
                text.extend(['\\', byte as char]);
            }
            b'#' if at == 0 => text.push_str("\\#"),
            b' ' if is_at_edge => text.push_str("\\ "),
            b' '..=b'~' => text.push(byte as char),
            _ => text.push_str(&format!("\\{byte:02X}")),
        }
    }
}

/// Returns OpenSSL's name of a cipher suite, which scripts expect.
fn name_of_openssl(suite: SupportedCipherSuite) -> String {
    let name = format!("{:?}", suite.suite());
    if let Some(rest) = name.strip_prefix("TLS13_") {
        return format!("TLS_{rest}");
    }
    let name = name.trim_start_matches("TLS_").replace("_WITH", "").replace("AES_", "AES");
    name.replace("_POLY1305_SHA256", "_POLY1305").replace('_', "-")
}

#[cfg(test)]
mod tests {
    use rustls::crypto::aws_lc_rs::ALL_CIPHER_SUITES;

    use super::*;

    #[test]
    fn cipher_suites_have_the_names_of_openssl() {
        let names: Vec<_> = ALL_CIPHER_SUITES.iter().map(|suite| name_of_openssl(*suite)).collect();
        for name in [
            "TLS_AES_128_GCM_SHA256",
            "TLS_CHACHA20_POLY1305_SHA256",
            "ECDHE-ECDSA-AES256-GCM-SHA384",
            "ECDHE-RSA-AES128-GCM-SHA256",
            "ECDHE-RSA-CHACHA20-POLY1305",
        ] {
            assert!(names.iter().any(|other| other == name), "{name} {names:?}");
        }
    }

    #[test]
    fn names_have_no_byte_that_means_something_else() {
        let mut text = String::new();
        escape(" a,b=c\r\nX: y\u{e9} ".as_bytes(), &mut text);
        assert_eq!(text, "\\ a\\,b\\=c\\0D\\0AX: y\\C3\\A9\\ ");
    }
}
