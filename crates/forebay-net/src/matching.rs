//! Compares a request with the conditions of a route (`when`).

use std::borrow::Cow;

use forebay_conf::{Matcher, ValueTest, Variable, When};
use forebay_wire::aliases;
use forebay_wire::cookies::cookies;
use forebay_wire::forms::{self, Dialect, Pair};
use forebay_wire::http1::host_of;

use crate::head::{Request, is_alike};

impl Request {
    /// Returns true if the request meets the conditions of a route. Does not check access rules.
    pub fn meets(&self, matcher: &Matcher) -> bool {
        matcher.matches(self.method(), &self.path).is_some() && self.meets_when(matcher)
    }

    /// Returns true if the request meets the conditions of the route's `when` table.
    pub fn meets_when(&self, matcher: &Matcher) -> bool {
        matcher.when.as_ref().is_none_or(|when| self.meets_conditions(when))
    }

    /// Returns true if the request meets these conditions.
    pub fn meets_conditions(&self, when: &When) -> bool {
        self.meets_all(when, Readings::of(when))
    }

    /// Returns true if the route restricts access, and an application may read values that do not
    /// meet its conditions, although [`Self::take`] has returned true. Example: some applications
    /// read `a=1&a=2` as `a=2`, which does not meet `a = "1"`. The caller then refuses the request,
    /// because the request may belong to a stricter route. Returns false for a route that refuses
    /// all requests.
    pub fn is_doubtful(&self, matcher: &Matcher) -> bool {
        matcher.when.as_ref().is_some_and(|when| {
            when.is_rule && !when.refuses && !self.meets_all(when, Readings::All)
        })
    }

    /// Returns true if the request meets the conditions of the route. In this case, sets `rest`,
    /// and `captures` if the route has a regular expression.
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

    /// Returns true if the request meets every condition in `when`. `readings` says if one reading
    /// or every reading of the query and cookies must meet the conditions.
    fn meets_all(&self, when: &When, readings: Readings) -> bool {
        let method = self.method();
        let is_method =
            |typed: &String| typed.as_bytes() == method || typed == "GET" && method == b"HEAD";
        let is_https = when.https.is_none_or(|https| https == self.https);
        is_https
            && (when.methods.is_empty() || when.methods.iter().any(is_method))
            && (when.clients.is_empty()
                || when.clients.iter().any(|clients| clients.contains(self.client.ip())))
            && when.is_in_place(self.client.ip())
            && when.headers.iter().all(|(name, test)| self.meets_header(name, test))
            && when.cookies.iter().all(|(name, test)| self.meets_cookie(name, test, readings))
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

    /// Returns the spellings of the requested host that a condition may name. Example:
    /// `Example.com:80` -> `Example.com:80`, `example.com:80`, `example.com`.
    fn hosts(&self) -> impl Iterator<Item = Cow<'_, [u8]>> {
        let authority = self.head.authority.map(|span| span.of(&self.bytes));
        authority.into_iter().flat_map(|given| {
            let (lower, host) = (given.to_ascii_lowercase(), host_of(given).to_ascii_lowercase());
            [Cow::Borrowed(given), lower.into(), host.into()]
        })
    }

    /// Returns true if the cookies of this name meet the condition. The request may have several
    /// cookies of this name. It may also have cookies of other names that some applications read as
    /// cookies of this name.
    fn meets_cookie(&self, name: &str, test: &ValueTest, readings: Readings) -> bool {
        let lines = || {
            let fields = self.head.fields.iter();
            fields
                .filter(|field| field.name.of(&self.bytes).eq_ignore_ascii_case(b"cookie"))
                .map(|field| field.value.of(&self.bytes))
        };
        let named = NamedValues {
            exact: lines().flat_map(cookies).filter(|cookie| cookie.name == name.as_bytes()),
            possible: lines().flat_map(|line| aliases::cookies(line, name.as_bytes())),
            // Some applications read only one of several lines, and miss the cookies in the others.
            is_complete: lines().nth(1).is_none() && lines().all(aliases::has_clear_quotes),
        };
        named.meet(test, readings, |cookie| {
            let value = cookie.unquoted();
            // PHP and Perl decode values, and some servers keep the quotes. So compare all forms.
            let decoded = Some(forms::decode(value))
                .filter(|_| readings == Readings::Any || value.contains(&b'%'));
            let mut read = [Cow::Borrowed(value), cookie.value.into()].into_iter().chain(decoded);
            match readings {
                Readings::Any => test.holds(read),
                Readings::All => read.all(|value| test.holds([value])),
            }
        })
    }

    /// Returns true if the parameters of this name meet the condition. The query may have several
    /// parameters of this name. It may also have parameters of other names that some applications
    /// read as parameters of this name: PHP reads `a.b` as `a_b`.
    fn meets_parameter(&self, name: &str, test: &ValueTest, readings: Readings) -> bool {
        let query = self.query().unwrap_or_default();
        let is_exact = |pair: &Pair<'_>| forms::decode(pair.name)[..] == *name.as_bytes();
        let named = NamedValues {
            exact: forms::pairs(query, Dialect::Whatwg).filter(is_exact),
            possible: aliases::parameters(query, name.as_bytes()),
            is_complete: !aliases::has_too_many(query),
        };
        named.meet(test, readings, |pair| test.holds([forms::decode(pair.value)]))
    }
}

/// The values of a parameter or a cookie.
struct NamedValues<E, P> {
    /// Values with exactly this name.
    exact: E,
    /// Values that an application may read for this name. They may include those of `exact`.
    possible: P,
    /// True if all applications read all values. If false, some applications may find no value.
    is_complete: bool,
}

impl<E: Iterator, P: Iterator<Item = E::Item>> NamedValues<E, P> {
    /// Returns true if the values meet the condition `test`. `is_met` compares one value with
    /// `test`.
    fn meet(self, test: &ValueTest, readings: Readings, is_met: impl Fn(E::Item) -> bool) -> bool {
        let Self { mut exact, mut possible, is_complete } = self;
        match (test, readings) {
            (ValueTest::Present, Readings::Any) => {
                exact.next().is_some() || possible.next().is_some()
            }
            (ValueTest::Present, Readings::All) => exact.next().is_some() && is_complete,
            (ValueTest::Absent, Readings::Any) => exact.next().is_none() || !is_complete,
            (ValueTest::Absent, Readings::All) => {
                exact.next().is_none() && possible.next().is_none()
            }
            (ValueTest::OneOf(_), Readings::Any) => exact.chain(possible).any(is_met),
            (ValueTest::OneOf(_), Readings::All) => {
                let first = exact.next();
                first.is_some_and(&is_met) && exact.chain(possible).all(is_met) && is_complete
            }
        }
    }
}

/// The readings of a query or of cookies that must meet a condition. Different applications may
/// read other values: see `forebay_wire::aliases`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Readings {
    /// One reading must meet the condition.
    Any,
    /// All readings must meet the condition.
    All,
}

impl Readings {
    /// Returns the readings that count for the route of `when`. A route that restricts access takes
    /// a request if any reading of its query and cookies meets the conditions. All other routes
    /// take a request only if every reading meets the conditions.
    fn of(when: &When) -> Self {
        if when.is_rule { Self::Any } else { Self::All }
    }

    /// Returns the readings for the conditions in a `not` table. If every reading must meet `when`,
    /// no reading may meet its `not` table. So the caller checks if any reading meets that table.
    fn opposite(self) -> Self {
        match self {
            Self::Any => Self::All,
            Self::All => Self::Any,
        }
    }
}

// Values of a request as nginx computes them for its variables, for `variable` in `when`.
//
// The values differ from those of `header`, `cookie` and `query`: nothing is decoded, each variable
// has one value, and a missing value is empty.

impl Request {
    /// Returns the value of a variable.
    pub fn variable(&self, variable: &Variable) -> Cow<'_, [u8]> {
        match variable {
            Variable::RequestUri => self.original_target().into(),
            Variable::Args => self.query().unwrap_or_default().into(),
            Variable::Argument(name) => {
                first_argument(self.query().unwrap_or_default(), name.as_bytes()).into()
            }
            Variable::Field(name) => self.joined(name),
            Variable::Cookie(name) => {
                let cookie =
                    self.values_of("cookie").find_map(|line| cookie(line, name.as_bytes()));
                cookie.unwrap_or_default().into()
            }
        }
    }

    /// Returns the values of all fields with this name, joined as nginx does since version 1.23.
    /// Includes fields whose names a backend may mistake for `name`, such as `X_User` for `X-User`.
    fn joined(&self, name: &str) -> Cow<'_, [u8]> {
        if name.eq_ignore_ascii_case("host") {
            return self.head.authority.map_or(&b""[..], |span| span.of(&self.bytes)).into();
        }
        let separator = if name.eq_ignore_ascii_case("cookie") { &b"; "[..] } else { b", " };
        let mut values = self.values_of(name);
        let first = values.next().unwrap_or_default();
        let Some(second) = values.next() else { return first.into() };
        let mut all = first.to_vec();
        for value in std::iter::once(second).chain(values) {
            all.extend_from_slice(separator);
            all.extend_from_slice(value);
        }
        all.into()
    }

    fn values_of<'r>(&'r self, name: &str) -> impl Iterator<Item = &'r [u8]> {
        let fields = self.head.fields.iter();
        let named = fields.filter(move |field| is_alike(field.name.of(&self.bytes), name));
        named.map(|field| field.value.of(&self.bytes))
    }
}

/// Returns the value of the first parameter with this name. Ignores the case of the name. Skips
/// parameters without `=`. Returns an empty value if there is no such parameter.
fn first_argument<'q>(query: &'q [u8], name: &[u8]) -> &'q [u8] {
    let value = |pair: &'q [u8]| {
        let (start, rest) = pair.split_at_checked(name.len())?;
        rest.strip_prefix(b"=").filter(|_| start.eq_ignore_ascii_case(name))
    };
    query.split(|&b| b == b'&').find_map(value).unwrap_or_default()
}

/// Returns the value of the first cookie with this name. Ignores the case of the name. Returns
/// `None` if there is no such cookie.
fn cookie<'l>(line: &'l [u8], name: &[u8]) -> Option<&'l [u8]> {
    let value = |text: &'l [u8]| {
        let (start, rest) = text.split_at_checked(name.len())?;
        let value = without_spaces(rest).strip_prefix(b"=")?;
        start.eq_ignore_ascii_case(name).then(|| without_spaces(value))
    };
    let mut rest = line;
    loop {
        rest = without_spaces(rest);
        if let Some(value) = value(rest) {
            return value.split(|&b| b == b';').next();
        }
        // nginx searches for the next name after a comma, too.
        let at = rest.iter().position(|b| matches!(b, b';' | b','))?;
        rest = &rest[at + 1..];
    }
}

fn without_spaces(text: &[u8]) -> &[u8] {
    let count = text.iter().take_while(|&&b| b == b' ').count();
    &text[count..]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_argument_counts_and_is_not_decoded() {
        for (query, value) in [
            ("role=admin&role=user", "admin"),
            ("ROLE=a&role=b", "a"),
            ("xrole=a&role&role=%61+b", "%61+b"),
            ("rol%65=a", ""),
            ("role=", ""),
            ("role==a", "=a"),
            ("", ""),
        ] {
            assert_eq!(first_argument(query.as_bytes(), b"role"), value.as_bytes(), "{query}");
        }
    }

    #[test]
    fn the_first_cookie_counts_and_keeps_its_quotation_marks() {
        for (line, value) in [
            ("role=admin; role=user", Some("admin")),
            ("xrole=1;  ROLE = \"a\" ;b=2", Some("\"a\" ")),
            ("a=1,role=b", Some("b")),
            ("role; a=1", None),
            ("role=", Some("")),
            ("rol", None),
        ] {
            assert_eq!(cookie(line.as_bytes(), b"role"), value.map(str::as_bytes), "{line}");
        }
    }
}
