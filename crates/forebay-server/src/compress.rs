//! Compresses replies while they are sent. This module selects the replies and the content coding,
//! and adapts the heads. [`crate::reply`] passes the bodies to the compressor and decides when to
//! write.

mod encoder;
mod head;

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use forebay_conf::{Algorithm, Compress};
use forebay_net::fault::Fault;
use forebay_net::head::Request;
use forebay_wire::accept::{rank_codings, weighted};
use forebay_wire::http1::{KnownField, Version};

use encoder::Encoder;
use head::{Changes, is_eligible, is_part_of};

/// Maximum bytes that callers pass to [`Compressor::push`] in one call.
pub const SLICE: usize = 32 * 1024;
/// Number of bytes that are compressed before other tasks of the thread may run.
const TURN: usize = 64 * 1024;
/// Maximum number of idle encoders that a route keeps per thread. Each encoder takes 0.3 to 4 MB.
const SPARE: usize = 4;

/// The compression settings of a route, with one thread's idle encoders.
pub struct Compression {
    settings: Compress,
    spare: RefCell<Vec<(Algorithm, Box<dyn Encoder>)>>,
}

/// The result of content negotiation for one request.
pub struct Offer {
    compression: Rc<Compression>,
    /// The client's preferred algorithm. `None` if the client accepts no algorithm that the route
    /// offers.
    algorithm: Option<Algorithm>,
}

/// Compressor of the body of one reply.
pub struct Compressor {
    compression: Rc<Compression>,
    algorithm: Algorithm,
    /// The encoder, which is created with the first bytes of the body, or at the end of an empty
    /// body.
    encoder: Option<Box<dyn Encoder>>,
    /// Body length that the origin announced.
    announced: Option<u64>,
    /// Bytes of the announced length that the origin has not sent yet.
    left: Option<u64>,
    /// True if the encoder may hold back bytes.
    is_pending: bool,
    /// Bytes compressed since other tasks last ran.
    since_turn: usize,
}

/// Compressed forms of a body that never changes. Each form is computed only once.
#[derive(Debug, Default)]
pub struct CompressedCopies(Mutex<Vec<(Algorithm, Arc<[u8]>)>>);

impl CompressedCopies {
    fn all(&self) -> MutexGuard<'_, Vec<(Algorithm, Arc<[u8]>)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the indices in `offered` of the content codings that the client accepts, best first.
pub fn accepted_codings(request: &Request, offered: &[&str]) -> Vec<usize> {
    let fields = request.head.fields.iter().filter(|f| f.known == KnownField::AcceptEncoding);
    let accepted: Vec<_> =
        fields.flat_map(|field| weighted(field.value.of(&request.bytes))).collect();
    if accepted.is_empty() { Vec::new() } else { rank_codings(&accepted, offered) }
}

impl Compression {
    /// Creates an empty pool of encoders for `settings`.
    pub fn new(settings: Compress) -> Self {
        Self { settings, spare: RefCell::default() }
    }

    /// Selects the coding for the client of `request`.
    pub fn offer(self: &Rc<Self>, request: &Request) -> Offer {
        // Do not compress for HTTP/1.0 clients. The length of a compressed reply is unknown, so
        // only the end of the connection could mark the end of the reply.
        let best = if request.head.version == Version::Http10 {
            None
        } else {
            let names: Vec<_> = self.settings.codings.iter().map(|one| one.coding()).collect();
            accepted_codings(request, &names).first().copied()
        };
        Offer {
            compression: self.clone(),
            algorithm: best.and_then(|index| self.settings.algorithms().nth(index)),
        }
    }

    fn encoder(
        &self,
        algorithm: Algorithm,
        length: Option<u64>,
    ) -> Result<Box<dyn Encoder>, Fault> {
        let mut spare = self.spare.borrow_mut();
        let index = spare.iter().position(|(kept, _)| *kept == algorithm);
        let kept = index.map(|index| spare.swap_remove(index).1);
        let made = match kept {
            Some(encoder) => Ok(encoder),
            None => encoder::new(algorithm),
        };
        let begun = made.and_then(|mut encoder| encoder.begin(length).map(|()| encoder));
        begun.map_err(|error| broken(&error))
    }

    fn keep(&self, algorithm: Algorithm, encoder: Box<dyn Encoder>) {
        let mut spare = self.spare.borrow_mut();
        if spare.len() < SPARE {
            spare.push((algorithm, encoder));
        }
    }
}

impl Offer {
    /// Adapts the field lines of `out` from `start` on if the reply depends on the client's
    /// accepted codings. Returns the algorithm for the body, or `None` if the body must not be
    /// compressed.
    pub fn apply(
        &self,
        out: &mut Vec<u8>,
        start: usize,
        status: u16,
        length: Option<u64>,
    ) -> Option<Algorithm> {
        if status == 304 {
            // A 304 must have the same `Vary` as the 200 for the same request (RFC 9110 section
            // 15.4.5).
            Changes { coding: None }.apply(out, start);
            return None;
        }
        let settings = &self.compression.settings;
        if status == 206 {
            // A partial reply is not compressed. But add `Vary`, because a reply with the whole
            // document may be compressed (RFC 9110 section 15.3.7).
            if is_part_of(&out[start..], &settings.types) {
                Changes { coding: None }.apply(out, start);
            }
            return None;
        }
        let is_small = length.is_some_and(|length| length < settings.min_size.max(1));
        let has_content = status >= 200 && !matches!(status, 204 | 205);
        if is_small || !has_content || !is_eligible(&out[start..], &settings.types) {
            return None;
        }
        Changes { coding: self.algorithm.map(|algorithm| algorithm.coding) }.apply(out, start);
        self.algorithm
    }

    /// Returns a compressor for a body that the origin announced with this length.
    pub fn compressor(&self, algorithm: Algorithm, length: Option<u64>) -> Compressor {
        Compressor {
            compression: self.compression.clone(),
            algorithm,
            encoder: None,
            announced: length,
            left: length,
            is_pending: false,
            since_turn: 0,
        }
    }
}

impl Compressor {
    /// Compresses `data` and appends the result to `out`. Returns true after each `TURN` bytes of
    /// input, so that the caller lets other tasks run. Callers pass at most [`SLICE`] bytes.
    pub fn push(&mut self, data: &[u8], out: &mut Vec<u8>) -> Result<bool, Fault> {
        if let Some(left) = &mut self.left {
            *left = left.checked_sub(data.len() as u64).ok_or_else(Fault::longer_than_announced)?;
        }
        self.encoder()?.push(data, out).map_err(|error| broken(&error))?;
        self.is_pending |= !data.is_empty();
        self.since_turn += data.len();
        let is_due = self.since_turn >= TURN;
        if is_due {
            self.since_turn = 0;
        }
        Ok(is_due)
    }

    /// Appends all bytes that the encoder held back, so that the client can decode all pushed data.
    pub fn flush(&mut self, out: &mut Vec<u8>) -> Result<(), Fault> {
        if std::mem::take(&mut self.is_pending) {
            self.encoder()?.flush(out).map_err(|error| broken(&error))?;
        }
        Ok(())
    }

    /// Returns the compressed form of the whole body `data`. Takes this form from `copies` if
    /// possible, and otherwise adds it to `copies` if it is small enough.
    pub fn whole(mut self, data: &[u8], copies: &CompressedCopies) -> Result<Arc<[u8]>, Fault> {
        let is_wanted = |(algorithm, _): &&(Algorithm, _)| *algorithm == self.algorithm;
        if let Some((_, copy)) = copies.all().iter().find(is_wanted) {
            return Ok(copy.clone());
        }
        let (algorithm, mut out) = (self.algorithm, Vec::new());
        self.push(data, &mut out)?;
        self.finish(&mut out)?;
        let copy: Arc<[u8]> = out.into();
        // To bound the memory, store one copy for each algorithm, and no copy that is larger than
        // half of the body.
        let mut kept = copies.all();
        let is_known = kept.iter().any(|(known, _)| *known == algorithm);
        if copy.len() <= data.len() / 2 && !is_known {
            kept.push((algorithm, copy.clone()));
        }
        Ok(copy)
    }

    /// Checks the announced length and appends the end of the encoded body.
    pub fn finish(mut self, out: &mut Vec<u8>) -> Result<(), Fault> {
        if let Some(left @ 1..) = self.left {
            return Err(Fault::shorter_than_announced(left));
        }
        self.encoder()?.finish(out).map_err(|error| broken(&error))?;
        if let Some(encoder) = self.encoder {
            self.compression.keep(self.algorithm, encoder);
        }
        Ok(())
    }

    fn encoder(&mut self) -> Result<&mut dyn Encoder, Fault> {
        if self.encoder.is_none() {
            self.encoder = Some(self.compression.encoder(self.algorithm, self.announced)?);
        }
        Ok(self.encoder.as_deref_mut().expect("it was made just now"))
    }
}

fn broken(error: &std::io::Error) -> Fault {
    Fault::us(500, format!("cannot compress a reply: {error}"))
}

#[cfg(test)]
mod tests {
    use forebay_conf::{ContentCoding, Levels};

    use super::*;

    #[test]
    fn a_body_that_stays_the_same_is_compressed_once() {
        let gzip = Algorithm { coding: ContentCoding::Gzip, level: 5 };
        let zstd = Algorithm { coding: ContentCoding::Zstandard, level: 3 };
        let settings = Compress {
            codings: vec![ContentCoding::Gzip, ContentCoding::Zstandard],
            types: Vec::new(),
            min_size: 0,
            levels: Levels::default(),
        };
        let compression = Rc::new(Compression::new(settings));
        let offer = Offer { compression, algorithm: None };
        let copies = CompressedCopies::default();
        let text = b"once upon a time ".repeat(100);
        let whole = |algorithm, data: &[u8]| {
            offer.compressor(algorithm, Some(data.len() as u64)).whole(data, &copies).unwrap()
        };
        let first = whole(gzip, &text);
        assert!(Arc::ptr_eq(&first, &whole(gzip, &text)));
        assert_ne!(first, whole(zstd, &text));
        assert_eq!(copies.all().len(), 2);
        let noise: Vec<u8> = std::iter::repeat_with(|| fastrand::u8(..)).take(1000).collect();
        let others = CompressedCopies::default();
        let copy = offer.compressor(gzip, Some(1000)).whole(&noise, &others).unwrap();
        assert!(copy.len() > 500 && others.all().is_empty());
    }
}
