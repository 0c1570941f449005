//! Tests of forms in parts: valid forms are decoded and invalid ones rejected. The result does not
//! depend on the pieces in which the bytes arrive.

use forebay_wire::multipart::{Boundary, Event, FormDecoder, FormLimits, MultipartError, plain};

use MultipartError::*;

const LIMITS: FormLimits = FormLimits { parts: 4, head: 200, content: 64 };

/// The parts as `name`, `name (file)` or `name (file, type)`, each followed by a colon and its
/// content.
type Outcome = Result<Vec<String>, MultipartError>;

/// Reads a form in these pieces, as from a socket. Bytes are dropped when the decoder has consumed
/// them.
fn read(pieces: &[&[u8]], limits: FormLimits) -> Outcome {
    let mut decoder = FormDecoder::new(&Boundary::new(b"B").unwrap(), limits);
    let mut buffer = Vec::new();
    let mut parts: Vec<String> = Vec::new();
    let mut is_open = false;
    for piece in pieces {
        buffer.extend_from_slice(piece);
        loop {
            let step = decoder.decode(&buffer)?;
            assert!(step.consumed <= buffer.len());
            match step.event {
                Event::More | Event::End => {
                    buffer.drain(..step.consumed);
                    break;
                }
                Event::Part(part) => {
                    assert!(!std::mem::replace(&mut is_open, true));
                    let text = |span: forebay_wire::Span| {
                        plain(span.of(&buffer)).escape_ascii().to_string()
                    };
                    let of_file = match (part.filename.map(text), part.content_type.map(text)) {
                        (Some(file), Some(kind)) => format!(" ({file}, {kind})"),
                        (Some(file), None) => format!(" ({file})"),
                        (None, Some(kind)) => format!(" (, {kind})"),
                        (None, None) => String::new(),
                    };
                    parts.push(format!("{}{of_file}: ", text(part.name)));
                }
                Event::Content(range) => {
                    assert!(is_open && !range.is_empty());
                    let part = parts.last_mut().expect("a part has begun");
                    part.push_str(&buffer[range].escape_ascii().to_string());
                }
                Event::PartEnd => assert!(std::mem::replace(&mut is_open, false)),
            }
            buffer.drain(..step.consumed);
        }
        let held = LIMITS.head.max(limits.head) + 100;
        assert!(decoder.is_done() || buffer.len() <= held, "{} bytes held back", buffer.len());
    }
    decoder.finish()?;
    Ok(parts)
}

/// Returns the outcome for a form. It must be equal for single bytes and random divisions.
fn outcome(form: &[u8], limits: FormLimits) -> Outcome {
    let whole = read(&[form], limits);
    let single: Vec<&[u8]> = form.chunks(1).collect();
    assert_eq!(read(&single, limits), whole, "byte by byte: {}", form.escape_ascii());
    let mut state = 0x2545_f491_4f6c_dd1du64;
    for _ in 0..20 {
        let mut pieces = Vec::new();
        let mut rest = form;
        while !rest.is_empty() {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            let (piece, after) = rest.split_at((1 + state as usize % 20).min(rest.len()));
            pieces.push(piece);
            rest = after;
        }
        assert_eq!(read(&pieces, limits), whole, "in pieces: {}", form.escape_ascii());
    }
    whole
}

/// Returns a form of one part with this head.
fn with_head(head: &str) -> Vec<u8> {
    format!("--B\r\n{head}\r\n\r\nx\r\n--B--").into_bytes()
}

/// Returns a form of one field with this content.
fn with_content(content: &str) -> Vec<u8> {
    format!("--B\r\n{A}\r\n\r\n{content}\r\n--B--\r\n").into_bytes()
}

const A: &str = "Content-Disposition: form-data; name=\"a\"";

#[test]
fn forms_of_browsers() {
    let form = b"--B\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\none\r\n\
        --B\r\nContent-Disposition: form-data; name=\"f\"; filename=\"x.png\"\r\n\
        Content-Type: image/png\r\n\r\n\x89PNG\r\n\x1a\n\0\r\n\
        --B\r\nContent-Disposition: form-data; name=\"g\"; filename=\"\"\r\n\
        Content-Type: application/octet-stream\r\n\r\n\r\n--B--\r\n";
    let expected = [
        "a: one",
        "f (x.png, image/png): \\x89PNG\\r\\n\\x1a\\n\\x00",
        "g (, application/octet-stream): ",
    ];
    assert_eq!(outcome(form, LIMITS).unwrap(), expected);
    assert_eq!(outcome(b"--B--\r\n", LIMITS).unwrap(), [""; 0]);
}

#[test]
fn contents_that_look_like_delimiters() {
    for content in [
        "",
        "\r\n",
        "\r",
        "\n",
        "--B",
        "--B--x",
        "\n--B",
        "\r--B",
        "\r\n--",
        "\r\n-B",
        "\r\n--b",
        "\r\n--A",
        "\r\r\n",
        "\r\n\r\n--",
        "x\r\n -- B",
        "--",
        "-",
        "\r\n--\r\n--\r\n-",
    ] {
        let expected = format!("a: {}", content.as_bytes().escape_ascii());
        // A delimiter directly after the blank line is valid. The CRLF of the blank line is then a
        // part of the delimiter.
        let expected = match content {
            "--B" | "--B--x" => {
                assert_ne!(outcome(&with_content(content), LIMITS), Ok(vec![expected]));
                continue;
            }
            _ => expected,
        };
        assert_eq!(outcome(&with_content(content), LIMITS), Ok(vec![expected]), "{content:?}");
    }
}

#[test]
fn text_around_the_parts_is_ignored() {
    let form = String::from_utf8(with_content("x")).unwrap();
    for (before, after) in [
        ("", ""),
        ("\r\n", ""),
        ("preamble\r\n", "epilogue"),
        ("--\r\n--A\r\n", "\r\n--B\r\n\r\n"),
        ("x--B\r\n\r\n", "--B--"),
        ("\n--B\r\n\r\n", "\0"),
    ] {
        let around = format!("{before}{form}{after}");
        assert_eq!(outcome(around.as_bytes(), LIMITS), Ok(vec!["a: x".into()]), "{around:?}");
    }
    // The form contains white space that a gateway has added after a delimiter. Its first part has
    // no content, and no line for the content.
    let padded = format!("--B \t\r\n{A}\r\n\r\n--B\t\r\n{A}\r\n\r\nx\r\n--B--");
    assert_eq!(outcome(padded.as_bytes(), LIMITS), Ok(vec!["a: ".into(), "a: x".into()]));
}

#[test]
fn heads_of_parts() {
    for (head, expected) in [
        ("Content-Disposition: form-data; name=a", "a: x"),
        ("content-disposition:FORM-DATA;NAME=\"a\"", "a: x"),
        ("Content-Disposition: form-data ; name=\"a\" ; filename=b.c ;", "a (b.c): x"),
        ("Content-Disposition: form-data; filename=\"b\"; name=\"a\"", "a (b): x"),
        ("Content-Disposition: form-data; name=\"\"", ": x"),
        ("Content-Disposition: form-data; name=\"a;b=c\"", "a;b=c: x"),
        ("Content-Disposition: form-data; name=\"a\\\"b\"", "a\\\"b: x"),
        ("Content-Disposition: form-data; name=\"a%22b%0D%0A\"", "a%22b%0D%0A: x"),
        (
            "Content-Disposition: form-data; name=\"a\"; filename=\"C:\\dir\\f.txt\"",
            "a (C:\\\\dir\\\\f.txt): x",
        ),
        (
            "Content-Disposition: form-data; name=\"a\"; filename=\"../../etc/passwd\"",
            "a (../../etc/passwd): x",
        ),
        ("Content-Disposition: form-data; name=\"a\"; filename*=utf-8''b", "a: x"),
        ("Content-Disposition: form-data; name=\"\u{e9}\"", "\\xc3\\xa9: x"),
        ("X: y\r\nContent-Disposition: form-data; name=\"a\"\r\nContent-Length: 9", "a: x"),
        (
            "Content-Type: text/plain; charset=utf-8\r\nContent-Disposition: form-data; name=\"a\"",
            "a (, text/plain; charset=utf-8): x",
        ),
    ] {
        assert_eq!(outcome(&with_head(head), LIMITS), Ok(vec![expected.to_owned()]), "{head}");
    }
}

#[test]
fn heads_that_are_ambiguous_are_refused() {
    for (head, error) in [
        ("X: y", Disposition),
        ("Content-Disposition: attachment; name=\"a\"", Disposition),
        ("Content-Disposition: form-data", Disposition),
        ("Content-Disposition: form-data; filename=\"a\"", Disposition),
        ("Content-Disposition: form-data; name", Disposition),
        ("Content-Disposition: form-data; name=", Disposition),
        ("Content-Disposition: form-data; name=a b", Disposition),
        ("Content-Disposition: form-data; name=\"a", Disposition),
        ("Content-Disposition: form-data; name=\"a\\\"", Disposition),
        ("Content-Disposition: form-data; name=\"a\"b", Disposition),
        ("Content-Disposition: form-data; name=\"a\" filename=\"b\"", Disposition),
        ("Content-Disposition: form-data; name =\"a\"", Disposition),
        ("Content-Disposition: form-data; name=\"a\"; name=\"b\"", Disposition),
        ("Content-Disposition: form-data; name=\"a\"; filename=b; filename=c", Disposition),
        ("Content-Disposition: form-data, name=\"a\"", Disposition),
        (&format!("{A}\r\n{A}"), Disposition),
        (&format!("{A}\r\nContent-Type: a/b\r\nContent-Type: c/d"), Disposition),
        (&format!("{A}\r\n folded: y"), Head),
        (&format!("{A};\r\n\tfilename=b"), Head),
        (&format!("{A}\nX: y"), Head),
        (&format!("{A}\r\nno colon"), Head),
        (&format!("{A}\r\n: y"), Head),
        (&format!("{A}\r\nX : y"), Head),
        (&format!("{A}\r\nX: \0"), Head),
        (&format!("{A}\r\nX: a\rb"), Head),
    ] {
        assert_eq!(outcome(&with_head(head), LIMITS), Err(error), "{head:?}");
    }
}

#[test]
fn delimiters_that_are_ambiguous_are_refused() {
    for (form, error) in [
        (format!("--Bx\r\n{A}\r\n\r\n\r\n--B--"), Delimiter),
        (format!("--B\n{A}\r\n\r\n\r\n--B--"), Delimiter),
        (format!("--B\r{A}\r\n\r\n\r\n--B--"), Delimiter),
        (format!("--B-\r\n{A}\r\n\r\n\r\n--B--"), Delimiter),
        (format!("--B x\r\n{A}\r\n\r\n\r\n--B--"), Delimiter),
        (format!("--B{}\r\n{A}\r\n\r\n\r\n--B--", " ".repeat(65)), Delimiter),
        (format!("--B\r\n{A}\r\n\r\nx\r\n--Bx\r\n--B--"), Delimiter),
        ("--B\r\n--B--".to_owned(), Premature),
        ("--B\r\n\r\nx\r\n--B--".to_owned(), Disposition),
        (format!("--B\r\n{A}\r\n\r\nx\r\n--B"), Premature),
        (format!("--B\r\n{A}\r\n\r\nx\r\n--B-"), Premature),
        (format!("--B\r\n{A}\r\n\r\nx\n--B--"), Premature),
        (format!("--B\r\n{A}\r\n\r\nx"), Premature),
        (format!("--B\r\n{A}\r\n"), Premature),
        ("--B".to_owned(), Premature),
        ("no delimiter".to_owned(), Premature),
        (String::new(), Premature),
    ] {
        assert_eq!(outcome(form.as_bytes(), LIMITS), Err(error), "{form:?}");
    }
}

#[test]
fn each_limit_is_kept() {
    let part = format!("--B\r\n{A}\r\n\r\nx\r\n");
    assert_eq!(outcome(format!("{}--B--", part.repeat(4)).as_bytes(), LIMITS).unwrap().len(), 4);
    assert_eq!(outcome(format!("{}--B--", part.repeat(5)).as_bytes(), LIMITS), Err(Parts));

    assert!(outcome(&with_content(&"x".repeat(64)), LIMITS).is_ok());
    assert_eq!(outcome(&with_content(&"x".repeat(65)), LIMITS), Err(ContentTooLarge));

    // A head of 200 bytes, including the blank line, fits. A head of 201 bytes does not.
    let padded =
        |length: usize| with_head(&format!("{A}\r\nX: {}", "y".repeat(length - A.len() - 9)));
    assert!(outcome(&padded(200), LIMITS).is_ok());
    assert_eq!(outcome(&padded(201), LIMITS), Err(HeadTooLarge));
    assert_eq!(
        outcome(format!("--B\r\n{}", "y".repeat(300)).as_bytes(), LIMITS),
        Err(HeadTooLarge)
    );

    let form = String::from_utf8(with_content("x")).unwrap();
    assert!(outcome(format!("{}\r\n{form}", "y".repeat(200)).as_bytes(), LIMITS).is_ok());
    let preamble = format!("{}\r\n{form}", "y".repeat(201));
    assert_eq!(outcome(preamble.as_bytes(), LIMITS), Err(HeadTooLarge));
    assert_eq!((Parts.status(), Head.status()), (413, 400));
}

#[test]
fn a_long_content_is_not_held_back() {
    let limits = FormLimits { content: 1 << 30, ..LIMITS };
    let mut decoder = FormDecoder::new(&Boundary::new(b"B").unwrap(), limits);
    let form = with_content(&"y\r\n".repeat(100_000));
    let (mut at, mut content, mut steps) = (0, 0, 0);
    while !decoder.is_done() {
        // The decoder gets at most 1,000 bytes at a time.
        let step = decoder.decode(&form[at..form.len().min(at + 1000)]).unwrap();
        if let Event::Content(range) = &step.event {
            content += range.len();
        }
        assert!(step.consumed > 0 || step.event == Event::End);
        at += step.consumed;
        steps += 1;
    }
    assert_eq!(content, 300_000);
    assert!(steps < 400, "{steps}");
}

/// Returns forms as browsers write them. Their contents consist of the bytes of delimiters. All
/// runs use the same forms.
fn forms_for_perl() -> Vec<Vec<u8>> {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut random = |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 16) as usize % below
    };
    let mut forms = Vec::new();
    for _ in 0..500 {
        let mut form = Vec::new();
        for _ in 0..1 + random(4) {
            let name = ["a", "", "a b", "a;b=c", "a%22b", "a\\\"b", "\u{e9}"][random(7)];
            let file = [
                "",
                "",
                "; filename=\"x.png\"\r\nContent-Type: image/png",
                "; filename=\"C:\\d\\f\"",
            ];
            let head =
                format!("Content-Disposition: form-data; name=\"{name}\"{}", file[random(4)]);
            let content: Vec<u8> =
                (0..random(30)).map(|_| b"\r\n\r\n---Bx\xff\0"[random(11)]).collect();
            if [b"\r\n", &content[..]].concat().windows(5).any(|window| window == b"\r\n--B") {
                continue;
            }
            form.extend_from_slice(format!("--B\r\n{head}\r\n\r\n").as_bytes());
            form.extend_from_slice(&[&content[..], b"\r\n"].concat());
        }
        form.extend_from_slice(b"--B--\r\n");
        forms.push(form);
    }
    forms
}

/// Perl program that prints the content of each form in hexadecimal digits: fields as `name=value`,
/// then files as `name:filename=content`, with a space after each.
const PERL: &str = "use HTTP::Entity::Parser::MultiPart; use File::Temp; while (<STDIN>) { chomp; \
    my %env = (CONTENT_TYPE => 'multipart/form-data; boundary=B'); \
    my $parser = HTTP::Entity::Parser::MultiPart->new(\\%env); \
    $parser->add(pack 'H*', $_); my ($fields, $files) = $parser->finalize; \
    while (my ($name, $value) = splice @$fields, 0, 2) { printf '%s=%s ', map unpack('H*', $_), $name, $value } \
    while (my ($name, $file) = splice @$files, 0, 2) { \
        open my $handle, '<:raw', $file->{tempname} or die; my $content = do { local $/; <$handle> } // ''; \
        printf '%s:%s=%s ', map unpack('H*', $_), $name, $file->{filename}, $content } print qq(\\n) }";

#[test]
fn the_module_that_plack_uses_reads_the_same() {
    if !forebay_testkit::peer::has(&["libhttp-entity-parser-perl"]) {
        return;
    }
    let forms = forms_for_perl();
    let hex = |bytes: &[u8]| bytes.iter().map(|b| format!("{b:02x}")).collect::<String>();
    let folder = forebay_testkit::folder::Folder::new();
    let lines: String = forms.iter().map(|form| hex(form) + "\n").collect();
    let file = folder.write("forms", &lines);
    let output = std::process::Command::new("perl")
        .args(["-e", PERL])
        .stdin(std::fs::File::open(file).expect("it was written"))
        .output()
        .expect("perl runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let answers = String::from_utf8(output.stdout).expect("digits");
    assert_eq!(answers.lines().count(), forms.len());
    for (form, answer) in forms.iter().zip(answers.lines()) {
        assert_eq!(as_perl_prints(form, hex), answer, "{}", form.escape_ascii());
    }
}

fn as_perl_prints(form: &[u8], hex: impl Fn(&[u8]) -> String) -> String {
    let mut decoder = FormDecoder::new(&Boundary::new(b"B").unwrap(), FormLimits::default());
    let (mut fields, mut files) = (String::new(), String::new());
    let (mut at, mut part) = (0, None);
    while !decoder.is_done() {
        let shown = &form[at..];
        let step = decoder.decode(shown).expect("a good form");
        match step.event {
            Event::Part(head) => part = Some((head, shown, String::new())),
            Event::Content(range) => part.as_mut().unwrap().2.push_str(&hex(&shown[range])),
            Event::PartEnd => {
                let (head, shown, content) = part.take().unwrap();
                let name = hex(head.name.of(shown));
                match head.filename {
                    None => fields.push_str(&format!("{name}={content} ")),
                    Some(file) => {
                        files.push_str(&format!("{name}:{}={content} ", hex(file.of(shown))));
                    }
                }
            }
            Event::More | Event::End => {}
        }
        at += step.consumed;
    }
    fields + &files
}

proptest::proptest! {
    #[test]
    fn written_values_are_read_back(
        contents in proptest::collection::vec("[\r\n\\-Bx]{0,20}", 0..4),
    ) {
        proptest::prop_assume!(contents.iter().all(|content| !format!("\r\n{content}").contains("\r\n--B")));
        let mut form = String::new();
        for content in &contents {
            form.push_str(&format!("--B\r\n{A}\r\n\r\n{content}\r\n"));
        }
        form.push_str("--B--\r\n");
        let expected: Vec<_> =
            contents.iter().map(|content| format!("a: {}", content.as_bytes().escape_ascii())).collect();
        proptest::prop_assert_eq!(outcome(form.as_bytes(), LIMITS), Ok(expected));
    }

    #[test]
    fn nothing_panics(form in "(--B|\r\n|--|Content-Disposition: form-data; name=|\"|a|;|:|\\\\| ){0,40}") {
        let _ = outcome(form.as_bytes(), LIMITS);
    }
}
