//! Stores complete request bodies before an application process gets the request. Therefore a slow
//! upload does not occupy a process.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use forebay_net::fault::Fault;
use forebay_net::limit::Limit;

/// Maximum number of bytes in memory before a file is used.
// Thousands of slow uploads may each use this much memory.
const IN_MEMORY: usize = 64 * 1024;

/// A complete request body.
pub enum Spooled {
    /// The request has no body.
    Empty,
    /// In memory.
    Memory(Vec<u8>),
    /// In an unlinked temporary file of this many bytes. The file's position is at its start.
    File(File, u64),
}

impl Spooled {
    /// Returns the length in bytes. Returns `None` if the request has no body.
    pub fn length(&self) -> Option<u64> {
        match self {
            Self::Empty => None,
            Self::Memory(memory) => Some(memory.len() as u64),
            Self::File(_, length) => Some(*length),
        }
    }

    /// Reads bytes from `offset` on into `buffer`. Returns 0 at the end.
    pub fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Empty => Ok(0),
            Self::Memory(memory) => {
                let start = usize::try_from(offset).unwrap_or(usize::MAX).min(memory.len());
                (&memory[start..]).read(buffer)
            }
            Self::File(file, _) => std::os::unix::fs::FileExt::read_at(file, buffer, offset),
        }
    }
}

/// A request body that is being received, in memory or in a file.
pub struct Spool {
    dir: PathBuf,
    /// True if the body is kept in a file from its first byte on.
    is_long: bool,
    memory: Vec<u8>,
    file: Option<(File, u64)>,
}

impl Spool {
    /// Creates an empty spool. If it needs a file, the file is created in `dir`. A body whose
    /// announced `length` needs one goes there at once, so that a stalled upload holds no memory.
    pub fn new(dir: PathBuf, length: Option<u64>) -> Self {
        let is_long = length.is_some_and(|length| length > IN_MEMORY as u64);
        Self { dir, is_long, memory: Vec::new(), file: None }
    }

    /// The number of bytes of memory that the spool holds.
    pub fn memory(&self) -> usize {
        self.memory.capacity()
    }

    /// Appends a piece.
    pub fn push(&mut self, piece: &[u8]) -> Result<(), Fault> {
        let Self { dir, is_long, memory, file } = self;
        let full = |error| full(dir, error);
        if let Some((file, length)) = file {
            file.write_all(piece).map_err(full)?;
            *length += piece.len() as u64;
        } else if memory.len() + piece.len() <= IN_MEMORY && !*is_long {
            memory.try_reserve(piece.len()).map_err(|_| Fault::out_of_memory())?;
            memory.extend_from_slice(piece);
        } else {
            let mut temporary = tempfile::tempfile_in(&*dir).map_err(full)?;
            temporary.write_all(memory).and_then(|()| temporary.write_all(piece)).map_err(full)?;
            *file = Some((temporary, (memory.len() + piece.len()) as u64));
            *memory = Vec::new();
        }
        Ok(())
    }

    /// Returns the complete body.
    pub fn finish(self) -> Result<Spooled, Fault> {
        let Self { dir, memory, file, .. } = self;
        match file {
            Some((mut file, length)) => {
                file.seek(SeekFrom::Start(0)).map_err(|error| full(&dir, error))?;
                Ok(Spooled::File(file, length))
            }
            None => Ok(Spooled::Memory(memory)),
        }
    }
}

fn full(dir: &Path, error: io::Error) -> Fault {
    Fault::exhausted("spool a request body", &error).unwrap_or_else(|| {
        let message = format!(
            "cannot spool a request body in {}: {error}; free some space, or name another \
             directory as `spool_dir` in [server]",
            dir.display()
        );
        Fault::us(500, message).limited_by(Limit::SpoolDir)
    })
}
