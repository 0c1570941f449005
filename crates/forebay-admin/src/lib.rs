//! The administrator's listener: status, metrics and control pages.
#![forbid(unsafe_code)]

mod admin;
mod metrics;
mod otlp;

pub use admin::{
    Admin, AdminChange, AppStatus, BackendChange, BackendRow, BackendState, BackendsOf, CacheRow,
    CertificateRow, ChangeOrder, Changed, ClosedSite, ConfigurationRow, Control, DiskRow,
    FindingRow, MaintenanceChange, Meters, MirrorCounts, MirrorRow, ProofRow, Purge, Purged,
    Refused, ReloadRow, Status, WeightChange, WorkerRow, open, proof_json,
};
pub use metrics::{Kind, METRICS, Metric, metrics_json};
pub use otlp::MetricsExport;
