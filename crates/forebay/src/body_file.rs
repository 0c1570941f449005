//! A request body that is read from a file.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// A larger body is not read: it may have no end.
const LARGEST: u64 = 64 * 1024 * 1024;

pub fn read(file: &Path) -> io::Result<Vec<u8>> {
    let mut body = Vec::new();
    File::open(file)?.take(LARGEST + 1).read_to_end(&mut body)?;
    if body.len() as u64 > LARGEST {
        return Err(io::Error::other("it has more than 64 MiB; give a shorter one"));
    }
    Ok(body)
}
