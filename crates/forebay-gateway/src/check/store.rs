//! Checks for the directory of the shared store.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use forebay_conf::{Finding, Plan, StorePlace};

/// Returns a warning if users other than the owner may write to the directory of the store.
/// Otherwise returns `None`. Forebay creates directories that only their owner may enter, but keeps
/// the mode of an existing directory.
pub fn doubts(plan: &Plan) -> Option<Finding> {
    let StorePlace::Directory(path) = &plan.server.store.as_deref()?.place else { return None };
    let mode = fs::metadata(path).ok()?.permissions().mode();
    let path = path.display();
    (mode & 0o022 != 0).then(|| Finding {
        key: vec!["server".into(), "store".into()],
        message: format!("other users may write to {path}, and so replace what machines share"),
        help: format!("permit writing to its owner alone: chmod go-w {path}"),
    })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn a_directory_that_others_may_write_to_is_doubtful() {
        let root = tempfile::tempdir().unwrap();
        let message_at = |path: &Path| {
            let text = format!(
                "[server]\nstore = \"{}\"\n[[site]]\nlisten = \":80\"\n[[site.route]]\nrespond = \"x\"\n",
                path.display()
            );
            let plan = forebay_conf::parse(&text, "site.toml", Path::new("/")).unwrap();
            doubts(&plan).map(|finding| finding.help)
        };
        for (mode, is_doubtful) in
            [(0o700, false), (0o755, false), (0o770, true), (0o702, true), (0o1777, true)]
        {
            fs::set_permissions(root.path(), PermissionsExt::from_mode(mode)).unwrap();
            let help = message_at(root.path());
            assert_eq!(help.is_some(), is_doubtful, "{mode:o}: {help:?}");
        }
        assert_eq!(message_at(&root.path().join("missing")), None);
    }
}
