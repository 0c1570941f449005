//! The administrator's changes of backends and sites while Forebay serves.
//!
//! A change never touches a running group of backends. It changes a copy of the plan, and the copy
//! replaces the running plan as a reload does. Groups and applications then keep their state.
//!
//! Changes stay in force over reloads, until they are undone or Forebay restarts. A reload drops a
//! change that no longer fits the configuration.

use std::collections::BTreeMap;
use std::sync::Arc;

use forebay_admin::{
    AdminChange, BackendChange, BackendState, ClosedSite, MaintenanceChange, Refused, WeightChange,
};
use forebay_conf::{
    Activation, Backend, HostPattern, Maintenance, Page, PageKind, Plan, Site, SourceFile,
    Statuses, Template, TemplatePart, Upstream,
};

/// A backend that a change names: its group, if the change names one, and its address.
type BackendKey = (Option<String>, String);

/// Changes of backends and sites that are in force.
#[derive(Clone, Debug, Default)]
pub struct Overrides {
    backends: BTreeMap<BackendKey, BackendOverride>,
    /// Closed sites, by the host name that the administrator gave.
    sites: BTreeMap<String, ClosedSite>,
}

/// Changed settings of a backend.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct BackendOverride {
    activation: Option<Activation>,
    weight: Option<u32>,
}

impl Overrides {
    /// Adds a change. Returns the change in words.
    pub fn add(&mut self, change: &AdminChange) -> String {
        match change {
            AdminChange::Backend(change) => self.add_backend(change),
            AdminChange::Maintenance(MaintenanceChange { site, closed }) => {
                let site = site.to_ascii_lowercase();
                match closed {
                    Some(closed) => {
                        let text = closed_text(&site, closed);
                        self.sites.insert(site, closed.clone());
                        text
                    }
                    None => {
                        let text = format!("site {site} is open");
                        self.sites.remove(&site);
                        text
                    }
                }
            }
            AdminChange::Reset => {
                *self = Self::default();
                "all changes of backends and sites are undone".to_owned()
            }
            AdminChange::Reload => "the configuration file was read again".to_owned(),
            AdminChange::Replace(_) => "the configuration was replaced by a text".to_owned(),
        }
    }

    fn add_backend(&mut self, change: &BackendChange) -> String {
        let key = (change.upstream.clone(), address_of(&change.backend).to_owned());
        let mut now = self.backends.get(&key).copied().unwrap_or_default();
        now.activation = match change.state {
            None => now.activation,
            Some(BackendState::Ready) => None,
            Some(BackendState::Drain) => Some(Activation::Disabled),
            Some(BackendState::Down) => Some(Activation::Stopped),
        };
        now.weight = match change.weight {
            None => now.weight,
            Some(WeightChange::Default) => None,
            Some(WeightChange::To(weight)) => Some(weight),
        };
        let text = backend_text(&key, &now);
        if now == BackendOverride::default() {
            self.backends.remove(&key);
        } else {
            self.backends.insert(key, now);
        }
        text
    }

    /// Returns the changes that are in force, in words.
    pub fn texts(&self) -> Vec<String> {
        let backends = self.backends.iter().map(|(key, now)| backend_text(key, now));
        backends.chain(self.sites.iter().map(|(site, now)| closed_text(site, now))).collect()
    }

    /// Changes a plan. Fails if `change` or an earlier change does not fit the plan.
    pub fn apply(&self, change: &AdminChange, plan: &mut Plan) -> Result<(), Refused> {
        // A change that only undoes another one must name an existing backend, too.
        if let AdminChange::Backend(change) = change {
            let key = (change.upstream.clone(), address_of(&change.backend).to_owned());
            if !has_backend(plan, &key) {
                return Err(unknown_backend(plan, &key));
            }
        }
        if let AdminChange::Maintenance(change) = change
            && !plan.sites.iter().any(|site| is_named(site, &change.site))
        {
            return Err(unknown_site(plan, &change.site));
        }
        for (key, now) in &self.backends {
            apply_to_backend(plan, key, now)?;
        }
        self.sites.iter().for_each(|(site, closed)| close(plan, site, closed));
        Ok(())
    }

    /// Changes a plan, and drops each change that does not fit. Returns the reasons.
    pub fn apply_fitting(&mut self, plan: &mut Plan) -> Vec<String> {
        let mut dropped = Vec::new();
        self.backends.retain(|key, now| {
            let before = plan.clone();
            let outcome = if has_backend(plan, key) {
                apply_to_backend(plan, key, now)
            } else {
                Err(unknown_backend(plan, key))
            };
            let Err(why) = outcome else { return true };
            *plan = before;
            dropped.push(format!("{}: {}", backend_text(key, now), why.message));
            false
        });
        self.sites.retain(|site, closed| {
            let is_known = plan.sites.iter().any(|one| is_named(one, site));
            if is_known {
                close(plan, site, closed);
            } else {
                let why = unknown_site(plan, site).message;
                dropped.push(format!("{}: {why}", closed_text(site, closed)));
            }
            is_known
        });
        dropped
    }
}

/// Returns the address in a URL or address of a backend.
fn address_of(text: &str) -> &str {
    let address = text.split_once("://").map_or(text, |(_, address)| address);
    address.trim_end_matches('/')
}

fn backend_text((upstream, address): &BackendKey, now: &BackendOverride) -> String {
    let of = upstream.as_ref().map(|name| format!(" of upstream {name}")).unwrap_or_default();
    let state = match now.activation {
        Some(Activation::Disabled) => "drains",
        Some(Activation::Stopped) => "gets no requests",
        Some(Activation::Active) | None => "is as configured",
    };
    let weight = now.weight.map(|weight| format!(", weight {weight}")).unwrap_or_default();
    format!("backend {address}{of} {state}{weight}")
}

fn closed_text(site: &str, closed: &ClosedSite) -> String {
    let except = if closed.except.is_empty() { "" } else { ", except for some clients" };
    format!("site {site} is closed, Retry-After {} s{except}", closed.retry_after.as_secs())
}

fn is_it(file: &SourceFile, key: &BackendKey, upstream: &Upstream, backend: &Backend) -> bool {
    let (name, address) = key;
    let own = backend.address.to_string();
    (name.is_none() || upstream.name == *name)
        && (own == *address || backend.authority == *address || file.hide(&own) == *address)
}

/// Returns the groups of a plan.
fn upstreams(plan: &Plan) -> impl Iterator<Item = &Arc<Upstream>> {
    let routes = plan.sites.iter().flat_map(|site| &site.routes);
    let of_routes = routes.flat_map(forebay_conf::Route::upstreams);
    of_routes.chain(plan.relays.iter().map(|relay| &relay.upstream))
}

fn has_backend(plan: &Plan, key: &BackendKey) -> bool {
    upstreams(plan)
        .any(|upstream| upstream.to.iter().any(|backend| is_it(&plan.file, key, upstream, backend)))
}

fn unknown_backend(plan: &Plan, (upstream, address): &BackendKey) -> Refused {
    let mut known: Vec<_> = upstreams(plan)
        .flat_map(|upstream| &upstream.to)
        .map(|backend| plan.file.hide(&backend.address.to_string()))
        .collect();
    known.sort();
    known.dedup();
    let of = upstream.as_ref().map(|name| format!(" in upstream {name}")).unwrap_or_default();
    let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
    Refused::new(404, format!("there is no backend {address}{of}; there are: {known}"))
}

/// Changes a backend in all groups of a plan that `key` names.
fn apply_to_backend(
    plan: &mut Plan,
    key: &BackendKey,
    now: &BackendOverride,
) -> Result<(), Refused> {
    let file = plan.file.clone();
    let mut emptied = None;
    plan.change_upstreams(&mut |upstream| {
        let found: Vec<_> = (0..upstream.to.len())
            .filter(|&at| is_it(&file, key, upstream, &upstream.to[at]))
            .collect();
        for &at in &found {
            let backend = &mut upstream.to[at];
            backend.activation = now.activation.unwrap_or(backend.activation);
            backend.weight = now.weight.unwrap_or(backend.weight);
        }
        let serves =
            |backend: &Backend| backend.activation == Activation::Active && !backend.backup;
        if !found.is_empty() && !upstream.to.iter().any(serves) {
            emptied = Some(upstream.name.clone());
        }
    });
    let Some(name) = emptied else { return Ok(()) };
    let (of, next) = match name {
        Some(name) => (format!("upstream {name}"), ""),
        None => ("a route".to_owned(), " (or name the group with `upstream`)"),
    };
    Err(Refused::new(
        409,
        format!(
            "{} is the last server of {of} that takes new clients; add another one first, or close \
             the site with maintenance{next}",
            key.1
        ),
    ))
}

fn unknown_site(plan: &Plan, name: &str) -> Refused {
    let mut known: Vec<_> = plan.sites.iter().flat_map(|site| &site.hosts).map(host).collect();
    known.push("*".to_owned());
    known.sort();
    known.dedup();
    Refused::new(404, format!("there is no site {name}; there are: {}", known.join(", ")))
}

/// Returns a host name as it is typed in `hosts`.
pub fn host(pattern: &HostPattern) -> String {
    match pattern {
        HostPattern::Exact(name) => name.clone(),
        HostPattern::Suffix(suffix) => format!("*{suffix}"),
        HostPattern::Any => "*".to_owned(),
    }
}

/// Returns true if `name` means this site. `*` means every site.
fn is_named(site: &Site, name: &str) -> bool {
    name == "*" || site.hosts.iter().any(|pattern| host(pattern).eq_ignore_ascii_case(name))
}

/// Closes the sites that `name` means.
fn close(plan: &mut Plan, name: &str, closed: &ClosedSite) {
    for site in plan.sites.iter_mut().filter(|site| is_named(site, name)) {
        let page = page(site);
        let maintenance = Arc::new(Maintenance {
            page,
            retry_after: closed.retry_after,
            except: closed.except.clone(),
            while_exists: None,
        });
        site.routes.iter_mut().for_each(|route| route.maintenance = Some(maintenance.clone()));
    }
}

/// Returns the page of a closed site: that of its `maintenance`, else that of status 503.
fn page(site: &Site) -> Arc<Page> {
    let own = site.routes.iter().find_map(|route| route.maintenance.as_ref());
    let of_status = |wanted: Statuses| {
        let pages = &site.error_pages.pages;
        pages.iter().find(|(statuses, _)| *statuses == wanted).map(|(_, page)| page.clone())
    };
    own.map(|maintenance| maintenance.page.clone())
        .or_else(|| of_status(Statuses::One(503)))
        .or_else(|| of_status(Statuses::Class(5)))
        .unwrap_or_else(|| {
            let text = "<!DOCTYPE html>\n<html lang=\"en\"><meta charset=\"utf-8\">\
                        <title>Maintenance</title>\n<h1>Closed for maintenance</h1>\n\
                        <p>Please try again later.</p>\n</html>\n";
            let text = Template::of(vec![TemplatePart::Text(text.to_owned())]);
            Arc::new(Page {
                file: std::path::PathBuf::new(),
                text,
                kind: PageKind::Html,
                status: None,
            })
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(text: &str) -> Plan {
        forebay_conf::parse(text, "site.toml", std::path::Path::new("/")).unwrap()
    }

    const TWO: &str = "[upstream.shop]\nto = [\"http://10.0.0.1:80\", \"http://10.0.0.2:80\"]\n[[site]]\n\
        listen = \":80\"\nhosts = [\"a.example\"]\n[[site.route]]\nproxy = { to = \"@shop\" }\n";

    fn backend(address: &str, state: BackendState) -> AdminChange {
        let backend = address.to_owned();
        let (upstream, state, weight) = (None, Some(state), None);
        AdminChange::Backend(BackendChange { backend, upstream, state, weight })
    }

    fn states(plan: &Plan) -> Vec<Activation> {
        let upstream = plan.sites[0].routes[0].action.upstream().unwrap();
        upstream.to.iter().map(|backend| backend.activation).collect()
    }

    #[test]
    fn a_group_keeps_a_server_for_new_clients() {
        let mut overrides = Overrides::default();
        let first = backend("http://10.0.0.1:80/", BackendState::Drain);
        overrides.add(&first);
        let mut changed = plan(TWO);
        overrides.apply(&first, &mut changed).unwrap();
        assert_eq!(states(&changed), [Activation::Disabled, Activation::Active]);
        let second = backend("10.0.0.2:80", BackendState::Down);
        let mut both = overrides.clone();
        both.add(&second);
        assert_eq!(both.apply(&second, &mut plan(TWO)).unwrap_err().status, 409);
        let unknown = backend("10.0.0.3:80", BackendState::Ready);
        assert_eq!(overrides.apply(&unknown, &mut plan(TWO)).unwrap_err().status, 404);
        overrides.add(&backend("10.0.0.1:80", BackendState::Ready));
        assert_eq!(overrides.texts(), [""; 0]);
    }

    #[test]
    fn a_reload_drops_only_what_does_not_fit() {
        let mut overrides = Overrides::default();
        overrides.add(&backend("10.0.0.1:80", BackendState::Drain));
        overrides.add(&backend("10.0.0.9:80", BackendState::Drain));
        let closed = ClosedSite { retry_after: std::time::Duration::from_secs(5), except: vec![] };
        for site in ["a.example", "b.example"] {
            let closed = Some(closed.clone());
            let change = MaintenanceChange { site: site.to_owned(), closed };
            overrides.add(&AdminChange::Maintenance(change));
        }
        let mut changed = plan(TWO);
        let dropped = overrides.apply_fitting(&mut changed);
        assert_eq!(dropped.len(), 2, "{dropped:?}");
        assert_eq!(overrides.texts().len(), 2);
        assert_eq!(states(&changed)[0], Activation::Disabled);
        assert!(changed.sites[0].routes[0].maintenance.is_some());
        // Without the other server, the first one must serve.
        let one = TWO.replace(", \"http://10.0.0.2:80\"", "");
        assert_eq!(overrides.apply_fitting(&mut plan(&one)).len(), 1);
    }
}
