//! Variables of a route that replace those of the request.

use std::collections::BTreeMap;

use forebay_wire::cgi::Sink;

/// Passes to `sink` what `append` appends, except the variables that `params` replace, and `params`. Each
/// name comes once: SCGI allows no more, and applications differ in which of two they take.
pub fn with_params<S: Sink>(
    params: &BTreeMap<String, String>,
    sink: &mut S,
    append: impl FnOnce(&mut Replaced<'_, S>),
) {
    append(&mut Replaced { sink, by: params });
    for (name, value) in params {
        sink.variable(name.as_bytes(), value.as_bytes());
    }
}

/// A sink that leaves out what others replace.
pub struct Replaced<'a, S> {
    sink: &'a mut S,
    by: &'a BTreeMap<String, String>,
}

impl<S: Sink> Sink for Replaced<'_, S> {
    fn variable(&mut self, name: &[u8], value: &[u8]) {
        let is_replaced = !self.by.is_empty()
            && str::from_utf8(name).is_ok_and(|name| self.by.contains_key(name));
        if !is_replaced {
            self.sink.variable(name, value);
        }
    }
}
