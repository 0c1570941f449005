//! Passes bodies through the filter of a route.

use forebay_conf::Level;
use forebay_net::fault::Fault;

use super::{Length, Reply};
use crate::filter::{BodyFilter, SLICE, Unchanged};

impl Reply {
    /// Sets the filter of the route for the next reply.
    pub(crate) fn set_filter(&mut self, filter: Option<Box<BodyFilter>>) {
        self.next_filter = filter;
    }

    /// Adapts the head if the route changes the body of this reply. Returns the new length.
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
                let thread = self.stream().thread();
                thread.log_limited(
                    Level::Warn,
                    "`replace` has no effect on a reply with Content-Encoding; configure its \
                     server to send the text unencoded",
                );
                return length;
            }
        }
        if !self.to_head {
            self.filter = Some(filter);
        }
        Length::Unknown
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

    /// Passes on the end of the changed body.
    pub(super) async fn end_filter(&mut self) -> Result<(), Fault> {
        let mut is_full = true;
        while is_full {
            let Some(filter) = &mut self.filter else { return Ok(()) };
            let mut changed = Vec::new();
            is_full = filter.end(&mut changed)?;
            self.push_plain(&changed).await?;
        }
        self.filter = None;
        Ok(())
    }
}
