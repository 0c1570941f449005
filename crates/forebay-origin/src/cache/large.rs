//! Bodies that are too large for the memory, on their way to the disk.

use std::cell::{Cell, RefCell};
use std::sync::Arc;

use super::disk::{Disk, Spill};
use super::resource_key::KeyHash;

/// A body of a reply. If it is too large for the memory, the store writes it to disk.
pub struct LargeBody {
    disk: Arc<Disk>,
    key: KeyHash,
    /// Maximum size in bytes.
    most: u64,
    spill: RefCell<Option<Spill>>,
    /// True if no recent request was for the same resource.
    is_first: Cell<bool>,
}

impl LargeBody {
    /// Creates the state of a body of at most `most` bytes.
    pub fn new((disk, key): (Arc<Disk>, KeyHash), most: usize) -> Self {
        let most = (most as u64).min(disk.most());
        Self { disk, key, most, spill: RefCell::default(), is_first: Cell::new(false) }
    }

    /// Begins to write a body of this length. Returns false if the body is not stored.
    pub fn begin(&self, length: u64) -> bool {
        length <= self.most && self.open()
    }

    /// Returns true if a part of the body is on disk.
    pub fn has_begun(&self) -> bool {
        self.spill.borrow().is_some()
    }

    /// Returns true if the body was not stored because no recent request was for the same resource.
    /// The body may then be stored at the next request.
    pub fn is_first(&self) -> bool {
        self.is_first.get()
    }

    /// Appends bytes, and begins to write the body if necessary. Returns false if the bytes cannot
    /// be stored.
    pub fn push(&self, bytes: &[u8]) -> bool {
        if !self.has_begun() && !self.open() {
            return false;
        }
        self.spill.borrow_mut().as_mut().is_some_and(|spill| spill.push(bytes))
    }

    /// Takes the part that is on disk. Returns `None` if there is no such part.
    pub fn take(&self) -> Option<Spill> {
        self.spill.take()
    }

    fn open(&self) -> bool {
        if !self.disk.is_ready() {
            return false;
        }
        if !self.disk.admits(&self.key) {
            self.is_first.set(true);
            return false;
        }
        *self.spill.borrow_mut() = self.disk.spill(self.key, self.most);
        self.has_begun()
    }
}
