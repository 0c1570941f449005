//! The administrator's changes of backends and sites while Forebay serves.
//!
//! A change never touches a running group of backends. Forebay changes a copy of the plan, and the
//! copy replaces the running plan as in a reload. Groups and applications then keep their state.
//!
//! Changes stay in force over reloads, until they are undone or Forebay restarts. A reload drops a
//! change that no longer fits the configuration.

use std::collections::{BTreeMap, BTreeSet};
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
    /// Adds a change of a plan, and removes earlier changes that it replaces. Returns the change in
    /// words. Fails if the plan has no such backend or site, or if an earlier change would hide
    /// this one. For example, site `a.example` cannot be opened while `*` is closed.
    pub fn add(&mut self, change: &AdminChange, plan: &Plan) -> Result<String, Refused> {
        Ok(match change {
            AdminChange::Backend(change) => self.add_backend(change, plan)?,
            AdminChange::Maintenance(change) => self.add_site(change, plan)?,
            AdminChange::Reset => {
                *self = Self::default();
                "all changes of backends and sites are undone".to_owned()
            }
            AdminChange::Reload => "the configuration file was read again".to_owned(),
            AdminChange::Replace(_) => "the configuration was replaced by a text".to_owned(),
        })
    }

    fn add_site(&mut self, change: &MaintenanceChange, plan: &Plan) -> Result<String, Refused> {
        let site = change.site.to_ascii_lowercase();
        let named = |name: &str| {
            let sites = plan.sites.iter().enumerate();
            sites
                .filter(|(_, site)| is_named(site, name))
                .map(|(at, _)| at)
                .collect::<BTreeSet<_>>()
        };
        let sites = named(&site);
        if sites.is_empty() {
            return Err(unknown_site(plan, &site));
        }
        // The administrator may have closed the same site under another of its names.
        self.sites.retain(|name, _| {
            (name == "*" && site != "*") || *name != site && !named(name).is_subset(&sites)
        });
        if let Some(closed) = &change.closed {
            self.sites.insert(site.clone(), closed.clone());
            return Ok(closed_text(&site, closed));
        }
        if let Some(other) = self.sites.keys().find(|name| !named(name).is_disjoint(&sites)) {
            let why = format!("{site} is still closed, as a part of {other}; open {other} instead");
            return Err(Refused::new(409, why));
        }
        Ok(format!("site {site} is as configured"))
    }

    fn add_backend(&mut self, change: &BackendChange, plan: &Plan) -> Result<String, Refused> {
        let (upstream, address) = key_in(plan, change)?;
        if upstream.is_none() {
            // A change in all groups replaces earlier changes in single groups.
            for ((_, other), now) in &mut self.backends {
                if *other == address {
                    now.activation = now.activation.filter(|_| change.state.is_none());
                    now.weight = now.weight.filter(|_| change.weight.is_none());
                }
            }
        } else if let Some(all) = self.backends.get(&(None, address.clone())) {
            let keeps_state = change.state == Some(BackendState::Ready) && all.activation.is_some();
            if keeps_state || change.weight == Some(WeightChange::Default) && all.weight.is_some() {
                let why = format!(
                    "a change of {address} in all groups is in force; undo that one, without the \
                     name of a group"
                );
                return Err(Refused::new(409, why));
            }
        }
        let key = (upstream, address);
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
        self.backends.insert(key, now);
        self.backends.retain(|_, now| *now != BackendOverride::default());
        Ok(text)
    }

    /// Returns the changes that are in force, in words.
    pub fn texts(&self) -> Vec<String> {
        let backends = self.backends.iter().map(|(key, now)| backend_text(key, now));
        backends.chain(self.sites.iter().map(|(site, now)| closed_text(site, now))).collect()
    }

    /// Changes a plan. Fails if a change does not fit the plan.
    pub fn apply(&self, plan: &mut Plan) -> Result<(), Refused> {
        for (key, now) in &self.backends {
            apply_to_backend(plan, key, now)?;
        }
        self.sites.iter().for_each(|(site, closed)| close(plan, site, closed));
        Ok(())
    }

    /// Changes a plan, and drops each change that does not fit. Returns the reason for each dropped
    /// change.
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

/// Returns the address of a backend. `text` is this address, or a URL with this address.
fn address_of(text: &str) -> &str {
    let address = text.split_once("://").map_or(text, |(_, address)| address);
    address.trim_end_matches('/')
}

/// Returns the key of a backend: its group, and its address as `ctl status` shows it. The
/// administrator may type the address or the URL: both have the same key. If the typed name fits
/// several addresses, the key contains the typed name. Fails if the name fits no backend.
fn key_in(plan: &Plan, change: &BackendChange) -> Result<BackendKey, Refused> {
    let typed = (change.upstream.clone(), address_of(&change.backend).to_owned());
    let found = upstreams(plan).flat_map(|upstream| {
        let backends = upstream.to.iter();
        backends.filter(|backend| is_it(&plan.file, &typed, upstream, backend))
    });
    let shown: BTreeSet<_> =
        found.map(|backend| plan.file.hide(&backend.address.to_string())).collect();
    match (shown.len(), shown.into_iter().next()) {
        (1, Some(address)) => Ok((typed.0, address)),
        (_, Some(_)) => Ok(typed),
        (_, None) => Err(unknown_backend(plan, &typed)),
    }
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

/// Changes the backend `key` of a plan. If `key` names no group, changes the backend in every group
/// that contains it. Fails if a changed group then has no active backends, or only active backups.
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
        let routes = &mut Arc::make_mut(site).routes;
        routes.iter_mut().for_each(|route| route.maintenance = Some(maintenance.clone()));
    }
}

/// Returns the page of a closed site: the page of its `maintenance`, else its error page for 503 or
/// 5xx, else a page of Forebay.
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

    /// Adds a change and applies all, as the server does. Returns the changes and the plan, or the
    /// status of the refusal.
    fn change(
        overrides: &Overrides,
        change: &AdminChange,
        text: &str,
    ) -> Result<(Overrides, Plan), u16> {
        let (mut overrides, mut changed) = (overrides.clone(), plan(text));
        let added = overrides.add(change, &changed).and_then(|_| overrides.apply(&mut changed));
        added.map(|()| (overrides, changed)).map_err(|refused| refused.status)
    }

    #[test]
    fn a_group_keeps_a_server_for_new_clients() {
        let none = Overrides::default();
        let first = backend("http://10.0.0.1:80/", BackendState::Drain);
        let (overrides, changed) = change(&none, &first, TWO).unwrap();
        assert_eq!(states(&changed), [Activation::Disabled, Activation::Active]);
        let second = backend("10.0.0.2:80", BackendState::Down);
        assert_eq!(change(&overrides, &second, TWO).unwrap_err(), 409);
        let unknown = backend("10.0.0.3:80", BackendState::Ready);
        assert_eq!(change(&overrides, &unknown, TWO).unwrap_err(), 404);
        let undrain = backend("10.0.0.1:80", BackendState::Ready);
        assert_eq!(change(&overrides, &undrain, TWO).unwrap().0.texts(), [""; 0]);
    }

    #[test]
    fn a_change_that_is_undone_is_no_longer_in_force() {
        let of = |upstream: Option<&str>, backend: &str, state, weight| {
            let (upstream, backend) = (upstream.map(str::to_owned), backend.to_owned());
            AdminChange::Backend(BackendChange { backend, upstream, state, weight })
        };
        let (drain, ready) = (Some(BackendState::Drain), Some(BackendState::Ready));
        let none = Overrides::default();
        let two = TWO.replace("http://10.0.0.1:80", "http://10.0.0.1");
        // Without its port, the URL is another name of the same backend.
        let named = change(&none, &of(None, "http://10.0.0.1", drain, None), &two).unwrap().0;
        assert_eq!(named.texts(), ["backend 10.0.0.1:80 drains"]);
        let undrain = of(None, "10.0.0.1:80", ready, None);
        assert_eq!(change(&named, &undrain, &two).unwrap().0.texts(), [""; 0]);
        // A drained backend with another weight still drains.
        let weight = of(None, "10.0.0.1:80", None, Some(WeightChange::To(3)));
        let mut both = named.clone();
        let text = both.add(&weight, &plan(&two)).unwrap();
        assert_eq!(text, "backend 10.0.0.1:80 drains, weight 3");

        // A change of one group cannot undo a change of all groups. The reverse is possible.
        let in_shop = of(Some("shop"), "10.0.0.1:80", ready, None);
        assert_eq!(change(&named, &in_shop, &two).unwrap_err(), 409);
        let in_shop = of(Some("shop"), "10.0.0.1:80", drain, Some(WeightChange::To(2)));
        let of_group = change(&none, &in_shop, &two).unwrap().0;
        let (rest, changed) = change(&of_group, &undrain, &two).unwrap();
        assert_eq!(states(&changed), [Activation::Active; 2]);
        assert_eq!(
            rest.texts(),
            ["backend 10.0.0.1:80 of upstream shop is as configured, weight 2"]
        );
    }

    #[test]
    fn a_site_that_is_opened_is_open() {
        let two = TWO.replace("\"a.example\"", "\"a.example\", \"b.example\"");
        let two = format!(
            "{two}[[site]]\nlisten = \":80\"\nhosts = [\"c.example\"]\n[[site.route]]\nrespond = \"c\"\n"
        );
        let of = |site: &str, seconds: Option<u64>| {
            let closed = seconds.map(|seconds| ClosedSite {
                retry_after: std::time::Duration::from_secs(seconds),
                except: vec![],
            });
            AdminChange::Maintenance(MaintenanceChange { site: site.to_owned(), closed })
        };
        let closed = |plan: &Plan| {
            let of =
                |site: &Arc<Site>| Some(site.routes[0].maintenance.as_ref()?.retry_after.as_secs());
            plan.sites.iter().map(of).collect::<Vec<_>>()
        };
        let none = Overrides::default();
        let (overrides, _) = change(&none, &of("b.example", Some(5)), &two).unwrap();
        let (overrides, changed) = change(&overrides, &of("A.example", Some(9)), &two).unwrap();
        assert_eq!(closed(&changed), [Some(9), None]);
        let (open, changed) = change(&overrides, &of("b.example", None), &two).unwrap();
        assert_eq!((open.texts().len(), closed(&changed)), (0, vec![None, None]));
        let (all, changed) = change(&overrides, &of("*", Some(7)), &two).unwrap();
        assert_eq!(closed(&changed), [Some(7), Some(7)]);
        assert_eq!(change(&all, &of("c.example", None), &two).unwrap_err(), 409);
        let (open, changed) = change(&all, &of("*", None), &two).unwrap();
        assert_eq!((open.texts().len(), closed(&changed)), (0, vec![None, None]));
        assert_eq!(change(&none, &of("d.example", Some(5)), &two).unwrap_err(), 404);
    }

    #[test]
    fn a_reload_drops_only_what_does_not_fit() {
        let (mut overrides, before) = (Overrides::default(), TWO.replace("0.2:80", "0.9:80"));
        let before = plan(&before.replace("\"a.example\"", "\"a.example\", \"b.example\""));
        overrides.add(&backend("10.0.0.1:80", BackendState::Drain), &before).unwrap();
        overrides.add(&backend("10.0.0.9:80", BackendState::Drain), &before).unwrap();
        let closed = ClosedSite { retry_after: std::time::Duration::from_secs(5), except: vec![] };
        for site in ["a.example", "b.example"] {
            overrides.sites.insert(site.to_owned(), closed.clone());
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
