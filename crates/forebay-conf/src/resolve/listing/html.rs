//! Finds the place of a placeholder in HTML: in text, in a tag, in an attribute or in a script.
//!
//! Escaping makes a value safe in text and in quoted attributes, but not in scripts, styles and
//! links. The automaton reads only the text that the administrator wrote into the template, so it
//! need not repair HTML as browsers do.

/// Attributes whose value is a style or a page.
const CODE_ATTRIBUTES: [&str; 2] = ["style", "srcdoc"];

/// A position in HTML.
#[derive(Clone, Debug, Default)]
pub(super) struct HtmlPosition {
    state: HtmlState,
    /// The name of the current tag, in lower case; with a slash before it for an end tag.
    tag: String,
    /// The name of the current attribute, in lower case.
    attribute: String,
    /// True at the first byte of the value of an attribute.
    is_value_start: bool,
    /// The last bytes in a script or a comment, to find its end.
    recent: Vec<u8>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum HtmlState {
    #[default]
    Text,
    /// After `<`.
    Open,
    TagName,
    /// In a tag after its name. `is_new` is true if the next letter begins an attribute.
    Tag {
        is_new: bool,
    },
    /// After `=`.
    BeforeValue,
    Quoted(u8),
    Unquoted,
    /// In an element whose content has no tags, such as `<script>`.
    Raw,
    /// After `<!`.
    Declaration,
    Comment,
}

/// Elements whose content has no tags.
const RAW: [&str; 8] =
    ["script", "style", "title", "textarea", "iframe", "xmp", "noembed", "noframes"];

/// Attributes whose value is only text.
const TEXT_ATTRIBUTES: [&str; 6] = ["title", "alt", "value", "download", "label", "placeholder"];

impl HtmlPosition {
    /// Returns true if any escaped value is only text at this position: browsers never run it as
    /// code.
    pub(super) fn takes_free_text(&self) -> bool {
        match self.state {
            HtmlState::Text | HtmlState::Comment => true,
            HtmlState::Raw => matches!(&*self.tag, "title" | "textarea"),
            HtmlState::Quoted(_) => {
                let is_data =
                    ["data-", "aria-"].iter().any(|start| self.attribute.starts_with(start));
                is_data || TEXT_ATTRIBUTES.contains(&&*self.attribute)
            }
            _ => false,
        }
    }

    /// Returns true if the template may have a link at this position: in text, or at the start of
    /// an attribute's value. A later position in the value may follow `javascript:`. Browsers would
    /// then decode the link and run it as a script.
    pub(super) fn takes_link(&self) -> bool {
        let is_code = self.attribute.starts_with("on")
            || CODE_ATTRIBUTES.contains(&&*self.attribute)
            || self.attribute.is_empty();
        self.takes_free_text() || self.is_value_start && !is_code
    }

    /// Returns true if both positions have the same state, tag name and attribute name, such as two
    /// positions in text between tags.
    pub(super) fn is_same_place(&self, other: &Self) -> bool {
        let place =
            |position: &Self| (position.state, position.tag.clone(), position.attribute.clone());
        place(self) == place(other)
    }

    /// Advances by a byte.
    pub(super) fn push(&mut self, byte: u8) {
        let is_space = byte.is_ascii_whitespace();
        let was_before = self.state == HtmlState::BeforeValue;
        self.advance(byte, is_space);
        self.is_value_start = match self.state {
            HtmlState::BeforeValue => true,
            HtmlState::Quoted(_) => was_before,
            _ => false,
        };
    }

    fn advance(&mut self, byte: u8, is_space: bool) {
        match (self.state, byte) {
            (HtmlState::Text, b'<') => self.state = HtmlState::Open,
            (HtmlState::Text, _) => {}
            (HtmlState::Open, b'!') => self.enter(HtmlState::Declaration),
            (HtmlState::Open, b'/' | b'a'..=b'z' | b'A'..=b'Z') => {
                self.state = HtmlState::TagName;
                self.tag = char::from(byte.to_ascii_lowercase()).into();
            }
            (HtmlState::Open, b'<') => {}
            (HtmlState::Open, _) => self.state = HtmlState::Text,
            (
                HtmlState::TagName
                | HtmlState::Tag { .. }
                | HtmlState::BeforeValue
                | HtmlState::Unquoted,
                b'>',
            ) => {
                self.end_tag();
            }
            (HtmlState::TagName, b'/') => self.state = HtmlState::Tag { is_new: true },
            (HtmlState::TagName, _) if is_space => self.state = HtmlState::Tag { is_new: true },
            (HtmlState::TagName, _) => self.tag.push(byte.to_ascii_lowercase().into()),
            (HtmlState::Tag { .. }, b'=') => self.state = HtmlState::BeforeValue,
            (HtmlState::Tag { .. }, b'/') => self.state = HtmlState::Tag { is_new: true },
            (HtmlState::Tag { .. }, _) if is_space => self.state = HtmlState::Tag { is_new: true },
            (HtmlState::Tag { is_new }, _) => {
                if is_new {
                    self.attribute.clear();
                }
                self.attribute.push(byte.to_ascii_lowercase().into());
                self.state = HtmlState::Tag { is_new: false };
            }
            (HtmlState::BeforeValue, _) if is_space => {}
            (HtmlState::BeforeValue, b'"' | b'\'') => self.state = HtmlState::Quoted(byte),
            (HtmlState::BeforeValue, _) => self.state = HtmlState::Unquoted,
            (HtmlState::Quoted(quote), _) if byte != quote => {}
            (HtmlState::Quoted(_), _) => self.end_value(),
            (HtmlState::Unquoted, _) if is_space => self.end_value(),
            (HtmlState::Unquoted, _) => {}
            (HtmlState::Raw | HtmlState::Declaration | HtmlState::Comment, _) => {
                self.push_raw(byte);
            }
        }
    }

    fn enter(&mut self, state: HtmlState) {
        self.recent.clear();
        self.state = state;
    }

    fn end_value(&mut self) {
        self.attribute.clear();
        self.state = HtmlState::Tag { is_new: true };
    }

    fn end_tag(&mut self) {
        self.attribute.clear();
        if RAW.contains(&&*self.tag) {
            self.enter(HtmlState::Raw);
        } else {
            self.tag.clear();
            self.enter(HtmlState::Text);
        }
    }

    /// Advances in a script, a declaration or a comment.
    fn push_raw(&mut self, byte: u8) {
        // The longest text to find here is `</textarea` with a byte after it, so older bytes are
        // not needed.
        if self.recent.len() > 16 {
            self.recent.drain(..8);
        }
        self.recent.push(byte.to_ascii_lowercase());
        match self.state {
            HtmlState::Raw => {
                let Some((last, before)) = self.recent.split_last() else { return };
                let is_end = before.strip_suffix(self.tag.as_bytes());
                if is_end.is_some_and(|before| before.ends_with(b"</"))
                    && (matches!(last, b'>' | b'/') || last.is_ascii_whitespace())
                {
                    self.tag.insert(0, '/');
                    self.recent.clear();
                    self.state = HtmlState::TagName;
                    self.push(byte);
                }
            }
            HtmlState::Declaration if self.recent == b"--" => self.enter(HtmlState::Comment),
            HtmlState::Declaration if byte == b'>' => self.enter(HtmlState::Text),
            HtmlState::Comment if self.recent.ends_with(b"-->") => self.enter(HtmlState::Text),
            _ => {}
        }
    }
}
