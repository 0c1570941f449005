//! TLS of a plan's sites and backends, read from files before root is given up.

use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use forebay_acme::{AskTls, Demanded, Manager, ManagerFront, Wanted};
use forebay_conf::{
    Acme, BackendTls, CertificateSource, ConfError, Finding, ForwardAuth, HostPattern, Listen,
    OnDemand, Plan, Tls, Upstream,
};
use forebay_net::log::ErrorLog;
use forebay_net::tls::{
    Challenges, ClientTls, DemandCertificates, ServerTls, SiteCertificate, SiteDemand, TicketKeys,
    TlsError,
};
use forebay_store::Store;

/// Certificates of all sites, and verification of all backends.
pub struct SiteTls {
    /// TLS configuration of each site, in the order of the plan.
    pub sites: Vec<Option<Arc<ServerTls>>>,
    /// TLS configuration of each stream, in the order of the plan.
    pub relays: Vec<Option<Arc<ServerTls>>>,
    /// TLS client configuration of each distinct set of backend settings.
    pub backends: HashMap<BackendTls, Arc<ClientTls>>,
    tickets: TicketKeys,
    /// Certificates that sites obtain with ACME.
    pub acme: Vec<Wanted>,
    /// Certificates that sites obtain when a client first names the host.
    pub on_demand: Vec<Demanded>,
}

impl SiteTls {
    /// Reads the certificates and keys of `plan`. Fails with an error for each certificate or key
    /// that cannot be used. Clients may resume TLS sessions of `previous`.
    pub fn load(plan: &Plan, previous: Option<&Self>) -> Result<Self, ConfError> {
        Self::find(plan, previous).map_err(|wrong| plan.refuse(&wrong))
    }

    /// As [`Self::load`], but the error is a list of findings.
    pub(crate) fn find(plan: &Plan, previous: Option<&Self>) -> Result<Self, Vec<Finding>> {
        let tickets = previous.map(|previous| previous.tickets.clone()).or_else(TicketKeys::new);
        let tickets = tickets.ok_or_else(|| {
            let message = "cannot create a key for session tickets".to_owned();
            let help = "check the system's random number generator".to_owned();
            vec![finding(0, TlsError { key: "certificate", message, help })]
        })?;
        let (mut sites, mut wrong) = (Vec::new(), Vec::new());
        let mut acme: Vec<Wanted> = Vec::new();
        let mut on_demand: Vec<Demanded> = Vec::new();
        let mut load = |tls: &Tls, names: &[HostPattern]| {
            let shown = match &tls.source {
                CertificateSource::Acme(by) => wanted(&mut acme, by, previous),
                CertificateSource::Files { .. }
                | CertificateSource::OnDemand(_)
                | CertificateSource::Missing => Arc::default(),
            };
            let loaded = ServerTls::load(tls, &tickets, shown)?;
            let CertificateSource::OnDemand(by) = &tls.source else { return Ok(loaded) };
            let certificates = demanded(&mut on_demand, by, previous);
            Ok(loaded.with_demand(SiteDemand { certificates, names: names.to_vec() }))
        };
        for (at, site) in plan.sites.iter().enumerate() {
            match site.tls.as_ref().map(|tls| load(tls, &site.hosts)).transpose() {
                Ok(tls) => sites.push(tls.map(Arc::new)),
                Err(error) => wrong.push(finding(at, error)),
            }
        }
        let mut relays = Vec::new();
        for (at, relay) in plan.relays.iter().enumerate() {
            match relay.tls.as_ref().map(|tls| load(tls, &[])).transpose() {
                Ok(tls) => relays.push(tls.map(|tls| Arc::new(tls.for_any_protocol()))),
                Err(error) => wrong.push(finding_at(place(at), error)),
            }
        }
        let mut backends = HashMap::new();
        for (key, tls) in of_backends(plan) {
            match ClientTls::load(tls) {
                Ok(loaded) => drop(backends.insert(tls.clone(), Arc::new(loaded))),
                Err(error) => wrong.push(finding_in(key, error)),
            }
        }
        if !wrong.is_empty() {
            return Err(wrong);
        }
        // `previous` shares these certificates. Change their settings only now, after all checks,
        // so that a refused configuration changes nothing.
        for demanded in &on_demand {
            let settings = demanded.settings.ask.as_ref().and_then(|ask| ask.tls.as_ref());
            demanded.tls.replace(settings.and_then(|tls| backends.get(tls).cloned()));
        }
        Ok(Self { sites, relays, backends, tickets, acme, on_demand })
    }

    /// Returns the keys of TLS session tickets, and the keys of QUIC tokens.
    pub fn tickets(&self) -> &TicketKeys {
        &self.tickets
    }

    /// Returns warnings about the certificates of `plan`, and about backends whose certificates are
    /// not verified. `self` was loaded from `plan`.
    pub fn doubts(&self, plan: &Plan) -> Vec<Finding> {
        let sites = plan.sites.iter().zip(&self.sites).enumerate();
        let doubts = sites.filter_map(|(at, (site, tls))| {
            let doubt = tls.as_ref()?.doubts(site.tls.as_ref()?)?;
            Some(finding(at, doubt))
        });
        let relays = plan.relays.iter().zip(&self.relays).enumerate();
        let of_relays = relays.filter_map(|(at, (relay, tls))| {
            let doubt = tls.as_ref()?.doubts(relay.tls.as_ref()?)?;
            Some(finding_at(place(at), doubt))
        });
        let unverified = of_backends(plan).filter(|(_, tls)| tls.is_unverified).map(|(key, _)| {
            let message = "WARNING: the certificates of these servers are not verified".into();
            let help = "an attacker in the network can impersonate them: set `ca` instead".into();
            finding_in(key, TlsError { key: "verify", message, help })
        });
        doubts.chain(of_relays).chain(unverified).chain(self.misnamed(plan)).collect()
    }

    /// Returns a warning for each site whose certificate file is for other names than its hosts.
    pub fn misnamed(&self, plan: &Plan) -> Vec<Finding> {
        let sites = plan.sites.iter().zip(&self.sites).enumerate();
        let found = sites.filter_map(|(at, (site, tls))| {
            let CertificateSource::Files { certificate, .. } = &site.tls.as_ref()?.source else {
                return None;
            };
            let names = tls.as_ref()?.certificate().names()?;
            let host = |host: &HostPattern| match host {
                HostPattern::Exact(name) => Some(name.clone()),
                HostPattern::Suffix(end) => Some(format!("*{end}")),
                HostPattern::Any => None,
            };
            let hosts: Vec<_> = site.hosts.iter().filter_map(host).collect();
            let is_other = |host: &&String| {
                host.parse::<IpAddr>().is_err() && !names.iter().any(|name| covers(name, host))
            };
            let others: Vec<&str> = hosts.iter().filter(is_other).map(String::as_str).collect();
            let others = (!others.is_empty()).then(|| others.join(", "))?;
            let path = certificate.display();
            let message = format!("WARNING: the certificate in {path} is not for {others}");
            let help = match &names[..] {
                [] => "browsers refuse it: it has no names (subjectAltName)".to_owned(),
                names => format!("browsers refuse it there: it is for {}", names.join(", ")),
            };
            Some(finding(at, TlsError { key: "certificate", message, help }))
        });
        found.collect()
    }
}

/// Returns true if a certificate for `name` is valid for `host` (RFC 9525): `*` stands for one label.
fn covers(name: &str, host: &str) -> bool {
    name.eq_ignore_ascii_case(host)
        || match (name.strip_prefix("*."), host.split_once('.')) {
            (Some(name), Some((_, rest))) => name.eq_ignore_ascii_case(rest),
            _ => false,
        }
}

/// Returns the certificate of a site with ACME. Sites of a plan that need the same certificate
/// share one value.
fn wanted(all: &mut Vec<Wanted>, by: &Acme, previous: Option<&SiteTls>) -> Arc<SiteCertificate> {
    if let Some(same) = all.iter().find(|wanted| wanted.acme.is_same_certificate(by)) {
        return same.certificate.clone();
    }
    let certificate = shown_by_acme(by, previous);
    all.push(Wanted { acme: by.clone(), certificate: certificate.clone() });
    certificate
}

/// Returns the certificates of a site that obtains them on demand. Sites of a plan with the same
/// settings share these certificates. A reload keeps certificates with unchanged settings.
fn demanded(
    all: &mut Vec<Demanded>,
    by: &OnDemand,
    previous: Option<&SiteTls>,
) -> Arc<DemandCertificates> {
    let of_previous = previous.iter().flat_map(|previous| &previous.on_demand);
    let same = |demanded: &&Demanded| demanded.settings == *by;
    if let Some(same) = all.iter().find(same) {
        return same.certificates.clone();
    }
    let demanded = of_previous.clone().find(same).cloned().unwrap_or_else(|| Demanded {
        settings: by.clone(),
        certificates: Arc::new(DemandCertificates::new(by.certificates, by.wait)),
        tls: AskTls::default(),
    });
    let certificates = demanded.certificates.clone();
    all.push(demanded);
    certificates
}

/// Returns the ACME certificate: the one in use, else the one saved on disk, else an empty one.
fn shown_by_acme(acme: &Acme, previous: Option<&SiteTls>) -> Arc<SiteCertificate> {
    let same = previous.and_then(|old| old.acme.iter().find(|wanted| wanted.acme == *acme));
    if let Some(wanted) = same {
        return wanted.certificate.clone();
    }
    let shown = Arc::<SiteCertificate>::default();
    if let Some(stored) = forebay_acme::load(acme) {
        // Ignore a saved certificate that is unusable, because ACME then obtains another one.
        let _ = shown.replace(stored.chain.as_bytes(), stored.key.as_bytes());
    }
    shown
}

/// Waits until the DNS records of unfinished orders were removed, but at most for 10 seconds. Call
/// this at the end of the process.
pub fn wait_for_records() {
    forebay_acme::wait_for_removal(Duration::from_secs(10));
}

/// The threads that obtain certificates, and the current challenges of authorities.
pub(crate) struct AcmeService {
    wanted: Vec<Acme>,
    on_demand: Vec<OnDemand>,
    /// The store that machines share.
    store: Option<Store>,
    managers: Arc<[Manager]>,
    pub challenges: Arc<Challenges>,
}

impl AcmeService {
    /// Asks the threads to end.
    pub fn stop(&self) {
        self.managers.iter().for_each(Manager::stop);
    }

    /// Starts the threads that sites need. Keeps the threads of `previous` if the sites need the
    /// same certificates from the same store as before. Returns `None` if no site obtains
    /// certificates.
    pub fn start(
        plan: &Plan,
        tls: &SiteTls,
        (errors, store): (&ErrorLog, Option<&Store>),
        previous: Option<&Self>,
    ) -> io::Result<Option<Self>> {
        if tls.acme.is_empty() && tls.on_demand.is_empty() {
            return Ok(None);
        }
        let wanted: Vec<_> = tls.acme.iter().map(|wanted| wanted.acme.clone()).collect();
        let on_demand: Vec<_> =
            tls.on_demand.iter().map(|demanded| demanded.settings.clone()).collect();
        let is_same = |previous: &&Self| {
            // A store with another password or key counts as another store.
            let is_same_store = match (&previous.store, store) {
                (Some(before), Some(store)) => before.is_same(store),
                (before, store) => before.is_none() && store.is_none(),
            };
            previous.wanted == wanted && previous.on_demand == on_demand && is_same_store
        };
        let kept = store.cloned();
        if let Some(previous) = previous.filter(is_same) {
            let (managers, challenges) = (previous.managers.clone(), previous.challenges.clone());
            return Ok(Some(Self { wanted, on_demand, store: kept, managers, challenges }));
        }
        let mut listeners = plan.sites.iter().flat_map(|site| &site.listen);
        let has_plain =
            listeners.any(|listen| !listen.is_https() && !matches!(listen, Listen::Ajp(_)));
        let challenges = match store {
            None => Arc::default(),
            Some(store) => forebay_acme::shared_challenges(store)?,
        };
        let front =
            ManagerFront { challenges: challenges.clone(), has_plain, store: store.cloned() };
        let mut managers = Vec::new();
        if !tls.acme.is_empty() {
            managers.push(Manager::start(tls.acme.clone(), front.clone(), errors.clone())?);
        }
        if !tls.on_demand.is_empty() {
            managers.push(Manager::start_on_demand(tls.on_demand.clone(), front, errors.clone())?);
        }
        Ok(Some(Self { wanted, on_demand, store: kept, managers: managers.into(), challenges }))
    }
}

/// Returns the TLS settings of all backends with TLS, of the servers in `ask` with TLS, and of the
/// collectors of traces and metrics. Each result has the path of its table in the configuration.
fn of_backends(plan: &Plan) -> impl Iterator<Item = (Vec<String>, &BackendTls)> {
    let routes = plan.sites.iter().enumerate().flat_map(|(site, of)| {
        of.routes.iter().enumerate().map(move |(at, route)| (site, at, route))
    });
    let of_routes = routes.flat_map(|(site, at, route)| {
        route.upstreams().map(move |upstream| {
            let is = |other: Option<&Arc<Upstream>>| {
                other.is_some_and(|other| Arc::ptr_eq(other, upstream))
            };
            let mirror = route.mirror.as_ref().map(|mirror| &mirror.proxy.upstream);
            let auth = route.access.forward_auth.as_ref().and_then(ForwardAuth::upstream);
            let key = match upstream {
                _ if is(route.action.upstream()) => "proxy",
                _ if is(mirror) => "mirror",
                _ if is(auth) => "forward_auth",
                _ => "jwt",
            };
            let table = ["site", &site.to_string(), "route", &at.to_string(), key, "tls"]
                .map(str::to_owned);
            (table.to_vec(), &**upstream)
        })
    });
    let of_relays = plan.relays.iter().enumerate().map(|(at, relay)| {
        let mut table = place(at);
        table.push("server_tls".into());
        (table, &*relay.upstream)
    });
    let of_questions = plan.sites.iter().enumerate().filter_map(|(at, site)| {
        let CertificateSource::OnDemand(by) = &site.tls.as_ref()?.source else { return None };
        let table = ["site", &at.to_string(), "tls", "acme", "on_demand"].map(str::to_owned);
        Some((table.to_vec(), by.ask.as_ref()?.tls.as_ref()?))
    });
    let of_upstreams = of_routes.chain(of_relays).filter_map(|(table, upstream)| {
        let table = match &upstream.name {
            Some(name) => vec!["upstream".into(), name.clone(), "tls".into()],
            None => table,
        };
        upstream.to.iter().any(|backend| backend.https).then_some((table, &upstream.tls))
    });
    let traces = plan.log.traces.iter().map(|traces| ("traces", &traces.collector));
    let metrics = plan.log.metrics.iter().map(|metrics| ("metrics", &metrics.collector));
    let of_collectors = traces.chain(metrics).filter_map(|(table, collector)| {
        Some((vec![table.into(), "tls".into()], collector.tls.as_ref()?))
    });
    of_upstreams.chain(of_questions).chain(of_collectors)
}

/// Returns the path of the table of stream number `relay` in the configuration.
fn place(relay: usize) -> Vec<String> {
    vec!["stream".into(), relay.to_string()]
}

/// Converts a TLS error of the table `tls` in the table `place` to a finding.
fn finding_at(mut place: Vec<String>, error: TlsError) -> Finding {
    place.push("tls".to_owned());
    finding_in(place, error)
}

/// Converts a TLS error to a finding about a key of the table `table`.
fn finding_in(mut table: Vec<String>, TlsError { key, message, help }: TlsError) -> Finding {
    table.push(key.to_owned());
    Finding { key: table, message, help }
}

/// Converts a TLS error of site number `site` to a finding.
fn finding(site: usize, error: TlsError) -> Finding {
    finding_at(vec!["site".into(), site.to_string()], error)
}
