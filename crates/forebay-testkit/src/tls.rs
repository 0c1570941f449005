//! Certificates for tests, and TLS clients that trust them.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, date_time_ymd,
};
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{
    ClientConfig, ClientConnection, RootCertStore, ServerConfig, StreamOwned,
    SupportedProtocolVersion,
};

use crate::DEADLINE;
use crate::http::Client;
use crate::stream::TestStream;

/// Certificate authority of a test.
pub struct Authority {
    /// Certificate of the authority itself, in PEM.
    pub pem: String,
    issuer: Issuer<'static, KeyPair>,
}

/// Certificate and private key, in PEM.
pub struct Identity {
    /// The certificate.
    pub certificate: String,
    /// The private key.
    pub key: String,
}

impl Identity {
    /// Returns the configuration of a server with this certificate.
    pub fn server(&self) -> ServerConfig {
        let certificate = CertificateDer::from_pem_slice(self.certificate.as_bytes());
        let key = PrivateKeyDer::from_pem_slice(self.key.as_bytes()).expect("a key");
        ServerConfig::builder_with_provider(Arc::new(default_provider()))
            .with_safe_default_protocol_versions()
            .expect("versions that there are")
            .with_no_client_auth()
            .with_single_cert(vec![certificate.expect("a certificate")], key)
            .expect("a key of this certificate")
    }
}

impl Authority {
    /// Creates an authority with the name `name`.
    pub fn new(name: &str) -> Self {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = KeyPair::generate().expect("a key");
        let pem = params.self_signed(&key).expect("a certificate").pem();
        Self { pem, issuer: Issuer::new(params, key) }
    }

    /// Issues a certificate for these host names or IP addresses. The first is also the common
    /// name.
    pub fn issue(&self, names: &[&str]) -> Identity {
        self.sign(params(names))
    }

    /// Works as [`Authority::issue`] does, for a certificate that expired in 2000.
    pub fn issue_expired(&self, names: &[&str]) -> Identity {
        self.issue_until(names, 2000)
    }

    /// Works as [`Authority::issue`] does, for a certificate from the year 2000 to the end of
    /// `year`.
    pub fn issue_until(&self, names: &[&str], year: i32) -> Identity {
        let mut params = params(names);
        params.not_before = date_time_ymd(2000, 1, 1);
        params.not_after = date_time_ymd(year, 12, 31);
        self.sign(params)
    }

    fn sign(&self, params: CertificateParams) -> Identity {
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, &self.issuer).expect("a certificate").pem();
        Identity { certificate, key: key.serialize_pem() }
    }

    /// Returns the configuration of a client that trusts only this authority.
    pub fn client(&self) -> ClientConfig {
        self.client_of(None, rustls::ALL_VERSIONS)
    }

    /// Works as [`Authority::client`] does, with an optional client certificate and these protocol
    /// versions.
    pub fn client_of(
        &self,
        identity: Option<&Identity>,
        versions: &[&'static SupportedProtocolVersion],
    ) -> ClientConfig {
        let mut roots = RootCertStore::empty();
        let root = CertificateDer::from_pem_slice(self.pem.as_bytes()).expect("a certificate");
        roots.add(root).expect("a root");
        let builder = ClientConfig::builder_with_provider(Arc::new(default_provider()))
            .with_protocol_versions(versions)
            .expect("versions that there are")
            .with_root_certificates(roots);
        match identity {
            None => builder.with_no_client_auth(),
            Some(Identity { certificate, key }) => {
                let chain = CertificateDer::pem_slice_iter(certificate.as_bytes());
                let chain = chain.collect::<Result<_, _>>().expect("certificates");
                let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).expect("a key");
                builder.with_client_auth_cert(chain, key).expect("a key of this certificate")
            }
        }
    }
}

fn params(names: &[&str]) -> CertificateParams {
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    let common = names.first().cloned().unwrap_or_default();
    let mut params = CertificateParams::new(names).expect("names");
    params.distinguished_name.push(DnType::CommonName, common);
    params.extended_key_usages =
        vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    params
}

/// Connects, and performs a TLS handshake with a server whose certificate must be for `name`.
pub fn connect(
    address: SocketAddr,
    name: &str,
    config: impl Into<Arc<ClientConfig>>,
) -> io::Result<Client> {
    let tcp = TcpStream::connect_timeout(&address, DEADLINE)?;
    tcp.set_nodelay(true)?;
    tcp.set_read_timeout(Some(DEADLINE))?;
    tcp.set_write_timeout(Some(DEADLINE))?;
    let name = ServerName::try_from(name.to_owned()).map_err(io::Error::other)?;
    let connection = ClientConnection::new(config.into(), name).map_err(io::Error::other)?;
    let mut stream = StreamOwned::new(connection, tcp);
    while stream.conn.is_handshaking() {
        stream.conn.complete_io(&mut stream.sock)?;
    }
    Ok(Client::over(TestStream::Tls(Box::new(stream))))
}
