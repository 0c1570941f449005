//! Tests of a site's rules (`expect`), decided without processes and connections.
//!
//! The answers are those of [`explain`](crate::explain::explain). A status that a process or a
//! backend chooses is not decided here: `check --start` sends the request.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use forebay_conf::{
    AccessLog, Action, Clients, Expectation, ExpectedAnswer, Finding, ForwardedFields, HostPattern,
    Listen, Plan, Route, Site, SocketAccess,
};

use crate::explain::{Answer, Question, explained};

/// A test of a site, with the request to send.
#[derive(Clone, Debug)]
pub struct Tested {
    /// The number of the site in the plan.
    pub site: usize,
    /// The number of the test in the site.
    pub number: usize,
    /// The method.
    pub method: String,
    /// Path and query.
    pub target: String,
    /// The `Host` field.
    pub host: String,
    /// The listener that gets the request.
    pub listen: Listen,
    /// The outcome, as far as it is known without a running origin.
    pub outcome: Outcome,
    /// The route that answers: its line and its kind.
    pub answered_by: String,
}

/// The outcome of a test.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The answer is the expected one.
    Holds,
    /// Only a running origin can decide the status.
    Undecided,
    /// The answer differs from the expected one. The text describes the answer.
    Fails(String),
}

/// Returns all tests of a plan with their outcomes.
pub fn expectations(plan: &Plan) -> Vec<Tested> {
    let sites = plan.sites.iter().enumerate();
    let tests = sites.flat_map(|(at, site)| {
        site.expect.iter().enumerate().map(move |(number, test)| tested(plan, at, number, test))
    });
    tests.collect()
}

/// Carries out one test of a site with `explain`, without a server.
fn tested(plan: &Plan, at: usize, number: usize, test: &Expectation) -> Tested {
    let site = &plan.sites[at];
    let (host, target, listen) = request(plan, site, test);
    let fields = [format!("Host: {host}")];
    let question = Question { url: &target, method: &test.method, fields: &fields, body: None };
    let (outcome, answered_by) = match explained(plan, &question, Some(&listen)) {
        Err(error) => (Outcome::Fails(error.to_string()), String::new()),
        Ok(explanation) => {
            let answer = explanation.answer;
            let route = answer.site.and_then(|site| {
                plan.sites[site].routes.get(answer.route?).map(|route| (&plan.sites[site], route))
            });
            let by = route.map(|(of, route)| shown(of, route)).unwrap_or_default();
            (judge(&test.answer, &answer, route.map(|(_, route)| route), &host), by)
        }
    };
    let (site, method) = (at, test.method.clone());
    Tested { site, number, method, target, host, listen, outcome, answered_by }
}

/// Returns host, target and listener of a test.
fn request(plan: &Plan, site: &Site, test: &Expectation) -> (String, String, Listen) {
    let is_stream = |listen: &&Listen| !listen.is_http3();
    let own = || site.listen.iter().filter(is_stream);
    let preferred = own().find(|listen| listen.is_https()).or_else(|| own().next());
    let preferred = preferred.unwrap_or(&site.listen[0]);
    let Some((scheme, rest)) =
        test.target.split_once("://").filter(|_| !test.target.starts_with('/'))
    else {
        return (host(site), test.target.clone(), preferred.clone());
    };
    let (authority, path) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
    let path = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
    let name = authority.rsplit_once(':').filter(|(_, port)| !port.ends_with(']'));
    let name = name.map_or(authority, |(name, _)| name);
    // Use a site whose `hosts` match the host in the test's URL. This may be another site than
    // `site`: for example, the key `www` creates a second site. If there is none, use `site`.
    let names = |other: &&Site| {
        other.hosts.iter().any(|host| *host != HostPattern::Any && host.matches(name))
    };
    let is_https = scheme == "https";
    let fits = |listen: &&Listen| is_stream(listen) && listen.is_https() == is_https;
    let mut sites = plan.sites.iter().map(AsRef::as_ref).filter(names).chain([site]);
    let listen = sites.find_map(|site| site.listen.iter().find(fits)).unwrap_or(preferred);
    (authority.to_owned(), path, listen.clone())
}

/// Returns the number of the test server's socket for requests to the host `name`: a position in
/// [`listeners`]. The requests use TLS if `is_https` is true. Returns `None` if the plan has no
/// listener for such requests.
pub fn socket_number(plan: &Plan, name: &str, is_https: bool) -> Option<usize> {
    let fits = |listen: &&Listen| !listen.is_http3() && listen.is_https() == is_https;
    let names = |site: &&Arc<Site>| {
        site.hosts.iter().any(|host| *host != HostPattern::Any && host.matches(name))
    };
    let mut sites = plan.sites.iter().filter(names).chain(&plan.sites);
    let listen = sites.find_map(|site| site.listen.iter().find(fits))?;
    listeners(plan).iter().position(|other| other == listen)
}

/// Returns a host name that selects the site.
fn host(site: &Site) -> String {
    let exact = site.hosts.iter().find_map(|host| match host {
        HostPattern::Exact(name) => Some(name.clone()),
        _ => None,
    });
    let any = site.hosts.iter().find_map(|host| match host {
        HostPattern::Suffix(suffix) => Some(format!("any{suffix}")),
        _ => None,
    });
    exact.or(any).unwrap_or_else(|| "localhost".into())
}

/// Returns the listeners of a plan, each once and without HTTP/3. In a server for tests, each of
/// them gets a Unix socket. The position in this list is the number of the socket.
pub fn listeners(plan: &Plan) -> Vec<Listen> {
    let mut all: Vec<Listen> = Vec::new();
    for listen in plan.sites.iter().flat_map(|site| &site.listen) {
        if !listen.is_http3() && !all.contains(listen) {
            all.push(listen.clone());
        }
    }
    all
}

/// Returns the path of a socket in a server for tests. `number` is a position in [`listeners`], and
/// `dir` is the directory of the sockets.
pub fn socket(dir: &Path, number: usize) -> PathBuf {
    dir.join(number.to_string())
}

/// Changes a plan so that it serves only tests, over Unix sockets in `dir`, without TLS, logs,
/// certificates and `admin`. A client sends `X-Forwarded-Proto: https` for a request that would use
/// TLS.
pub fn isolate(plan: &mut Plan, dir: &Path) {
    let all = listeners(plan);
    (plan.server.admin, plan.server.threads) = (None, Some(1));
    (plan.server.admin_hosts, plan.server.admin_token) = (Vec::new(), None);
    plan.server.store = None;
    // No load balancer sends clients here, so no delay is necessary.
    plan.server.drain_delay = Duration::ZERO;
    plan.log.access = AccessLog::Off;
    plan.log.others.clear();
    (plan.log.error, plan.log.traces, plan.log.metrics) = (None, None, None);
    plan.relays.clear();
    for site in plan.sites.iter_mut().map(Arc::make_mut) {
        site.log = None;
        site.routes.iter_mut().for_each(|route| route.own_log = None);
        let number = |listen: &Listen| all.iter().position(|other| other == listen);
        let numbers = site.listen.iter().filter_map(number);
        site.listen = numbers.map(|number| Listen::Unix(socket(dir, number))).collect();
        (site.tls, site.ajp, site.proxy_protocol) = (None, None, false);
        site.socket_access = SocketAccess::default();
        site.trusted_proxies = vec![Clients::Unix];
        site.proxy_lists.clear();
        site.forwarded = ForwardedFields::XForwarded;
    }
}

fn judge(expected: &ExpectedAnswer, answer: &Answer, route: Option<&Route>, host: &str) -> Outcome {
    match expected {
        ExpectedAnswer::Status(status, location) => match answer.sent_status() {
            None => Outcome::Undecided,
            Some(found) => {
                let expected = (*status, location.as_deref());
                judge_reply(expected, found, answer.location.as_deref(), host)
            }
        },
        ExpectedAnswer::Route(name) => {
            if route.and_then(|route| route.name.as_ref()) == Some(name) {
                Outcome::Holds
            } else {
                Outcome::Fails("another route answers".into())
            }
        }
        ExpectedAnswer::Kind(kind, app) => {
            let found = route.map(|route| kind_of(&route.action));
            let is_app = match (route.map(|route| &route.action), app) {
                (Some(Action::App(name)), Some(app)) => name == app,
                _ => true,
            };
            // The test fails if a route of the expected kind answers with an error status. For
            // example, an access rule refuses the request, or the file is missing.
            let own = |status: u16| matches!(route.map(|route| &route.action), Some(Action::Respond(respond)) if respond.status == status);
            let refused = answer.status.filter(|status| *status >= 400 && !own(*status));
            match (found == Some(*kind) && is_app, refused) {
                (true, None) => Outcome::Holds,
                (_, Some(status)) => Outcome::Fails(format!("the answer is {status}")),
                (false, None) => Outcome::Fails(match found {
                    Some(kind) => format!("a route with `{kind}` answers"),
                    None => "no route answers".into(),
                }),
            }
        }
    }
}

impl Tested {
    /// Compares the reply of a running origin with the expected status and `Location`. A test that
    /// expects a route or a kind of route keeps its outcome, because the reply does not show the
    /// route.
    pub fn judge(&self, plan: &Plan, status: u16, location: Option<&str>) -> Outcome {
        match &plan.sites[self.site].expect[self.number].answer {
            ExpectedAnswer::Status(expected, to) => {
                judge_reply((*expected, to.as_deref()), status, location, &self.host)
            }
            _ => self.outcome.clone(),
        }
    }

    /// Returns the finding for a test that fails.
    pub fn finding(&self, plan: &Plan, why: &str) -> Finding {
        let Self { site, number, method, target, host, answered_by, .. } = self;
        let by = if answered_by.is_empty() { String::new() } else { format!(": {answered_by}") };
        let typed_url = plan.sites[*site].expect[*number].target.contains("://");
        let host = if typed_url { host.as_str() } else { "" };
        Finding {
            key: vec!["site".into(), site.to_string(), "expect".into(), number.to_string()],
            message: format!("{method} {host}{target}: {why}{by}"),
            help: "`forebay explain FILE URL` shows each step; correct the rules, or the test"
                .into(),
        }
    }
}

/// Compares a status and a `Location` field with the expected ones. A `Location` on the same host
/// may be compared without scheme and host. Without an expected `Location`, every `Location` is
/// right.
fn judge_reply(
    (expected, to): (u16, Option<&str>),
    status: u16,
    location: Option<&str>,
    host: &str,
) -> Outcome {
    let leads_there = match (to, location) {
        (None, _) => true,
        (Some(to), Some(location)) => to == location || to == without_host(location, host),
        (Some(_), None) => false,
    };
    if status == expected && leads_there {
        Outcome::Holds
    } else {
        Outcome::Fails(match location {
            Some(location) => format!("the answer is {status} {location}"),
            None => format!("the answer is {status}"),
        })
    }
}

/// Returns the path of `location` if it is a URL on this host, else returns `location`.
fn without_host<'l>(location: &'l str, host: &str) -> &'l str {
    let rest = location.strip_prefix("http://").or_else(|| location.strip_prefix("https://"));
    let rest = rest.and_then(|rest| rest.strip_prefix(host));
    rest.filter(|rest| rest.starts_with('/')).unwrap_or(location)
}

/// Returns the route in words: its line, name and kind.
fn shown(site: &Site, route: &Route) -> String {
    let file = site.file.as_ref().map(|file| format!(" of {file}")).unwrap_or_default();
    let name = route.name.as_ref().map(|name| format!(", \"{name}\"")).unwrap_or_default();
    let kind = kind_of(&route.action);
    let app = match &route.action {
        Action::App(name) => format!(" {name}"),
        _ => String::new(),
    };
    format!("the route on line {}{file}{name} answers with `{kind}{app}`", route.line)
}

/// Returns the key that selects the action of a route, such as `files`.
fn kind_of(action: &Action) -> &'static str {
    match action {
        Action::Files(_) => "files",
        Action::Cgi(_) => "cgi",
        Action::Fastcgi(_) => "fastcgi",
        Action::AppServer(server) => forebay_upstream::app_server::name(server.protocol),
        Action::Ajp(_) => "ajp",
        Action::Proxy(_) => "proxy",
        Action::App(_) => "app",
        Action::Respond(_) => "respond",
        Action::Redirect(_) | Action::Moved(_) => "redirect",
        Action::Rewrite => "rewrite",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_expects_the_status_that_an_error_page_gives() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("page.html"), "{status}").unwrap();
        let page = |status: u16| format!("{{ file = \"page.html\", status = {status} }}");
        for (test, holds) in [
            ("/secret -> 404", true),
            ("/secret -> 403", false),
            ("/secret -> respond", false),
            ("/none -> 200", true),
            ("/gone -> 410", true),
        ] {
            let text = format!(
                "[[site]]\nlisten = 8080\nexpect = \"{test}\"\n\
                 error_pages = {{ 403 = {}, 404 = {}, 410 = {} }}\n\
                 [[site.route]]\npath = \"/secret\"\ndeny = \"all\"\nrespond = \"s\"\n\
                 [[site.route]]\npath = \"/gone\"\nrespond = {{ status = 410, body = \"x\" }}\n",
                page(404),
                page(200),
                page(404),
            );
            let plan = forebay_conf::parse(&text, "site.toml", dir.path())
                .unwrap_or_else(|error| panic!("{}", error.plain()));
            let tested = expectations(&plan);
            assert_eq!(tested[0].outcome == Outcome::Holds, holds, "{test}");
        }
    }
}
