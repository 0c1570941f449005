//! The TLS of a plan's sites, read from its files before root is given up.

use std::sync::Arc;

use forebay_conf::{ConfError, Finding, Plan};
use forebay_engine::{ServerTls, Tickets, TlsError};

/// What the clients of each site are shown.
pub struct SiteTls {
    /// By site, in the order of the plan.
    pub(crate) sites: Vec<Option<Arc<ServerTls>>>,
    tickets: Tickets,
}

impl SiteTls {
    /// Reads the certificates and keys of `plan`; clients of `previous` may resume their sessions.
    pub fn load(plan: &Plan, previous: Option<&Self>) -> Result<Self, ConfError> {
        let tickets = match previous {
            Some(previous) => Ok(previous.tickets.clone()),
            None => Tickets::new(),
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
        if wrong.is_empty() { Ok(Self { sites, tickets }) } else { Err(plan.refuse(&wrong)) }
    }

    /// What is doubtful about the certificates of `plan`, of which this was read.
    pub(crate) fn doubts(&self, plan: &Plan) -> Vec<Finding> {
        let sites = plan.sites.iter().zip(&self.sites).enumerate();
        let doubts = sites.filter_map(|(at, (site, tls))| {
            let doubt = tls.as_ref()?.doubts(site.tls.as_ref()?)?;
            Some(finding(at, doubt))
        });
        doubts.collect()
    }
}

/// Of the site numbered `site`.
fn finding(site: usize, TlsError { key, message, help }: TlsError) -> Finding {
    let key = ["site", &site.to_string(), "tls", key].map(str::to_owned).into();
    Finding { key, message, help }
}
