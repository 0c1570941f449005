//! Applies a route's changes to the fields of a request before the route's origin receives it.
//!
//! The changed fields replace the fields of the head. Thus no protocol to a backend needs code for
//! these changes. When the origin has returned, the client's fields are restored for the log and
//! for other routes.
//!
//! The client's fields with the name of a changed field are removed. Names are compared without
//! letter case, and any punctuation counts as `-`, because CGI does not distinguish them. If a
//! client names a field in `Connection`, Forebay still sends the field that the route has set.

use std::cell::RefCell;
use std::rc::Rc;

use forebay_conf::{RequestChange, RequestField};
use forebay_wire::Span;
use forebay_wire::http1::{Field, KnownField};

use crate::head::{Request, is_alike};
use crate::template::Escape;

/// The changes of one route to the fields of requests.
#[derive(Debug)]
pub struct RequestFields {
    changes: Vec<Change>,
    names: Rc<[String]>,
    /// Buffers that requests share, so that a change allocates nothing.
    buffers: RefCell<Buffers>,
}

#[derive(Debug)]
struct Change {
    field: RequestField,
    /// The name, a colon and a space.
    start: Vec<u8>,
    known: KnownField,
}

#[derive(Debug, Default)]
struct Buffers {
    lines: Vec<u8>,
    made: Vec<Field>,
}

/// Maximum capacity in bytes that the buffer `lines` keeps between two requests.
const KEPT: usize = 4096;

/// The fields of a request before a change.
pub struct Former {
    fields: Vec<Field>,
    changed: Option<Rc<[String]>>,
}

impl RequestFields {
    /// Creates the changes of a route. Returns `None` if `changes` is empty.
    pub fn new(changes: &[RequestField]) -> Option<Rc<Self>> {
        if changes.is_empty() {
            return None;
        }
        let names = changes.iter().map(|field| field.name.clone()).collect();
        let prepared = |field: &RequestField| Change {
            start: format!("{}: ", field.name).into_bytes(),
            known: known(field.name.as_bytes()),
            field: field.clone(),
        };
        let changes = changes.iter().map(prepared).collect();
        Some(Rc::new(Self { changes, names, buffers: RefCell::default() }))
    }

    /// Changes the fields of `request`. Returns the former fields for [`Self::restore`].
    pub fn apply(&self, request: &mut Request) -> Former {
        let mut fields = std::mem::take(&mut request.spare_fields);
        fields.extend_from_slice(&request.head.fields);
        let changed = request.changed.clone();
        self.change(request);
        Former { fields, changed }
    }

    /// Changes the fields of `request` for good.
    pub fn change(&self, request: &mut Request) {
        let mut buffers = self.buffers.borrow_mut();
        let Buffers { lines, made } = &mut *buffers;
        // A change that has panicked may have left another request's lines.
        lines.clear();
        made.clear();
        let at = request.head.len;
        // All values come from the fields before the change.
        for Change { field: RequestField { name, change }, start, known } in &self.changes {
            let (RequestChange::Set(value) | RequestChange::Add(value)) = change else { continue };
            let line_at = lines.len();
            lines.extend_from_slice(start);
            let value_at = lines.len();
            request.fill(value, Escape::Field, lines);
            trim(lines, value_at);
            let value_end = lines.len();
            if value_end == value_at {
                lines.truncate(line_at);
                continue;
            }
            lines.extend_from_slice(b"\r\n");
            made.push(Field {
                name: Span::new(at + line_at, at + line_at + name.len()),
                value: Span::new(at + value_at, at + value_end),
                line: Span::new(at + line_at, at + lines.len()),
                known: *known,
            });
        }
        self.remove_clients(request);
        if request.bytes.len() == at {
            request.bytes.extend_from_slice(lines);
        } else {
            // Pipelined requests follow the head, so insert the lines before them.
            request.bytes.splice(at..at, lines.iter().copied());
        }
        request.head.len += lines.len();
        request.head.fields.append(made);
        lines.clear();
        lines.shrink_to(KEPT);
        // The access rules of the route may have set other fields before, so keep their names.
        request.changed = Some(match request.changed.take() {
            Some(before) => before.iter().chain(&*self.names).cloned().collect(),
            None => self.names.clone(),
        });
    }

    /// Restores the former fields of `request`.
    pub fn restore(request: &mut Request, former: Former) {
        request.spare_fields = std::mem::replace(&mut request.head.fields, former.fields);
        request.spare_fields.clear();
        request.changed = former.changed;
    }

    /// Removes the client's fields that a change replaces. If a change adds a line to a field, the
    /// client's lines stay, and get the same `KnownField` as the added line. CGI then joins all
    /// lines to one variable.
    fn remove_clients(&self, request: &mut Request) {
        let bytes = &request.bytes;
        for Change { field: RequestField { name, change }, known, .. } in &self.changes {
            let is_same = |field: &Field| is_alike(field.name.of(bytes), name);
            match change {
                RequestChange::Add(_) => {
                    let fields = request.head.fields.iter_mut();
                    let is_plain =
                        |field: &Field| field.name.of(bytes).eq_ignore_ascii_case(name.as_bytes());
                    fields.filter(|field| is_plain(field)).for_each(|field| field.known = *known);
                }
                _ => request.head.fields.retain(|field| !is_same(field)),
            }
        }
    }
}

/// Removes white space from both ends of the value at `start`.
fn trim(lines: &mut Vec<u8>, start: usize) {
    let value = lines[start..].trim_ascii_end();
    let (length, leading) = (value.len(), value.len() - value.trim_ascii_start().len());
    lines.truncate(start + length);
    if leading > 0 {
        lines.drain(start..start + leading);
    }
}

/// Returns the kind of a field that the configuration sets.
fn known(name: &[u8]) -> KnownField {
    match KnownField::of(name) {
        // Keep the kind of these fields: CGI and AJP pass some of them in separate variables, and
        // file origins read the others.
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
