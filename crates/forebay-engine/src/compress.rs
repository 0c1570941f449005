//! Compression of replies as they are sent: which replies, in which coding, and what that changes
//! in their heads. What a reply holds, and when it is written, is the reply's business.

mod encoder;
mod head;

use std::cell::RefCell;
use std::rc::Rc;

use forebay_conf::{Algorithm, Compress};
use forebay_wire::accept::{rank_codings, weighted};
use forebay_wire::http1::{KnownField, Version};

use crate::fault::Fault;
use crate::head::Request;
use encoder::Encoder;
use head::{Changes, is_eligible, is_part_of};

/// Bytes that are compressed at once, before other tasks have a turn.
pub const SLICE: usize = 32 * 1024;
/// Bytes after which other tasks of the thread have their turn.
const TURN: usize = 64 * 1024;
/// Idle encoders that a route keeps on a thread, each 0.3 to 4 MB.
const SPARE: usize = 4;

/// What a route compresses, as one thread holds it.
pub struct Compression {
    settings: Compress,
    spare: RefCell<Vec<(Algorithm, Box<dyn Encoder>)>>,
}

/// Compression as far as the request and its route decide about it.
pub struct Offer {
    compression: Rc<Compression>,
    /// What the client prefers; `None` where it accepts none of ours.
    algorithm: Option<Algorithm>,
}

/// Compresses the body of one reply.
pub struct Compressor {
    compression: Rc<Compression>,
    algorithm: Algorithm,
    /// From the first bytes on: a reply without any needs none.
    encoder: Option<Box<dyn Encoder>>,
    /// The length that the origin announced.
    announced: Option<u64>,
    /// What the origin has yet to give of the length that it announced.
    left: Option<u64>,
    /// Whether the encoder may hold bytes back.
    is_pending: bool,
    /// Bytes compressed since other tasks had their turn.
    since_turn: usize,
}

/// What a body that stays the same was compressed to, so that it is so once.
#[derive(Default)]
pub struct CompressedCopies(RefCell<Vec<(Algorithm, Rc<[u8]>)>>);

/// The indices in `offered` of the content codings that the client accepts, the best first.
pub fn accepted_codings(request: &Request, offered: &[&str]) -> Vec<usize> {
    let fields = request.head.fields.iter().filter(|f| f.known == KnownField::AcceptEncoding);
    let accepted: Vec<_> =
        fields.flat_map(|field| weighted(field.value.of(&request.bytes))).collect();
    if accepted.is_empty() { Vec::new() } else { rank_codings(&accepted, offered) }
}

impl Compression {
    /// Compresses by `settings`.
    pub fn new(settings: Compress) -> Self {
        Self { settings, spare: RefCell::default() }
    }

    /// What the client of `request` can be given. One of HTTP/1.0 gets replies as they are: without
    /// a length they would cost it the connection.
    pub fn offer(self: &Rc<Self>, request: &Request) -> Offer {
        let algorithms = &self.settings.algorithms;
        let best = if request.head.version == Version::Http10 {
            None
        } else {
            let names: Vec<_> = algorithms.iter().map(|a| a.coding.coding()).collect();
            accepted_codings(request, &names).first().copied()
        };
        Offer { compression: self.clone(), algorithm: best.map(|index| algorithms[index]) }
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
    /// Changes the field lines of `out`, from `start` on, where the reply depends on what the
    /// client accepts; how its body is compressed, if it is.
    pub fn apply(
        &self,
        out: &mut Vec<u8>,
        start: usize,
        status: u16,
        length: Option<u64>,
    ) -> Option<Algorithm> {
        if status == 304 {
            // As the reply with content would have it (RFC 9110 section 15.4.5).
            Changes { coding: None }.apply(out, start);
            return None;
        }
        let settings = &self.compression.settings;
        if status == 206 {
            // A range of what other clients get compressed (RFC 9110 section 15.3.7).
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

    /// What compresses a body that the origin gives this length.
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
    /// Appends to `out` what `data` comes to; whether other tasks should have their turn now, as
    /// after each [`SLICE`] bytes.
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

    /// Appends all that the encoder has held back, so that the client can read what was pushed.
    pub fn flush(&mut self, out: &mut Vec<u8>) -> Result<(), Fault> {
        if std::mem::take(&mut self.is_pending) {
            self.encoder()?.flush(out).map_err(|error| broken(&error))?;
        }
        Ok(())
    }

    /// What `data`, the whole body, comes to. It is kept in `copies` where it is at most half as
    /// long, one for each algorithm, which bounds what they take.
    pub fn whole(mut self, data: &[u8], copies: &CompressedCopies) -> Result<Rc<[u8]>, Fault> {
        let mut kept = copies.0.borrow_mut();
        if let Some((_, copy)) = kept.iter().find(|(algorithm, _)| *algorithm == self.algorithm) {
            return Ok(copy.clone());
        }
        let (algorithm, mut out) = (self.algorithm, Vec::new());
        self.push(data, &mut out)?;
        self.finish(&mut out)?;
        let copy: Rc<[u8]> = out.into();
        if copy.len() <= data.len() / 2 {
            kept.push((algorithm, copy.clone()));
        }
        Ok(copy)
    }

    /// Appends the end.
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
    use forebay_conf::ContentCoding;

    use super::*;

    #[test]
    fn a_body_that_stays_the_same_is_compressed_once() {
        let gzip = Algorithm { coding: ContentCoding::Gzip, level: 5 };
        let zstd = Algorithm { coding: ContentCoding::Zstandard, level: 3 };
        let algorithms = vec![gzip, zstd];
        let settings = Compress { algorithms, types: Vec::new(), min_size: 0 };
        let compression = Rc::new(Compression::new(settings));
        let offer = Offer { compression, algorithm: None };
        let copies = CompressedCopies::default();
        let text = b"once upon a time ".repeat(100);
        let whole = |algorithm, data: &[u8]| {
            offer.compressor(algorithm, Some(data.len() as u64)).whole(data, &copies).unwrap()
        };
        let first = whole(gzip, &text);
        assert!(Rc::ptr_eq(&first, &whole(gzip, &text)));
        assert_ne!(first, whole(zstd, &text));
        assert_eq!(copies.0.borrow().len(), 2);
        let noise: Vec<u8> = std::iter::repeat_with(|| fastrand::u8(..)).take(1000).collect();
        let others = CompressedCopies::default();
        let copy = offer.compressor(gzip, Some(1000)).whole(&noise, &others).unwrap();
        assert!(copy.len() > 500 && others.0.borrow().is_empty());
    }
}
