//! Decides which route answers a request: one walk over the routes of a site, which serves
//! requests, explains them, and checks the `Destination` of WebDAV.
//!
//! The walk looks up files, but it sends nothing and waits for nothing. It yields steps, because
//! what happens between two steps differs: `serve` asks the gate of a route, while `explain`
//! describes it. The caller carries out each step and then asks for the next one.
//!
//! What leads to another path begins the walk again, as in nginx: a rewrite, `fallback_to`, or an
//! index that is a script. So the routes that answer the other path also protect it. What leads to
//! the same resource under another name, such as `/admin.php/x` for `/admin.php`, stays with its
//! route, and the rules of earlier routes for the other names apply ([`RouteFacts::names`]).

use std::borrow::Cow;
use std::rc::Rc;
use std::vec::IntoIter;

use forebay_conf::{EncodedSlashes, Matcher, Rewrite};
use forebay_net::fault::{Decline, Fault};
use forebay_net::head::{PathState, Request};

use crate::rewrite::{ambiguous_condition, fallback_path, rewrite_request, target};
use crate::route_index::RouteIndex;

/// Maximum number of times that one request begins the walk again, as for internal redirects.
const MAX_RESTARTS: usize = 10;

/// What the walk must know of a route.
#[derive(Default)]
pub struct RouteFacts {
    /// Selects the requests of the route.
    pub matcher: Matcher,
    /// True if the route admits only some clients.
    pub has_gate: bool,
    /// True if another server decides about the request by its path (`forward_auth`).
    pub asks_about_path: bool,
    pub instead: Instead,
    /// True if the route only redirects clients to other addresses.
    pub redirects: bool,
    /// True if only internal redirects may lead to the route.
    pub internal: bool,
    /// The path that the origin gets instead of the request's own path.
    pub rewrite: Option<Rewrite>,
    /// True if the route has no origin, and only rewrites the path. It does so once per request.
    pub only_rewrites: bool,
    /// True if the later routes are tried for a request that the origin declines.
    pub fallback: bool,
    /// Alternative to `fallback`: the new path of a declined request.
    pub fallback_to: Option<Rewrite>,
    /// Numbers of the later script routes that must not run the files that this route matches.
    pub keeps_from: Vec<usize>,
    /// Numbers of the earlier routes with the same origin. If one of them answers a path, it
    /// answers with what this route would answer.
    pub same_origin: Vec<usize>,
    /// Finds other names of the resources. `None` if no rule of an earlier route can match one.
    pub names: Option<Box<dyn OtherPaths>>,
    /// Finds the index of a directory.
    pub index: Option<Rc<dyn IndexFinder>>,
}

/// Kind of answer that a route gives instead of the resource that the path names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Instead {
    /// The answer is the named resource.
    #[default]
    No,
    /// A redirection, or a fixed reply with a status below 400.
    Answers,
    /// A fixed reply with an error status (400 or higher).
    Refuses,
}

/// Finds other paths for which an origin would answer with the requested resource.
pub trait OtherPaths {
    /// Returns the other paths of the resource that `request` names, such as `/admin.php` for
    /// `/admin.php/x`. Rules of earlier routes for these paths also apply to `request`. `second`
    /// is the current time in seconds. Returns a fault if the request must be refused.
    fn of<'r>(&self, request: &'r Request, second: u64) -> Result<Vec<OtherPath<'r>>, Fault>;
}

/// Another path of the requested resource, or several.
#[derive(Debug, PartialEq, Eq)]
pub struct OtherPath<'r> {
    /// The decoded, normalized path.
    pub path: Cow<'r, [u8]>,
    pub kind: OtherPathKind,
    /// True if the origin ignores upper and lower case in paths.
    pub ignores_case: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OtherPathKind {
    /// The file system shows that the origin answers with exactly this resource.
    Certain,
    /// A guess about a backend that Forebay cannot inspect.
    Guess,
    /// Guesses, too: each beginning of the path that looks like the name of a script. They are not
    /// listed, because a client can send thousands; [`Matcher::find_head`] looks for one.
    Heads,
}

/// Finds the file with another name with which a route answers: the index of a directory, or
/// `/about.html` for `/about`.
pub trait IndexFinder {
    fn index(&self, request: &Request, second: u64) -> Option<IndexPath>;
}

/// The index of the requested directory, or the file that has an extension more.
pub struct IndexPath {
    /// The path that names the index itself.
    pub path: Vec<u8>,
    /// True if the route never sends the index, because another route runs it.
    pub is_script: bool,
}

/// What the caller of [`Walk::next`] has to do. The numbers are those of routes.
#[derive(Debug)]
pub enum Step {
    /// The route has replaced the path that its origin gets.
    Rewritten,
    /// Ask the gate of this other route, which protects the resource under the name
    /// [`Walk::rule_name`]. With `is_internal`, the client would reach this name by an internal
    /// redirect.
    Gate { rule: usize, is_internal: bool },
    /// This earlier route answers instead of the resource. The request has the path that it takes.
    /// The next steps admit the request to this route, which cannot decline it.
    Instead(usize),
    /// Admit the request to the route: its own gate, its limits.
    Admit(Admission),
    /// The request has another path, and the walk begins again.
    Again(Lead),
    /// The origin of this route answers, or declines the request ([`Walk::declined`]).
    Answer(usize),
    /// No route answers.
    End(Fault),
}

/// How a request comes to a route.
#[derive(Clone, Copy, Debug)]
pub struct Admission {
    pub at: usize,
    /// True if the route's gate has admitted the request before, and is not asked again.
    pub is_asked: bool,
    /// True if the next step leads to another path. The route that takes it gets the body.
    pub leads: bool,
}

/// What has led to another path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lead {
    /// The index of a directory.
    Index,
    /// A file whose name has an extension more.
    Extension,
    Rewrite,
}

/// What follows after a route has declined a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Declined {
    /// The later routes are tried.
    Below,
    /// All routes are tried for the path of `fallback_to`, which the request now has.
    Again,
}

/// The purpose of a walk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Purpose {
    Request,
    /// To find out who would take a write to this path. A path that leads to another one is
    /// refused, because the backend would get the original one.
    Destination,
}

#[derive(Clone, Copy, Debug)]
enum State {
    Select,
    /// The rules of earlier routes are being applied.
    Rules,
    /// An earlier route answers instead.
    Instead,
    Admitted,
    Answering,
}

/// A walk over the routes of a site. Most requests take one route, and no rule of another applies:
/// what the other ones need is in `detour`.
pub struct Walk<'s, R> {
    routes: &'s [R],
    /// Leaves out routes whose paths do not match. `None`: all routes are tried.
    paths: Option<&'s RouteIndex>,
    encoded_slashes: EncodedSlashes,
    purpose: Purpose,
    state: State,
    /// The first route that has not been tried.
    from: usize,
    /// The route that takes the request. Before the first one: no number of a route.
    at: usize,
    /// Number of times that a route has taken the request, and the last such route. An earlier one
    /// may since answer instead.
    selections: (usize, usize),
    /// True if the route answers instead of another one.
    is_instead: bool,
    restarts: usize,
    detour: Option<Box<Detour>>,
}

#[derive(Default)]
struct Detour {
    /// The rule that is being applied: the number of its route, and the name that it protects.
    rule: Option<(usize, Vec<u8>)>,
    /// Rules that remain to be applied.
    rules: IntoIter<(usize, Vec<u8>)>,
    lead: Option<IndexPath>,
    declined: Option<Fault>,
    /// Routes that must not run the requested file.
    kept_from: Vec<usize>,
    /// Routes whose rewrite or `fallback_to` was followed. A request follows each of them once.
    taken: Vec<usize>,
    index: Option<IndexWalk>,
}

/// A walk over the routes before route `until`, for the path of the index file that this route
/// would send.
struct IndexWalk {
    until: usize,
    directory: PathState,
}

impl<'s, R: AsRef<RouteFacts>> Walk<'s, R> {
    pub fn new(routes: &'s [R], encoded_slashes: EncodedSlashes) -> Self {
        Self {
            routes,
            paths: None,
            encoded_slashes,
            purpose: Purpose::Request,
            state: State::Select,
            from: 0,
            at: usize::MAX,
            selections: (0, 0),
            is_instead: false,
            restarts: 0,
            detour: None,
        }
    }

    /// A walk for the `Destination` of a request.
    pub fn for_destination(routes: &'s [R], encoded_slashes: EncodedSlashes) -> Self {
        Self { purpose: Purpose::Destination, ..Self::new(routes, encoded_slashes) }
    }

    /// Tries only the routes that the index of `routes` names for a path.
    pub fn by_index(self, paths: &'s RouteIndex) -> Self {
        Self { paths: Some(paths), ..self }
    }

    /// Begins again with the first route, because the request has another path.
    pub fn restart(&mut self) {
        self.state = State::Select;
        self.from = 0;
        self.is_instead = false;
        if let Some(detour) = &mut self.detour {
            detour.declined = None;
            detour.kept_from.clear();
            detour.index = None;
        }
    }

    fn detour(&mut self) -> &mut Detour {
        self.detour.get_or_insert_default()
    }

    /// The route that answers as far as the walk has come, unless none has taken the request.
    pub fn route(&self) -> Option<&'s R> {
        self.routes.get(self.at)
    }

    /// The number of times that a route has taken the request, with the number of the last one.
    pub fn selections(&self) -> (usize, usize) {
        self.selections
    }

    fn facts(&self, number: usize) -> &'s RouteFacts {
        self.routes[number].as_ref()
    }

    /// The name under which the rule of the last [`Step::Gate`] protects the resource.
    pub fn rule_name(&self) -> &[u8] {
        let rule = self.detour.as_ref().and_then(|detour| detour.rule.as_ref());
        rule.map_or(b"", |(_, name)| name)
    }

    /// Returns the next step. Fails if the request must be refused; [`Walk::route`] refuses it.
    /// `second` is the current time in seconds.
    pub fn next(&mut self, request: &mut Request, second: u64) -> Result<Step, Fault> {
        match self.state {
            State::Select => self.select(request, second),
            State::Rules => self.apply_rules(request, second),
            State::Instead => {
                self.state = State::Admitted;
                Ok(Step::Admit(Admission { at: self.at, is_asked: true, leads: false }))
            }
            State::Admitted => self.admitted(request),
            // The caller could not carry out the answer, and has not said so.
            State::Answering => Ok(Step::End(no_route())),
        }
    }

    /// Lets the next route take the request.
    fn select(&mut self, request: &mut Request, second: u64) -> Result<Step, Fault> {
        let index = self.detour.as_ref().and_then(|detour| detour.index.as_ref());
        let until = index.map_or(self.routes.len(), |index| index.until);
        let mut from = self.from;
        while let Some(at) = self.candidate(&request.path, from, until) {
            from = at + 1;
            if request.take(&self.facts(at).matcher) && !self.leaves_out(at) {
                self.at = at;
                self.selections = (self.selections.0 + 1, at);
                return self.take(request, second);
            }
        }
        let detour = self.detour.as_mut();
        let Some(index) = detour.and_then(|detour| detour.index.take()) else {
            let declined = self.detour.as_mut().and_then(|detour| detour.declined.take());
            return Ok(Step::End(declined.unwrap_or_else(no_route)));
        };
        // No earlier route answers for the index file, so its own route sends it.
        (self.at, self.from, self.state) = (index.until, index.until + 1, State::Admitted);
        request.restore_path(index.directory);
        Ok(Step::Admit(Admission { at: self.at, is_asked: true, leads: false }))
    }

    /// True for a route that must not run the file, or that has rewritten the request before.
    fn leaves_out(&self, at: usize) -> bool {
        self.detour.as_ref().is_some_and(|detour| {
            detour.kept_from.contains(&at)
                || self.facts(at).only_rewrites && detour.taken.contains(&at)
        })
    }

    /// The first route of `from..until` that may match the path.
    fn candidate(&self, path: &[u8], from: usize, until: usize) -> Option<usize> {
        let next = self.paths.map_or(Some(from), |paths| paths.next(path, from));
        next.filter(|&at| at < until)
    }

    /// The routes of `from..until` that may match the path, in their order.
    fn candidates<'a>(
        &'a self,
        path: &'a [u8],
        from: usize,
        until: usize,
    ) -> impl Iterator<Item = usize> + 'a {
        let first = self.candidate(path, from, until);
        std::iter::successors(first, move |&at| self.candidate(path, at + 1, until))
    }

    /// Checks that the route may have the request, and finds the rules of other routes.
    fn take(&mut self, request: &mut Request, second: u64) -> Result<Step, Fault> {
        let (at, facts) = (self.at, self.facts(self.at));
        if !request.unmasked.is_empty() && self.is_ambiguous(request) {
            return Err(ambiguous_route());
        }
        self.check_slashes(facts, request)?;
        if request.is_doubtful(&facts.matcher) {
            return Err(ambiguous_condition());
        }
        // Check `internal` before the route's rewrite, which makes every request internal.
        if facts.internal && !request.is_internal {
            return Err(only_internal());
        }
        self.from = at + 1;
        self.state = State::Rules;
        if self.skips_redirect() {
            // But a gate of the redirect protects the file.
            let gate = facts.has_gate.then(|| (at, request.path.clone()));
            self.detour().rules = Vec::from_iter(gate).into_iter();
            return self.apply_rules(request, second);
        }
        let mut rules = Vec::new();
        let mut is_rewritten = false;
        if let Some(to) = facts.rewrite.as_ref().filter(|_| !facts.only_rewrites)
            && self.purpose == Purpose::Request
        {
            rules = self.rewrite_here(to, request)?;
            is_rewritten = true;
        }
        if let Some(names) = &facts.names {
            rules.extend(self.rules_for(&names.of(request, second)?, request));
        }
        let index = facts.index.as_ref();
        let lead = index.and_then(|index| self.find_lead(&**index, request, second));
        if self.detour.is_some() || !rules.is_empty() || lead.is_some() {
            let detour = self.detour();
            (detour.rules, detour.lead) = (rules.into_iter(), lead);
        }
        if is_rewritten { Ok(Step::Rewritten) } else { self.apply_rules(request, second) }
    }

    /// Refuses a path with a disguised slash before a server that decides by the path, because that
    /// server and the backend may read it differently.
    fn check_slashes(&self, facts: &RouteFacts, request: &Request) -> Result<(), Fault> {
        let is_doubtful = facts.asks_about_path
            && self.encoded_slashes != EncodedSlashes::Pass
            && request.has_hidden_slash();
        if !is_doubtful {
            return Ok(());
        }
        let why = "what decides about the path (`forward_auth`, `perl_gate`) may read an encoded \
                   slash or a backslash differently than the backend; encoded_slashes = \"pass\" for the site \
                   allows such paths";
        Err(Fault::client(404, why))
    }

    /// Returns true if the path `Request::unmasked` would select another route. In `unmasked`,
    /// `%2F`, `%5C` and `\` have become slashes, and repeated slashes have become one slash.
    fn is_ambiguous(&self, request: &Request) -> bool {
        self.select_unmasked(request, self.from, self.at + 1) != Some(self.at)
    }

    fn select_unmasked(&self, request: &Request, from: usize, until: usize) -> Option<usize> {
        let takes = |matcher: &Matcher| {
            matcher.matches(request.method(), &request.unmasked).is_some()
                && request.meets_when(matcher)
        };
        self.candidates(&request.unmasked, from, until)
            .find(|&number| takes(&self.facts(number).matcher))
    }

    /// Gives the request the path that the origin of the route gets. Returns the rule of the route
    /// that the new path would select: all of it if this route is an earlier one, else its gate.
    fn rewrite_here(
        &self,
        to: &Rewrite,
        request: &mut Request,
    ) -> Result<Vec<(usize, Vec<u8>)>, Fault> {
        rewrite_request(&target(to, request), request, self.encoded_slashes)?;
        let all = self.routes.len();
        let reached = self
            .candidates(&request.path, 0, all)
            .find(|&number| request.meets(&self.facts(number).matcher));
        if !request.unmasked.is_empty() && self.select_unmasked(request, 0, all) != reached {
            let why =
                "an encoded slash or a backslash in the rewritten path decides about its rules";
            return Err(Fault::client(404, why));
        }
        if reached.is_some_and(|number| request.is_doubtful(&self.facts(number).matcher)) {
            return Err(ambiguous_condition());
        }
        if !request.take(&self.facts(self.at).matcher) {
            // The route's pattern does not match the new path. So the route looks up the whole
            // path, without its leading slash.
            request.rest = request.path.len().min(1)..request.path.len();
        }
        let rule = reached.filter(|&number| number != self.at);
        Ok(rule.map(|number| (number, request.path.clone())).into_iter().collect())
    }

    /// The rules of earlier routes that protect the resource under another name, in the order of
    /// the routes, each with this name. A rule that matches the request's own path is left out,
    /// because the request has tried this route itself. The last one answers instead of the
    /// resource, if any does.
    fn rules_for(&self, names: &[OtherPath<'_>], request: &Request) -> Vec<(usize, Vec<u8>)> {
        let mut found = Vec::new();
        if names.is_empty() {
            return found;
        }
        let (method, same_origin) = (request.method(), &self.facts(self.at).same_origin);
        // Numbers of names by which an earlier route answers with the same resource. The routes
        // between that route and this one do not protect it there, so they do not here.
        let mut answered = Vec::new();
        for number in 0..self.at {
            let (rule, is_same) = (self.facts(number), same_origin.contains(&number));
            let effect = rule.effect_on(self.at);
            if effect.is_none() && !is_same || rule.matcher.matches(method, &request.path).is_some()
            {
                continue;
            }
            let open = names.iter().enumerate().filter(|(at, _)| !answered.contains(at));
            let applying = effect.and_then(|effect| {
                open.map(|(_, name)| name).find_map(|name| effect.applies(rule, method, name))
            });
            if let Some(name) = applying
                && request.meets_when(&rule.matcher)
            {
                found.push((number, name.to_vec()));
                if rule.instead != Instead::No {
                    break;
                }
            }
            if is_same {
                let is_certain = |name: &OtherPath<'_>| name.kind == OtherPathKind::Certain;
                let takes =
                    |name: &OtherPath<'_>| rule.matcher.matches(method, &name.path).is_some();
                let certain = names.iter().enumerate().filter(|(_, name)| is_certain(name));
                answered.extend(certain.filter(|(_, name)| takes(name)).map(|(at, _)| at));
            }
        }
        found
    }

    /// Returns the file with another name, if another route answers for it: a script, or a file whose
    /// own path an earlier route takes.
    fn find_lead(
        &self,
        finder: &dyn IndexFinder,
        request: &Request,
        second: u64,
    ) -> Option<IndexPath> {
        if self.purpose == Purpose::Destination {
            return None;
        }
        let index = finder.index(request, second)?;
        let takes = |number: usize| {
            let RouteFacts { matcher, redirects, has_gate, .. } = self.facts(number);
            (!redirects || *has_gate)
                && matcher.matches(request.method(), &index.path).is_some()
                && request.meets_when(matcher)
        };
        (index.is_script || (0..self.at).any(takes)).then_some(index)
    }

    /// True for a redirect during the walk for an index file. A redirect of `/index.html` to `/` is
    /// for clients that ask for `/index.html`, so it does not answer for `/`.
    fn skips_redirect(&self) -> bool {
        self.is_for_index() && self.facts(self.at).redirects
    }

    /// True during the walk for an index file.
    fn is_for_index(&self) -> bool {
        self.detour.as_ref().is_some_and(|detour| detour.index.is_some())
    }

    /// Applies the rules, up to one whose gate must be asked, or that answers.
    fn apply_rules(&mut self, request: &mut Request, second: u64) -> Result<Step, Fault> {
        while let Some(detour) = &mut self.detour {
            if let Some((rule, name)) = detour.rule.take() {
                let facts = self.facts(rule);
                if facts.keeps_from.contains(&self.at) {
                    return Err(kept_from_scripts());
                }
                // Only an earlier route answers in place of this one. After a rewrite, a rule may
                // come from a later route, of which only the gate applies.
                if facts.instead != Instead::No && rule < self.at {
                    request.reroute(name);
                    request.take(&facts.matcher);
                    (self.at, self.state, self.is_instead) = (rule, State::Instead, true);
                    self.detour().lead = None;
                    return Ok(Step::Instead(rule));
                }
            }
            let detour = self.detour();
            let Some((rule, name)) = detour.rules.next() else { break };
            let is_internal = is_index_of(&request.path, &name);
            detour.rule = Some((rule, name));
            if self.facts(rule).has_gate {
                self.check_slashes(self.facts(rule), request)?;
                return Ok(Step::Gate { rule, is_internal });
            }
        }
        if self.skips_redirect() {
            self.state = State::Select;
            return self.select(request, second);
        }
        self.state = State::Admitted;
        let has_lead = self.detour.as_ref().is_some_and(|detour| detour.lead.is_some());
        let leads = has_lead || self.facts(self.at).only_rewrites;
        Ok(Step::Admit(Admission { at: self.at, is_asked: false, leads }))
    }

    /// The route has admitted the request.
    fn admitted(&mut self, request: &mut Request) -> Result<Step, Fault> {
        let facts = self.facts(self.at);
        if let Some(to) = &facts.rewrite {
            if self.purpose == Purpose::Destination {
                // Forebay does not rewrite the Destination for the backend. So the backend would
                // write to the original path, but the gates would have checked the rewritten path.
                let why = "a route would rewrite the path of the Destination";
                return Err(Fault::client(403, why));
            }
            if facts.only_rewrites {
                let at = self.at;
                self.detour().taken.push(at);
                rewrite_request(&target(to, request), request, self.encoded_slashes)?;
                self.begin_again()?;
                return Ok(Step::Again(Lead::Rewrite));
            }
        }
        let lead = self.detour.as_mut().and_then(|detour| detour.lead.take());
        let Some(IndexPath { path, is_script }) = lead else {
            self.state = State::Answering;
            return Ok(Step::Answer(self.at));
        };
        let by = if request.path.ends_with(b"/") { Lead::Index } else { Lead::Extension };
        let directory = request.save_path();
        request.reroute(path);
        self.begin_again()?;
        if !is_script {
            let until = self.at;
            self.detour().index = Some(IndexWalk { until, directory });
        }
        Ok(Step::Again(by))
    }

    /// Continues after the origin of [`Step::Answer`] has declined the request. Returns the fault if
    /// no other route may answer.
    pub fn declined(&mut self, request: &mut Request, fault: Fault) -> Result<Declined, Fault> {
        let facts = self.facts(self.at);
        let taken = self.detour.as_ref().map_or(&[][..], |detour| &detour.taken);
        let is_new = |_: &&Rewrite| !taken.contains(&self.at);
        let fallback_to = facts.fallback_to.as_ref().filter(is_new);
        // A route for the suffix `.php` also matches the path `/x.php/y`. If the script `/x.php`
        // does not exist, later routes may answer.
        let is_for_below = fault.decline == Decline::Always
            || facts.fallback
            || facts.matcher.is_by_segment(&request.path)
            // The index file exists, so a route that misses it has another directory.
            || self.is_for_index() && fallback_to.is_some();
        let is_open = is_for_below || fallback_to.is_some();
        if !fault.is_declined() || self.is_instead || !is_open {
            return Err(fault);
        }
        if fault.is_kept_from_scripts {
            self.detour().kept_from.extend_from_slice(&facts.keeps_from);
        }
        let Some(to) = fallback_to.filter(|_| !is_for_below) else {
            self.detour().declined = Some(fault);
            self.state = State::Select;
            return Ok(Declined::Below);
        };
        let at = self.at;
        self.detour().taken.push(at);
        let target = target(to, request);
        if to.has_query {
            rewrite_request(&target, request, self.encoded_slashes)?;
        } else {
            request.reroute(fallback_path(&target)?);
        }
        self.begin_again()?;
        Ok(Declined::Again)
    }

    fn begin_again(&mut self) -> Result<(), Fault> {
        self.restarts += 1;
        if self.restarts > MAX_RESTARTS {
            let why = format!("more than {MAX_RESTARTS} internal redirects, one after the other");
            return Err(Fault::app(500, why));
        }
        self.restart();
        Ok(())
    }
}

/// Effect of an earlier route on requests that a later route answers. For example, the later route
/// answers `/admin.php/x` with the script `/admin.php`. If the earlier route protects `/admin.php`,
/// its gate also applies to `/admin.php/x`.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Effect {
    /// A redirection or a successful fixed reply protects nothing. So it need not apply to a path
    /// that is only a guess.
    Answers,
    Protects,
}

impl Effect {
    /// Returns the name, or the beginning of it, by which `rule` applies to a request.
    fn applies<'o>(
        self,
        rule: &RouteFacts,
        method: &[u8],
        name: &'o OtherPath<'_>,
    ) -> Option<&'o [u8]> {
        if self == Self::Answers && name.kind != OtherPathKind::Certain {
            return None;
        }
        if name.kind == OtherPathKind::Heads {
            return rule.matcher.find_head(method, &name.path, name.ignores_case);
        }
        rule.matcher.holds_for(method, &name.path, name.ignores_case).then_some(&name.path)
    }
}

impl AsRef<RouteFacts> for RouteFacts {
    fn as_ref(&self) -> &Self {
        self
    }
}

impl RouteFacts {
    fn effect_on(&self, below: usize) -> Option<Effect> {
        if self.has_gate || self.instead == Instead::Refuses || self.keeps_from.contains(&below) {
            return Some(Effect::Protects);
        }
        (self.instead == Instead::Answers).then_some(Effect::Answers)
    }

    /// Returns true if the route has `fallback` or `fallback_to`: another route answers a request
    /// that the origin declines.
    pub(crate) fn falls_back(&self) -> bool {
        self.fallback || self.fallback_to.is_some()
    }
}

/// Returns true if `other` is the path of an index file of the directory `path`.
fn is_index_of(path: &[u8], other: &[u8]) -> bool {
    let name = other.strip_prefix(path).filter(|_| path.ends_with(b"/"));
    name.is_some_and(|name| !name.is_empty() && !name.contains(&b'/'))
}

/// Returns the fault for a path such as `/a%2Fb`, `/a\b` or `/a//b`, if the path `/a/b` would
/// select another route. A backend may read the path as `/a/b`, so a client could bypass the gate
/// of a route.
fn ambiguous_route() -> Fault {
    Fault::client(
        404,
        "an encoded or repeated slash or a backslash in the path decides about the route",
    )
}

/// Returns the fault for a client's own request to a route with `internal`.
pub fn only_internal() -> Fault {
    Fault::client(404, "only internal redirects may lead to this route (`internal`)")
}

pub fn no_route() -> Fault {
    Fault::client(404, "no route takes this request")
}

/// Returns the fault for a script that must not run, because an earlier `files` route allows no
/// scripts in the script's directory.
pub fn kept_from_scripts() -> Fault {
    Fault::client(
        404,
        "a script in a directory of a `files` route above, which allows no scripts there",
    )
}
