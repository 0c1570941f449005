//! Tests of forms in both dialects. The WHATWG results follow from the parsing and serializing
//! steps of the URL specification. The Plack results are the output of `WWW::Form::UrlEncoded::XS`
//! 0.28.

use forebay_wire::forms::{Dialect, decode, encode, pairs, text};

/// A form, its pairs according to browsers, and its pairs according to Plack if they differ.
type Row = (&'static [u8], &'static [(&'static str, &'static str)], Plack);

enum Plack {
    Same,
    Differs(&'static [(&'static str, &'static str)]),
}

use Plack::{Differs, Same};

#[rustfmt::skip]
const ROWS: &[Row] = &[
    (b"", &[], Same),
    (b"a=b", &[("a", "b")], Same),
    (b"a=b&c=d", &[("a", "b"), ("c", "d")], Same),
    (b"a=1&a=2&A=3", &[("a", "1"), ("a", "2"), ("A", "3")], Same),
    (b"a", &[("a", "")], Same),
    (b"a=", &[("a", "")], Same),
    (b"=b", &[("", "b")], Same),
    (b"=", &[("", "")], Same),
    (b"a&b=c", &[("a", ""), ("b", "c")], Same),
    (b"a=b&c", &[("a", "b"), ("c", "")], Same),
    (b"a=b=c", &[("a", "b=c")], Same),
    (b"a==", &[("a", "=")], Same),
    (b"a=b?c/d#e", &[("a", "b?c/d#e")], Same),
    // Rows with empty pairs.
    (b"&", &[], Differs(&[("", ""), ("", "")])),
    (b"&&", &[], Differs(&[("", ""), ("", ""), ("", "")])),
    (b"a=b&", &[("a", "b")], Differs(&[("a", "b"), ("", "")])),
    (b"&a=b", &[("a", "b")], Differs(&[("", ""), ("a", "b")])),
    (b"a=b&&c=d", &[("a", "b"), ("c", "d")], Differs(&[("a", "b"), ("", ""), ("c", "d")])),
    (b"&=&", &[("", "")], Differs(&[("", ""), ("", ""), ("", "")])),
    // Rows with semicolons.
    (b"a=b;c=d", &[("a", "b;c=d")], Differs(&[("a", "b"), ("c", "d")])),
    (b"a;b", &[("a;b", "")], Differs(&[("a", ""), ("b", "")])),
    (b";", &[(";", "")], Differs(&[("", ""), ("", "")])),
    (b"a=b&c=d;e=f", &[("a", "b"), ("c", "d;e=f")], Differs(&[("a", "b"), ("c", "d"), ("e", "f")])),
    // Rows with spaces that are not written as `+`.
    (b" ", &[(" ", "")], Differs(&[("", "")])),
    (b" a=b", &[(" a", "b")], Differs(&[("a", "b")])),
    (b"a=b& c=d", &[("a", "b"), (" c", "d")], Differs(&[("a", "b"), ("c", "d")])),
    (b"a=b&  c=d", &[("a", "b"), ("  c", "d")], Differs(&[("a", "b"), (" c", "d")])),
    (b"a=b; c=d", &[("a", "b; c=d")], Differs(&[("a", "b"), ("c", "d")])),
    (b"; a", &[("; a", "")], Differs(&[("", ""), ("a", "")])),
    (b"a =b", &[("a ", "b")], Same),
    (b"a= b", &[("a", " b")], Same),
    // Rows with plus signs and escapes.
    (b"a+b=c+d", &[("a b", "c d")], Same),
    (b"+=+", &[(" ", " ")], Same),
    (b"a=%2B", &[("a", "+")], Same),
    (b"%41=%42", &[("A", "B")], Same),
    (b"a=%7e%7E", &[("a", "~~")], Same),
    (b"a=%26%3b%3D", &[("a", "&;=")], Same),
    (b"a%3Db=c", &[("a=b", "c")], Same),
    (b"a=%00", &[("a", "\0")], Same),
    (b"a=\0b", &[("a", "\0b")], Same),
    (b"a=%0D%0A", &[("a", "\r\n")], Same),
    (b"a=%", &[("a", "%")], Same),
    (b"a=%4", &[("a", "%4")], Same),
    (b"%", &[("%", "")], Same),
    (b"a=%zz", &[("a", "%zz")], Same),
    (b"a=%4z", &[("a", "%4z")], Same),
    (b"a=%%41", &[("a", "%A")], Same),
    (b"a=%+1", &[("a", "% 1")], Same),
    (b"a=%2541", &[("a", "%41")], Same),
    (b"a=%u0041", &[("a", "%u0041")], Same),
    (b"a=%c3%a9&%E2%82%AC=\xe2\x82\xac", &[("a", "\u{e9}"), ("\u{20ac}", "\u{20ac}")], Same),
];

#[test]
fn forms_are_read_as_browsers_and_as_plack_do() {
    for (form, whatwg, plack) in ROWS {
        let plack = if let Differs(plack) = plack { plack } else { whatwg };
        for (dialect, expected) in [(Dialect::Whatwg, whatwg), (Dialect::Plack, plack)] {
            let found: Vec<(String, String)> = pairs(form, dialect)
                .map(|pair| (text(pair.name).into_owned(), text(pair.value).into_owned()))
                .collect();
            let expected: Vec<_> =
                expected.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())).collect();
            assert_eq!(found, expected, "{dialect:?} {}", form.escape_ascii());
        }
    }
}

#[test]
fn bytes_that_are_not_utf_8_are_kept_or_replaced() {
    assert_eq!(&decode(b"%ff")[..], b"\xff");
    assert_eq!(&decode(b"\xff+")[..], b"\xff ");
    assert_eq!(text(b"%ff"), "\u{fffd}");
    assert_eq!(text(b"a\xffb"), "a\u{fffd}b");
    // A surrogate and a truncated sequence are invalid.
    assert_eq!(text(b"%ed%a0%80"), "\u{fffd}\u{fffd}\u{fffd}");
    assert_eq!(text(b"%e2%82"), "\u{fffd}");
    // The byte order mark is decoded like any other character.
    assert_eq!(text(b"%ef%bb%bfa"), "\u{feff}a");
}

#[test]
fn values_without_escapes_are_not_copied() {
    use std::borrow::Cow;
    assert!(matches!(decode(b"plain-text_1"), Cow::Borrowed(_)));
    assert!(matches!(text(b"plain-text_1"), Cow::Borrowed(_)));
    assert!(matches!(decode(b"a+b"), Cow::Owned(_)));
}

#[test]
fn forms_are_written_as_browsers_do() {
    for (name, value, expected) in [
        (&b"a"[..], &b"b"[..], "a=b"),
        (b"", b"", "="),
        (b"a b", b"*-._", "a+b=*-._"),
        (b"a&b", b"c=d+e;f", "a%26b=c%3Dd%2Be%3Bf"),
        (b"~", b"(!')", "%7E=%28%21%27%29"),
        (b"\xe9", "\u{20ac}".as_bytes(), "%E9=%E2%82%AC"),
        (b"\r\n", b"\0\x7f", "%0D%0A=%00%7F"),
    ] {
        let mut out = Vec::new();
        encode(&mut out, name, value);
        assert_eq!(out, expected.as_bytes(), "{}", name.escape_ascii());
    }
    let mut out = Vec::new();
    for (name, value) in [("a", "1"), ("a", "2")] {
        encode(&mut out, name.as_bytes(), value.as_bytes());
    }
    assert_eq!(out, b"a=1&a=2");
}

/// Returns each form of the table, and random forms of bytes with a special meaning. All runs use
/// the same forms.
fn forms_for_perl() -> Vec<Vec<u8>> {
    let mut forms: Vec<Vec<u8>> = ROWS.iter().map(|(form, ..)| form.to_vec()).collect();
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    for length in (0..2_000).map(|number| number % 24) {
        let byte = |_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            b"&;=+% a4fFz\xff\0"[state as usize % 13]
        };
        forms.push((0..length).map(byte).collect());
    }
    forms
}

/// `WWW::Form::UrlEncoded::XS` reads one form per line, in hexadecimal digits. It prints the names
/// and values of the pairs in hexadecimal digits, with a space after each.
#[test]
fn the_module_that_plack_uses_reads_the_same() {
    let script = "use WWW::Form::UrlEncoded::XS 'parse_urlencoded'; while (<STDIN>) { chomp; \
        print map({ unpack('H*', $_) . ' ' } parse_urlencoded(pack 'H*', $_)), qq(\\n) }";
    if !forebay_testkit::peer::has(&["libwww-form-urlencoded-xs-perl"]) {
        return;
    }
    let forms = forms_for_perl();
    let hex = |bytes: &[u8]| bytes.iter().map(|b| format!("{b:02x}")).collect::<String>();
    let folder = forebay_testkit::folder::Folder::new();
    let lines: String = forms.iter().map(|form| hex(form) + "\n").collect();
    folder.write("forms", &lines);
    let output = std::process::Command::new("perl")
        .args(["-e", script])
        .stdin(std::fs::File::open(folder.path().join("forms")).expect("it was written"))
        .output()
        .expect("perl runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let answers = String::from_utf8(output.stdout).expect("digits");
    assert_eq!(answers.lines().count(), forms.len());
    for (form, answer) in forms.iter().zip(answers.lines()) {
        let ours: String = pairs(form, Dialect::Plack)
            .flat_map(|pair| [pair.name, pair.value])
            .map(|text| hex(&decode(text)) + " ")
            .collect();
        assert_eq!(ours, answer, "{}", form.escape_ascii());
    }
}

proptest::proptest! {
    #[test]
    fn written_values_are_read_back(
        form in proptest::collection::vec(
            proptest::prelude::any::<(Vec<u8>, Vec<u8>)>(), 0..8),
    ) {
        let mut out = Vec::new();
        for (name, value) in &form {
            encode(&mut out, name, value);
        }
        for dialect in [Dialect::Whatwg, Dialect::Plack] {
            let found: Vec<_> = pairs(&out, dialect)
                .map(|pair| (decode(pair.name).into_owned(), decode(pair.value).into_owned()))
                .collect();
            proptest::prop_assert_eq!(&found, &form);
        }
    }
}
