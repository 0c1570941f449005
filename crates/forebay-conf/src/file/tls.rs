//! The keys of `[site.tls]` and of `tls` for backends, as the user types them.

use forebay_conf_derive::{Choice, Table};
use serde_json::json;

use crate::key::{At, OneOrMany, Time};
use crate::plan::{AcmeChallenge, Cipher, Curve, Rate};

/// The certificate and TLS settings of https:// listeners.
#[derive(Debug, Default, Table)]
pub struct Tls {
    /// A PEM file with the certificate, followed by its intermediate certificates.
    pub certificate: Option<At<String>>,
    /// A file with the private key of the certificate, in PEM.
    pub key: Option<At<String>>,
    /// Obtains the certificate from an authority, instead of from files, and renews it (ACME, RFC
    /// 8555). Default: none.
    pub acme: Option<At<Acme>>,
    /// A file with an OCSP response in DER, which Forebay sends with the certificate. Default:
    /// none.
    pub ocsp_staple: Option<At<String>>,
    /// A PEM file with the certificates of the authorities that issue client certificates. Default:
    /// clients are not asked for a certificate.
    pub client_ca: Option<At<String>>,
    /// "require" refuses clients without a valid certificate. "request" refuses only clients with
    /// an invalid certificate, and serves clients without a certificate. Default: "require".
    pub client_auth: Option<At<ClientAuth>>,
    /// The name of a request field. HTTP backends get the subject of the client's certificate in
    /// this field. Forebay removes that field from the client's own request. Default: none.
    pub client_subject_field: Option<At<String>>,
    /// The oldest version of TLS that clients may use. Default: "1.2".
    pub min_version: Option<At<TlsVersion>>,
    /// The cipher suites that clients may use, by their names from IANA or OpenSSL. Default: all.
    pub ciphers: Option<At<OneOrMany<Cipher>>>,
    /// The groups for the key exchange, in the order of preference. Default: ["X25519MLKEM768",
    /// "X25519", "secp256r1", "secp384r1"].
    pub curves: Option<At<OneOrMany<Curve>>>,
}

/// A version of TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Choice)]
pub enum TlsVersion {
    /// TLS 1.2.
    #[key("1.2")]
    V12,
    /// TLS 1.3.
    #[key("1.3")]
    V13,
}

/// Obtains and renews a certificate from an authority (ACME).
#[derive(Debug, Default, Table)]
pub struct Acme {
    /// The mail address for messages from the authority. Default: none.
    pub email: Option<At<String>>,
    /// The URL of the authority's directory, or "staging" for that of Let's Encrypt for tests, whose
    /// certificates no browser accepts. Default: that of Let's Encrypt.
    pub directory: Option<At<String>>,
    /// The kind of certificate, by its name at the authority, such as "shortlived" for six days. Default:
    /// the authority's own. With an address in `hosts` and Let's Encrypt: "shortlived".
    pub profile: Option<At<String>>,
    /// A PEM file with the certificates that verify the authority's own server. Default: the
    /// authorities that this machine trusts.
    pub ca: Option<At<String>>,
    /// The directory for accounts, certificates and keys. Forebay creates it if it does not exist.
    /// Default: "/var/lib/forebay/acme".
    pub state: Option<At<String>>,
    /// The method that proves control of a host name. Default: each method that the listeners
    /// allow, in turn.
    pub challenge: Option<At<AcmeChallenge>>,
    /// dns-01: the program that creates and removes TXT records, with further arguments. Forebay
    /// adds "present" or "cleanup", the name of the record and its value, as the provider `exec` of
    /// lego does. The program runs as the user of Forebay.
    pub dns_hook: Option<At<OneOrMany<String>>>,
    /// dns-01: the time that Forebay waits after `dns_hook`. By then, all DNS servers of the zone
    /// must have the record, because the authority looks for it. Default: "10s".
    pub dns_wait: Option<Time>,
    /// An existing customer account at the authority (external account binding). Default: none.
    pub external_account: Option<At<ExternalAccount>>,
    /// Obtains a certificate for each host when a client first names the host, if your application
    /// permits it. Default: none.
    pub on_demand: Option<At<OnDemand>>,
}

/// A customer account at an authority. The authority issues `key_id` and `mac_key`.
#[derive(Debug, Default, Table)]
#[table(extend = json!({ "required": ["key_id", "mac_key"] }))]
pub struct ExternalAccount {
    /// The identifier of the key.
    pub key_id: Option<At<String>>,
    /// The key, in base64url.
    pub mac_key: Option<At<String>>,
}

/// The treatment of a client without a certificate.
#[derive(Clone, Copy, Debug, Choice)]
pub enum ClientAuth {
    /// A client without a certificate is refused.
    Require,
    /// A client without a certificate is served.
    Request,
}

/// Settings for TLS with https:// and tls:// servers.
#[derive(Debug, Default, Table)]
pub struct BackendTls {
    /// A PEM file with the certificates of the authorities that issue the servers' certificates.
    /// Default: the authorities that this machine trusts.
    pub ca: Option<At<String>>,
    /// The host name in the servers' certificates. Default: the host of their URL.
    pub server_name: Option<At<String>>,
    /// A PEM file with a client certificate to send to the servers. Default: none.
    pub client_certificate: Option<At<String>>,
    /// A PEM file with the private key of `client_certificate`.
    pub client_key: Option<At<String>>,
    /// Verifies the servers' certificates. With false, anyone on the network path can pose as the
    /// server. Default: true.
    pub verify: Option<At<bool>>,
}

/// Obtains the certificate of a host when a client first names the host. The configuration need not
/// list the hosts.
#[derive(Debug, Default, Table)]
pub struct OnDemand {
    /// The http:// or https:// URL at which your application permits or refuses a host name.
    /// Forebay adds "?domain=NAME". Only the status 200 permits a certificate; redirects are not
    /// followed. Default: permits each name in `hosts`, or found by `hosts_from`.
    pub ask: Option<At<String>>,
    /// A PEM file with the certificates of the authorities that issue the certificate of an
    /// https:// `ask`. Default: the authorities that this machine trusts.
    pub ca: Option<At<String>>,
    /// The largest number of certificate orders in a period, such as "100/h" or "10/m". Default:
    /// "100/h".
    pub rate: Option<At<Rate>>,
    /// The number of orders that may come earlier than `rate` allows. Default: 20.
    pub burst: Option<At<u32>>,
    /// The largest number of orders at the same time. Default: 4.
    pub concurrent: Option<At<usize>>,
    /// The longest wait of a handshake for its certificate. Default: "20s".
    pub wait: Option<Time>,
    /// The largest number of certificates in memory. Forebay reads others from `state` when a
    /// client names them. Default: 10000.
    pub certificates: Option<At<usize>>,
}
