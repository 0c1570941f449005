//! Certificates for the status of a server.

use forebay_admin::CertificateRow;
use forebay_conf::{CertificateSource, HostPattern, Plan, Tls};
use forebay_net::tls::ServerTls;

use crate::overrides::host;
use crate::tls::SiteTls;

/// Returns the certificate of each site and stream with TLS.
pub(super) fn rows(plan: &Plan, loaded: &SiteTls) -> Vec<CertificateRow> {
    let row = |names: &[HostPattern], tls: &Tls, of: &ServerTls| CertificateRow {
        names: names.iter().map(host).collect(),
        source: match &tls.source {
            CertificateSource::Files { certificate, .. } => {
                plan.file.hide(&certificate.display().to_string())
            }
            CertificateSource::Missing => "none".to_owned(),
            CertificateSource::Acme(_) => "ACME".to_owned(),
            CertificateSource::OnDemand(_) => "ACME on demand".to_owned(),
        },
        validity: of.certificate().validity(),
        renewal: of.certificate().renewal(),
    };
    let sites = plan
        .sites
        .iter()
        .zip(&loaded.sites)
        .filter_map(|(site, of)| Some(row(&site.hosts, site.tls.as_ref()?, of.as_ref()?)));
    let relays = plan
        .relays
        .iter()
        .zip(&loaded.relays)
        .filter_map(|(relay, of)| Some(row(&relay.sni, relay.tls.as_ref()?, of.as_ref()?)));
    sites.chain(relays).collect()
}
