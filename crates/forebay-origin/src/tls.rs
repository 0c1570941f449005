//! The TLS of a plan's sites and backends, read from its files before root is given up.

use std::collections::HashMap;
use std::sync::Arc;

use forebay_conf::{BackendTls, ConfError, Finding, Plan};
use forebay_engine::{ClientTls, ServerTls, TicketKeys, TlsError};

/// What the clients of each site are shown.
pub struct SiteTls {
    /// By site, in the order of the plan.
    pub(crate) sites: Vec<Option<Arc<ServerTls>>>,
    /// How backends are believed, by what the plan says of that.
    pub(crate) backends: HashMap<BackendTls, Arc<ClientTls>>,
    tickets: TicketKeys,
}

impl SiteTls {
    /// Reads the certificates and keys of `plan`; clients of `previous` may resume their sessions.
    pub fn load(plan: &Plan, previous: Option<&Self>) -> Result<Self, ConfError> {
        let tickets = match previous {
            Some(previous) => Ok(previous.tickets.clone()),
            None => TicketKeys::new(),
        };
        let tickets = tickets.map_err(|error| plan.refuse(&[finding(0, error)]))?;
        let (mut sites, mut wrong) = (Vec::new(), Vec::new());
        for (at, site) in plan.sites.iter().enumerate() {
            let loaded = site.tls.as_ref().map(|tls| ServerTls::load(tls, &tickets)).transpose();
            match loaded {
                Ok(tls) => sites.push(tls.map(Arc::new)),
                Err(error) => wrong.push(finding(at, error)),
            }
        }
        let mut backends = HashMap::new();
        for (key, tls) in of_backends(plan) {
            match ClientTls::load(tls) {
                Ok(loaded) => drop(backends.insert(tls.clone(), Arc::new(loaded))),
                Err(error) => wrong.push(finding_at(key, error)),
            }
        }
        if wrong.is_empty() {
            Ok(Self { sites, backends, tickets })
        } else {
            Err(plan.refuse(&wrong))
        }
    }

    /// What is doubtful about the certificates of `plan`, of which this was read.
    pub(crate) fn doubts(&self, plan: &Plan) -> Vec<Finding> {
        let sites = plan.sites.iter().zip(&self.sites).enumerate();
        let doubts = sites.filter_map(|(at, (site, tls))| {
            let doubt = tls.as_ref()?.doubts(site.tls.as_ref()?)?;
            Some(finding(at, doubt))
        });
        let unverified = of_backends(plan).filter(|(_, tls)| tls.is_unverified).map(|(key, _)| {
            let message = "WARNING: the certificates of these servers are not verified".into();
            let help = "anyone on the way to them can take their place: give `ca` instead".into();
            finding_at(key, TlsError { key: "verify", message, help })
        });
        doubts.chain(unverified).collect()
    }
}

/// What the plan says of backends that are spoken to by TLS, and the key that says it.
fn of_backends(plan: &Plan) -> impl Iterator<Item = (Vec<String>, &BackendTls)> {
    let routes = plan.sites.iter().enumerate().flat_map(|(site, of)| {
        of.routes.iter().enumerate().map(move |(at, route)| (site, at, route))
    });
    routes.filter_map(|(site, at, route)| {
        let upstream = route.action.upstream()?;
        let key = match &upstream.name {
            Some(name) => vec!["upstream".into(), name.clone()],
            None => ["site", &site.to_string(), "route", &at.to_string(), "proxy"]
                .map(str::to_owned)
                .into(),
        };
        upstream.to.iter().any(|backend| backend.https).then_some((key, &upstream.tls))
    })
}

fn finding_at(mut table: Vec<String>, TlsError { key, message, help }: TlsError) -> Finding {
    table.extend(["tls".to_owned(), key.to_owned()]);
    Finding { key: table, message, help }
}

/// Of the site numbered `site`.
fn finding(site: usize, error: TlsError) -> Finding {
    finding_at(vec!["site".into(), site.to_string()], error)
}
