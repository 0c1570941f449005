//! Lists in field values (weights, entity tags, `X-Forwarded-For`, `Cookie`, dates): no panic, and
//! no result that is not in the value.
#![no_main]

use forebay_wire::accept::{lists_tag, weighted};
use forebay_wire::cookies::{cookies, find};
use forebay_wire::forwarded::x_forwarded_for_addresses;
use forebay_wire::http1::{host_of, list_has};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let most = data.len() + 1;
    assert!(weighted(data).all(|(element, weight)| !element.is_empty() && weight <= 1000));
    assert!(weighted(data).count() <= most && x_forwarded_for_addresses(data).count() <= most);
    assert!(data == b"*" || !lists_tag(data, b"\"a tag, of commas\"", true));
    // A strong match is also a weak match.
    assert!(!lists_tag(data, b"\"a\"", false) || lists_tag(data, b"\"a\"", true));
    assert!(!list_has(data, b"a, b"));
    for cookie in cookies(data) {
        assert!(!cookie.name.contains(&b'=') && !cookie.name.contains(&b';'));
        assert!(!cookie.value.contains(&b';') && cookie.unquoted().len() <= cookie.value.len());
        let first = find(data, cookie.name).map(|cookie| cookie.name);
        assert_eq!(first, Some(cookie.name));
    }
    assert!(data.starts_with(host_of(data)));
    if let Ok(text) = str::from_utf8(data) {
        let _ = httpdate::parse_http_date(text);
    }
});
