//! The beginning of a file whose kind is unknown.

use rustix::fs::{Mode, OFlags, open};
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// Reads at most `limit` bytes from the beginning of a file. Never waits: a FIFO without a writer and
/// `/proc/kmsg` are errors.
pub fn beginning(file: &Path, limit: u64) -> io::Result<Vec<u8>> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let mut bytes = Vec::new();
    let file = File::from(open(file, flags, Mode::empty())?);
    if !file.metadata()?.is_file() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    file.take(limit).read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_could_wait_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let fifo = dir.path().join("fifo");
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, Mode::RWXU, 0)
            .unwrap();
        assert!(beginning(&fifo, 10).is_err());
        assert!(beginning(Path::new("/dev/zero"), 10).is_err());
        let file = dir.path().join("file");
        std::fs::write(&file, "#!/bin/sh\n").unwrap();
        assert_eq!(beginning(&file, 4).unwrap(), b"#!/b");
    }
}
