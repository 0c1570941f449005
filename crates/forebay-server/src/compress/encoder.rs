//! Encoders of content codings with one common trait: gzip (RFC 1952), Brotli (RFC 7932) and
//! Zstandard (RFC 8878).

use std::io;

use brotli::enc::StandardAlloc;
use brotli::enc::encode::{
    BrotliEncoderDestroyInstance, BrotliEncoderOperation, BrotliEncoderParameter,
    BrotliEncoderStateStruct,
};
use flate2::{Compress, FlushCompress, Status};
use forebay_conf::{Algorithm, ContentCoding};
use zstd::stream::raw::{self, CParameter, Operation, OutBuffer};

/// Bytes of output space reserved per call.
const ROOM: usize = 8 * 1024;
/// Window size of Brotli and Zstandard as a power of two: 256 KiB.
// RFC 8878 requires decoders to support 8 MiB. A larger window gains little for streamed replies,
// and an encoder's memory is a multiple of the window.
const WINDOW_BITS: u32 = 18;
/// From this size hint on, Brotli allocates hash tables of 4 MB for any window size.
const LARGE_BROTLI: u64 = 1 << 20;

/// A reusable encoder that compresses one body after the other.
///
/// Drop an encoder if its body was abandoned before the end: zlib-rs 0.6 keeps bits of that body
/// after a reset.
pub trait Encoder {
    /// Prepares for the next body. `length` is its length in bytes, if known.
    fn begin(&mut self, length: Option<u64>) -> io::Result<()>;

    /// Compresses `input` and appends the output that the encoder does not hold back.
    fn push(&mut self, input: &[u8], out: &mut Vec<u8>) -> io::Result<()>;

    /// Appends all held-back output, so that a decoder can decode everything pushed so far.
    fn flush(&mut self, out: &mut Vec<u8>) -> io::Result<()>;

    /// Appends the end of the body.
    fn finish(&mut self, out: &mut Vec<u8>) -> io::Result<()>;
}

/// Creates an encoder. Call [`Encoder::begin`] before every body, including the first.
pub fn new(Algorithm { coding, level }: Algorithm) -> io::Result<Box<dyn Encoder>> {
    Ok(match coding {
        ContentCoding::Gzip => Box::new(Gzip::new(level)),
        ContentCoding::Brotli => Box::new(Brotli { level, state: None }),
        ContentCoding::Zstandard => Box::new(Zstandard::new(level)?),
    })
}

/// Encoder for gzip with a window of 32 KiB. The encoder takes about 260 kB of memory.
struct Gzip(Compress);

impl Gzip {
    fn new(level: u32) -> Self {
        Self(Compress::new_gzip(flate2::Compression::new(level), 15))
    }

    /// Compresses all of `input`, and appends the output. If `flush` is `Finish`, also appends the
    /// end.
    fn run(&mut self, mut input: &[u8], out: &mut Vec<u8>, flush: FlushCompress) -> io::Result<()> {
        loop {
            out.reserve(ROOM);
            let before = self.0.total_in();
            let status = self.0.compress_vec(input, out, flush)?;
            input = &input[(self.0.total_in() - before) as usize..];
            let is_drained = input.is_empty() && out.len() < out.capacity();
            let is_done = match flush {
                FlushCompress::Finish => status == Status::StreamEnd,
                _ => is_drained || status == Status::BufError && input.is_empty(),
            };
            if is_done {
                return Ok(());
            }
        }
    }
}

impl Encoder for Gzip {
    fn begin(&mut self, _: Option<u64>) -> io::Result<()> {
        self.0.reset();
        Ok(())
    }

    fn push(&mut self, input: &[u8], out: &mut Vec<u8>) -> io::Result<()> {
        self.run(input, out, FlushCompress::None)
    }

    fn flush(&mut self, out: &mut Vec<u8>) -> io::Result<()> {
        self.run(b"", out, FlushCompress::Sync)
    }

    fn finish(&mut self, out: &mut Vec<u8>) -> io::Result<()> {
        self.run(b"", out, FlushCompress::Finish)
    }
}

/// Encoder for Brotli. The encoder takes 1 to 3 MB of memory up to level 6. `state` cannot be
/// reused for another body.
struct Brotli {
    level: u32,
    state: Option<Box<BrotliEncoderStateStruct<StandardAlloc>>>,
}

impl Brotli {
    /// Runs one operation of Brotli's encoder on all of `input`, and appends the output.
    fn run(
        &mut self,
        input: &[u8],
        out: &mut Vec<u8>,
        operation: BrotliEncoderOperation,
    ) -> io::Result<()> {
        let state = self.state.as_mut().ok_or(io::ErrorKind::InvalidInput)?;
        let (mut left, mut read) = (input.len(), 0);
        loop {
            let start = out.len();
            out.resize(start + ROOM, 0);
            let (mut room, mut written) = (ROOM, 0);
            let is_fine = state.compress_stream(
                operation,
                &mut left,
                input,
                &mut read,
                &mut room,
                &mut out[start..],
                &mut written,
                &mut None,
                &mut |_, _, _, _| (),
            );
            out.truncate(start + written);
            if !is_fine {
                return Err(io::Error::other("Brotli's encoder failed"));
            }
            let is_finish = matches!(operation, BrotliEncoderOperation::BROTLI_OPERATION_FINISH);
            if left == 0 && !state.has_more_output() && (!is_finish || state.is_finished()) {
                return Ok(());
            }
        }
    }

    fn discard(&mut self) {
        if let Some(mut state) = self.state.take() {
            BrotliEncoderDestroyInstance(&mut state);
        }
    }
}

impl Encoder for Brotli {
    fn begin(&mut self, length: Option<u64>) -> io::Result<()> {
        self.discard();
        let mut state = Box::new(BrotliEncoderStateStruct::new(StandardAlloc::default()));
        let hint = length.unwrap_or(0).min(LARGE_BROTLI - 1);
        for (parameter, value) in [
            (BrotliEncoderParameter::BROTLI_PARAM_QUALITY, self.level),
            (BrotliEncoderParameter::BROTLI_PARAM_LGWIN, WINDOW_BITS),
            (BrotliEncoderParameter::BROTLI_PARAM_SIZE_HINT, hint as u32),
        ] {
            state.set_parameter(parameter, value);
        }
        self.state = Some(state);
        Ok(())
    }

    fn push(&mut self, input: &[u8], out: &mut Vec<u8>) -> io::Result<()> {
        if input.is_empty() {
            return Ok(());
        }
        self.run(input, out, BrotliEncoderOperation::BROTLI_OPERATION_PROCESS)
    }

    fn flush(&mut self, out: &mut Vec<u8>) -> io::Result<()> {
        self.run(b"", out, BrotliEncoderOperation::BROTLI_OPERATION_FLUSH)
    }

    fn finish(&mut self, out: &mut Vec<u8>) -> io::Result<()> {
        self.run(b"", out, BrotliEncoderOperation::BROTLI_OPERATION_FINISH)?;
        self.discard();
        Ok(())
    }
}

impl Drop for Brotli {
    fn drop(&mut self) {
        self.discard();
    }
}

/// Encoder for Zstandard. The encoder takes only 1 to 4 MB of memory up to level 9, because the
/// hash tables shrink with the window.
struct Zstandard(raw::Encoder<'static>);

impl Zstandard {
    fn new(level: u32) -> io::Result<Self> {
        let mut encoder = raw::Encoder::new(level as i32)?;
        encoder.set_parameter(CParameter::WindowLog(WINDOW_BITS))?;
        Ok(Self(encoder))
    }
}

impl Encoder for Zstandard {
    fn begin(&mut self, length: Option<u64>) -> io::Result<()> {
        self.0.reinit()?;
        self.0.set_pledged_src_size(length)
    }

    fn push(&mut self, input: &[u8], out: &mut Vec<u8>) -> io::Result<()> {
        let mut input = raw::InBuffer::around(input);
        while input.pos() < input.src.len() {
            out.reserve(ROOM);
            let at = out.len();
            self.0.run(&mut input, &mut OutBuffer::around_pos(out, at))?;
        }
        Ok(())
    }

    fn flush(&mut self, out: &mut Vec<u8>) -> io::Result<()> {
        loop {
            out.reserve(ROOM);
            let at = out.len();
            if self.0.flush(&mut OutBuffer::around_pos(out, at))? == 0 {
                return Ok(());
            }
        }
    }

    fn finish(&mut self, out: &mut Vec<u8>) -> io::Result<()> {
        loop {
            out.reserve(ROOM);
            let at = out.len();
            if self.0.finish(&mut OutBuffer::around_pos(out, at), true)? == 0 {
                return Ok(());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use forebay_conf::Levels;

    use super::*;

    /// Returns `length` bytes of text with near and far repetitions.
    fn text(length: usize) -> Vec<u8> {
        let mut random = fastrand::Rng::with_seed(11);
        let words: Vec<String> = (0..300).map(|n| format!("word{} ", n * 7919 % 1000)).collect();
        let mut text = Vec::with_capacity(length + 16);
        while text.len() < length {
            text.extend_from_slice(words[random.usize(..words.len())].as_bytes());
        }
        text.truncate(length);
        text
    }

    fn decode(coding: ContentCoding, bytes: &[u8]) -> Vec<u8> {
        let mut decoded = Vec::new();
        match coding {
            ContentCoding::Gzip => {
                flate2::read::GzDecoder::new(bytes).read_to_end(&mut decoded).map(drop)
            }
            ContentCoding::Brotli => {
                brotli::Decompressor::new(bytes, 4096).read_to_end(&mut decoded).map(drop)
            }
            ContentCoding::Zstandard => zstd::stream::copy_decode(bytes, &mut decoded),
        }
        .unwrap();
        decoded
    }

    /// Decodes as much as possible of a body that has not ended.
    fn decode_prefix(coding: ContentCoding, bytes: &[u8]) -> Vec<u8> {
        let mut reader: Box<dyn Read> = match coding {
            ContentCoding::Gzip => Box::new(flate2::read::GzDecoder::new(bytes)),
            ContentCoding::Brotli => Box::new(brotli::Decompressor::new(bytes, 4096)),
            ContentCoding::Zstandard => Box::new(zstd::stream::read::Decoder::new(bytes).unwrap()),
        };
        let (mut decoded, mut piece) = (Vec::new(), [0; 4096]);
        while let Ok(count @ 1..) = reader.read(&mut piece) {
            decoded.extend_from_slice(&piece[..count]);
        }
        decoded
    }

    fn algorithms() -> impl Iterator<Item = Algorithm> {
        ContentCoding::ALL.into_iter().flat_map(|coding| {
            let (lowest, highest) = if coding == ContentCoding::Brotli { (0, 6) } else { (1, 9) };
            [lowest, Levels::default().of(coding), highest].map(|level| Algorithm { coding, level })
        })
    }

    #[test]
    fn whole_and_in_pieces_decode_to_the_same() {
        let mut random = fastrand::Rng::with_seed(5);
        for algorithm in algorithms() {
            let mut encoder = new(algorithm).unwrap();
            let is_default = algorithm.level == Levels::default().of(algorithm.coding);
            for length in [0, 1, 700, if is_default { 400_000 } else { 70_000 }] {
                let text = text(length);
                for known in [None, Some(length as u64)] {
                    let mut whole = Vec::new();
                    encoder.begin(known).unwrap();
                    encoder.push(&text, &mut whole).unwrap();
                    encoder.finish(&mut whole).unwrap();
                    assert!(decode(algorithm.coding, &whole) == text, "{algorithm:?} {length}");
                    assert!(length < 70_000 || whole.len() < length / 2, "{algorithm:?}");
                    let (mut pieces, mut rest) = (Vec::new(), &text[..]);
                    encoder.begin(known).unwrap();
                    while !rest.is_empty() {
                        let (piece, behind) =
                            rest.split_at(random.usize(1..=rest.len().min(90_000)));
                        encoder.push(piece, &mut pieces).unwrap();
                        if random.u8(..4) == 0 {
                            encoder.flush(&mut pieces).unwrap();
                        }
                        rest = behind;
                    }
                    encoder.finish(&mut pieces).unwrap();
                    assert!(decode(algorithm.coding, &pieces) == text, "{algorithm:?} {length}");
                }
            }
        }
    }

    #[test]
    fn byte_by_byte_decodes_to_the_same() {
        let text = text(3_000);
        for algorithm in algorithms() {
            let mut encoder = new(algorithm).unwrap();
            let mut out = Vec::new();
            encoder.begin(None).unwrap();
            text.chunks(1).for_each(|byte| encoder.push(byte, &mut out).unwrap());
            encoder.finish(&mut out).unwrap();
            assert!(decode(algorithm.coding, &out) == text, "{algorithm:?}");
        }
    }

    #[test]
    fn flushed_bytes_can_be_read() {
        let text = text(30_000);
        for algorithm in algorithms() {
            let mut encoder = new(algorithm).unwrap();
            encoder.begin(None).unwrap();
            let (mut out, mut pushed) = (Vec::new(), 0);
            for piece in text.chunks(7_001) {
                encoder.push(piece, &mut out).unwrap();
                encoder.flush(&mut out).unwrap();
                pushed += piece.len();
                let read = decode_prefix(algorithm.coding, &out);
                assert!(read == text[..pushed], "{algorithm:?}: {} of {pushed}", read.len());
            }
        }
    }

    #[test]
    fn windows_are_those_that_browsers_decode() {
        let mut out = Vec::new();
        let mut encoder = new(Algorithm { coding: ContentCoding::Zstandard, level: 9 }).unwrap();
        encoder.begin(None).unwrap();
        encoder.push(&text(300_000), &mut out).unwrap();
        encoder.finish(&mut out).unwrap();
        // Window_Descriptor (RFC 8878 section 3.1.1.1.2) consists of exponent and mantissa.
        assert_eq!((out[4] & 0x20, out[5] >> 3, out[5] & 7), (0, (WINDOW_BITS - 10) as u8, 0));
    }
}
