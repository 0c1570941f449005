//! Reads a request body from a file.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// Maximum number of bytes. A special file such as `/dev/zero` has no end.
const LARGEST: u64 = 64 * 1024 * 1024;

pub fn read(file: &Path) -> io::Result<Vec<u8>> {
    let mut body = Vec::new();
    File::open(file)?.take(LARGEST + 1).read_to_end(&mut body)?;
    if body.len() as u64 > LARGEST {
        return Err(io::Error::other("it is larger than 64 MiB; give a smaller file"));
    }
    Ok(body)
}
