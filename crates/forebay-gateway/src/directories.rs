//! The directories in which the gateway keeps files after it has given up root.

use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::{DirBuilderExt, lchown};
use std::path::Path;

use forebay_conf::{CertificateSource, Plan};
use forebay_workers::{Person, changeable_by_others};

use crate::separation::gateway_person;

/// Returns the directories of `plan` that need not exist, each with the key that names it: of the cache
/// and of certificates.
pub fn directories(plan: &Plan) -> impl Iterator<Item = (Vec<String>, &Path)> {
    let disk = plan.server.cache_disk.iter();
    let cache = disk.map(|disk| (vec!["server".into(), "cache_dir".into()], &*disk.dir));
    let acme = plan.sites.iter().enumerate().filter_map(|(at, site)| {
        let dir = match &site.tls.as_ref()?.source {
            CertificateSource::Acme(acme) => &*acme.state,
            CertificateSource::OnDemand(by) => &*by.acme.state,
            CertificateSource::Files { .. } | CertificateSource::Missing => return None,
        };
        Some((vec!["site".into(), at.to_string(), "tls".into()], dir))
    });
    cache.chain(acme)
}

/// Makes the missing directories, and gives them to the user that will serve. Does nothing if this
/// process is not root. Those who use a directory find out what has failed here.
pub fn make_directories(plan: &Plan) {
    let is_root = rustix::process::geteuid().is_root();
    let Some(gateway) = gateway_person(&plan.server).filter(|_| is_root) else { return };
    for (_, dir) in directories(plan) {
        if is_made_by_root(dir) {
            let _ = make(dir, &gateway);
        }
    }
}

/// Returns true if there is no such directory, and if nobody but root can choose what root would make.
pub fn is_made_by_root(dir: &Path) -> bool {
    let above = dir.ancestors().skip(1).find(|part| part.symlink_metadata().is_ok());
    dir.symlink_metadata().is_err()
        && above.is_some_and(|above| changeable_by_others(above).is_none())
}

fn make(dir: &Path, owner: &Person) -> io::Result<()> {
    if let Some(above) = dir.parent() {
        DirBuilder::new().recursive(true).mode(0o755).create(above)?;
    }
    DirBuilder::new().mode(0o700).create(dir)?;
    lchown(dir, Some(owner.uid()), owner.gid())
}
