//! Small files in memory, compared with the disk every second.

use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::ffi::OsStr;
use std::fmt::Write as _;
use std::fs::{File, Metadata};
use std::hash::{DefaultHasher, Hasher};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, UNIX_EPOCH};

use foldhash::quality::RandomState;
use forebay_conf::{ContentCoding, Symlinks};
use forebay_net::fault::Fault;
use forebay_server::compress::CompressedCopies;
use forebay_wire::http1::encode;
use rustix::io::Errno;

use super::htaccess::{Htaccess, Verdict};
use super::languages::split;
use super::media::MediaTypes;
use super::scripts::{RouteId, ScriptRoutes};
use super::{not_found, open::open};

/// Maximum size of a file in memory, in bytes. Larger files are sent with sendfile.
const SMALL: u64 = 64 * 1024;
/// Maximum number of bytes in one cache. If a file would exceed this number, the cache is emptied.
const KEPT: usize = 64 << 20;

/// Maximum number of `.htaccess` files in memory. At the next one, all are forgotten.
const MOST_HTACCESS: usize = 1000;

/// Greatest time of a change that says nothing: 0 and 1 are the times of files in packages that are
/// built reproducibly. A date in `Last-Modified` would confirm every later version, too.
const NO_TIME: u64 = 1;

/// File or directory that a path names.
pub enum PathEntry {
    /// A file.
    File(Rc<CachedFile>),
    /// A directory.
    Directory(File),
}

/// A file with the fields of its replies.
pub struct CachedFile {
    /// The content or the open file.
    pub content: Content,
    /// Compressed forms of the content.
    pub copies: CompressedCopies,
    /// Length in bytes.
    pub length: u64,
    /// The entity tag, quotes included.
    pub etag: String,
    /// Last change, in seconds since 1970; see [`Self::time`].
    modified: u64,
    /// The media type. If empty, replies have no `Content-Type`.
    pub content_type: Cow<'static, str>,
    /// Field lines of a reply with content. The first line is `Content-Type`, if there is a type.
    pub fields: Vec<u8>,
    /// Field lines of a 304 reply.
    pub validators: Vec<u8>,
    identity: FileIdentity,
    /// True if the file was read so soon after a change that a further change could have the same
    /// time stamp.
    is_young: bool,
    checked: Cell<u64>,
    /// Script route that would run the file. Such a file is not sent.
    pub run_by: Option<RouteId>,
    /// Why an `.htaccess` file keeps the public from the file.
    pub denial: RefCell<Option<String>>,
    /// True if the client's languages have selected the file.
    varies: bool,
    /// Second of the last search for siblings, and a bit for each missing sibling.
    missing: Cell<(u64, u8)>,
}

impl CachedFile {
    /// The time of the last change in seconds since 1970, if the file system knows it.
    pub fn time(&self) -> Option<u64> {
        Some(self.modified).filter(|&modified| modified > NO_TIME)
    }

    /// Returns the field lines of a reply with content, without `Content-Type`.
    pub fn fields_but_type(&self) -> &[u8] {
        match self.content_type.len() {
            0 => &self.fields,
            length => &self.fields["Content-Type: \r\n".len() + length..],
        }
    }

    /// Appends the field lines of a reply with content. `kind` replaces the media type.
    pub fn append_fields(&self, kind: Option<&str>, out: &mut Vec<u8>) {
        match kind {
            None => out.extend_from_slice(&self.fields),
            Some(kind) => {
                encode::field(out, "Content-Type", kind.as_bytes());
                out.extend_from_slice(self.fields_but_type());
            }
        }
    }
}

/// Location of the content.
pub enum Content {
    /// In memory.
    Memory(Vec<u8>),
    /// In a file.
    File(File),
}

/// Metadata that changes with the file.
#[derive(Clone, Copy, PartialEq, Eq)]
struct FileIdentity {
    device: u64,
    inode: u64,
    length: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl FileIdentity {
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

/// A thread's cache of the files below one root.
pub struct Cache {
    root: PathBuf,
    /// The directory below which links are checked, and the path of `root` from there.
    beneath: Option<(PathBuf, Vec<u8>)>,
    symlinks: Symlinks,
    /// True if the reply depends on `Accept-Encoding`.
    varies: bool,
    /// True if replies announce support for ranges.
    has_ranges: bool,
    /// Tags of languages that may end the names of files.
    languages: Vec<String>,
    types: MediaTypes,
    scripts: ScriptRoutes,
    // The hash is seeded and quicker than SipHash, and the number of entries is bounded.
    entries: RefCell<HashMap<Vec<u8>, Rc<CachedFile>, RandomState>>,
    kept: Cell<usize>,
    /// `None` if `.htaccess` files are ignored.
    htaccess: Option<HtaccessFiles>,
    /// The beginnings of the URL paths of the files.
    mounts: Vec<Vec<u8>>,
}

/// `.htaccess` files by the path of their directory.
type HtaccessFiles = RefCell<HashMap<Vec<u8>, (FileIdentity, Rc<Htaccess>), RandomState>>;

impl Cache {
    /// Creates an empty cache of the files below `root`.
    pub fn new(root: PathBuf, symlinks: Symlinks) -> Self {
        Self {
            root,
            beneath: None,
            symlinks,
            varies: false,
            has_ranges: true,
            languages: Vec::new(),
            types: MediaTypes::default(),
            scripts: ScriptRoutes::default(),
            entries: RefCell::default(),
            kept: Cell::new(0),
            htaccess: None,
            mounts: vec![b"/".to_vec()],
        }
    }

    /// Returns the cache, which then checks all links below the directory `beneath`.
    pub fn with_links_below(self, beneath: Option<&Path>) -> Self {
        let beneath = beneath.and_then(|beneath| {
            let below = self.root.strip_prefix(beneath).ok()?;
            Some((beneath.to_owned(), below.as_os_str().as_bytes().to_vec()))
        });
        Self { beneath, ..self }
    }

    fn open(&self, path: &[u8]) -> io::Result<File> {
        match &self.beneath {
            None => open(&self.root, path, self.symlinks),
            Some((beneath, below)) if path.is_empty() => open(beneath, below, self.symlinks),
            Some((beneath, below)) => {
                open(beneath, &[below, &b"/"[..], path].concat(), self.symlinks)
            }
        }
    }

    /// Returns this cache, which looks for `.htaccess` files if `asks` is true.
    pub fn with_htaccess(self, asks: bool) -> Self {
        Self { htaccess: asks.then(RefCell::default), ..self }
    }

    /// Returns this cache for files whose URL paths may also begin with these texts.
    pub fn with_mounts(mut self, mounts: impl Iterator<Item = Vec<u8>>) -> Self {
        self.mounts.extend(mounts);
        self
    }

    /// Looks again if an `.htaccess` file protects the file. The source of a script is never sent.
    fn judge(&self, entry: &CachedFile, path: &[u8]) {
        if entry.run_by.is_none() {
            entry.denial.replace(self.denial(path, false));
        }
    }

    /// Returns the reason if an `.htaccess` file keeps the public from the listing of a directory.
    pub fn listing_denial(&self, path: &[u8]) -> Option<String> {
        self.denial(path, true)
    }

    /// Returns the reason if an `.htaccess` file keeps the public from the file at `path`. A file
    /// that cannot be read denies, as in Apache.
    fn denial(&self, path: &[u8], is_listing: bool) -> Option<String> {
        let known = self.htaccess.as_ref()?;
        let mut verdict = Verdict::default();
        let shown = |start: usize| {
            self.root
                .join(OsStr::from_bytes(&path[..start]))
                .join(".htaccess")
                .display()
                .to_string()
        };
        let starts = memchr::memchr_iter(b'/', path).map(|slash| slash + 1);
        for start in [0].into_iter().chain(starts) {
            match self.read_htaccess(known, &path[..start]) {
                Ok(Some(htaccess)) => verdict.hear(&htaccess, path, start, &self.mounts),
                Ok(None) => {}
                Err(error) => {
                    let error = fault(&error).message;
                    return Some(format!("{} cannot be read: {error}", shown(start)));
                }
            }
        }
        let (start, line) = verdict.denial(is_listing)?;
        let (number, effect, source) = (line.number, line.effect(), shown(start));
        let text = line.text;
        Some(format!(
            "line {number} of {source} {effect}: {text:?} (\"forebay import \
             apache\" translates it; `htaccess = \"ignore\"` of `files` sends the file)"
        ))
    }

    fn read_htaccess(
        &self,
        known: &HtaccessFiles,
        directory: &[u8],
    ) -> io::Result<Option<Rc<Htaccess>>> {
        let file = match self.open(&[directory, b".htaccess"].concat()) {
            Ok(file) => file,
            Err(error) => {
                return match error.kind() {
                    io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => Ok(None),
                    _ => Err(error),
                };
            }
        };
        let metadata = file.metadata()?;
        if !metadata.is_file() {
            return Ok(None);
        }
        let identity = FileIdentity::of(&metadata);
        if let Some((seen, htaccess)) = known.borrow().get(directory)
            && *seen == identity
        {
            return Ok(Some(htaccess.clone()));
        }
        let htaccess = Rc::new(Htaccess::read(file)?);
        let mut known = known.borrow_mut();
        if known.len() >= MOST_HTACCESS {
            known.clear();
        }
        known.insert(directory.to_vec(), (identity, htaccess.clone()));
        Ok(Some(htaccess))
    }

    /// Returns this cache for files that may have compressed siblings if `varies` is true.
    pub fn with_siblings(self, varies: bool) -> Self {
        Self { varies, ..self }
    }

    /// Returns this cache for files whose names may end in these languages.
    pub fn with_languages(self, languages: Vec<String>) -> Self {
        Self { languages, ..self }
    }

    /// Returns this cache for files with these media types.
    pub fn with_types(self, types: MediaTypes) -> Self {
        Self { types, ..self }
    }

    /// Returns the cache, which then marks the files that these script routes run.
    pub fn with_scripts(self, scripts: ScriptRoutes) -> Self {
        Self { scripts, ..self }
    }

    /// Returns the cache. If `has_ranges` is true, replies announce support for ranges.
    pub fn with_ranges(self, has_ranges: bool) -> Self {
        Self { has_ranges, ..self }
    }

    /// Returns the file or directory at `path`. `second` is the current time. The cache checks a
    /// file on the disk at most once per second.
    pub fn find(&self, path: &[u8], second: u64) -> Result<PathEntry, Fault> {
        self.look_up(Name { key: path, path, base: path, coding: None, varies: false }, second)
    }

    /// Returns the file at `path`, which was chosen by the client's languages.
    pub fn find_variant(&self, path: &[u8], second: u64) -> Result<PathEntry, Fault> {
        // Do not use the path as the key: this reply has `Vary`, but the reply to a request for
        // this path does not.
        let key = [path, b"\0l"].concat();
        self.look_up(Name { key: &key, path, base: path, coding: None, varies: true }, second)
    }

    /// Returns the file at `path` if the cache has checked it in this second.
    pub fn fresh(&self, path: &[u8], second: u64) -> Option<Rc<CachedFile>> {
        let entries = self.entries.borrow();
        entries.get(path).filter(|entry| entry.checked.get() == second).cloned()
    }

    /// Returns the sibling of `entry` with this coding, or `None` without such a file. `path` is
    /// the path of `entry`.
    pub fn find_sibling(
        &self,
        path: &[u8],
        entry: &CachedFile,
        coding: ContentCoding,
        second: u64,
    ) -> Option<Rc<CachedFile>> {
        let bit = 1u8 << coding as u8;
        let (seen, missing) = entry.missing.get();
        let missing = if seen == second { missing } else { 0 };
        if missing & bit != 0 {
            return None;
        }
        let sibling = [path, b".", coding.extension().as_bytes()].concat();
        // The key must differ from the sibling's path, because a request for that path gets other
        // fields. No path contains NUL.
        let varies = entry.varies;
        let key = [&sibling[..], if varies { b"\0c" } else { b"\0" }].concat();
        let name = Name { key: &key, path: &sibling, base: path, coding: Some(coding), varies };
        match self.look_up(name, second) {
            Ok(PathEntry::File(sibling)) => Some(sibling),
            _ => {
                entry.missing.set((second, missing | bit));
                None
            }
        }
    }

    /// Returns the cached file if it was checked in this second, or if the file on the disk has not
    /// changed. Otherwise reads the file again.
    fn look_up(&self, name: Name<'_>, second: u64) -> Result<PathEntry, Fault> {
        let Name { key, path, .. } = name;
        let known = self.entries.borrow().get(key).cloned();
        if let Some(entry) = &known
            && entry.checked.get() == second
        {
            return Ok(PathEntry::File(entry.clone()));
        }
        let file = self.open(path).map_err(|error| fault(&error))?;
        let metadata = file.metadata().map_err(|error| fault(&error))?;
        if metadata.is_dir() {
            return Ok(PathEntry::Directory(file));
        }
        if !metadata.is_file() {
            return Err(Fault::client(403, "neither a file nor a directory"));
        }
        if let Some(entry) = known
            && !entry.is_young
            && entry.identity == FileIdentity::of(&metadata)
        {
            self.judge(&entry, name.base);
            entry.checked.set(second);
            return Ok(PathEntry::File(entry));
        }
        let entry = self.read(&name, file, &metadata, second).map_err(|error| fault(&error))?;
        self.judge(&entry, name.base);
        let entry = Rc::new(entry);
        if let Content::Memory(bytes) = &entry.content {
            self.keep(key, &entry, bytes.len());
        }
        Ok(PathEntry::File(entry))
    }

    fn keep(&self, path: &[u8], entry: &Rc<CachedFile>, length: usize) {
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

    /// Reads a small file into memory, or keeps a large one open, and computes the fields of its
    /// replies.
    fn read(
        &self,
        name: &Name<'_>,
        mut file: File,
        metadata: &Metadata,
        second: u64,
    ) -> io::Result<CachedFile> {
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
        // Nix, Bazel and reproducible images give all files the same time, so the time and the
        // length alone would confirm a stale copy. The content of a small file is the same on all
        // machines of a fleet. For other files only the file system can tell.
        match &content {
            Content::Memory(bytes) => {
                let mut hasher = DefaultHasher::new();
                hasher.write(bytes);
                let _ = write!(etag, "-{:x}", hasher.finish());
            }
            Content::File(_) => {
                let (inode, changed) = (metadata.ino(), metadata.ctime());
                let _ = write!(etag, "-{inode:x}-{changed:x}{:x}", metadata.ctime_nsec());
            }
        }
        let language = split(name.base, &self.languages);
        let endings = [language.map(|(_, tag)| tag), name.coding.map(ContentCoding::extension)];
        for ending in endings.into_iter().flatten() {
            etag.push('-');
            etag.push_str(ending);
        }
        etag.push('"');
        let date = httpdate::fmt_http_date(UNIX_EPOCH + Duration::from_secs(modified));
        let mut validators = Vec::new();
        if modified > NO_TIME {
            encode::field(&mut validators, "Last-Modified", date.as_bytes());
        }
        encode::field(&mut validators, "ETag", etag.as_bytes());
        match (self.varies, name.varies) {
            (true, true) => {
                encode::field(&mut validators, "Vary", b"Accept-Encoding, Accept-Language");
            }
            (true, false) => encode::field(&mut validators, "Vary", b"Accept-Encoding"),
            (false, true) => encode::field(&mut validators, "Vary", b"Accept-Language"),
            (false, false) => {}
        }
        let content_type = self.types.of(language.map_or(name.base, |(base, _)| base));
        let mut fields = Vec::new();
        if !content_type.is_empty() {
            encode::field(&mut fields, "Content-Type", content_type.as_bytes());
        }
        if let Some(coding) = name.coding {
            encode::field(&mut fields, "Content-Encoding", coding.coding().as_bytes());
        }
        if let Some((_, tag)) = language {
            encode::field(&mut fields, "Content-Language", tag.as_bytes());
        }
        fields.extend_from_slice(&validators);
        if self.has_ranges {
            encode::field(&mut fields, "Accept-Ranges", b"bytes");
        }
        Ok(CachedFile {
            content,
            copies: CompressedCopies::default(),
            length,
            etag,
            modified,
            content_type,
            fields,
            validators,
            identity: FileIdentity::of(metadata),
            is_young: u64::try_from(metadata.ctime()).unwrap_or(0) + 1 >= second,
            checked: Cell::new(second),
            run_by,
            denial: RefCell::default(),
            varies: name.varies,
            missing: Cell::new((0, 0)),
        })
    }

    /// Returns the script route that would run the file, if any.
    fn run_by(
        &self,
        name: &Name<'_>,
        file: &File,
        content: &Content,
    ) -> io::Result<Option<RouteId>> {
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

/// A file to look up.
struct Name<'a> {
    /// Key in the cache.
    key: &'a [u8],
    /// Path below the root.
    path: &'a [u8],
    /// Path whose ending determines the media type.
    base: &'a [u8],
    /// Compression of the content.
    coding: Option<ContentCoding>,
    /// True if the client's languages have selected the file.
    varies: bool,
}

/// Returns the fault for a file that cannot be opened.
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
