//! Passes bodies through the filter of a route.

use forebay_conf::Level;
use forebay_net::fault::Fault;

use super::{InternalRedirect, Length, Reply};
use crate::filter::{BodyChange, BodyFilter, SLICE, Unchanged};
use crate::stream::Stream;

/// Outcome of [`Reply::begin_page`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PageStart {
    /// The reply is not evaluated.
    No,
    /// The client wants only the head.
    HeadOnly,
    /// The client gets another reply: the evaluated page, or an error.
    Collects,
}

impl Reply {
    /// Sets the filter of the route for the next reply.
    pub(crate) fn set_filter(&mut self, filter: Option<Box<BodyFilter>>) {
        self.next_filter = filter;
    }

    /// Returns the route's change to the body of a reply with this media type. The caller must not
    /// serve ranges of a body that changes.
    pub fn body_change_of(&self, content_type: &str) -> BodyChange {
        let filter = self.next_filter.as_ref();
        filter.map_or(BodyChange::No, |filter| filter.change_of(content_type))
    }

    /// Adapts the head if the route changes the body of this reply. Returns `Unknown` in this case,
    /// and otherwise `length`.
    pub(super) fn begin_filter(&mut self, length: Length) -> Length {
        let Some(mut filter) = self.next_filter.take() else { return length };
        let announced = match length {
            Length::Known(0) | Length::None => return length,
            _ if self.status == 206 => return length,
            Length::Known(length) => Some(length),
            Length::Unknown => None,
        };
        match filter.begin(&mut self.out, self.fields, announced) {
            Ok(()) => {}
            Err(Unchanged::Other) => return length,
            Err(Unchanged::Encoded) => {
                self.warn_of_encoding();
                return length;
            }
        }
        if !self.to_head {
            self.filter = Some(filter);
        }
        Length::Unknown
    }

    /// Begins to collect the page if the reply is an SSI page. `has_date` is true if the head has a
    /// `Date`.
    pub(super) fn begin_page(&mut self, length: Length, has_date: bool) -> PageStart {
        let Some(next) = &mut self.next_filter else { return PageStart::No };
        let announced = match length {
            Length::None => return PageStart::No,
            _ if self.status == 206 && next.is_page(&self.out[self.fields..]) => {
                // The origin sent a part of the page's source. Do not send it, because the page's
                // conditions may hide this text.
                self.discard_for_redirect(InternalRedirect::Page {
                    status: 416,
                    fields: Vec::new(),
                });
                return PageStart::Collects;
            }
            _ if self.status == 206 => return PageStart::No,
            Length::Known(length) => Some(length),
            Length::Unknown => None,
        };
        if matches!(&self.stream, Some(Stream::Included(included)) if included.is_probe) {
            self.next_filter = None;
            return PageStart::No;
        }
        let mut filter = match next.begin_page(&mut self.out, self.fields, announced) {
            Ok(filter) => filter,
            Err(Unchanged::Other) => return PageStart::No,
            Err(Unchanged::Encoded) => {
                self.warn_of_encoding();
                return PageStart::No;
            }
        };
        if self.to_head {
            return PageStart::HeadOnly;
        }
        filter.set_page_head(self.status, &self.out[self.fields..], has_date);
        self.withhold();
        self.filter = Some(filter);
        PageStart::Collects
    }

    fn warn_of_encoding(&self) {
        self.stream().thread().log_limited(
            Level::Warn,
            "`replace` and `ssi` have no effect on a reply with Content-Encoding; configure its \
             server to send the text unencoded",
        );
    }

    /// Changes body bytes, and passes on the result.
    pub(super) async fn push_filtered(&mut self, data: &[u8]) -> Result<(), Fault> {
        for slice in data.chunks(SLICE) {
            if let Some(filter) = &mut self.filter {
                filter.take(slice)?;
            }
            let mut is_full = true;
            while is_full {
                let Some(filter) = &mut self.filter else { return Ok(()) };
                let mut changed = Vec::new();
                is_full = filter.step(&mut changed);
                self.push_plain(&changed).await?;
            }
        }
        Ok(())
    }

    /// Passes on the end of the changed body. If the body was an SSI page, requests the page's
    /// evaluation by an internal redirect.
    pub(super) async fn end_filter(&mut self) -> Result<(), Fault> {
        let mut is_full = true;
        while is_full {
            let Some(filter) = &mut self.filter else { return Ok(()) };
            let mut changed = Vec::new();
            is_full = filter.end(&mut changed)?;
            self.push_plain(&changed).await?;
        }
        if let Some(page) = self.filter.take().and_then(|mut filter| filter.take_page()) {
            self.redirect = Some(Box::new(InternalRedirect::Includes(Box::new(page))));
        }
        Ok(())
    }
}
