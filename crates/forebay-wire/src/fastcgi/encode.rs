//! Encoder of the records of a request.

use crate::cgi::Sink;

use super::{CONTENT_LIMIT, HEADER, VERSION, kind};

const ROLE_RESPONDER: u8 = 1;
const FLAG_KEEP_CONN: u8 = 1;

/// Appends a BEGIN_REQUEST record for the responder role.
pub fn begin(out: &mut Vec<u8>, id: u16, keep_connection: bool) {
    header(out, kind::BEGIN_REQUEST, id, 8);
    let flags = if keep_connection { FLAG_KEEP_CONN } else { 0 };
    out.extend_from_slice(&[0, ROLE_RESPONDER, flags, 0, 0, 0, 0, 0]);
}

/// Appends an ABORT_REQUEST record.
pub fn abort(out: &mut Vec<u8>, id: u16) {
    header(out, kind::ABORT_REQUEST, id, 0);
}

/// Records that end a connection, in whatever state it is. They abort request 1, then begin a
/// request that does not keep the connection, and abort that too. The application then closes the
/// connection itself, as after any request without FCGI_KEEP_CONN (section 3.5).
// fastcgi-mono-server4 counts a connection for ever if the web server closes it first.
#[rustfmt::skip]
pub const FAREWELL: [u8; 32] = [
    VERSION, kind::ABORT_REQUEST, 0, 1, 0, 0, 0, 0,
    VERSION, kind::BEGIN_REQUEST, 0xff, 0xff, 0, 8, 0, 0, 0, ROLE_RESPONDER, 0, 0, 0, 0, 0, 0,
    VERSION, kind::ABORT_REQUEST, 0xff, 0xff, 0, 0, 0, 0,
];

/// Appends `data` as STDIN records, without the empty record that ends the stream.
pub fn stdin(out: &mut Vec<u8>, id: u16, data: &[u8]) {
    for piece in data.chunks(CONTENT_LIMIT) {
        header(out, kind::STDIN, id, piece.len() as u16);
        out.extend_from_slice(piece);
    }
}

/// Appends the header of a STDIN record. The caller then sends `length` bytes of content.
pub fn stdin_header(out: &mut Vec<u8>, id: u16, length: u16) {
    header(out, kind::STDIN, id, length);
}

/// Appends the empty STDIN record that ends the stream.
pub fn end_of_stdin(out: &mut Vec<u8>, id: u16) {
    header(out, kind::STDIN, id, 0);
}

/// Appends a GET_VALUES record, which asks for the variables in `names` (section 4.1).
///
/// # Panics
/// Panics if a name is longer than 127 bytes.
pub fn get_values(out: &mut Vec<u8>, names: &[&str]) {
    let length: usize = names.iter().map(|name| name.len() + 2).sum();
    header(out, kind::GET_VALUES, 0, length as u16);
    for name in names {
        assert!(name.len() < 128, "the names of section 4.1 are short");
        out.extend_from_slice(&[name.len() as u8, 0]);
        out.extend_from_slice(name.as_bytes());
    }
}

/// Replaces the request ID in the header of each record.
pub fn set_request_id(mut records: &mut [u8], id: u16) {
    while let Some((header, rest)) = records.split_first_chunk_mut::<HEADER>() {
        header[2..4].copy_from_slice(&id.to_be_bytes());
        let content = usize::from(u16::from_be_bytes([header[4], header[5]]));
        let length = content + usize::from(header[6]);
        records = rest.get_mut(length..).unwrap_or_default();
    }
}

fn header(out: &mut Vec<u8>, kind: u8, id: u16, length: u16) {
    let [id1, id0] = id.to_be_bytes();
    let [length1, length0] = length.to_be_bytes();
    out.extend_from_slice(&[VERSION, kind, id1, id0, length1, length0, 0, 0]);
}

/// Encoder that appends name-value pairs as PARAMS records. [`Params::finish`] ends the stream.
#[derive(Debug)]
pub struct Params<'a> {
    out: &'a mut Vec<u8>,
    id: u16,
    /// Position of the unfinished record's header in the buffer.
    record: usize,
}

impl<'a> Params<'a> {
    /// Starts the stream at the end of `out`.
    pub fn new(out: &'a mut Vec<u8>, id: u16) -> Self {
        let record = out.len();
        header(out, kind::PARAMS, id, 0);
        Self { out, id, record }
    }

    /// Ends the stream with an empty record.
    pub fn finish(mut self) {
        self.close_full_records();
        let length = self.out.len() - self.record - HEADER;
        self.set_length(length);
        if length > 0 {
            header(self.out, kind::PARAMS, self.id, 0);
        }
    }

    /// Moves content above the limit of a record to further records. A stream may be divided at any
    /// byte.
    fn close_full_records(&mut self) {
        while self.out.len() - self.record - HEADER > CONTENT_LIMIT {
            let cut = self.record + HEADER + CONTENT_LIMIT;
            self.set_length(CONTENT_LIMIT);
            let rest = self.out.split_off(cut);
            self.record = cut;
            header(self.out, kind::PARAMS, self.id, 0);
            self.out.extend_from_slice(&rest);
        }
    }

    fn set_length(&mut self, length: usize) {
        let bytes = (length as u16).to_be_bytes();
        self.out[self.record + 4..self.record + 6].copy_from_slice(&bytes);
    }

    fn length(&mut self, length: usize) {
        match u8::try_from(length) {
            Ok(short) if short < 128 => self.out.push(short),
            _ => self.out.extend_from_slice(&(length as u32 | 1 << 31).to_be_bytes()),
        }
    }
}

impl Sink for Params<'_> {
    fn variable(&mut self, name: &[u8], value: &[u8]) {
        match (name.len(), value.len()) {
            (name @ 0..128, value @ 0..128) => {
                self.out.extend_from_slice(&[name as u8, value as u8]);
            }
            (name, value) => {
                self.length(name);
                self.length(value);
            }
        }
        self.out.extend_from_slice(name);
        self.out.extend_from_slice(value);
    }
}
