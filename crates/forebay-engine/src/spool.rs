//! A request body taken in whole, for applications that serve one request per process: a slow
//! upload must not hold a process.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use crate::fault::Fault;

/// Bytes that are kept in memory before a file is used. A slow upload may hold as much, and there
/// may be thousands of them.
const IN_MEMORY: usize = 64 * 1024;

/// A whole request body.
pub enum Spooled {
    /// There is none.
    Empty,
    /// In memory.
    Memory(Vec<u8>),
    /// In an unlinked temporary file of this many bytes, to be read from its start.
    File(File, u64),
}

impl Spooled {
    /// Length in bytes; `None` where the request has no body at all.
    pub fn length(&self) -> Option<u64> {
        match self {
            Self::Empty => None,
            Self::Memory(memory) => Some(memory.len() as u64),
            Self::File(_, length) => Some(*length),
        }
    }

    /// The next bytes from `offset` on, at most what `buffer` has room for; none at the end.
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

/// A body that is being taken in.
pub struct Spool {
    dir: PathBuf,
    memory: Vec<u8>,
    file: Option<(File, u64)>,
}

impl Spool {
    /// An empty one, whose file would be in `dir`.
    pub fn new(dir: PathBuf) -> Self {
        Self { dir, memory: Vec::new(), file: None }
    }

    /// Appends a piece.
    pub fn push(&mut self, piece: &[u8]) -> Result<(), Fault> {
        let Self { dir, memory, file } = self;
        let full = |error| full(dir, error);
        if let Some((file, length)) = file {
            file.write_all(piece).map_err(full)?;
            *length += piece.len() as u64;
        } else if memory.len() + piece.len() <= IN_MEMORY {
            memory.extend_from_slice(piece);
        } else {
            let mut temporary = tempfile::tempfile_in(&*dir).map_err(full)?;
            temporary.write_all(memory).and_then(|()| temporary.write_all(piece)).map_err(full)?;
            *file = Some((temporary, (memory.len() + piece.len()) as u64));
            *memory = Vec::new();
        }
        Ok(())
    }

    /// All of it.
    pub fn finish(self) -> Result<Spooled, Fault> {
        let Self { dir, memory, file } = self;
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
        Fault::us(500, message)
    })
}
