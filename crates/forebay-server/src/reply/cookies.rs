//! Attributes that a route adds to the cookies of replies.

use forebay_conf::{CookieAttributes, SameSite};

/// Adds the attributes to each `Set-Cookie` line of `out` from `start` on. A value of SameSite
/// replaces the cookie's own.
pub(super) fn add(attributes: &CookieAttributes, out: &mut Vec<u8>, start: usize) {
    const FIELD: &[u8] = b"set-cookie:";
    let is_cookie =
        |line: &[u8]| line.get(..FIELD.len()).is_some_and(|name| name.eq_ignore_ascii_case(FIELD));
    if !out[start..].split(|&b| b == b'\n').any(is_cookie) {
        return;
    }
    let same_site: Option<&[u8]> = attributes.same_site.map(|same_site| match same_site {
        SameSite::Strict => &b"SameSite=Strict"[..],
        SameSite::Lax => b"SameSite=Lax",
        SameSite::None => b"SameSite=None",
    });
    let wanted = [
        attributes.secure.then_some(&b"Secure"[..]),
        attributes.http_only.then_some(b"HttpOnly"),
        same_site,
    ];
    let lines = out.split_off(start);
    for line in lines.split_inclusive(|&b| b == b'\n') {
        if !is_cookie(line) {
            out.extend_from_slice(line);
            continue;
        }
        let text = line.trim_ascii_end();
        // The first part is the name and the value, which may look like an attribute.
        let mut own = text.split(|&b| b == b';');
        out.extend_from_slice(own.next().unwrap_or_default());
        let is_wanted = |own: &[u8]| {
            wanted.iter().flatten().any(|name| name_of(name).eq_ignore_ascii_case(name_of(own)))
        };
        for attribute in own.filter(|own| !is_wanted(own)) {
            out.push(b';');
            out.extend_from_slice(attribute);
        }
        for attribute in wanted.into_iter().flatten() {
            out.extend_from_slice(b"; ");
            out.extend_from_slice(attribute);
        }
        out.extend_from_slice(&line[text.len()..]);
    }
}

fn name_of(attribute: &[u8]) -> &[u8] {
    attribute.split(|&b| b == b'=').next().unwrap_or_default().trim_ascii()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cookie_gets_what_it_lacks() {
        let all =
            CookieAttributes { secure: true, http_only: true, same_site: Some(SameSite::Lax) };
        for (line, wanted) in [
            ("Set-Cookie: a=b", "Set-Cookie: a=b; Secure; HttpOnly; SameSite=Lax"),
            (
                "set-cookie: secure=httponly",
                "set-cookie: secure=httponly; Secure; HttpOnly; SameSite=Lax",
            ),
            (
                "Set-Cookie: a=b; path=/ ;SECURE; samesite = None",
                "Set-Cookie: a=b; path=/ ; Secure; HttpOnly; SameSite=Lax",
            ),
            ("Set-Cookie2: a=b", "Set-Cookie2: a=b"),
            ("X-Set-Cookie: a=b", "X-Set-Cookie: a=b"),
        ] {
            let mut out = format!("Set-Cookie: 0=0\r\nX: 1\r\n{line}\r\nY: 2\r\n").into_bytes();
            let start = out.iter().position(|&b| b == b'X').unwrap();
            add(&all, &mut out, start);
            let wanted = format!("Set-Cookie: 0=0\r\nX: 1\r\n{wanted}\r\nY: 2\r\n");
            assert_eq!(String::from_utf8(out).unwrap(), wanted);
        }
    }
}
