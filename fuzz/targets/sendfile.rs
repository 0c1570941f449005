//! `X-Accel-Redirect` and `X-Sendfile`: no panic, and no path outside of the directory.
#![no_main]

use std::path::Path;

use forebay_wire::sendfile::{NamedFile, find};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let root = Path::new("/srv/files");
    let asked = find(data).map(|(place, fields)| {
        assert!(fields.len() <= data.len());
        place
    });
    for place in asked.into_iter().chain([NamedFile::Uri(data.to_vec()), NamedFile::File(data.to_vec())]) {
        let Some(path) = place.below(root) else { continue };
        assert!(path.starts_with(b"/") && !path.contains(&0));
        assert!(path.split(|&b| b == b'/').all(|segment| segment != b".."));
    }
});
