//! Values of a request as nginx computes them for its variables, for `variable` in `when`.
//!
//! The values differ from those of `header`, `cookie` and `query`: nothing is decoded, each variable
//! has one value, and a missing value is empty.

use std::borrow::Cow;

use forebay_conf::Variable;

use crate::head::{Request, is_alike};

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
