//! Resolves `when`, conditions of a route.

use std::collections::BTreeMap;

use super::peer::clients;
use super::value::{is_token, method, no_control};
use super::{Context, Resolution};
use crate::error::Problem;
use crate::file::{self, At, OneOrMany, Values};
use crate::key::regex;
use crate::plan::{Places, ValuePattern, ValueTest, Variable, When};

pub(super) fn when(context: &Context<'_>, typed: &At<file::When>) -> Resolution<When> {
    conditions(context, typed, true)
}

/// Checks the conditions of `when`. They may contain `not`, but not within another `not`.
fn conditions(context: &Context<'_>, typed: &At<file::When>, may_negate: bool) -> Resolution<When> {
    let list = |typed: &Option<At<OneOrMany<String>>>| {
        let Some(at) = typed else { return Ok(Vec::new()) };
        match at.items() {
            items if items.is_empty() => Err(empty(&at.span)),
            items => Ok(items.into_iter().map(|item| item.with(item.value.clone())).collect()),
        }
    };
    let not = match &typed.not {
        Some(at) if !may_negate => {
            return Err(Problem::new(&at.span, "`not` within `not`")
                .help("write the conditions without either"));
        }
        Some(at) => Some(Box::new(conditions(context, at, false)?)),
        None => None,
    };
    let methods: Vec<At<String>> = list(&typed.method)?;
    let addresses: Vec<At<String>> = list(&typed.client)?;
    let when = When {
        methods: methods.iter().map(|at| method(&at.with(&at.value))).collect::<Resolution<_>>()?,
        headers: tests(&typed.header, "header")?,
        cookies: tests(&typed.cookie, "cookie")?,
        query: tests(&typed.query, "parameter")?,
        clients: addresses.iter().map(clients).collect::<Resolution<_>>()?,
        places: places(context, typed)?,
        https: typed.scheme.as_ref().map(|at| matches!(at.value, file::Scheme::Https)),
        certificate: typed.client_certificate.as_ref().map(test).transpose()?,
        variables: typed.variable.iter().map(variable).collect::<Resolution<_>>()?,
        not,
        // The function `route` sets these two values, because they depend on other keys of the
        // route.
        is_rule: false,
        refuses: false,
    };
    if when == When::default() {
        return Err(Problem::new(&typed.span, "there is no condition here")
            .help("name one, such as method = \"GET\", or leave the key out"));
    }
    Ok(when)
}

/// Checks `country` and `asn`. Returns `None` if both are missing.
fn places(context: &Context<'_>, typed: &file::When) -> Resolution<Option<Places>> {
    let country = typed.country.as_ref().map(|at| &at.span);
    let Some(span) = country.or(typed.asn.as_ref().map(|at| &at.span)) else { return Ok(None) };
    let code = |at: &At<&String>| {
        let code: Option<[u8; 2]> = at.value.to_ascii_uppercase().as_bytes().try_into().ok();
        code.filter(|code| code.iter().all(u8::is_ascii_uppercase)).ok_or_else(|| {
            Problem::new(&at.span, format!("\"{}\" is not the code of a country", at.value))
                .help("write two letters, such as \"DE\"")
        })
    };
    let countries = typed.country.as_ref().map(At::items);
    let asns = typed.asn.as_ref().map(At::items);
    if countries.as_ref().is_some_and(Vec::is_empty) || asns.as_ref().is_some_and(Vec::is_empty) {
        return Err(empty(span));
    }
    let geo = context.scope.geo.cloned().ok_or_else(|| {
        Problem::new(span, "no database knows where clients are")
            .help("name one in [server]: geo = \"GeoLite2-Country.mmdb\"")
    })?;
    Ok(Some(Places {
        geo,
        countries: countries.unwrap_or_default().iter().map(code).collect::<Resolution<_>>()?,
        asns: asns.unwrap_or_default().iter().map(|at| *at.value).collect(),
    }))
}

fn tests(typed: &BTreeMap<String, At<Values>>, what: &str) -> Resolution<Vec<(String, ValueTest)>> {
    let one = |(name, at): (&String, &At<Values>)| {
        if what != "parameter" && !is_token(name) {
            return Err(Problem::new(
                &at.span,
                format!("\"{name}\" cannot be the name of a {what}"),
            )
            .help("a name is letters, digits and hyphens"));
        }
        Ok((name.clone(), test(at)?))
    };
    typed.iter().map(one).collect()
}

fn variable((name, at): (&String, &At<Values>)) -> Resolution<(Variable, ValueTest)> {
    let variable = Variable::of(name).ok_or_else(|| {
        Problem::new(&at.span, format!("there is no variable \"{name}\"")).help(
            "name request_uri, args, arg_NAME, cookie_NAME or http_NAME, in lower case and without $; \
             NAME is letters, digits, `_` and `-`",
        )
    })?;
    if let Values::Any(_) = at.value {
        return Err(Problem::new(&at.span, "a variable always has a value, which may be empty")
            .help("compare it with \"\", or with \"~.\" for any other value"));
    }
    Ok((variable, test(at)?))
}

/// Checks the test of one value: its presence, or a list of texts and regular expressions.
fn test(typed: &At<Values>) -> Resolution<ValueTest> {
    let values = match &typed.value {
        Values::Any(true) => return Ok(ValueTest::Present),
        Values::Any(false) => return Ok(ValueTest::Absent),
        Values::OneOf(values) => typed.with(values.clone()),
    };
    let pattern = |at: At<&String>| {
        let value = no_control(at.value, &at)?;
        Ok(if value.starts_with('~') {
            ValuePattern::Regex(regex(value, &at.span)?)
        } else {
            ValuePattern::Exact(value.to_owned())
        })
    };
    match values.items() {
        items if items.is_empty() => Err(empty(&typed.span)),
        items => items.into_iter().map(pattern).collect::<Resolution<_>>().map(ValueTest::OneOf),
    }
}

fn empty(span: &std::ops::Range<usize>) -> Problem {
    Problem::new(span, "this list is empty, so that no request matches")
        .help("add what it should match, or leave the key out to match all")
}
