//! Compares a request with the conditions of a route.

use std::borrow::Cow;

use forebay_conf::{Matcher, ValueTest, When};
use forebay_wire::cookies::cookies;
use forebay_wire::forms::{self, Dialect};
use forebay_wire::http1::host_of;

use crate::head::Request;

impl Request {
    /// Returns true if the request meets the conditions of a route. Does not check access rules.
    pub fn meets(&self, matcher: &Matcher) -> bool {
        matcher.matches(self.method(), &self.path).is_some() && self.meets_when(matcher)
    }

    /// Returns true if the request meets the conditions of the route's `when` table.
    pub fn meets_when(&self, matcher: &Matcher) -> bool {
        matcher.when.as_ref().is_none_or(|when| self.meets_all(when))
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

    /// Returns true if the request meets every condition in `when`.
    fn meets_all(&self, when: &When) -> bool {
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
            && when.query.iter().all(|(name, test)| self.meets_parameter(name, test))
            && when.variables.iter().all(|(name, test)| test.holds([self.variable(name)]))
            && when.certificate.as_ref().is_none_or(|test| {
                let subject = self.certificate_subject();
                test.holds((!subject.is_empty()).then_some(subject))
            })
            && when.not.as_ref().is_none_or(|not| !self.meets_all(not))
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

    fn meets_parameter(&self, name: &str, test: &ValueTest) -> bool {
        let pairs = forms::pairs(self.query().unwrap_or_default(), Dialect::Whatwg);
        let named = pairs.filter(|pair| forms::decode(pair.name)[..] == *name.as_bytes());
        test.holds(named.map(|pair| forms::decode(pair.value)))
    }
}
