//! Small files kept in memory, looked at anew every second.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::{File, Metadata};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::PathBuf;
use std::rc::Rc;
use std::time::{Duration, UNIX_EPOCH};

use forebay_conf::{ContentCoding, Symlinks};
use forebay_engine::{CompressedCopies, Fault};
use forebay_wire::http1::encode;
use rustix::io::Errno;

use super::scripts::ScriptRoutes;
use super::{not_found, open::open};

/// Largest file that is kept in memory, in bytes. Larger ones go out by sendfile.
const SMALL: u64 = 64 * 1024;
/// Bytes kept in memory by one cache; when they are more, all are forgotten.
const KEPT: usize = 64 << 20;

/// What a path names.
pub enum Found {
    /// A file.
    File(Rc<Entry>),
    /// A directory.
    Directory(File),
}

/// A file and what replies say of it.
pub struct Entry {
    /// Its content, or the way to it.
    pub content: Content,
    /// What the content was compressed to.
    pub copies: CompressedCopies,
    /// Length in bytes.
    pub length: u64,
    /// The entity tag, quotes included.
    pub etag: String,
    /// Last change, in seconds since 1970.
    pub modified: u64,
    /// The media type.
    pub content_type: &'static str,
    /// Field lines of a reply with content; the first is `Content-Type`.
    pub fields: Vec<u8>,
    /// Field lines of a reply that says that the client has it already.
    pub validators: Vec<u8>,
    identity: Identity,
    /// Read so soon after a change that another one could bear the same time.
    is_young: bool,
    checked: Cell<u64>,
    /// The line of the script route that would run it: it is not to be sent.
    pub run_by: Option<usize>,
    /// The second in which siblings were looked for, and those that were not there, as bits.
    missing: Cell<(u64, u8)>,
}

impl Entry {
    /// The field lines of a reply with content, but for `Content-Type`.
    pub fn fields_but_type(&self) -> &[u8] {
        &self.fields["Content-Type: \r\n".len() + self.content_type.len()..]
    }
}

/// Where the content is.
pub enum Content {
    /// Here.
    Memory(Vec<u8>),
    /// In this file.
    File(File),
}

/// What changes when a file changes.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Identity {
    device: u64,
    inode: u64,
    length: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Identity {
    fn of(metadata: &Metadata) -> Self {
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            length: metadata.len(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }
}

/// The files below one root, as one thread knows them.
pub struct Cache {
    root: PathBuf,
    symlinks: Symlinks,
    /// Whether what is sent depends on `Accept-Encoding`.
    varies: bool,
    /// Whether replies tell that ranges can be asked for.
    has_ranges: bool,
    scripts: ScriptRoutes,
    entries: RefCell<HashMap<Vec<u8>, Rc<Entry>>>,
    kept: Cell<usize>,
}

impl Cache {
    /// An empty cache of the files below `root`.
    pub fn new(root: PathBuf, symlinks: Symlinks) -> Self {
        Self {
            root,
            symlinks,
            varies: false,
            has_ranges: true,
            scripts: ScriptRoutes::default(),
            entries: RefCell::default(),
            kept: Cell::new(0),
        }
    }

    /// The same cache, for files that may be replaced by compressed siblings.
    pub fn with_siblings(self, varies: bool) -> Self {
        Self { varies, ..self }
    }

    /// The same cache, which knows what `scripts` run.
    pub fn with_scripts(self, scripts: ScriptRoutes) -> Self {
        Self { scripts, ..self }
    }

    /// With `has_ranges`, replies tell that ranges can be asked for.
    pub fn with_ranges(self, has_ranges: bool) -> Self {
        Self { has_ranges, ..self }
    }

    /// What `path` names. `second` is the present in seconds: a file is looked at once in each.
    pub fn find(&self, path: &[u8], second: u64) -> Result<Found, Fault> {
        self.look_up(Name { key: path, path, base: path, coding: None }, second)
    }

    /// The file that `path` names, where that was looked at in this second.
    pub fn fresh(&self, path: &[u8], second: u64) -> Option<Rc<Entry>> {
        let entries = self.entries.borrow();
        entries.get(path).filter(|entry| entry.checked.get() == second).cloned()
    }

    /// The sibling of `entry`, which `path` names, in this coding.
    pub fn find_sibling(
        &self,
        path: &[u8],
        entry: &Entry,
        coding: ContentCoding,
        second: u64,
    ) -> Option<Rc<Entry>> {
        let bit = 1u8 << coding as u8;
        let (seen, missing) = entry.missing.get();
        let missing = if seen == second { missing } else { 0 };
        if missing & bit != 0 {
            return None;
        }
        let sibling = [path, b".", coding.extension().as_bytes()].concat();
        // A request for the sibling itself gets another reply: no path holds this byte.
        let key = [&sibling[..], b"\0"].concat();
        let name = Name { key: &key, path: &sibling, base: path, coding: Some(coding) };
        match self.look_up(name, second) {
            Ok(Found::File(sibling)) => Some(sibling),
            _ => {
                entry.missing.set((second, missing | bit));
                None
            }
        }
    }

    fn look_up(&self, name: Name<'_>, second: u64) -> Result<Found, Fault> {
        let Name { key, path, .. } = name;
        let known = self.entries.borrow().get(key).cloned();
        if let Some(entry) = &known
            && entry.checked.get() == second
        {
            return Ok(Found::File(entry.clone()));
        }
        let file = open(&self.root, path, self.symlinks).map_err(|error| fault(&error))?;
        let metadata = file.metadata().map_err(|error| fault(&error))?;
        if metadata.is_dir() {
            return Ok(Found::Directory(file));
        }
        if !metadata.is_file() {
            return Err(Fault::client(403, "neither a file nor a directory"));
        }
        if let Some(entry) = known
            && !entry.is_young
            && entry.identity == Identity::of(&metadata)
        {
            entry.checked.set(second);
            return Ok(Found::File(entry));
        }
        let entry = self.read(&name, file, &metadata, second).map_err(|error| fault(&error))?;
        let entry = Rc::new(entry);
        if let Content::Memory(bytes) = &entry.content {
            self.keep(key, &entry, bytes.len());
        }
        Ok(Found::File(entry))
    }

    fn keep(&self, path: &[u8], entry: &Rc<Entry>, length: usize) {
        let mut entries = self.entries.borrow_mut();
        let kept = self.kept.get() + length + path.len() + 512;
        if kept > KEPT {
            entries.clear();
            self.kept.set(0);
        } else {
            self.kept.set(kept);
        }
        entries.insert(path.to_vec(), entry.clone());
    }

    fn read(
        &self,
        name: &Name<'_>,
        mut file: File,
        metadata: &Metadata,
        second: u64,
    ) -> io::Result<Entry> {
        let mut length = metadata.len();
        let content = if length <= SMALL {
            let mut bytes = Vec::with_capacity(length as usize + 1);
            (&mut file).take(SMALL + 1).read_to_end(&mut bytes)?;
            length = bytes.len() as u64;
            Content::Memory(bytes)
        } else {
            Content::File(file.try_clone()?)
        };
        let run_by = self.run_by(name, &file, &content)?;
        let modified = u64::try_from(metadata.mtime()).unwrap_or(0);
        let mut etag = format!("\"{modified:x}-{:x}-{length:x}", metadata.mtime_nsec());
        if let Some(coding) = name.coding {
            etag.push('-');
            etag.push_str(coding.extension());
        }
        etag.push('"');
        let date = httpdate::fmt_http_date(UNIX_EPOCH + Duration::from_secs(modified));
        let mut validators = Vec::new();
        encode::field(&mut validators, "Last-Modified", date.as_bytes());
        encode::field(&mut validators, "ETag", etag.as_bytes());
        if self.varies {
            encode::field(&mut validators, "Vary", b"Accept-Encoding");
        }
        let content_type = content_type(name.base);
        let mut fields = Vec::new();
        encode::field(&mut fields, "Content-Type", content_type.as_bytes());
        if let Some(coding) = name.coding {
            encode::field(&mut fields, "Content-Encoding", coding.coding().as_bytes());
        }
        fields.extend_from_slice(&validators);
        if self.has_ranges {
            encode::field(&mut fields, "Accept-Ranges", b"bytes");
        }
        Ok(Entry {
            content,
            copies: CompressedCopies::default(),
            length,
            etag,
            modified,
            content_type,
            fields,
            validators,
            identity: Identity::of(metadata),
            is_young: u64::try_from(metadata.ctime()).unwrap_or(0) + 1 >= second,
            checked: Cell::new(second),
            run_by,
            missing: Cell::new((0, 0)),
        })
    }

    fn run_by(&self, name: &Name<'_>, file: &File, content: &Content) -> io::Result<Option<usize>> {
        if self.scripts.is_empty() {
            return Ok(None);
        }
        let mut start = [0; 4];
        let start = match content {
            Content::Memory(bytes) => &bytes[..bytes.len().min(4)],
            Content::File(file) => {
                let read = file.read_at(&mut start, 0)?;
                &start[..read]
            }
        };
        let path = self.root.join(OsStr::from_bytes(name.path));
        Ok(self.scripts.runner(&path, file, start))
    }
}

/// What is looked up.
struct Name<'a> {
    /// What the cache calls it.
    key: &'a [u8],
    /// Where it is below the root.
    path: &'a [u8],
    /// The path whose ending gives its media type.
    base: &'a [u8],
    /// How its content is compressed.
    coding: Option<ContentCoding>,
}

fn content_type(path: &[u8]) -> &'static str {
    let name = path.rsplit(|&b| b == b'/').next().unwrap_or_default();
    let extension = name.rsplit(|&b| b == b'.').next().unwrap_or_default();
    str::from_utf8(extension)
        .ok()
        .filter(|extension| extension.len() < name.len())
        .and_then(|extension| mime_guess::from_ext(extension).first_raw())
        .unwrap_or("application/octet-stream")
}

/// What a file that cannot be opened comes to.
pub fn fault(error: &io::Error) -> Fault {
    match error.kind() {
        io::ErrorKind::NotFound
        | io::ErrorKind::NotADirectory
        | io::ErrorKind::InvalidFilename
        | io::ErrorKind::InvalidInput => not_found(),
        io::ErrorKind::PermissionDenied => Fault::client(403, "the file may not be read"),
        _ if Errno::from_io_error(error) == Some(Errno::LOOP) => Fault::client(
            403,
            "a symbolic link that `follow_symlinks` does not follow, or too many",
        ),
        _ => Fault::exhausted("open a file", error)
            .unwrap_or_else(|| Fault::us(500, format!("cannot open a file: {error}"))),
    }
}
