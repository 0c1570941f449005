//! Applies a route's changes to the fields of a request before the route's origin receives it.
//!
//! The changed fields replace the fields of the head. Thus no protocol to a backend needs code for
//! these changes. After the origin, the client's fields are restored for the log and for other
//! routes.
//!
//! The client's own fields of these names are removed. Letter case is ignored, and any punctuation
//! counts as `-`, because CGI does not distinguish them. A client cannot remove a rule's field by
//! naming it in `Connection`.

use std::rc::Rc;

use forebay_conf::{RequestChange, RequestField};
use forebay_wire::Span;
use forebay_wire::http1::{Field, KnownField};

use crate::head::{Request, is_alike};
use crate::template::Escape;

/// The changes of one route to the fields of requests.
#[derive(Debug)]
pub struct RequestFields {
    changes: Vec<RequestField>,
    names: Rc<[String]>,
}

/// The fields of a request before a change.
pub struct Former {
    fields: Vec<Field>,
    changed: Option<Rc<[String]>>,
}

impl RequestFields {
    /// Creates the changes of a route. Returns `None` if `changes` is empty.
    pub fn new(changes: &[RequestField]) -> Option<Rc<Self>> {
        let names = changes.iter().map(|field| field.name.clone()).collect();
        (!changes.is_empty()).then(|| Rc::new(Self { changes: changes.to_vec(), names }))
    }

    /// Changes the fields of `request`. Returns the former fields for [`Self::restore`].
    pub fn apply(&self, request: &mut Request) -> Former {
        let fields = request.head.fields.clone();
        let at = request.head.len;
        let (mut lines, mut made, mut text) = (Vec::new(), Vec::new(), Vec::new());
        for RequestField { name, change } in &self.changes {
            let (RequestChange::Set(value) | RequestChange::Add(value)) = change else { continue };
            let start = lines.len();
            lines.extend_from_slice(name.as_bytes());
            lines.extend_from_slice(b": ");
            let value_at = lines.len();
            text.clear();
            request.fill(value, Escape::Field, &mut text);
            lines.extend_from_slice(text.trim_ascii());
            let value_end = lines.len();
            if value_end == value_at {
                lines.truncate(start);
                continue;
            }
            lines.extend_from_slice(b"\r\n");
            made.push(Field {
                name: Span::new(at + start, at + start + name.len()),
                value: Span::new(at + value_at, at + value_end),
                line: Span::new(at + start, at + lines.len()),
                known: known(name.as_bytes()),
            });
        }
        self.remove_clients(request);
        request.bytes.splice(at..at, lines.iter().copied());
        request.head.len += lines.len();
        request.head.fields.append(&mut made);
        let changed = request.changed.take();
        // The access rules of the route may have set other fields before.
        request.changed = Some(match &changed {
            Some(before) => before.iter().chain(&*self.names).cloned().collect(),
            None => self.names.clone(),
        });
        Former { fields, changed }
    }

    /// Restores the former fields of `request`.
    pub fn restore(request: &mut Request, former: Former) {
        request.head.fields = former.fields;
        request.changed = former.changed;
    }

    /// Removes the client's fields that a rule replaces. If a rule adds a line to a field, the
    /// client's lines get the same `KnownField`. CGI then joins all lines.
    fn remove_clients(&self, request: &mut Request) {
        let bytes = &request.bytes;
        for RequestField { name, change } in &self.changes {
            let is_same = |field: &Field| is_alike(field.name.of(bytes), name);
            match change {
                RequestChange::Add(_) => {
                    let fields = request.head.fields.iter_mut();
                    let is_plain =
                        |field: &Field| field.name.of(bytes).eq_ignore_ascii_case(name.as_bytes());
                    fields.filter(|field| is_plain(field)).for_each(|field| {
                        field.known = known(name.as_bytes());
                    });
                }
                _ => request.head.fields.retain(|field| !is_same(field)),
            }
        }
    }
}

/// Returns the kind of a field that the configuration sets.
fn known(name: &[u8]) -> KnownField {
    match KnownField::of(name) {
        // CGI and AJP have separate variables for some of these fields, and file origins read the
        // others.
        known @ (KnownField::ContentType
        | KnownField::Accept
        | KnownField::AcceptEncoding
        | KnownField::IfMatch
        | KnownField::IfModifiedSince
        | KnownField::IfNoneMatch
        | KnownField::IfRange
        | KnownField::IfUnmodifiedSince
        | KnownField::Range) => known,
        _ => KnownField::Gateway,
    }
}
