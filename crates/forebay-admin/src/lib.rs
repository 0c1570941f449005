//! The administrator's listener: status, metrics and control pages.
#![forbid(unsafe_code)]

mod admin;

pub use admin::{
    Admin, AppStatus, BackendRow, BackendsOf, CacheRow, Control, DiskRow, MirrorCounts, MirrorRow,
    Purge, Purged, Status, WorkerRow, open,
};
