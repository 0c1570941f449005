//! `on_demand`: settings that the old and the new configuration share.

use std::path::Path;

use forebay_gateway::SiteTls;
use forebay_testkit::tls::Authority;

#[test]
fn a_refused_configuration_keeps_the_settings_of_questions() {
    let folder = tempfile::tempdir().unwrap();
    let ca = folder.path().join("ca.pem");
    std::fs::write(&ca, Authority::new("ours").pem).unwrap();
    let text = format!(
        "[[site]]\nhosts = \"*.a.test\"\nlisten = \"https://127.0.0.1:443\"\n\
         tls = {{ acme = {{ email = \"a@a.test\", state = {:?}, \
         on_demand = {{ ask = \"https://ask.test/\", ca = {ca:?} }} }} }}\n\
         [[site.route]]\nrespond = \"hello\"\n",
        folder.path()
    );
    let plan = forebay_conf::parse(&text, "test.toml", Path::new("/")).unwrap();
    let running = SiteTls::load(&plan, None).unwrap();
    let first = running.on_demand[0].tls.now().unwrap();
    std::fs::write(&ca, "nonsense").unwrap();
    assert!(SiteTls::load(&plan, Some(&running)).is_err());
    let kept = running.on_demand[0].tls.now().unwrap();
    assert!(std::sync::Arc::ptr_eq(&first, &kept));
    std::fs::write(&ca, Authority::new("other").pem).unwrap();
    let next = SiteTls::load(&plan, Some(&running)).unwrap();
    assert!(!std::sync::Arc::ptr_eq(&first, &next.on_demand[0].tls.now().unwrap()));
}
