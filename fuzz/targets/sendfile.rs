//! `X-Accel-Redirect` and `X-Sendfile`: no panic, and no path outside of the directory.
#![no_main]

use std::path::Path;

use forebay_wire::sendfile::{NamedFile, escape_unencoded, lines_for_file, named_file};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let root = Path::new("/srv/files");
    assert!(lines_for_file(data).len() <= data.len());
    let escaped = escape_unencoded(data);
    assert!(escaped.is_ascii() && escape_unencoded(&escaped) == escaped);
    for place in named_file(data).into_iter().chain([NamedFile::Uri(data.to_vec()), NamedFile::File(data.to_vec())]) {
        let Some(path) = place.below(root) else { continue };
        assert!(path.starts_with(b"/") && !path.contains(&0));
        assert!(path.split(|&b| b == b'/').all(|segment| segment != b".."));
    }
});
