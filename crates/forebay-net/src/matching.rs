//! Compares a request with the conditions of a route.

use std::borrow::Cow;

use forebay_conf::{Matcher, ValueTest, When};
use forebay_wire::aliases;
use forebay_wire::cookies::cookies;
use forebay_wire::forms::{self, Dialect, Pair};
use forebay_wire::http1::host_of;

use crate::head::Request;

impl Request {
    /// Returns true if the request meets the conditions of a route. Does not check access rules.
    pub fn meets(&self, matcher: &Matcher) -> bool {
        matcher.matches(self.method(), &self.path).is_some() && self.meets_when(matcher)
    }

    /// Returns true if the request meets the conditions of the route's `when` table.
    pub fn meets_when(&self, matcher: &Matcher) -> bool {
        matcher.when.as_ref().is_none_or(|when| self.meets_all(when, Readings::of(when)))
    }

    /// Returns true if the route restricts access and takes the request in some readings of its
    /// query, but not in all. The caller then refuses the request, because the application may read
    /// it as one for a stricter route. Returns false for a route that refuses all requests that it
    /// takes.
    pub fn is_doubtful(&self, matcher: &Matcher) -> bool {
        matcher.when.as_ref().is_some_and(|when| {
            when.is_rule && !when.refuses && !self.meets_all(when, Readings::All)
        })
    }

    /// Sets `rest`, and `captures` if the route has a regular expression. Returns false if the
    /// request does not meet the conditions.
    pub fn take(&mut self, matcher: &Matcher) -> bool {
        let method = self.head.method.of(&self.bytes);
        let Some(found) = matcher.matches(method, &self.path) else { return false };
        let rest = self.path.len() - found.rest.len()..self.path.len();
        if !self.meets_when(matcher) {
            return false;
        }
        self.rest = rest;
        if let Some(regex) = &matcher.regex {
            regex.captures(&self.path, &mut self.captures.groups);
            self.captures.path.clone_from(&self.path);
        }
        true
    }

    /// Returns true if the request meets every condition in `when`, in these readings of its query.
    fn meets_all(&self, when: &When, readings: Readings) -> bool {
        let method = self.method();
        let is_method =
            |typed: &String| typed.as_bytes() == method || typed == "GET" && method == b"HEAD";
        let is_https = when.https.is_none_or(|https| https == self.https);
        is_https
            && (when.methods.is_empty() || when.methods.iter().any(is_method))
            && (when.clients.is_empty()
                || when.clients.iter().any(|clients| clients.contains(self.client.ip())))
            && when.headers.iter().all(|(name, test)| self.meets_header(name, test))
            && when.cookies.iter().all(|(name, test)| self.meets_cookie(name, test))
            && when.query.iter().all(|(name, test)| self.meets_parameter(name, test, readings))
            && when.variables.iter().all(|(name, test)| test.holds([self.variable(name)]))
            && when.certificate.as_ref().is_none_or(|test| {
                let subject = self.certificate_subject();
                test.holds((!subject.is_empty()).then_some(subject))
            })
            && when.not.as_ref().is_none_or(|not| !self.meets_all(not, readings.opposite()))
    }

    fn meets_header(&self, name: &str, test: &ValueTest) -> bool {
        // Use the authority, which is also set for an absolute target and over HTTP/2.
        if name.eq_ignore_ascii_case("host") {
            return test.holds(self.hosts());
        }
        let fields = self.head.fields.iter();
        test.holds(
            fields
                .filter(|field| field.name.of(&self.bytes).eq_ignore_ascii_case(name.as_bytes()))
                .map(|field| field.value.of(&self.bytes)),
        )
    }

    /// Returns the forms of the requested host that a condition may name: as the client sent it, in
    /// lower case, and without the port and the final dot.
    fn hosts(&self) -> impl Iterator<Item = Cow<'_, [u8]>> {
        let authority = self.head.authority.map(|span| span.of(&self.bytes));
        authority.into_iter().flat_map(|given| {
            let (lower, host) = (given.to_ascii_lowercase(), host_of(given).to_ascii_lowercase());
            [Cow::Borrowed(given), lower.into(), host.into()]
        })
    }

    fn meets_cookie(&self, name: &str, test: &ValueTest) -> bool {
        let fields = self.head.fields.iter();
        let lines = fields
            .filter(|field| field.name.of(&self.bytes).eq_ignore_ascii_case(b"cookie"))
            .flat_map(|field| cookies(field.value.of(&self.bytes)));
        let named = lines.filter(|cookie| cookie.name == name.as_bytes());
        test.holds(named.map(forebay_wire::cookies::Cookie::unquoted))
    }

    /// Returns true if the parameters of this name meet the condition. The query may have several
    /// of them, and also parameters that only some applications read as this name: PHP reads `a.b`
    /// as `a_b`.
    fn meets_parameter(&self, name: &str, test: &ValueTest, readings: Readings) -> bool {
        let query = self.query().unwrap_or_default();
        let is_exact = |pair: &Pair<'_>| forms::decode(pair.name)[..] == *name.as_bytes();
        let mut exact = forms::pairs(query, Dialect::Whatwg).filter(is_exact);
        let mut possible = aliases::parameters(query, name.as_bytes());
        // Some applications ignore the last parameters, so a parameter may be missing for them.
        let is_complete = || !aliases::has_too_many(query);
        let is_met = |pair: Pair<'_>| test.holds([forms::decode(pair.value)]);
        match (test, readings) {
            (ValueTest::Present, Readings::Any) => {
                exact.next().is_some() || possible.next().is_some()
            }
            (ValueTest::Present, Readings::All) => exact.next().is_some() && is_complete(),
            (ValueTest::Absent, Readings::Any) => exact.next().is_none() || !is_complete(),
            (ValueTest::Absent, Readings::All) => {
                exact.next().is_none() && possible.next().is_none()
            }
            (ValueTest::OneOf(_), Readings::Any) => exact.chain(possible).any(is_met),
            (ValueTest::OneOf(_), Readings::All) => {
                let first = exact.next();
                first.is_some_and(&is_met) && exact.chain(possible).all(is_met) && is_complete()
            }
        }
    }
}

/// Readings of a query, which may differ between applications: see `forebay_wire::aliases`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Readings {
    /// One reading must meet the condition.
    Any,
    /// All readings must meet the condition.
    All,
}

impl Readings {
    /// Returns the readings that count for the route of `when`. A route that restricts access takes
    /// a request if any reading of its query meets the conditions. Another route takes a request
    /// only if all readings meet them.
    fn of(when: &When) -> Self {
        if when.is_rule { Self::Any } else { Self::All }
    }

    /// Returns the readings for conditions within `not`.
    fn opposite(self) -> Self {
        match self {
            Self::Any => Self::All,
            Self::All => Self::Any,
        }
    }
}
